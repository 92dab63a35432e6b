"""A whole run: train a fleet and write its run folder."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.config import RunConfig
from edgefl.consent import remember
from edgefl.engine.contract import Engine, prepare_workers
from edgefl.engine.fork_server import fork_server
from edgefl.errors import InputError, Interrupted, NoBundleError
from edgefl.log.background import NO_LOGS, Logs, check_installed, logs
from edgefl.log.contract import LoggedRun
from edgefl.methods.capabilities import Figures, learning
from edgefl.methods.ranks import energy_of_tiers
from edgefl.onnxgrad.contexts import uncollected
from edgefl.records import NodeRecord, Tier
from edgefl.report.metric import metric_text
from edgefl.report.notebook import progress_in_notebook
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import RunSummary
from edgefl.report.run_rows import TierResult
from edgefl.report.summary import class_rows, participation_rows, tier_rows, totals
from edgefl.report.words import clients_of
from edgefl.run.calendar_rounds import prepare_to_train
from edgefl.run.checkpoint_writer import CheckpointWriter
from edgefl.run.checks import no_graphs
from edgefl.run.feature import check_devices, merged
from edgefl.run.final_scores import final_scores
from edgefl.run.folder import MODEL, Notify, OnRound, RunFolder, with_engine_of
from edgefl.run.prepare import prepare
from edgefl.run.result import RunResult
from edgefl.run.run import Run, RunOne, about, left_out
from edgefl.run.trained import Trained, accuracies, engine_of, of_clients, tier_networks, train
from edgefl.server.checkpoint import to_bytes
from edgefl.server.client_store import ClientStore
from edgefl.timing.spans import span
from edgefl.timing.stages import Stopwatch, added, check_trace
from edgefl.util.compute import one_thread
from edgefl.util.files import json_bytes, sha256, write_bytes
from edgefl.util.keys import SigningKey
from edgefl.util.scratch import sweep

if TYPE_CHECKING:
    from edgefl.run.bundle import Source

_NOT_WANTED = "none was wanted; 'edgefl export RUN --out DIR' writes it"
Connect = Callable[[Run, Path], RunOne]
"""Returns what runs the rounds of a prepared run with real devices; the path is the run's folder."""


def simulate(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    resume: bool = False,
    on_round: OnRound | None = None,
    notify: Notify | None = None,
    trace: Path | str | None = None,
    devices: Connect | None = None,
) -> RunResult:
    """Train a fleet and write its run folder: rounds, model, checkpoints, bundle, summary and report.

    A network or loss of your own that cannot be written as graphs trains all the same. The run has no bundle then, and the summary
    says why.

    Args:
        config: what to run; see :class:`RunConfig`.
        out: the run folder; None takes the next free ``runs/NNNN-method-dataset``.
        resume: continue the run in ``out`` from its newest whole checkpoint, to the same bits as without an interruption; with more
            ``rounds`` also a finished run, to the same bits as a run of so many rounds.
        on_round: called with the record of every round; its checkpoint may not be on the disk yet. None shows progress in a notebook.
        notify: called with a line of text for the user, such as that a damaged checkpoint was skipped.
        trace: a file for the spans of this process and its workers, for ui.perfetto.dev or chrome://tracing; an existing one is
            replaced. It does not change the run.
        devices: connects real devices, which train instead of simulated clients; None: all clients are simulated.

    Raises:
        InputError: a name, value, file or loss is wrong; ``out`` already holds a run, or holds another one.
        BudgetError: no device of the fleet fits any tier. Nothing is written in either case.

    Example:
        >>> import tempfile
        >>> config = RunConfig(rounds=1, clients=3, local_epochs=1, tiers=(1.0, 0.5))
        >>> result = simulate(config, Path(tempfile.mkdtemp()) / "run")
        >>> [row.tier for row in result.tiers]
        [1.0, 0.5]
    """
    sweep()
    say = notify or (lambda message: None)
    with one_thread(), contextlib.ExitStack() as opened:
        if trace is not None:
            check_trace(Path(trace))
        watch = opened.enter_context(Stopwatch())
        check_installed(config.log or ())
        if devices is None:
            prepare_workers(config.engine, config.workers, config.enforce, config.free_jobs)
        else:
            check_devices(config, "a federation of real devices")
        with span("prepare"):
            run = prepare_to_train(config, say) if devices is None else prepare(config)
        folder = RunFolder(Path(out) if out is not None else RunFolder.next_free(f"{config.method}-{run.data.name}"))
        if devices is None and (run.config.engine == "auto" or config.free_jobs):
            run = _with_engine(run, folder if resume else None, say)
        config = run.config
        for feature in run.features:
            for warning in feature.warnings(config, run.clients.shards.largest):
                say(warning)
        folder.check(config, resume)
        if left := left_out(run):
            say(left)
        if resume and (summary := folder.summary()) is not None and not folder.grows(config):
            say(f"{folder.path}: the run is complete; nothing left to do")
            return RunResult(folder.path, summary)
        with span("prepare"):
            if config.bundle and (reason := no_graphs(run)):
                say(f"the run will have no bundle: {reason}")
        with contextlib.nullcontext() if devices else engine_of(run) as engine:
            if trace is not None:
                watch.trace_to(Path(trace))
            opened.enter_context(folder.claimed(config, resume))
            if not folder.is_new() and (warning := folder.note_on_source(config)):
                say(warning)
            if folder.grows(config):
                folder.reopen(run.architecture, lambda state: run.resumed(state, str(folder.path / "checkpoints")))
            folder.start(config)
            remember(config.model_dump())
            opened.enter_context(_continued(folder.path))
            store = opened.enter_context(folder.client_store())
            shown = LoggedRun(folder.path.name, folder.path, config.model_dump(mode="json", exclude_none=True))
            log = opened.enter_context(logs(config.log or (), shown, say))
            output = Output(folder, say, watch, on_round or progress_in_notebook(config.rounds), log)
            before = _before_training(run, store, say)
            run_one = None if devices is None else devices(run, folder.path)
            trained = train_into(output, run, engine, store, resume, run_one)
            nodes = tuple(getattr(engine, "nodes", ())) if config.mixed_nodes else ()
        result = _finish(trained, output, nodes, devices is None, before)
        log.end(result.summary, folder.path)
        return result


@dataclass(frozen=True)
class Output:
    """Where a run's results go: its folder, the user, a stopwatch for this computer's time, loggers, and a callback."""

    folder: RunFolder
    say: Notify
    watch: Stopwatch
    on_round: OnRound | None
    log: Logs = NO_LOGS


@contextlib.contextmanager
def _continued(folder: Path) -> Iterator[None]:
    """Make an interruption of the block say how the run continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"edgefl simulate --out {shlex.quote(str(folder))} --resume") from None


def _with_engine(run: Run, begun: RunFolder | None, say: Notify) -> Run:
    """Return the run with an engine: the usual one, or for ``auto`` the one that it has ``begun`` with, or the fastest."""
    from edgefl.run.engine_choice import choose, usual

    if run.config.engine != "auto":
        engine, workers = usual(run)
        if engine == "inline":
            fork_server().stop_unused()
    elif begun is not None and not begun.is_new():
        return replace(run, config=with_engine_of(begun.config(), run.config))
    else:
        with span("trial"):
            choice = choose(run)
        say(f"engine {choice.engine}, {choice.workers} {'worker' if choice.workers == 1 else 'workers'}: {choice.why}")
        engine, workers = choice.engine, choice.workers
    return replace(run, config=run.config.model_copy(update={"engine": engine, "workers": workers}))


def train_into(
    output: Output, run: Run, engine: Engine | None, store: ClientStore, resume: bool, run_one: RunOne | None = None
) -> Trained:
    """Train the remaining rounds, with a record and a checkpoint after each in the folder of ``output``, which holds its configuration.

    For ``engine`` and ``run_one`` see :func:`edgefl.run.trained.train`.
    """
    folder, state = output.folder, run.start()
    if resume and (restored := folder.restore(run.architecture)) is not None:
        for warning in restored.warnings:
            output.say(warning)
        state = restored.state
        run = run.resumed(state, str(folder.path / "checkpoints"))
        store.go_to(state.round, state.clients)
    folder.keep_rounds(state.round)
    with CheckpointWriter(folder, store) as writer:
        for phase, after, record in train(run, engine, store, state, run_one):
            run, state = phase, after
            with span("checkpoint", round=record.round):
                writer.wait()
            stages = output.watch.lap()
            with span("record", round=record.round):
                folder.add_round(record, stages=stages)
            with span("checkpoint", round=record.round):
                state = replace(state, clients=store.commit(record.round))
                writer.start(state)
            output.log.round(record)
            if output.on_round is not None:
                output.on_round(record)
    return Trained(run, state, store)


def _before_training(run: Run, store: ClientStore, say: Notify) -> float | None:
    """Return the accuracy of given weights before the first round, and say it; None without any."""
    if run.config.weights is None:
        return None
    with span("evaluate"):
        found = accuracies(Trained(run, run.start(), store)).get("global")
    if found is not None:
        say(f"before training: {metric_text(run.criterion.metric, found)}")
    return found


def _own_key(say: Notify) -> SigningKey | None:
    """Return the user's own key, which signs the bundle of a run; without one a finished run is not lost, its bundle is not signed."""
    try:
        return SigningKey.own()
    except InputError as error:
        say(f"the run's bundle is not signed: {error}")
        return None


def _finish(
    trained: Trained, output: Output, nodes: tuple[NodeRecord, ...] = (), simulated: bool = True, at_start: float | None = None
) -> RunResult:
    """Write the model, the bundle, the report, and last the summary, which marks a run as complete."""
    folder, watch = output.folder, output.watch
    with span("start"), uncollected():
        from edgefl.report import html
        from edgefl.run.bundle import Source
    run, config = trained.run, trained.run.config
    rounds = folder.rounds()
    with span("checkpoint"):
        content = to_bytes(trained.state)
        folder.write(MODEL, content)
    with span("bundle"):
        source = Source(config.rounds, sha256(content))
        results, no_bundle = _results(trained, source, folder.fresh_bundle(), output.say, rounds[-1].accuracy)
    with span("evaluate"):
        evaluation = final_scores(trained, simulated)
    with span("report"):
        taken = {tier.ratio: result.accuracy for tier, result in results.items() if result.accuracy is not None}
        summary = RunSummary(
            **about(run),
            **vars(totals(rounds)),
            metric=run.criterion.metric,
            accuracy_of="clients" if of_clients(run) else "global",
            global_accuracy=rounds[-1].accuracy["global"],
            before_training=at_start,
            mixed_nodes=config.mixed_nodes,
            nodes=nodes,
            accuracy_after_training=rounds[-1].accuracy_after_training,
            tiers=tuple(tier_rows(run.plan, _with_energy(trained, results), rounds, *learning(run.method))),
            classes=tuple(class_rows(run.plan)),
            participation=tuple(participation_rows(run.plan, rounds, _distinct(rounds), taken)),
            evaluation=evaluation,
            no_bundle=no_bundle,
            host_stages={},
            **merged(feature.totals(rounds) for feature in run.features),
            **merged(feature.summary(len(rounds)) for feature in run.features),
        )
    before = added([*(line.stages or {} for line in rounds), watch.lap()])
    with span("report"):
        page = html.render(replace(summary, host_stages=before), rounds)
        write_bytes(folder.path / "report.html", page.encode())
    # The page leaves this stage out, so that one rendered again from the summary is the same.
    stages = added([before, {"server": {"report": sum(watch.lap()["server"].values())}}])
    stored = replace(summary, host_stages=stages).to_dict()
    folder.write("summary.json", json_bytes(stored))
    return RunResult(folder.path, stored)


def _results(
    trained: Trained, source: Source, bundle: Path, say: Notify, accuracy: Mapping[str, float]
) -> tuple[dict[Tier, TierResult], str]:
    """Write the ``bundle`` of a run, and return the results of its tiers and why it has no bundle, "" if it has one.

    ``accuracy`` is that of the last round, by the labels of tiers.
    """
    from edgefl.run.bundle import Wanted, build_bundle, in_torch

    run = trained.run
    reason = "" if run.config.bundle else ("fresh_momentum" in run.method.lacks and no_graphs(run)) or _NOT_WANTED
    if reason and not of_clients(run) and accuracy:
        return {tier: TierResult(accuracy[tier.label], accuracy[tier.label]) for tier in run.tiers}, reason
    networks = tier_networks(trained)
    if not reason:
        try:
            return build_bundle(run, networks, source, bundle, say, Wanted(key=_own_key(say))), ""
        except NoBundleError as error:
            reason = str(error)
    return in_torch(run, networks), reason


def _with_energy(trained: Trained, results: Mapping[Tier, TierResult]) -> dict[Tier, TierResult]:
    """Return ``results`` with each tier's share of the energy of the final weights."""
    model = trained.state.model
    method = trained.run.method
    bands = method.energy_bands(model) if isinstance(method, Figures) else {}
    shares = dict(zip(sorted(model.tiers), energy_of_tiers(bands), strict=False))
    return {tier: replace(result, energy_share=shares.get(tier)) for tier, result in results.items()}


def _distinct(rounds: Sequence[RoundLine]) -> Counter[str]:
    """Return device → how many clients with it trained at least once."""
    return Counter({client.client: client.device for client in clients_of(rounds) if client.status == "trained"}.values())
