"""What every kind of attack uses: commands in processes of their own, what may come of them, and cases that can be repeated."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

TOP = Path(__file__).parents[2]
CLIENT = TOP / "export" / "python"
TESTS = TOP / "tests"
"""Kinds of attacks on other programs build and start them as the tests do."""
COMMAND = "edgefl.cli.main:main"
USED = (
    "edgefl.run.simulate", "edgefl.run.bundle", "edgefl.run.verify", "edgefl.run.export", "edgefl.run.compare", "edgefl.run.whatif",
    "edgefl.run.device_round", "edgefl.run.dry_run", "edgefl.report.html", "edgefl.bundle.verify", "onnxruntime", "filelock",
    "torch._dynamo", *(f"edgefl.cli.{name}" for name in ("simulate", "export", "verify", "fed_round", "compare", "whatif", "report")),
)  # fmt: skip
"""What the commands import when they are called."""
PATIENCE_S = 240.0
"""A command of a case that takes longer hangs."""
_GONE_S = 60.0
"""How long processes may take to end after the one that started them."""

_OF_OTHERS = (".ses",)
"""Files that libraries leave in the folder of temporary files: onnxruntime keeps the number of a session there."""

Rng = np.random.Generator
Case = Callable[[Rng, Path], str]
"""Plays one case in a new folder, and returns in a few words what came of it; raises :class:`Finding`."""


class Unavailable(Exception):  # noqa: N818 - no failure: a kind of attack is left out
    """A kind of attack needs what this computer lacks; the message says what."""


class Finding(Exception):  # noqa: N818 - what an attack looks for; to the harness it is no error
    """What must not happen has happened."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

    Attributes:
        arguments: those of the command line.
        status: exit status; negative for a signal, None if it was killed for taking too long.
    """

    arguments: tuple[str, ...]
    status: int | None
    output: str
    errors: str

    def check(self, statuses: Collection[int] = (0, 1, 2, 3), names: Sequence[str | Path] = ()) -> Self:
        """Return this command if it ended as a command may.

        Raises:
            Finding: its status is not one of ``statuses``; it hangs, crashed or shows a traceback or control characters; it failed without
                a message, or with one that has none of ``names``.
        """
        said = self.errors.strip()
        problem = ""
        if self.status is None:
            problem = f"hangs ({PATIENCE_S:g} s)"
        elif self.status < 0:
            problem = f"died of {signal.Signals(-self.status).name}"
        elif "Traceback (most recent call last)" in said:
            problem = "a traceback"
        elif strange := sorted({one for one in self.output + said if not one.isprintable() and one not in "\n\t\r"}):
            problem = f"prints {strange!r}"
        elif self.status not in statuses:
            problem = f"exit status {self.status}, expected {' or '.join(map(str, sorted(statuses)))}"
        elif self.status and "Error: " not in said:
            problem = f"exit status {self.status} without a message"
        elif self.status and names and not any(str(name) in said for name in names):
            problem = f"a message that names none of {', '.join(map(str, names))}"
        if problem:
            raise Finding(f"{' '.join(self.arguments)}: {problem}\n{said[-3000:]}")
        return self


def program(command: Sequence[str | Path], *arguments: object, cwd: Path, **environment: str) -> Ended:
    """Run a program of its own, in the folder ``cwd``, to its end; kill it and its children if it hangs."""
    given, temporary = tuple(map(str, arguments)), Zygote.temporary(cwd)
    settings = {**os.environ, "TMPDIR": str(temporary), "XDG_CONFIG_HOME": str(temporary / "config"), **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "env": settings}
    process = subprocess.Popen(  # type: ignore[call-overload]
        [*map(str, command), *given], cwd=cwd, start_new_session=True, text=True, errors="replace", **pipes
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        return Ended((Path(str(command[-1])).name, *given), None, output, errors)
    return Ended((Path(str(command[-1])).name, *given), process.returncode, output, errors)


@dataclass
class Running:
    """A command that runs, the leader of a session of its own."""

    arguments: tuple[str, ...]
    pid: int
    folder: Path
    ask: Callable[[Mapping[str, Any]], Any]

    def wait(self, seconds: float = PATIENCE_S) -> Ended:
        """Wait for its end; kill it and its children after ``seconds``."""
        status = self.ask({"wait": self.pid, "seconds": seconds})["status"]
        if status is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.ask({"wait": self.pid, "seconds": seconds})
        return Ended(self.arguments, status, self._read("output"), self._read("errors"))

    def runs(self) -> bool:
        """Whether it has not ended yet; asks the system only, so that the end can be waited for."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def kill(self) -> Ended:
        """Kill it, not its children, which must end by themselves.

        Raises:
            Finding: some of them still run after a while.
        """
        os.kill(self.pid, signal.SIGKILL)
        ended = self.wait()
        self.check_gone()
        return ended

    def check_gone(self) -> None:
        """Raise :class:`Finding` if processes of its session still run after a while."""
        end = time.monotonic() + _GONE_S
        while left := self._session():
            if time.monotonic() > end:
                os.killpg(self.pid, signal.SIGKILL)
                raise Finding(f"edgefl {' '.join(self.arguments)}: left behind: {'; '.join(left.values())}")
            time.sleep(0.01)

    def _session(self) -> dict[int, str]:
        """Return the processes of the session that run: number → command line."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                pid, fields = int(path.name), (path / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[3]) == self.pid and fields[0] != "Z":
                    found[pid] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
            except (OSError, ValueError, IndexError):
                continue
        return found

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8", errors="surrogateescape")


class Zygote:
    """Starts commands, each in a process forked from one that has imported what they need; see :mod:`attacks.zygote`."""

    def __init__(self, function: str = COMMAND, used: Sequence[str] = USED, path: Path = TOP) -> None:
        command = [sys.executable, "-P", str(Path(__file__).with_name("zygote.py")), function, *used]
        paths = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
        self._keys = tempfile.TemporaryDirectory(prefix="attack-keys-")  # the user's own keys stay out of it
        environment = {
            **os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200", "XDG_CONFIG_HOME": self._keys.name,
        }  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, encoding="utf-8"
        )
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()
        self._keys.cleanup()

    def start(self, *arguments: object, cwd: Path, file_bytes: int | None = None, **environment: str) -> Running:
        """Start a command in the folder ``cwd``; each file that it writes may have ``file_bytes`` (None: no limit)."""
        spoken, folder = tuple(map(str, arguments)), Path(tempfile.mkdtemp(prefix="said-", dir=self.home(cwd)))
        order = {
            "arguments": spoken, "cwd": str(cwd), "output": str(folder / "output"), "errors": str(folder / "errors"),
            "environment": {"TMPDIR": str(self.temporary(cwd)), **environment}, "file_bytes": file_bytes,
        }  # fmt: skip
        return Running(spoken, self._ask(order)["pid"], folder, self._ask)

    def run(self, *arguments: object, cwd: Path, **how: Any) -> Ended:
        """Run a command to its end; for its children see :meth:`Running.check_gone`."""
        running = self.start(*arguments, cwd=cwd, **how)
        ended = running.wait()
        running.check_gone()
        return ended

    @staticmethod
    def home(cwd: Path) -> Path:
        """Return the folder beside ``cwd`` with what its commands said."""
        return _made(cwd.parent / f"{cwd.name}-said")

    @staticmethod
    def temporary(cwd: Path) -> Path:
        """Return the folder beside ``cwd`` for temporary files of its commands."""
        return _made(cwd.parent / f"{cwd.name}-tmp")

    def _ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"the process that starts commands ended with status {self._process.wait()}")
        return json.loads(line)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass
class Bench:
    """Where attacks prepare what they attack: commands, and a folder for things that all cases of all kinds share.

    Attributes:
        opened: what is closed after the last case.
        prepared_s: how long the preparation of all these things took.
    """

    home: Path
    edgefl: Zygote
    opened: contextlib.ExitStack
    prepared_s: float = 0.0
    _made: dict[str, Path] = field(default_factory=dict)
    _preparing: bool = False

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the path ``name`` below the bench, made at the first call by ``make``; cases copy it or only read it."""
        if name not in self._made:
            path = _made(self.home) / name
            shutil.rmtree(path, ignore_errors=True)
            with self.preparing():
                make(path)
            self._made[name] = path
        return self._made[name]

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Count the time of the block as preparation."""
        outer, started_s = not self._preparing, time.monotonic()
        self._preparing = True
        try:
            yield
        finally:
            if outer:
                self._preparing = False
                self.prepared_s += time.monotonic() - started_s

    @cached_property
    def client(self) -> Zygote:
        """What starts the client of devices, without torch."""
        return self.opened.enter_context(Zygote("edgefl_client:main", ("onnxruntime",), CLIENT))

    def run(self, *arguments: object) -> None:
        """Run a command that must succeed, in the bench's folder."""
        self.edgefl.run(*arguments, cwd=_made(self.home)).check((0,))


def tree(folder: Path, leave_out: Collection[str] = ()) -> dict[str, str]:
    """Return path → SHA-256 of the files below ``folder``, hidden ones included, without the names in ``leave_out``."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in leave_out)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def same(found: Mapping[str, str], wanted: Mapping[str, str], what: str) -> None:
    """Raise :class:`Finding` unless two trees are the same."""
    if differ := sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name)):
        raise Finding(f"{what}: other content than expected: {', '.join(differ)}")


def check_clean(here: Path) -> None:
    """Raise :class:`Finding` if a temporary file is left in the folder ``here`` of a case, or in that of its temporary files."""
    places = (Zygote.temporary(here).iterdir(), here.rglob(".*"))
    if left := [str(path) for found in places for path in found if path.name not in _OF_OTHERS]:
        raise Finding(f"left behind: {', '.join(left)}")


def generator_of(seed: int, kind: str, number: int) -> Rng:
    """Return the random numbers of one case."""
    return np.random.default_rng([seed, *kind.encode(), number])
