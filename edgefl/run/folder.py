"""The folder of one run: its files, when it may be written, and how it is read."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from edgefl.bundle.manifest import MANIFEST
from edgefl.config import RunConfig, admit_keys, changed, lengthened
from edgefl.engine.contract import is_remote
from edgefl.errors import CheckpointError, ConfigError, StorageError
from edgefl.models.base import Architecture
from edgefl.records import RoundRecord
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import read_rounds
from edgefl.server import checkpoint
from edgefl.server.client_store import ClientStore
from edgefl.server.state import ServerState
from edgefl.timing.spans import span
from edgefl.timing.stages import Stages
from edgefl.util.claims import check_claims
from edgefl.util.files import TomlTable, storage_errors, toml_in, write_bytes
from edgefl.util.hashes import HASHES, ROUNDS, Hashes, checked, is_new
from edgefl.util.lock import LOCK, only_writer
from edgefl.util.networks import is_own, title_of

OnRound = Callable[[RoundRecord], None]
"""Called with the record of every round."""
Notify = Callable[[str], None]
"""Called with a line of text for the user."""
MODEL = "model.safetensors"
"""The server's state after the last round."""
CONFIG = "config.toml"
FED_ROUND = "fed-round.json"
_OF_EXPORT = "-run"
"""Ends the name of the folder beside a bundle without a run, from which its rounds continue."""


def beside(bundle: Path) -> Path:
    """Return the folder of the rounds that the export of a network to ``bundle`` begins."""
    return bundle.with_name(f"{bundle.name}{_OF_EXPORT}")


@dataclass(frozen=True)
class RunFolder:
    """The files of one run.

    ``config.toml``, ``rounds.jsonl``, ``checkpoints/``, ``clients.sqlite`` (the client store), ``model.safetensors``, ``bundle/``,
    ``report.html``, ``summary.json``. The summary is written last: a folder with one holds a finished run. ``hashes.json`` has the
    hashes of configuration, rounds, model and summary, and every reader checks them.
    """

    path: Path

    @classmethod
    def next_free(cls, name: str) -> Path:
        """Return the first ``runs/NNNN-name`` whose number is not taken."""
        taken = {path.name[:4] for path in Path("runs").glob("[0-9][0-9][0-9][0-9]-*")}
        return next(Path("runs") / f"{number:04d}-{name}" for number in count(1) if f"{number:04d}" not in taken)

    def check(self, config: RunConfig, resume: bool) -> None:
        """Refuse a folder that holds a run (unless it is resumed with the same configuration, or to more rounds) or something else.

        Raises:
            CheckpointError: the folder cannot take this run; nothing was written.
            StorageError: no folder can have this path, or it cannot be read.
        """
        with storage_errors(self.path):
            new, holds_run = self.is_new(), (self.path / CONFIG).exists()
        if not resume or new:
            if holds_run:
                raise CheckpointError(f"{self.path}: already holds a run; give another --out, or --resume to continue it")
            if not new:
                raise CheckpointError(f"{self.path}: exists and is not an empty folder; give another --out")
            return
        before = self.config()
        if (self.path / FED_ROUND).exists():
            why = "the result of fed-round, which has no simulated rounds to continue"
            raise CheckpointError(f"{self.path}: {why}; start a new run, which can begin with --weights {MODEL} of this one")
        if Hashes.of(self.path) is None:
            why = "which shows that its files are of one run"
            raise CheckpointError(f"{self.path}: holds no {HASHES}, {why}; restore it, or start a new run")
        for key, why in _fixed(before, with_engine_of(before, config)):
            values = f"{getattr(before, key)!r}, now {getattr(config, key)!r}{why}"
            raise CheckpointError(f"{self.path}: cannot resume with another configuration: {key} was {values}")
        then, now = (dict[Any, str](of.sources or {}) for of in (before, config))
        files = {"weights": config.weights, "data": config.dataset, "fleet": config.profile, "trace": config.availability}
        for kind, file in files.items():
            if then.get(kind) != now.get(kind):
                raise CheckpointError(f"{self.path}: {file} has changed since this run began; restore the file")

    @contextlib.contextmanager
    def claimed(self, config: RunConfig, resume: bool) -> Iterator[None]:
        """Keep other processes from writing to this folder, which must pass :meth:`check` (again: a run may just have ended in it).

        Raises:
            CheckpointError: the folder cannot take this run, or another process is writing to it.
        """
        with only_writer(self.path):
            self.check(config, resume)
            yield

    def config(self) -> RunConfig:
        """Return the run's configuration.

        Raises:
            CheckpointError: there is none, or it was edited since the run began.
            ConfigError: it names code that the user has not consented to, see :mod:`edgefl.consent`.
        """
        return self.read({})[1]

    def read(self, typed: Mapping[str, Any]) -> tuple[TomlTable, RunConfig]:
        """Return the keys of the run's configuration, and the configuration; the code that it names may be ``typed``, too."""
        path = self.require(CONFIG)
        values = toml_in(checked(path, path.read_bytes()), path, ConfigError)
        admit_keys(values, str(path), typed)
        return values, RunConfig.of(values, str(path))

    def note_on_source(self, config: RunConfig) -> str:
        """Return a warning if the source of the the user's own code has changed since the run began, else an empty text."""
        before, now = self.config().sources or {}, config.sources or {}
        networks = [config.model, *(config.tier or {}).values()]
        own = " or ".join(dict.fromkeys(title_of(name) for name in networks if name and is_own(name)))
        changed = [own or title_of(str(config.model))] * (before.get("model") != now.get("model"))
        keys = [key for key in ("loss", "metric", "lr_schedule") if before.get(key) != now.get(key)]
        changed += [title_of(str(getattr(config, key))) for key in keys]
        if not changed:
            return ""
        return (
            f"{self.path}: the source of {' and '.join(changed)} has changed since this run began; the run continues with the new "
            "source, and a result of both cannot be repeated"
        )

    def grows(self, config: RunConfig) -> bool:
        """Whether the folder holds a run of fewer rounds than ``config``."""
        return not self.is_new() and self.config().rounds < config.rounds

    def reopen(self, own: Architecture, check: Callable[[ServerState], object]) -> None:
        """Make the run an unfinished one, which ends before its last round, as that round alone was evaluated on all held-out samples.

        Its model, bundle and report stay until those of the longer run replace them. ``check`` raises an error if the run, of the network
        ``own``, cannot continue from a state.

        Raises:
            CheckpointError: the run has no checkpoint from which it can continue, or a file that it needs is damaged; nothing was changed.
        """
        last, checkpoints, hashes = self.config().rounds, self.path / "checkpoints", Hashes.of(self.path) or Hashes()
        if hashes.rounds and last > 1:
            if (before := checkpoint.newest_before(checkpoints, last, hashes.checkpoints)) is None:
                why = f"holds no whole checkpoint before round {last}, from which it could continue"
                raise CheckpointError(f"{self.path}: {why}; start a new run, which can begin with --weights {MODEL} of this one")
            check(state := checkpoint.of_file(before, own))
            lines = self.require(ROUNDS)
            hashes.between(0, state.round).check(lines, lines.read_bytes())
            with self.client_store(state):  # it verifies the file
                pass
        with storage_errors(self.path):
            (self.path / "summary.json").unlink(missing_ok=True)
            checkpoint.forget(checkpoints, last)

    def is_new(self) -> bool:
        """Whether the folder is empty, except for what a start that was interrupted left."""
        return is_new(self.path)

    def start(self, config: RunConfig, name: str = CONFIG) -> None:
        """Write the complete configuration and delete temporary files of interrupted writes."""
        for left in [*self.path.glob(".*"), *self.path.glob("checkpoints/.*")]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            elif left.name != LOCK:
                left.unlink(missing_ok=True)
        if name == CONFIG:
            self.write(name, config.to_toml().encode())
        else:  # a dry run, which can be repeated
            write_bytes(self.path / name, config.to_toml().encode())

    def write(self, name: str, content: bytes) -> None:
        """Write the file ``name``, its hash first."""
        (Hashes.of(self.path) or Hashes()).with_file(name, content).write(self.path)
        write_bytes(self.path / name, content)

    def require(self, name: str) -> Path:
        """Return the path of a file that a run must have.

        Raises:
            CheckpointError: there is none.
        """
        path = self.path / name
        if not path.is_file():
            if (self.path / MANIFEST).is_file():
                raise CheckpointError(f"{self.path}: a bundle, expected a run; give the run that it was exported from")
            why = "not a run folder, or a run that is not complete" if self.path.exists() else "there is no such folder"
            raise CheckpointError(f"{self.path}: holds no {name}: {why}")
        return path

    def restore(self, own: Architecture | None = None) -> checkpoint.Restored | None:
        """Return the newest whole checkpoint, if any, of the run's network ``own``; None: a reference network."""
        return checkpoint.restore(self.path / "checkpoints", own, (Hashes.of(self.path) or Hashes()).checkpoints)

    def save(self, state: ServerState, rounds_sha256: str) -> None:
        """Sync the records of the rounds, write their hash, then a checkpoint: none is on the disk without its records."""
        with span("checkpoint", round=state.round):
            path = self.path / ROUNDS
            with storage_errors(path), path.open("rb") as file:
                os.fsync(file.fileno())
            oldest, hashes = checkpoint.oldest_round(self.path / "checkpoints"), Hashes.of(self.path) or Hashes()

            def announce(digest: str) -> None:
                hashes.with_rounds(state.round, rounds_sha256, digest, oldest).write(self.path)

            checkpoint.save(self.path / "checkpoints", state, announce)

    def client_store(self, at: ServerState | None = None) -> ClientStore:
        """Return the client store as it was ``at`` a checkpoint, or before the first round; the caller closes it.

        Raises:
            CheckpointError: its file is missing, damaged, or not the one that belongs to the checkpoint.
        """
        store = ClientStore(self.path / "clients.sqlite")
        store.keep_from = checkpoint.oldest_round(self.path / "checkpoints")
        if at is not None:
            store.go_to(at.round, at.clients)
        return store

    def keep_rounds(self, last: int) -> None:
        """Drop the records of rounds after ``last`` and a line that was cut: these rounds will be trained again."""
        path = self.path / ROUNDS
        kept = path.read_bytes().splitlines(keepends=True)[:last] if path.exists() else []
        if (hashes := Hashes.of(self.path)) is not None:
            hashes = hashes.between(0, last)
            hashes.check(path, b"".join(kept))
            hashes.write(self.path)
        if len(kept) < last:
            raise CheckpointError(f"{path}: does not hold rounds 1 to {last} that the checkpoint continues; start a new run")
        write_bytes(path, b"".join(kept))

    def add_round(self, record: RoundRecord, clients: bool = True, stages: Stages | None = None) -> None:
        """Append one record, with or without its ``clients``, and with the ``stages`` of this computer's time."""
        path = self.path / ROUNDS
        check_claims(path)
        line = {**record.to_json(clients), **({} if stages is None else {"stages": stages})}
        with storage_errors(path), path.open("ab") as file:
            file.write(json.dumps(line, allow_nan=False).encode() + b"\n")

    def rounds(self) -> list[RoundLine]:
        """Return every round's record."""
        return read_rounds(self.require(ROUNDS))

    def summary(self) -> dict[str, Any] | None:
        """Return the summary of a finished run, None while there is none."""
        path = self.path / "summary.json"
        if not path.exists():
            return None
        try:
            summary: dict[str, Any] = json.loads(checked(path, path.read_bytes()))
        except ValueError as error:
            raise CheckpointError(f"{path}: not valid JSON ({error}); delete it and resume") from None
        return summary

    def model(self, own: Architecture | None = None) -> ServerState:
        """Return the state after the last round, of the run's network ``own``; None: a reference network."""
        path = self.require(MODEL)
        checked(path, path.read_bytes())
        return checkpoint.of_file(path, own)

    @property
    def bundle(self) -> Path:
        """The folder of the bundle: inside, or beside the folder of the rounds that an export began."""
        inner = self.path / "bundle"
        begun = self.path.resolve()
        outer = begun.with_name(begun.name.removesuffix(_OF_EXPORT))
        return outer if not inner.exists() and outer != begun and (outer / MANIFEST).is_file() else inner

    def fresh_bundle(self) -> Path:
        """Return the path of ``bundle``, after deleting one that an interrupted run left."""
        path = self.path / "bundle"
        try:
            if path.exists():
                shutil.rmtree(path)
        except OSError as error:
            raise StorageError(f"{path}: cannot be replaced ({error.strerror})") from None
        return path


def resumed_config(run: Path, given: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the run in the folder ``run``, with more rounds if they are ``given``.

    Other values may be given for keys about this computer only.

    Raises:
        CheckpointError: there is no run, or a given key has another value.
    """
    before, stored = RunFolder(run).read(given)
    if "workers" not in given and is_remote(given.get("engine")) != is_remote(stored.engine):
        before.pop("workers", None)  # slots of a cluster are not processes of this computer
    asked = with_engine_of(stored, RunConfig.of({**before, **given}))
    for key, why in _fixed(stored, asked):
        if key in given:
            raise CheckpointError(
                f"{run}: the run has {key} = {getattr(stored, key)!r}, got {getattr(asked, key)!r}{why}; "
                f"resume without it, or start a new run in another folder, which can begin with --weights {MODEL} of this one"
            )
    if "workers" in given and "engine" not in given and stored.engine in ("inline", "pool"):
        asked = asked.model_copy(update={"engine": "pool" if asked.workers != 1 else "inline"})
    return asked


def with_engine_of(stored: RunConfig, asked: RunConfig) -> RunConfig:
    """Return what was ``asked`` of a run that began as ``stored``, which keeps its engine and workers if the engine is ``auto`` now."""
    return asked if asked.engine != "auto" else asked.model_copy(update={"engine": stored.engine, "workers": stored.workers})


def _fixed(before: RunConfig, after: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the keys that differ and that a resumed run must keep, each with a reason or ""."""
    for key in changed(before, after):
        if key != "rounds":
            yield key, ""
        elif why := lengthened(before, after):
            yield key, f", and {why}"
