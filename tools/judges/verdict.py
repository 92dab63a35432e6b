"""What a judge is, and what it says of a case."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from edgefl.errors import EdgeflError, first_line

KINDS = ("equal", "refused", "wrong", "crashed", "skipped")
"""equal: as the database says. refused: edgefl's own error names the reason. wrong: another result. crashed: any other error, or no
result in time. skipped: the case has nothing to compare."""
LIMIT_S = 90.0
"""Processor seconds that a case may take."""


@dataclass(frozen=True)
class Verdict:
    """One of :data:`KINDS`, with its reason; an equal case has none."""

    kind: str
    reason: str = ""


EQUAL = Verdict("equal")


@dataclass(frozen=True)
class Case:
    """A comparison: its name within the subject, and how to judge it."""

    name: str
    judge: Callable[[], Verdict]


@dataclass(frozen=True)
class Judge:
    """A database of cases.

    Attributes:
        title: the heading on the page.
        about: what is compared, in a sentence or two of Markdown.
        packages: the packages whose versions the results depend on.
        subjects: returns the names of the subjects, such as operators.
        cases: subject → its cases.
        every: the fixed sample has the first case of every so many subjects.
    """

    title: str
    about: str
    packages: Sequence[str]
    subjects: Callable[[], Sequence[str]]
    cases: Callable[[str], Iterable[Case]]
    every: int = 20


class Skip(Exception):  # noqa: N818 - no error: it ends a case
    """A case has nothing to compare, for a reason."""


def skipping(reason: str) -> Callable[[], Verdict]:
    """Return the judge of a case that has nothing to compare."""
    return lambda: Verdict("skipped", reason)


@contextmanager
def reference(name: str) -> Iterator[None]:
    """Skip a case that ``name``, the other side of the comparison, cannot compute."""
    try:
        yield
    except (Skip, OutOfTime):
        raise
    except Exception as error:
        raise Skip(f"{name}: {first_line(error)}") from error


class OutOfTime(BaseException):
    """A case took longer than :data:`LIMIT_S`; no ``except Exception`` swallows it."""


def judged(case: Case, limit_s: float = LIMIT_S) -> Verdict:
    """Return the verdict of a case; whatever it raises is a verdict too.

    >>> def divides():
    ...     return Verdict(str(1 / 0))
    >>> judged(Case("division", divides)).kind
    'crashed'
    """

    def stop(number: int, frame: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        return case.judge()
    except Skip as skip:
        return Verdict("skipped", str(skip))
    except EdgeflError as error:
        return Verdict("refused", plain(first_line(error)))
    except OutOfTime:
        return Verdict("crashed", f"no result after {limit_s:g} processor seconds")
    except Exception as error:  # noqa: BLE001 - the verdict says so
        return Verdict("crashed", plain(f"{type(error).__name__}: {first_line(error)}{_place_in_edgefl(error)}"))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _place_in_edgefl(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/edgefl/" in f.filename and "/tools/" not in f.filename]
    return f" ({frames[-1].filename.rpartition('/edgefl/')[2]})" if frames else " (the judge)"


def plain(text: str) -> str:
    """Return a reason without what differs between two runs: addresses and paths.

    >>> plain("at 0x7f3a9c10, in /home/me/net.py")
    'at 0x…, in net.py'
    """
    return re.sub(r"(?<!\w)(?:/[\w.+-]+)+/", "", re.sub(r"0x[0-9a-f]{4,}", "0x…", text))[:240]
