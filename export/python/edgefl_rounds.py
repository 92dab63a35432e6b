"""The rounds that this device has met: a bundle that is older than one before it, or that has expired, is refused.

A signature stays right for ever, so somebody could send an old bundle of a publisher again. The file ``freshness.json`` of a bundle names
its line, the rounds of one run, and perhaps when the bundle expires. The manifest has its hash, so the publisher signed it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from edgefl_bundle import Bundle, InputError, read_regular, write
from edgefl_keys import config_folder

FRESHNESS = "freshness.json"
_MOST_BYTES = 1 << 20
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_LINE = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Freshness:
    """What a bundle says of its age: its ``line`` of rounds, and the second after which nobody should run it, in UTC; None: no end."""

    line: str
    expires: str | None = None

    @classmethod
    def of(cls, bundle: Bundle) -> Freshness | None:
        """Return what a bundle says of its age, None if it says nothing; InputError if the file is wrong."""
        if FRESHNESS not in bundle.manifest["files"]:
            return None
        try:
            values = json.loads(bundle.content(FRESHNESS))
            found = cls(values["line"], values.get("expires"))
            if not _LINE.fullmatch(found.line):
                raise ValueError("line: expected 64 hexadecimal digits")
            _ = found.expires is None or found.ends
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{bundle.folder / FRESHNESS}: expected a line of rounds, and when the bundle expires ({error})"
            ) from None
        return found

    @property
    def ends(self) -> datetime:
        """The time of ``expires``; ValueError if it is none."""
        if self.expires is None or not _TIME.fullmatch(self.expires):
            raise ValueError("expires: expected a time in UTC such as 2027-01-31T12:00:00Z")
        return datetime.strptime(self.expires, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


def rounds_file() -> Path:
    """Return the path of the file with the highest round of each publisher and line."""
    return config_folder() / "rounds.json"


def check_fresh(bundle: Bundle, publisher: str, now: datetime | None = None) -> None:
    """Store the round of a bundle that ``publisher`` signed.

    Raises:
        InputError: this device has met a later round of the publisher's line, or the bundle has expired.
    """
    fresh = Freshness.of(bundle)
    if fresh is None:
        return
    remedy = "get the newest bundle; --allow-older uses this one"
    if fresh.expires is not None and fresh.ends < (now or datetime.now(UTC)):
        raise InputError(f"{bundle.folder}: expired at {fresh.expires}; {remedy}")
    line, known = f"{publisher}/{fresh.line}", _known()
    before, round_ = known.get(line, -1), int(bundle.manifest["round"])
    if round_ < before:
        raise InputError(f"{bundle.folder}: is of round {round_}, and this device has met round {before} of it; {remedy}")
    if round_ > before:
        _write({**known, line: round_})


def _known() -> dict[str, int]:
    path = rounds_file()
    if not path.exists():
        return {}
    try:
        rounds = json.loads(read_regular(path, _MOST_BYTES, "the rounds that this device has met"))["rounds"]
        if not all(type(round_) is int and round_ >= 0 for round_ in rounds.values()):
            raise ValueError("not a table of rounds")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: expected the rounds that this device has met ({error}); repair it, or remove it") from None
    return dict(rounds)


def _write(rounds: dict[str, int]) -> None:
    path = rounds_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, (json.dumps({"rounds": rounds}, indent=2) + "\n").encode())
    except (OSError, InputError):
        raise InputError(
            f"{path}: cannot be written, to store the round of the bundle; --allow-older does not store it"
        ) from None
