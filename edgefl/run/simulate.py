"""What a user asks for: simulate, profile, export, verify, report. The only module that knows all the rooms."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgefl.config import RunConfig, changed
from edgefl.engine import open_engine, prepare_workers
from edgefl.errors import CheckpointError, ConfigError
from edgefl.records import RoundRecord
from edgefl.report.results import Results, validated
from edgefl.report.run_rows import RunSummary, TierRow
from edgefl.report.summary import class_rows, participation_rows, tier_rows, totals
from edgefl.run.folder import MODEL, Keeper, RunFolder
from edgefl.run.prepare import prepare
from edgefl.run.run import Run, about
from edgefl.run.trained import Trained, accuracies, checkpoint_of, fleet_of, of_clients, representatives, resumed
from edgefl.server.client_store import ClientStore
from edgefl.server.state import Standing
from edgefl.timing.spans import span
from edgefl.timing.stages import Stopwatch, added, check_trace
from edgefl.util.files import read_toml, sha256, write_bytes, write_json
from edgefl.util.threads import one_thread

# What exports networks and draws pages takes a second to import, and no round needs it: see the functions that do.
if TYPE_CHECKING:
    from edgefl.bundle.forms import Form
    from edgefl.bundle.verify import VerifyReport

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
    def tiers(self) -> Results[TierRow]:
        """One row per tier, largest first: accuracy, costs, bytes, simulated seconds and joules."""
        return Results(validated(TierRow, row) for row in self.summary["tiers"])

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        return dict(self.summary)

    def to_pandas(self) -> Any:
        """Return the table of tiers as a ``pandas.DataFrame``."""
        return self.tiers.to_pandas()


def simulate(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    notify: Notify | None = None,
    trace: Path | str | None = None,
) -> RunResult:
    """Train a fleet and write its run folder: rounds, model, checkpoints, bundle, summary and report.

    Args:
        config: what to run; see :class:`RunConfig`.
        out: the run folder; None takes the next free ``runs/NNNN-method-dataset``.
        resume: continue the run in ``out`` from its newest whole checkpoint, to the same bits as if it had never stopped.
        on_round: called with the record of every round played; its checkpoint may still be on its way to the disk.
        notify: called with a line of text where something needs saying, such as a damaged checkpoint that was passed over.
        trace: a file for the spans of this process and its workers, which ui.perfetto.dev and chrome://tracing open; replaced where it
            exists. It changes nothing of the run.

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
    with one_thread(), contextlib.ExitStack() as opened:
        if trace is not None:
            check_trace(Path(trace))
        watch = opened.enter_context(Stopwatch())
        prepare_workers(config.engine, config.workers, config.enforce)
        with span("prepare"):
            run = prepare(config)
        folder = RunFolder(Path(out) if out is not None else RunFolder.next_free(f"{config.method}-{config.dataset}"))
        if run.config.engine == "auto":
            run = _with_engine(run, folder if resume else None, say)
        config = run.config
        folder.check(config, resume)
        if resume and (summary := folder.summary()) is not None:
            say(f"{folder.path}: the run is complete; nothing left to do")
            return RunResult(folder.path, summary)
        if trace is not None:
            watch.trace_to(Path(trace))
        folder.start(config)
        store = opened.enter_context(folder.client_store())
        trained = _play(run, folder, store, resume, on_round, say, watch)
        return _finish(trained, folder, say, watch)


def _with_engine(run: Run, begun: RunFolder | None, say: Notify) -> Run:
    """Return the run with an engine by name in the place of ``auto``: the one that it has ``begun`` with, or the fastest."""
    if begun is not None and not begun.is_new():
        stored = RunConfig.load(begun.require("config.toml"), {})
        same = {"engine": stored.engine, "workers": stored.workers}
        return replace(run, config=run.config.model_copy(update=same))
    from edgefl.run.engine_choice import choose

    with span("trial"):
        choice = choose(run)
    say(f"engine {choice.engine}, {choice.workers} {'worker' if choice.workers == 1 else 'workers'}: {choice.why}")
    return replace(run, config=run.config.model_copy(update={"engine": choice.engine, "workers": choice.workers}))


def play(
    run: Run, store: ClientStore, standing: Standing | None = None, first: int = 1
) -> Iterator[tuple[Run, Standing, RoundRecord]]:
    """Play rounds ``first`` to the last; yield after each the run in its phase, what the server has, and the record."""
    config = run.config
    standing = standing or Standing(run.first_state())
    with open_engine(str(config.engine), config.workers, run.clients) as engine:
        for number in range(first, config.rounds + 1):
            with span("prepare", round=number):
                run, state = run.advanced(standing.state, number)
            standing, record = run.play(run.method, replace(standing, state=state), engine, store, number)
            if number % config.eval_every == 0 or number == config.rounds:
                started = time.perf_counter()
                with span("evaluate", round=number):
                    accuracy = accuracies(Trained(run, standing.state, store), number)
                record = replace(record, accuracy=accuracy, host_s=record.host_s + time.perf_counter() - started)
            yield run, standing, record


def _play(
    run: Run,
    folder: RunFolder,
    store: ClientStore,
    resume: bool,
    on_round: OnRound | None,
    say: Notify,
    watch: Stopwatch,
) -> Trained:
    """Play the rounds that are left, with a record and a checkpoint after each; return what came out."""
    restored = folder.restore() if resume else None
    standing, first = Standing(run.first_state()), 1
    if restored is not None:
        for warning in restored.warnings:
            say(warning)
        run, standing = resumed(run, restored.checkpoint, str(folder.path / "checkpoints"))
        store.go_to(restored.checkpoint.round, restored.checkpoint.clients)
        standing = replace(standing, fleet=fleet_of(run, restored.checkpoint, store))
        first = restored.checkpoint.round + 1
    folder.keep_rounds(first - 1)
    with Keeper(folder, store) as keeper:
        for phase, after, record in play(run, store, standing, first):
            run, standing = phase, after
            with span("checkpoint", round=record.round):
                keeper.wait()
            stages = watch.lap()
            with span("record", round=record.round):
                folder.add_round(record, stages=stages)
            with span("checkpoint", round=record.round):
                keeper.start(checkpoint_of(run, standing, store, record.round))
            if on_round is not None:
                on_round(record)
    return Trained(run, standing.state, store, standing.memory, run.config.rounds)


def _finish(trained: Trained, folder: RunFolder, say: Notify, watch: Stopwatch) -> RunResult:
    """Write the model, the bundle, the summary and the report; the summary comes last: it marks a run as complete."""
    with span("start"):
        from edgefl.report import html
        from edgefl.run.bundle import Source, build_bundle
    run, config = trained.run, trained.run.config
    rounds = folder.rounds()
    with span("checkpoint"):
        standing = Standing(trained.state, trained.memory, rounds[-1]["clock_s"])
        content = checkpoint_of(run, standing, trained.store, config.rounds).to_bytes()
        write_bytes(folder.path / MODEL, content)
    with span("bundle"):
        source = Source(config.rounds, sha256(content))
        deployed = build_bundle(run, representatives(trained), source, folder.fresh_bundle(), say)
    with span("report"):
        taken = {tier.ratio: d.result.accuracy for tier, d in deployed.items() if d.result.accuracy is not None}
        values = {
            **about(run),
            **vars(totals(rounds)),
            "accuracy_of": "clients" if of_clients(run) else "global",
            "global_accuracy": float(rounds[-1]["accuracy"]["global"]),
            "tiers": tier_rows(run.plan, {tier: d.result for tier, d in deployed.items()}, rounds),
            "classes": class_rows(run.plan),
            "participation": participation_rows(run.plan, rounds, _distinct(rounds), taken),
        }
    before = added([*(line.get("stages", {}) for line in rounds), watch.lap()])
    with span("report"):
        write_bytes(folder.path / "report.html", html.render(RunSummary(**values | {"host_stages": before}).to_dict(), rounds).encode())
    # All of what has passed since: a page made anew from the summary must be the same, and it leaves that stage out.
    stages = added([before, {"server": {"report": sum(watch.lap()["server"].values())}}])
    summary = RunSummary(**values | {"host_stages": stages}).to_dict()
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
    from edgefl.bundle.signature import signer
    from edgefl.run.bundle import Source, Wanted, build_bundle

    wanted = Wanted(form, quantize == "int8", fp16, client, None if sign is None else signer(sign))
    folder = RunFolder(Path(run))
    config = RunConfig.load(folder.require("config.toml"), {})
    with one_thread():
        model = folder.model()
        prepared, standing = resumed(prepare(config), model, str(folder.path / MODEL))
        with folder.client_store(model) as store:
            trained = Trained(prepared, standing.state, store, standing.memory, model.round)
            source = Source(model.round, sha256((folder.path / MODEL).read_bytes()))
            build_bundle(prepared, representatives(trained), source, Path(out), notify or (lambda message: None), wanted)
    return Path(out)


def verify(bundle: Path | str, *, key: Path | str | None = None) -> VerifyReport:
    """Check a bundle: hashes, graphs, and what they compute in onnxruntime against the stored references.

    Args:
        bundle: its folder.
        key: PEM file of the Ed25519 public key whose owner must have signed it.

    Raises:
        BundleError: anything is missing, extra, changed or wrong; the message lists all of it.
    """
    from edgefl.bundle.verify import verify as verify_bundle

    return verify_bundle(Path(bundle), None if key is None else Path(key))


def report(run: Path | str) -> Path:
    """Write ``report.html`` of a finished run anew and return its path."""
    from edgefl.report import html

    return html.write(RunFolder(Path(run)).path)


def resumed_config(run: Path, given: Mapping[str, Any]) -> RunConfig:
    """Return the configuration of the run in ``run``; what is ``given`` must agree with it, but for how this computer works.

    Raises:
        CheckpointError: there is no run, or a given key has another value.
    """
    stored = RunConfig.load(RunFolder(run).require("config.toml"), {})
    asked = RunConfig.of({**read_toml(run / "config.toml", ConfigError), **given})
    if asked.engine == "auto":
        asked = asked.model_copy(update={"engine": stored.engine, "workers": stored.workers})
    for key in changed(stored, asked):
        if key in given:
            raise CheckpointError(
                f"{run}: the run has {key} = {getattr(stored, key)!r}, got {getattr(asked, key)!r}; "
                "resume without it, or start a new run in another folder"
            )
    if "workers" in given and "engine" not in given and stored.engine != "group":
        asked = asked.model_copy(update={"engine": "pool" if asked.workers > 1 else "inline"})
    return asked
