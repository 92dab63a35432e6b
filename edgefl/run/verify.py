"""Verification of a run: its files are those that it wrote, and its bundle verifies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgefl.bundle.sandbox import SandboxLimits
from edgefl.bundle.verify import VerifyReport, verify
from edgefl.errors import CheckpointError
from edgefl.run.folder import FED_ROUND, MODEL, RunFolder
from edgefl.server import checkpoint
from edgefl.server.client_store import ClientStore
from edgefl.util.hashes import HASHES, ROUNDS, Hashes


@dataclass(frozen=True)
class RunReport:
    """The report of a run that passed.

    Attributes:
        files: how many files had the content that the run wrote, rounds included.
        checkpoints: how many checkpoints were checked.
        bundle: the report of the run's bundle; None if there is none.
    """

    files: int
    checkpoints: int
    bundle: VerifyReport | None


def verify_run(run: Path | str, key: Path | str | None = None, limits: SandboxLimits | None = None) -> RunReport:
    """Check every file of a run, finished or not, what its clients stored, and its bundle; for ``key`` and ``limits`` see ``verify``.

    Raises:
        CheckpointError: a file is missing, or is not what the run wrote. The message names the first one.
        InputError: its bundle does not verify.
    """
    folder, of_run = Path(run), RunFolder(Path(run))
    hashes = Hashes.of(folder)
    if hashes is None:
        raise CheckpointError(f"{folder}: holds no {HASHES}: not a run folder, or one of an earlier version of edgefl")
    names = [*hashes.files, *([ROUNDS] if hashes.rounds else [])]
    summary = of_run.summary()
    finished = summary is not None or FED_ROUND in hashes.files or (folder / FED_ROUND).exists()
    for name in names:
        path = folder / name
        if path.exists() or finished or name == ROUNDS:
            hashes.check(path, of_run.require(name).read_bytes())
    checkpoints = checkpoint.verified(folder / "checkpoints", hashes.rounds if finished else (), hashes.checkpoints)
    if newest := [path for path in (folder / MODEL, *checkpoints) if path.exists()]:
        with ClientStore(folder / "clients.sqlite") as store:
            store.go_to(*checkpoint.chain_of(newest[0]))
    bundle = verify(of_run.bundle, key, limits) if finished and not (summary or {}).get("no_bundle") else None
    return RunReport(len(names), len(checkpoints), bundle)
