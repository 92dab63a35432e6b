"""What a user asks for: simulate, profile, export, verify, report. The only module that knows all the rooms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from edgefl.config import HOST_KEYS, RunConfig
from edgefl.deploy import Deployed, build_bundle
from edgefl.engine import open_engine
from edgefl.errors import CheckpointError, ConfigError
from edgefl.files import read_toml, write_bytes, write_json
from edgefl.methods.base import GlobalState
from edgefl.onnxio.verify import VerifyReport
from edgefl.onnxio.verify import verify as verify_bundle
from edgefl.prepare import Session, one_thread, prepare
from edgefl.records import RoundRecord, Tier
from edgefl.report import html
from edgefl.report.summary import class_rows, tier_rows, totals
from edgefl.runfolder import RunFolder
from edgefl.server import evaluate
from edgefl.server.checkpoint import Checkpoint
from edgefl.server.rounds import play_round
from edgefl.wire import encode

OnRound = Callable[[RoundRecord], None]
Notify = Callable[[str], None]


@dataclass(frozen=True)
class RunResult:
    """A finished run.

    Attributes:
        folder: where it was written.
        summary: the content of ``summary.json``: accuracies, costs per tier, budgets per device class, totals.
    """

    folder: Path
    summary: Mapping[str, Any]

    @property
    def global_accuracy(self) -> float:
        """Share of held-out samples that the global model classifies correctly."""
        return float(self.summary["global_accuracy"])

    @property
    def tiers(self) -> list[dict[str, Any]]:
        """One row per tier, largest first: accuracy, costs, bytes, simulated seconds and joules."""
        return list(self.summary["tiers"])


def simulate(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    notify: Notify | None = None,
) -> RunResult:
    """Train a fleet and write its run folder: rounds, model, checkpoints, bundle, summary and report.

    Args:
        config: what to run; see :class:`RunConfig`.
        out: the run folder; None takes the next free ``runs/NNNN-method-dataset``.
        resume: continue the run in ``out`` from its newest whole checkpoint, to the same bits as if it had never stopped.
        on_round: called with the record of every round played.
        notify: called with a line of text where something needs saying, such as a damaged checkpoint that was passed over.

    Raises:
        InputError: a name, value or file is wrong; ``out`` already holds a run, or holds another one.
        BudgetError: no device of the fleet fits any tier. Nothing is written in either case.

    Example:
        >>> import tempfile
        >>> config = RunConfig(rounds=1, clients=3, local_epochs=1, tiers=(1.0, 0.5))
        >>> result = simulate(config, Path(tempfile.mkdtemp()) / "run")
        >>> [row["tier"] for row in result.tiers]
        [1, 0.5]
    """
    say = notify or (lambda message: None)
    with one_thread():
        session = prepare(config)
        config = session.config
        folder = RunFolder(Path(out) if out is not None else RunFolder.next_free(f"{config.method}-{config.dataset}"))
        folder.check(config, resume)
        if resume and (summary := folder.summary()) is not None:
            say(f"{folder.path}: the run is complete; nothing left to do")
            return RunResult(folder.path, summary)
        folder.start(config)
        state = _play(session, folder, resume, on_round, say)
        return _finish(session, folder, state, say)


def _play(session: Session, folder: RunFolder, resume: bool, on_round: OnRound | None, say: Notify) -> GlobalState:
    """Play the rounds that are left, with a record and a checkpoint after each."""
    state, clock_s, first = session.first_state(), 0.0, 1
    shapes = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
    if resume and (restored := folder.restore(shapes)) is not None:
        for warning in restored.warnings:
            say(warning)
        checkpoint = restored.checkpoint
        state, clock_s, first = state.replace(checkpoint.tensors), checkpoint.clock_s, checkpoint.round + 1
    folder.keep_rounds(first - 1)
    config = session.config
    with open_engine(str(config.engine), config.workers, session.clients) as engine:
        for number in range(first, config.rounds + 1):
            parts = (session.method, state, session.plan, session.schedule, session.shard_sizes, engine)
            state, record = play_round(*parts, number, clock_s)
            clock_s = record.clock_s
            if number % config.eval_every == 0 or number == config.rounds:
                started = time.perf_counter()
                accuracy = _accuracies(session, state)
                record = replace(record, accuracy=accuracy, host_s=record.host_s + time.perf_counter() - started)
            folder.add_round(record)
            folder.save(Checkpoint(number, clock_s, state.tensors))
            if on_round is not None:
                on_round(record)
    return state


def _accuracies(session: Session, state: GlobalState) -> dict[str, float]:
    whole = session.method.global_tier(state)
    found = {
        tier: evaluate.accuracy(_ready(session, session.method.deploy(state, tier)), session.data.test, evaluate.BATCH_SIZE)
        for tier in dict.fromkeys((whole, *session.tiers))
    }
    return {"global": found[whole]} | {tier.label: found[tier] for tier in session.tiers}


def _ready(session: Session, module: torch.nn.Module) -> torch.nn.Module:
    return evaluate.with_statistics(module, session.shards(), session.config.batch_size)


def _finish(session: Session, folder: RunFolder, state: GlobalState, say: Notify) -> RunResult:
    """Write the model, the bundle, the summary and the report; the summary comes last: it marks a run as complete."""
    write_bytes(folder.path / "model.safetensors", encode(state.tensors))
    deployed = _bundle(session, state, folder.fresh_bundle(), say)
    rounds = folder.rounds()
    config = session.config
    summary: dict[str, Any] = {
        "format": 1,
        **{key: getattr(config, key) for key in ("method", "model", "dataset", "partition", "seed", "rounds", "clients")},
        **{key: getattr(config, key) for key in ("per_round", "batch_size", "local_epochs", "tier_assignment")},
        "fleet": session.fleet.name,
        "deadline_s": session.plan.deadline_s,
        "global_accuracy": _accuracies_of_last(rounds),
        **totals(rounds),
        "tiers": tier_rows(session.plan, {tier: d.result for tier, d in deployed.items()}, rounds),
        "classes": class_rows(session.plan),
    }
    write_bytes(folder.path / "report.html", html.render(summary, rounds).encode())
    write_json(folder.path / "summary.json", summary)
    return RunResult(folder.path, summary)


def _accuracies_of_last(rounds: Sequence[Mapping[str, Any]]) -> float:
    return float(rounds[-1]["accuracy"]["global"])


def _bundle(session: Session, state: GlobalState, out: Path, say: Notify) -> dict[Tier, Deployed]:
    modules = {tier: _ready(session, session.method.deploy(state, tier)) for tier in session.tiers}
    return build_bundle(session, modules, out, say)


def export(run: Path | str, out: Path | str, *, notify: Notify | None = None) -> Path:
    """Write the bundle of a finished run to the folder ``out`` and return it.

    Raises:
        CheckpointError: ``run`` holds no finished run.
        BundleError: ``out`` exists and is not empty.
    """
    folder = RunFolder(Path(run))
    config = RunConfig.load(folder.require("config.toml"), {})
    with one_thread():
        session = prepare(config)
        state = session.first_state()
        shapes = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
        state = state.replace(folder.model(shapes))
        _bundle(session, state, Path(out), notify or (lambda message: None))
    return Path(out)


def verify(bundle: Path | str) -> VerifyReport:
    """Check a bundle: hashes, graphs, and outputs in onnxruntime against the stored reference.

    Raises:
        BundleError: anything is missing, extra, changed or wrong; the message lists all of it.
    """
    return verify_bundle(Path(bundle))


def report(run: Path | str) -> Path:
    """Write ``report.html`` of a finished run anew and return its path."""
    return html.write(RunFolder(Path(run)).path)


def resumed_config(run: Path, given: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the run in ``run``; what is ``given`` must agree with it, but for how this computer works.

    Raises:
        CheckpointError: there is no run, or a given key has another value.
    """
    stored = RunConfig.load(RunFolder(run).require("config.toml"), {})
    asked = RunConfig.of({**read_toml(run / "config.toml", ConfigError), **given})
    for key in RunConfig.model_fields:
        if key in given and key not in HOST_KEYS and getattr(asked, key) != getattr(stored, key):
            raise CheckpointError(
                f"{run}: the run has {key} = {getattr(stored, key)!r}, got {getattr(asked, key)!r}; "
                "resume without it, or start a new run in another folder"
            )
    if "workers" in given and "engine" not in given:
        asked = asked.model_copy(update={"engine": "pool" if asked.workers > 1 else "inline"})
    return asked
