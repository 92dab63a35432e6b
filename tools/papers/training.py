"""Train one run in a folder, from its last checkpoint on, and return its figures: accuracies, costs of a client's round, totals."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from edgefl.client import evaluate
from edgefl.client.client import Clients
from edgefl.config import RunConfig
from edgefl.config.group import group_keys
from edgefl.contrib.attacks.keys import AttackKeys
from edgefl.factor.svd import unroll
from edgefl.methods.factorized_fl import FactorizedFL
from edgefl.methods.networks import global_tier
from edgefl.methods.ranks import hybrid_ranks
from edgefl.records import RoundRecord, Tier
from edgefl.report.evaluated import evaluated_of
from edgefl.report.round_lines import RoundLine
from edgefl.report.summary import participation_rows
from edgefl.run.folder import RunFolder
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.run.simulate import Output, train_into
from edgefl.run.trained import Trained, engine_of, of_clients
from edgefl.timing.stages import Stopwatch
from edgefl.util.compute import one_thread
from edgefl.util.files import write_bytes

_SECONDS = "processor-seconds"
_LOST = ("refused", "late", "dropped", "interrupted", "out_of_memory")
"""Statuses of sessions that the conditions of a fleet bring about."""


class OutOfTimeError(Exception):
    """The queue's time is over: the run stops after a round, with its checkpoint."""


class NotTrainedError(RuntimeError):
    """A client was refused or diverged: the figures would not be those of the protocol."""


class DivergedError(NotTrainedError):
    """The loss of a client is not finite: its rate is too high."""


def figures(settings: Mapping[str, Any], local: bool, folder: Path, until: float | None = None, since: int = 0) -> dict[str, Any]:
    """Return the figures of a run: JSON-able, and the same whether or not it was interrupted.

    Conditions are ideal unless ``settings`` have others, and no client is lost. Under the conditions of a fleet, clients may be lost, and
    ``curve`` has an :class:`edgefl.report.evaluated.Evaluated` per evaluated round, ``classes`` the tier of each device class.

    ``accuracy`` maps "global" and every tier's label to a share in [0, 1], ``local_accuracy`` is the mean over clients with the models
    that they receive, ``local_accuracy_after`` with those that they have trained from them in the last round (both None unless asked
    for); ``tiers`` has what one client's round costs, at a mean number of samples; ``total`` is summed over all rounds; ``samples`` is
    the mean number per client. FedHM with several tiers has ``tail``: layer → share of its energy beyond the smallest tier's rank.
    Factorized-FL has ``kept``: the share of the entries of μ that a client does not prune, mean over clients. With ``since``, ``late`` has
    the mean and the best of ``accuracy`` over the evaluated rounds, and their number.

    Args:
        settings: keys of a configuration.
        local: whether to measure ``local_accuracy`` and ``local_accuracy_after``.
        folder: holds the run; the same settings continue it there.
        until: the time (``time.time()``) after which no further round begins.
        since: the first round that is evaluated; 0: every round that the settings evaluate.

    Raises:
        InputError: the settings are wrong.
        NotTrainedError: a client diverged or crashed, or was lost under ideal conditions.
        OutOfTimeError: ``until`` is over; the same call resumes.
        StorageError: the disk is full; the same call resumes.
    """
    with trained_in(folder, settings, local, until, since) as (trained, rounds):
        return {**figures_of(trained, rounds, local), **(late(rounds) if since else {})}


@contextlib.contextmanager
def trained_in(
    folder: Path,
    settings: Mapping[str, Any],
    local: bool,
    until: float | None = None,
    since: int = 0,
    test_samples: int | None = None,
) -> Iterator[tuple[Trained, list[RoundLine]]]:
    """Train a run to its end in ``folder``, from its last checkpoint on; yield it with the lines of its rounds.

    ``test_samples`` is how many held-out samples of its own a client has at most; None: as the settings say.

    Raises: as :func:`figures`.
    """
    with one_thread(), Stopwatch() as watch:
        run = evaluated_since(prepared(settings, local), since)
        if test_samples is not None:
            run = replace(run, clients=Clients(replace(run.clients.task, test_samples=test_samples), run.data))
        files = RunFolder(folder)
        files.check(run.config, resume=True)
        files.start(run.config)
        with files.client_store() as store, engine_of(run) as engine:
            on_round = _after_rounds(run.config, folder / _SECONDS, until)
            yield train_into(Output(files, print, watch, on_round), run, engine, store, resume=True), files.rounds()


def prepared(settings: Mapping[str, Any], local: bool) -> Run:
    """Return the run of ``settings``, ready to begin; ``local`` as in :func:`figures`."""
    return prepare(RunConfig.of({"conditions": "ideal", "eval_after_training": local, **settings}))


def evaluated_since(run: Run, since: int) -> Run:
    """Return ``run``, of which no round before ``since`` is evaluated."""

    class Late(Run):
        def evaluates(self, round_: int) -> bool:
            return round_ >= since and super().evaluates(round_)

    return Late(**{field.name: getattr(run, field.name) for field in fields(run)}) if since else run


def late(rounds: Sequence[RoundLine]) -> dict[str, Any]:
    """Return ``late``: mean and best of each accuracy over the evaluated rounds, and how many there are."""
    curve = [line.accuracy for line in rounds if line.accuracy]
    values = {name: [accuracy[name] for accuracy in curve] for name in curve[-1]}
    mean = {name: statistics.mean(of) for name, of in values.items()}
    return {"late": {"mean": mean, "best": {name: max(of) for name, of in values.items()}, "rounds": len(curve)}}


def figures_of(trained: Trained, rounds: Sequence[RoundLine], local: bool) -> dict[str, Any]:
    """Return the figures of a run that has ended; see :func:`figures`."""
    run, accuracy = trained.run, dict(rounds[-1].accuracy)
    return {
        **_tail(trained),
        **_kept(trained),
        "accuracy": accuracy,
        "local_accuracy": _local(trained, accuracy) if local else None,
        "local_accuracy_after": rounds[-1].accuracy_after_training,
        "samples": run.plan.workload.mean_shard,
        "evaluated": len(run.test),
        **_of_attack(rounds),
        "tiers": costs_of(run),
        "total": {key: sum(getattr(line, key) for line in rounds) for key in ("download_bytes", "upload_bytes", "macs")},
        **({} if run.config.conditions == "ideal" else _of_fleet(run, rounds)),
    }


def _tail(trained: Trained) -> dict[str, Any]:
    """Return ``tail`` of FedHM with several tiers: layer → share of its weight's energy beyond the smallest tier's rank."""
    run, tensors = trained.run, trained.state.model.tensors
    if run.config.method != "fedhm" or len(run.tiers) < 2:
        return {}
    ranks = hybrid_ranks(run.architecture.build(), min(tier.ratio for tier in run.tiers))
    shares = {}
    for layer, rank in ranks.items():
        energies = torch.linalg.svdvals(unroll(tensors[f"{layer}.weight"]).double()).square()
        shares[layer] = float(energies[rank:].sum() / energies.sum())
    return {"tail": shares}


def _kept(trained: Trained) -> dict[str, float]:
    """Return ``kept`` of Factorized-FL: of what a client sent last, else of what it deploys."""
    run, clients = trained.run, trained.state.model.clients
    if not isinstance(run.method, FactorizedFL):
        return {}
    shares = []
    for client in range(run.config.clients):
        tensors = {**trained.module(run.tiers[0], client, factored=True).state_dict(), **clients.get(client, {})}
        mu = torch.cat([tensor.flatten() for name, tensor in tensors.items() if name.endswith(".mu")])
        shares.append(float((mu != 0).double().mean()))
    return {"kept": sum(shares) / len(shares)}


def _of_attack(rounds: Sequence[RoundLine]) -> dict[str, Any]:
    """Return how often an attack succeeds after the last round; nothing without an attack, or of one that wants no label."""
    success = rounds[-1].observed.get("attack_success")
    return {} if success is None else {"attack_success": dict(success)}


def _of_fleet(run: Run, rounds: Sequence[RoundLine]) -> dict[str, Any]:
    """Return what was used until every evaluated round, and the tier of each device class."""
    rows = (row.to_dict() for row in participation_rows(run.plan, rounds, {}, {}))
    classes = [{key: row[key] for key in ("device", "title", "clients", "tier")} for row in rows]
    return {"curve": [point.to_dict() for point in evaluated_of(rounds)], "classes": classes}


def cpu_s(folder: Path) -> float:
    """Return the processor seconds of the rounds that the run in ``folder`` has finished, over all its interruptions."""
    path = folder / _SECONDS
    return float(path.read_text(encoding="utf-8")) if path.is_file() else 0.0


def _after_rounds(config: RunConfig, path: Path, until: float | None) -> Callable[[RoundRecord], None]:
    """Return what to do after each round: check its clients, add up its processor seconds, stop when time is over."""
    before, began = cpu_s(path.parent), _used_s()
    ended: tuple[str, ...] = ("trained",) if config.conditions == "ideal" else ("trained", *_LOST)
    ended += ("diverged",) if group_keys(config, AttackKeys).adversary is not None else ()  # what an attack can do

    def on_round(record: RoundRecord) -> None:
        for client in record.clients:
            if client.status not in ended:
                why = "; ".join(map(str, client.expected.refusal)) or "its loss is not finite"
                kind = DivergedError if client.status == "diverged" else NotTrainedError
                raise kind(f"round {record.round}, client {client.client}: {client.status}: {why}")
        write_bytes(path, f"{before + _used_s() - began:.2f}".encode())
        if until is not None and time.time() > until and record.round < config.rounds:
            raise OutOfTimeError(f"stopped after round {record.round} of {config.rounds}")

    return on_round


def _used_s() -> float:
    """Return the processor seconds of this process and its workers."""
    own, total = psutil.Process(), 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker that has just ended
            total += sum(process.cpu_times()[:2])
    return total


def _local(trained: Trained, accuracy: Mapping[str, float]) -> float:
    """Return the mean over clients: each evaluates the model that it uses, on held-out samples drawn as its own are."""
    run = trained.run
    if of_clients(run):
        return accuracy["global"]
    module = trained.module(global_tier(run.method, trained.state.model))
    tests = map(run.clients.shards.test, range(run.config.clients))
    shares = [evaluate.accuracy(module, test) for test in tests]
    return sum(shares) / len(shares)


def costs_of(run: Run) -> dict[str, dict[str, int]]:
    """Return label of a tier → what one of its clients needs. Under the conditions of a fleet: of each tier that a device class gets."""
    ideal = run.config.conditions == "ideal"
    return {tier.label: _costs(run, tier) for tier in run.tiers if ideal or any(c.tier == tier for c in run.plan.classes)}


def _costs(run: Run, tier: Tier) -> dict[str, int]:
    """Return what one client of ``tier`` needs: parameters, bytes of a round, MACs of a round and of a sample, activations."""
    workload, cost = run.plan.workload, run.plan.costs[tier]
    training, samples = workload.training, workload.mean_shard
    return {
        "params": cost.params,
        "download_bytes": cost.download_bytes,
        "upload_bytes": cost.upload_bytes,
        "macs_round": cost.macs_of(samples * training.epochs, training.passes(samples), workload.evaluated(samples)),
        "macs_forward": cost.macs_forward,
        "macs_inference": cost.macs_inference,
        "peak_activation_bytes_training": cost.peak_activation_bytes_training,
    }
