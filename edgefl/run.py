"""What a user asks for: simulate, profile, export, verify, report. The only module that knows all the rooms."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edgefl.config import HOST_KEYS, RunConfig
from edgefl.deploy import Source, Wanted, build_bundle
from edgefl.engine import open_engine
from edgefl.errors import CheckpointError, ConfigError
from edgefl.files import read_toml, sha256, write_bytes, write_json
from edgefl.onnxio.forms import Form
from edgefl.onnxio.signature import signer
from edgefl.onnxio.verify import VerifyReport
from edgefl.onnxio.verify import verify as verify_bundle
from edgefl.outcome import Trained, accuracies, checkpoint_of, fleet_of, of_clients, representatives, resumed
from edgefl.prepare import prepare
from edgefl.records import RoundRecord
from edgefl.report import html
from edgefl.report.participation import participation_rows
from edgefl.report.summary import class_rows, tier_rows, totals
from edgefl.runfolder import MODEL, RunFolder
from edgefl.server.clients import ClientStore
from edgefl.server.standing import Standing
from edgefl.session import Session, about, one_thread

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
        with folder.client_store() as store:
            return _finish(_play(session, folder, store, resume, on_round, say), folder, say)


def play(
    session: Session, store: ClientStore, standing: Standing | None = None, first: int = 1
) -> Iterator[tuple[Session, Standing, RoundRecord]]:
    """Play rounds ``first`` to the last; yield after each the session of its phase, what the server has, and the record."""
    config = session.config
    standing = standing or Standing(session.first_state())
    with open_engine(str(config.engine), config.workers, session.clients) as engine:
        for number in range(first, config.rounds + 1):
            session, state = session.advanced(standing.state, number)
            standing, record = session.play(session.method, replace(standing, state=state), engine, store, number)
            if number % config.eval_every == 0 or number == config.rounds:
                started = time.perf_counter()
                accuracy = accuracies(Trained(session, standing.state, store), number)
                record = replace(record, accuracy=accuracy, host_s=record.host_s + time.perf_counter() - started)
            yield session, standing, record


def _play(
    session: Session, folder: RunFolder, store: ClientStore, resume: bool, on_round: OnRound | None, say: Notify
) -> Trained:
    """Play the rounds that are left, with a record and a checkpoint after each; return what came out."""
    restored = folder.restore() if resume else None
    standing, first = Standing(session.first_state()), 1
    if restored is not None:
        for warning in restored.warnings:
            say(warning)
        session, standing = resumed(session, restored.checkpoint, str(folder.path / "checkpoints"))
        store.go_to(restored.checkpoint.round, restored.checkpoint.clients)
        standing = replace(standing, fleet=fleet_of(session, restored.checkpoint, store))
        first = restored.checkpoint.round + 1
    folder.keep_rounds(first - 1)
    for phase, after, record in play(session, store, standing, first):
        session, standing = phase, after
        folder.add_round(record)
        folder.save(checkpoint_of(session, standing, store, record.round), store)
        if on_round is not None:
            on_round(record)
    return Trained(session, standing.state, store, standing.memory, session.config.rounds)


def _finish(trained: Trained, folder: RunFolder, say: Notify) -> RunResult:
    """Write the model, the bundle, the summary and the report; the summary comes last: it marks a run as complete."""
    session, config = trained.session, trained.session.config
    rounds = folder.rounds()
    final = checkpoint_of(session, Standing(trained.state, trained.memory, rounds[-1]["clock_s"]), trained.store, config.rounds)
    content = final.to_bytes()
    write_bytes(folder.path / MODEL, content)
    source = Source(config.rounds, sha256(content))
    deployed = build_bundle(session, representatives(trained), source, folder.fresh_bundle(), say)
    summary: dict[str, Any] = {
        **about(session),
        "accuracy_of": "clients" if of_clients(session) else "global",
        "global_accuracy": float(rounds[-1]["accuracy"]["global"]),
        **totals(rounds),
        "tiers": tier_rows(session.plan, {tier: d.result for tier, d in deployed.items()}, rounds),
        "classes": class_rows(session.plan),
    }
    taken = {tier.ratio: d.result.accuracy for tier, d in deployed.items() if d.result.accuracy is not None}
    summary["participation"] = participation_rows(session.plan, rounds, _distinct(rounds), taken)
    write_bytes(folder.path / "report.html", html.render(summary, rounds).encode())
    write_json(folder.path / "summary.json", summary)
    return RunResult(folder.path, summary)


def _distinct(rounds: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """Return device → how many clients with it trained at least once."""
    return Counter({c["client"]: c["device"] for r in rounds for c in r["clients"] if c["status"] == "trained"}.values())


def export(
    run: Path | str,
    out: Path | str,
    *,
    form: Form = "auto",
    quantize: Literal["int8"] | None = None,
    fp16: bool = False,
    sign: Path | None = None,
    client: bool = False,
    notify: Notify | None = None,
) -> Path:
    """Write the bundle of a finished run to the folder ``out`` and return it.

    Args:
        run: the run's folder.
        out: must not exist, or be empty.
        form: of factorized layers: ``factored``, ``composed``, or ``auto``, layer by layer what suits the tier's device.
        quantize: "int8" writes 8-bit variants of each forward graph too, calibrated on training samples.
        fp16: whether 16-bit variants are written too.
        sign: PEM file of an Ed25519 private key to sign the bundle with.
        client: whether the Python and browser clients are put beside the graphs.
        notify: called with a line about each tier that does not run on its device.

    Raises:
        CheckpointError: ``run`` holds no finished run.
        BundleError: ``out`` exists and is not empty.
        InputError: ``sign`` is no such key.
    """
    wanted = Wanted(form, quantize == "int8", fp16, client, None if sign is None else signer(sign))
    folder = RunFolder(Path(run))
    config = RunConfig.load(folder.require("config.toml"), {})
    with one_thread():
        model = folder.model()
        session, standing = resumed(prepare(config), model, str(folder.path / MODEL))
        with folder.client_store(model) as store:
            trained = Trained(session, standing.state, store, standing.memory, model.round)
            source = Source(model.round, sha256((folder.path / MODEL).read_bytes()))
            build_bundle(session, representatives(trained), source, Path(out), notify or (lambda message: None), wanted)
    return Path(out)


def verify(bundle: Path | str, *, key: Path | str | None = None) -> VerifyReport:
    """Check a bundle: hashes, graphs, and what they compute in onnxruntime against the stored references.

    Args:
        bundle: its folder.
        key: PEM file of the Ed25519 public key whose owner must have signed it.

    Raises:
        BundleError: anything is missing, extra, changed or wrong; the message lists all of it.
    """
    return verify_bundle(Path(bundle), None if key is None else Path(key))


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
