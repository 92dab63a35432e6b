"""One round with real devices: update files in, the next global model and bundle out."""

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from edgefl.bundle.manifest_file import read
from edgefl.client.evaluate import evaluating
from edgefl.config import SCREENING, RunConfig
from edgefl.errors import CheckpointError, ConfigError, NotFiniteError, WireError, nearest
from edgefl.records import ACCURACY, Metric, Screened, Submodel, Update
from edgefl.report.outliers import ScreenedFile, remarks
from edgefl.run.bundle import Wanted, build_bundle
from edgefl.run.feature import check_devices
from edgefl.run.folder import CONFIG, MODEL, Notify, RunFolder
from edgefl.run.guarded import DEFENCE, MAX_DROP, best_of, check_drop, guarded
from edgefl.run.line import record_in, written
from edgefl.run.offered import check_aggregates, offer, run_of
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.run.trained import Trained, accuracies, tier_networks
from edgefl.server.client_store import ClientStore
from edgefl.server.exchange import Exchange
from edgefl.server.state import ServerState
from edgefl.util.compute import one_thread
from edgefl.util.keys import Chosen, SigningKey
from edgefl.wire.device_keys import DeviceKeys
from edgefl.wire.update_file import DeviceUpdate, ExpectedUpdate, Received, read_update, receive


@dataclass(frozen=True)
class TierRound:
    """A tier in a round: its updates and their samples, and the metric ``before`` and ``after``, None without data."""

    tier: float
    updates: int
    samples: int
    before: float | None
    after: float | None


@dataclass(frozen=True)
class EnrolledUpdate:
    """An update that was checked against the enrolled ``key`` of a device."""

    device: str
    key: str
    tier: str
    samples: int


@dataclass(frozen=True)
class FedRound:
    """The result of one round with devices.

    Attributes:
        folder: the folder that was written. It has what the next round needs of a run: configuration, model and bundle.
        round: the number of rounds so far, with this one.
        tiers: one row per tier, largest first: ``tier``, ``updates``, ``samples``, ``metric`` ``before`` and ``after``.
        accuracy: ``metric`` of the global model before and after the round; None without data to evaluate it on.
        refused: a message about every update that was left out.
        updates: one row per update that was screened: ``file``, ``client``, ``tier``, ``samples`` and what was found in it.
        devices: ``device``, ``key``, ``tier`` and ``samples`` of every aggregated update that was checked against enrolled keys.
        metric: the accuracy, in [0, 1], or the run's own metric.
    """

    folder: Path
    round: int
    tiers: tuple[TierRound, ...]
    accuracy: tuple[float | None, float | None]
    refused: tuple[str, ...]
    updates: tuple[ScreenedFile, ...] = ()
    devices: tuple[EnrolledUpdate, ...] = ()
    metric: Metric = ACCURACY


def fed_round(
    bundle: Path | str,
    updates: Path | str,
    out: Path | str | None = None,
    *,
    run: Path | str | None = None,
    skip_bad: bool = False,
    screening: Mapping[str, Any] | None = None,
    max_drop: float = MAX_DROP,
    keep_anyway: bool = False,
    keys: Path | str | None = None,
    sign: Chosen = None,
    lasts_s: float | None = None,
    notify: Notify | None = None,
) -> FedRound:
    """Aggregate the update files of devices that trained ``bundle`` into the next global model, and write it with its bundle.

    The method, server optimizer and objective of the run apply as in a simulated round. Every file is checked first. Files are then read
    one at a time, so that memory does not grow with their number.

    Args:
        bundle: folder of the bundle that the devices trained.
        updates: folder of the files that they sent back; hidden files are skipped.
        out: folder to write, in the form of ``run``; None: the next free ``runs/NNNN-method-round-R``.
        run: folder of the finished run, or of an earlier ``fed_round``, that the bundle was exported from; None: the bundle's parent.
        skip_bad: skip wrong files instead of refusing all.
        screening: keys of screening (:data:`edgefl.config.SCREENING`) for this round, in place of those of the run's configuration. If
            neither has a defence, ``norm-filter`` screens the updates; ``{"defence": "none"}`` averages them as they are.
        max_drop: refuse a model if its accuracy, or that of a tier, is lower than at best so far by more than this; 0.03 are 3 points. For
            another metric it is a share of the best value. The best are recorded from round to round.
        keep_anyway: write the model even then; following rounds are compared with it.
        keys: file with the public keys of enrolled devices; other updates are refused. None: updates of every sender count.
        sign: PEM file of an Ed25519 private key to sign the next bundle with; None: the user's own key; False: it is not signed.
        lasts_s: seconds after which devices refuse the next bundle; None: there is no end.
        notify: called with a line about each skipped file, and about tiers that do not run on their device.

    Raises:
        InputError: the bundle, the run or a file is wrong, the method needs to know the clients of an update, or no update is left to
            aggregate. Nothing is written then.
        EdgeflError: the model gets worse by more than ``max_drop``. Nothing is written then.
    """
    say = notify or (lambda message: None)
    manifest = read(Path(bundle))
    check_aggregates(Path(bundle), manifest)
    folder = run_of(Path(bundle), manifest, run)
    config, unguarded = guarded(_screened_by(folder.config(), screening or {}), screening or ())
    check_devices(config, "fed-round")
    if config.stages:
        raise ConfigError(f"stages: {', '.join(config.stages)} is simulated only: fed-round takes updates of devices without it")
    if unguarded:
        say(f"updates are averaged as they are, without {DEFENCE}: {unguarded}")
    number = manifest.round + 1
    target = Path(out) if out is not None else RunFolder.next_free(f"{config.method}-round-{number}")
    if not RunFolder(target).is_new():
        raise CheckpointError(f"{target}: exists and is not an empty folder; give another --out")
    enrolled = None if keys is None else DeviceKeys.of(Path(keys))
    key, record = SigningKey.chosen(sign), {"best": {}, "sized": True, **record_in(folder)}
    with one_thread():
        prepared = prepare(config, required=False)
        state = folder.model(prepared.architecture)
        prepared = prepared.resumed(state, str(folder.path / MODEL))
        sent, expected = offer(prepared, state, Path(bundle), manifest)
        expected = replace(expected, keys=enrolled)
        received = _accepted(receive(Path(updates), expected), Path(updates), skip_bad, say)
        _warn_of_senders(received, enrolled, say)
        after, found = _aggregated(prepared, state, sent, expected, received.updates)
        with folder.client_store(state) as store:
            # On the same held-out samples: all that the run's last round was evaluated on.
            before, now = (_accuracies(prepared, of, store, when) for of, when in ((state, "before"), (after, "after")))
            metric = prepared.criterion.metric
            best = best_of(record["best"], before, metric)
            result = _result(target, number, prepared, received, (before, now), _update_rows(received.updates, found))
            if prepared.data.drawn:
                say(
                    "the model is not evaluated, so --max-drop is not checked: the line has no data (edgefl export --model … --data DATA)"
                )
            elif not keep_anyway:
                suspects = partial(_suspects, prepared, state, sent, expected, received.updates)
                check_drop(best, now, metric, max_drop, suspects)
            best = dict(now) if keep_anyway else best_of(best, now, metric)
            wanted = Wanted(key=key, lasts_s=lasts_s, sized=record["sized"])
            _write(folder, Trained(*prepared.advanced(after), store), result, best, wanted, say)
    return result


def _accepted(received: Received, folder: Path, skip_bad: bool, say: Notify) -> Received:
    """Return ``received``; raise :class:`WireError` if a file is wrong (unless ``skip_bad``) or no update is left."""
    if received.problems and not skip_bad:
        more = f"\n{len(received.problems) - 1} more files are wrong; --skip-bad leaves them out" if received.problems[1:] else ""
        raise WireError(f"{received.problems[0]}{more}")
    for problem in received.problems:
        say(f"left out: {problem}")
    if not received.updates:
        raise WireError(f"{folder}: no update to aggregate; expected files that devices trained from this bundle wrote")
    return received


def _screened_by(config: RunConfig, keys: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with other ``keys`` of screening; ConfigError if one is unknown or wrong."""
    if unknown := sorted(keys.keys() - {*SCREENING}):
        raise ConfigError(
            f"screening: {unknown[0]} is no key of screening;{nearest(unknown[0], SCREENING)} known: {', '.join(SCREENING)}"
        )
    return RunConfig.of({**config.model_dump(), **keys}) if keys else config


def _warn_of_senders(received: Received, keys: DeviceKeys | None, say: Notify) -> None:
    """Say what was not checked about who sent the updates."""
    if keys is not None or len(received.updates) < 2:
        return
    say("without --keys every file counts, even if one sender wrote several under different names")
    same = Counter(update.content for update in received.updates)
    content, count = same.most_common(1)[0]
    if count > 1:
        first = next(update.path.name for update in received.updates if update.content == content)
        say(
            f"{count} of {len(received.updates)} updates have the same tensors, those of {first}: one sender under several names?"
        )


def _accuracies(run: Run, state: ServerState, store: ClientStore, when: str) -> dict[str, float]:
    with evaluating(f"{when} this round (nothing is written)"):
        return accuracies(Trained(run, replace(state, round=run.config.rounds), store))


def _aggregated(
    run: Run, state: ServerState, sent: Mapping[str, Submodel], expected: ExpectedUpdate, updates: tuple[DeviceUpdate, ...]
) -> tuple[ServerState, dict[int, Screened]]:
    """Return the server's state after the round, and what was found in each update, by position.

    ``sent`` and ``expected`` are those of :func:`offer`.
    """
    rules = replace(run.rules, chain=run.rules.chain.measuring())
    exchange = Exchange(run.method, state, rules, run.config.clients)
    exchange.turn.claims = [update.samples for update in updates]

    def arriving() -> Iterator[Update]:
        for client, accepted in enumerate(updates):  # read again: only one is held at a time
            yield rules.chain.admit(_update(client, accepted, expected, sent), exchange.turn)

    try:
        after = exchange.aggregated(arriving())
    except NotFiniteError as error:
        raise WireError(
            f"the updates, finite each, do not add up to finite weights; leave out those with huge values: {error}"
        ) from error
    return replace(after, round=state.round + 1), exchange.turn.found


def _update(client: int, accepted: DeviceUpdate, expected: ExpectedUpdate, sent: Mapping[str, Submodel]) -> Update:
    """Return the update in a file with all of its tensors, control variates included."""
    update, submodel = read_update(accepted.path, expected), sent[accepted.tier]
    if update != accepted:
        raise WireError(f"{accepted.path}: changed while the round was aggregated; try again")
    tensors = {name: torch.from_numpy(tensor) for name, tensor in update.tensors.items()}
    known = Update(client, submodel.tier, tensors, submodel.places, update.samples, update.labels)
    return replace(known, start=submodel.tensors)


def _suspects(
    run: Run, state: ServerState, sent: Mapping[str, Submodel], expected: ExpectedUpdate, updates: tuple[DeviceUpdate, ...]
) -> list[str]:
    """Return a line about every update that looks wrong beside the others of its tier; all of them are read at once."""
    rules = replace(run.rules, chain=run.rules.chain.measuring().comparing())
    exchange = Exchange(run.method, state, rules, run.config.clients)
    exchange.turn.claims = [update.samples for update in updates]
    for client, accepted in enumerate(updates):
        rules.chain.admit(_update(client, accepted, expected, sent), exchange.turn)
    rules.chain.record(exchange.turn)
    rows = ((row.file, remarks(row)) for row in _update_rows(updates, exchange.turn.found))
    return [f"{file}: {', '.join(suspicions)}" for file, suspicions in rows if suspicions]


def _update_rows(updates: tuple[DeviceUpdate, ...], found: Mapping[int, Screened]) -> tuple[ScreenedFile, ...]:
    every = ((of, found.get(position, Screened())) for position, of in enumerate(updates))
    return tuple(ScreenedFile(of.path.name, of.client, float(of.tier), of.samples, **vars(what)) for of, what in every)


def _result(
    target: Path,
    number: int,
    run: Run,
    received: Received,
    accuracy: tuple[Mapping[str, float], Mapping[str, float]],
    updates: tuple[ScreenedFile, ...],
) -> FedRound:
    before, after = accuracy
    own = {tier: [update.samples for update in received.updates if update.tier == tier.label] for tier in run.tiers}
    rows = tuple(TierRound(t.number, len(n), sum(n), before.get(t.label), after.get(t.label)) for t, n in own.items())
    known = ((of, of.device) for of in received.updates)
    devices = tuple(EnrolledUpdate(name, str(of.key), of.tier, of.samples) for of, name in known if name is not None)
    ways = before.get("global"), after.get("global")
    return FedRound(target, number, rows, ways, received.problems, updates, devices, run.criterion.metric)


def _write(run: RunFolder, trained: Trained, result: FedRound, best: Mapping[str, float], wanted: Wanted, say: Notify) -> None:
    """Write the folder, whole or not at all."""
    before, after = result.accuracy
    found = asdict(result)
    rows = {
        "tiers": found["tiers"],
        "accuracy": {"before": before, "after": after},
        "metric": found["metric"],
        "best": dict(best),
    }
    senders = {"devices": found["devices"]} if result.devices else {}
    record = {**rows, "updates": found["updates"], **senders, "refused": list(result.refused), "sized": wanted.sized}
    with written(result.folder, run.require(CONFIG).read_bytes(), trained.state, record) as (temporary, source):
        if (kept := run.path / "clients.sqlite").is_file():
            shutil.copyfile(kept, temporary / kept.name)
        build_bundle(trained.run, tier_networks(trained), source, temporary / "bundle", say, wanted)
