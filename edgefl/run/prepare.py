"""From a configuration to the parts of a run: data, network, method, costs and plan."""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from edgefl.client.adversary import lacks_of
from edgefl.client.client import Clients
from edgefl.client.criterion import Criterion
from edgefl.client.isolation.isolate import check_limit
from edgefl.client.job import Task
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.data.given import Reading
from edgefl.data.mix import load
from edgefl.data.sources import Dataset
from edgefl.engine.contract import is_remote
from edgefl.errors import ConfigError
from edgefl.fleet.budget import Budget, budget_of, shortfalls
from edgefl.fleet.conditions import Conditions
from edgefl.fleet.load import load_fleet
from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.fleet.resolve import conditions_of, with_deadline
from edgefl.methods.axes import AXES, CLIPPED, conflict
from edgefl.methods.base import Method
from edgefl.methods.create import check_tiers, create
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.models.custom import CustomArchitecture
from edgefl.models.factory import root_of
from edgefl.planning.secure_costs import secured
from edgefl.planning.tier_costs import STEPS, Costs, largest_ratio, objective_of, parts_of, training_of
from edgefl.plugins import only_here
from edgefl.records import Cost, Tier
from edgefl.registry import methods, models
from edgefl.rng import generator
from edgefl.run.loss import check_loss, criterion_of
from edgefl.run.network import network_of, with_weights
from edgefl.run.privacy import check_private, spending_of
from edgefl.run.run import Run, check_exports, method_of, plan_of, screening_of, tiers_of
from edgefl.secagg.vector import Coding
from edgefl.server.assignment import fastest_round_s, timing_of
from edgefl.util.files import sha256
from edgefl.util.networks import is_own, title_of
from edgefl.wire.codec import codec_named

_OF_TASK = (
    "seed", "dataset", "data_dir", "partition", "clients", "codec", "permute_labels", "data_share", "validation_share", "enforce",
    "cpu_limit_s", "device", "plugins", "adversary",
)  # fmt: skip


def prepare(config: RunConfig, required: bool = True) -> Run:
    """Resolve ``config`` and work out the plan; ``required``: some device must fit it.

    Raises:
        InputError: a name, value, file or loss is wrong.
        BudgetError: no class of the fleet fits any tier; the message names every need.
    """
    methods.check(config.method)
    check_device(config)
    fleet_file = load_fleet(config.profile)
    fleet = with_deadline(fleet_file, config.deadline_s)
    conditions = conditions_of(config, fleet)
    reading = reading_of(config)
    data = load(config.dataset, config.data_dir, config.validation_share, reading)
    config = resolve(config, data)
    check_reach(config)
    spending = spending_of(config, conditions)
    if spending is not None:
        config = config.model_copy(update={"noise_multiplier": spending.privacy.noise_multiplier})
    criterion = criterion_of(config, data)
    architecture = network_of(config, data)
    if config.weights is not None:
        architecture = with_weights(architecture, config.weights, config.new_classifier)
    if criterion.loss is not None:
        check_loss(criterion, architecture, data, config.seed)
    sources = _sources(architecture, data, criterion) | _fleet_sources(config, fleet_file)
    config = config.model_copy(update={"sources": sources or None})
    training = training_of(config)
    task = Task(
        architecture=architecture,
        training=training,
        objective=objective_of(config),
        criterion=criterion,
        reading=reading,
        privacy=None if spending is None else spending.privacy,
        **{key: getattr(config, key) for key in _OF_TASK},
    )
    clients = Clients(task, data)
    if config.tiers == "auto":
        config = config.model_copy(update={"tiers": chosen_tiers(config, fleet, clients)})
    tiers, method = tiers_of(config), method_of(config)
    check_axes(method, config)
    check_adversary(method, config, clients)
    check_secure(config, conditions, clients.shards.largest if method.weighs_samples else 1)
    method.check(architecture, tiers, config.clients)
    check_private(config, method, architecture, tiers)
    if architecture.weights is not None:
        begun(method, architecture, tiers, architecture.weights.tensors(), config.seed)
    costs = Costs(method, config, architecture, training, criterion)
    plan = plan_of(costs, config, fleet, clients, conditions)
    if required:
        plan.require_someone()
    if config.enforce == "hard" and not is_remote(config.engine):  # each node of a cluster checks it
        for device, memory_bytes in plan.memory_limits.items():
            check_limit(device, memory_bytes)
    run = Run(config, fleet, data, architecture, method, tiers, clients, plan, costs, conditions, spending)
    if required and criterion.loss is not None:
        check_exports(run)
    return run


def reading_of(config: RunConfig) -> Reading:
    """Return what a configuration says about the files of a user's data set."""
    return Reading(config.label, config.owner, config.features or (), config.held_out)


def check_device(config: RunConfig) -> None:
    """Raise :class:`ConfigError` if clients cannot train on the run's device, or torch does not find it."""
    if config.device == "cuda" and (config.enforce == "hard" or config.runtime == "onnx"):
        remedy = "give runtime torch, and enforce meter or plan"
        raise ConfigError(f"device: cuda trains in torch, and holds no client to a limit; {remedy}")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda, but torch finds no CUDA device here; use cpu, or install torch with CUDA and its driver")


def check_reach(config: RunConfig) -> None:
    """Raise :class:`ConfigError` if clients train in other processes, which cannot import a plug-in of the run."""
    elsewhere = config.workers != 1 or config.enforce == "hard" or config.engine in ("pool", "auto") or is_remote(config.engine)
    if elsewhere and (local := only_here(config.plugins)):
        raise ConfigError(
            f"plugins: {', '.join(local)} was defined in a notebook or at a prompt, and worker processes cannot import it; put it into a "
            "file and give it as a plug-in, or use engine inline with one worker, and enforce meter or plan"
        )


def _sources(architecture: Architecture, data: Dataset, criterion: Criterion) -> dict[str, str]:
    """Return what a run records about the files of its network, its data and its loss."""
    found: dict[str, str | None] = {"weights": architecture.weights.sha256 if architecture.weights else None, "data": data.sha256}
    if isinstance(architecture, CustomArchitecture):
        found |= {"root": root_of(architecture.spec), "model": architecture.sources_sha256}
    if criterion.spec:
        found |= {"loss_root": root_of(criterion.spec), "loss": criterion.sha256}
    return {name: value for name, value in found.items() if value}


def _fleet_sources(config: RunConfig, fleet: Fleet) -> dict[str, str]:
    """Return the hashes of the user's own fleet, with the devices that it names, and of the trace."""
    found = {"fleet": sha256(fleet.model_dump_json().encode())} if Path(config.profile).suffix else {}
    if Path(config.availability).suffix:
        found["trace"] = sha256(Path(config.availability).read_bytes())
    return found


def begun(
    method: Method, architecture: Architecture, tiers: tuple[Tier, ...], given: Mapping[str, Tensor], seed: int
) -> GlobalState:
    """Return the server's first state; ConfigError unless it, and what clients store, begin with the network's ``given`` weights."""
    state = method.init(architecture, tiers, generator(seed, "init"))
    ratios = ",".join(f"{tier.ratio:g}" for tier in tiers)
    # A network with early exits has the given one as its part "body".
    first = {name.removeprefix("body.") if name not in given else name: tensor for name, tensor in state.tensors.items()}
    if other := next(
        (name for name, t in given.items() if name not in first or not torch.equal(first[name], t.to(first[name]))), ""
    ):
        raise ConfigError(
            f"weights: the server of {type(method).title} with tiers {ratios} does not begin with a dense network of width 1: "
            f"{other} is not among its tensors, or is computed anew; choose another method, such as fedhm or fedavg"
        )
    for tier in tiers:
        if tier.ratio < 1 and (stored := sorted(method.keep(method.skeleton(architecture, tier)))):
            raise ConfigError(
                f"weights: clients of tier {tier.label} store {stored[0]} of their own, which is no part of the file; give tiers 1"
            )
    return state


def chosen_tiers(config: RunConfig, fleet: Fleet, clients: Clients) -> tuple[float, ...]:
    """Return the tiers of "auto": the largest that fit each class of the fleet."""
    method, training = create(config.method, config.method_options), clients.task.training
    costs = Costs(method, config, clients.task.architecture, training, clients.task.criterion)

    asked = conditions_of(config, fleet).asked(config.per_round or 1, config.clients)

    def trace(ratio: float) -> Cost:
        tier = Tier(ratio)
        return secured(costs.of(tier), method, clients.task.architecture, tier, config.secure, asked)

    samples = clients.shards.largest
    return auto_tiers(method, clients.task.architecture, fleet, trace, training, samples, costs.full, config.clock_margin)


def check_axes(method: Method, config: RunConfig) -> None:
    """Raise :class:`ConfigError` where ``method`` makes no sense with one of the other axes of ``config``."""
    name = type(method).title
    for key in AXES:
        if (chosen := getattr(config, key)) is None:
            continue
        choice = chosen.partition(":")[0]  # secure aggregation and adversaries have parameters
        if key != "adversary" and (reason := conflict(method.gaps, key, choice)):  # those need something of the data, too
            raise ConfigError(f"{key}: {choice} makes no sense with {name}: {reason}")
    if config.loss is not None and (why := method.lacks.get("own_loss")):
        raise ConfigError(f"loss: {title_of(config.loss)} makes no sense with {name}: {why}")
    if config.clip_norm is not None and (why := next((method.lacks[need] for need in CLIPPED if need in method.lacks), "")):
        raise ConfigError(f"clip_norm: makes no sense with {name}: {why}")
    screening_of(config)  # checks the strength of the defence
    if config.server_lr not in (None, 1.0) and "server_step" in method.lacks:
        raise ConfigError(f"server_lr: {config.server_lr:g} makes no sense with {name}: {method.lacks['server_step']}")


def check_adversary(method: Method, config: RunConfig, clients: Clients) -> None:
    """Raise :class:`ConfigError` where an attack makes no sense with ``method``, the data, or labels that are permuted."""
    if (attack := clients.adversaries) is None:
        return
    name, data = attack.spec.name, clients.data
    if reason := conflict(lacks_of(data, config.permute_labels, method), "adversary", name):
        raise ConfigError(f"adversary: {name} makes no sense with {type(method).title} on {data.name}: {reason}")
    if attack.kind.claims and config.secure is not None:
        raise ConfigError(
            f"adversary: {name}: secure aggregation weighs clients by samples that the server knows; leave one of them out"
        )
    try:
        attack.kind.check(data)
    except ConfigError as error:
        raise ConfigError(f"adversary: {name}: {error}") from None


def check_secure(config: RunConfig, conditions: Conditions, most: int) -> None:
    """Raise :class:`ConfigError` if updates cannot be added up securely; ``most``: the largest weight of a client."""
    rules, key = config.secure, f"secure_aggregation: {config.secure_aggregation}"
    if rules is None:
        return
    if not codec_named(config.codec).raw:
        raise ConfigError(
            f"{key} sends integers of {rules.bits} bits that add up, and what codec {config.codec} sends does not; give codec fp32, and "
            "bits=16 or bits=24 for fewer bytes"
        )
    if screening_of(config).holds or config.clip_norm == "adaptive":
        what = "outliers" if config.outliers else f"defence {config.defence}"
        what = what if screening_of(config).holds else "clip_norm adaptive"
        raise ConfigError(
            f"{key} shows the server sums only, and {what} compares updates; leave it out, or give a fixed clip_norm"
        )
    if objective_of(config).remembers:
        raise ConfigError(f"{key}: the server's half of {config.objective} reads every update; give objective none or prox")
    if rules.threshold >= 1 / conditions.over_selection:
        raise ConfigError(
            f"{key}: the server waits for {1 / conditions.over_selection:.0%} of the clients that it asks (over_selection "
            f"{conditions.over_selection:g}), and more than threshold={rules.threshold:g} of them must answer; give a smaller one of both"
        )
    if rules.masks == "real" and find_spec("cryptography") is None:
        raise ConfigError(f"{key}: masks need the package cryptography: pip install 'edgefl-sim[sign]'; or give masks=costed")
    members = min(rules.group, conditions.asked(config.per_round or 1, config.clients))
    try:
        Coding(rules.bits, members, rules.bound, most)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None


def auto_tiers(
    method: Method,
    architecture: Architecture,
    fleet: Fleet,
    trace: Callable[[float], Cost],
    training: Training,
    samples: int,
    full: Cost | None = None,
    clock_margin: float = 1.0,
) -> tuple[float, ...]:
    """Return the largest ratio that fits each class of the fleet with ``samples`` local samples, each once, largest first.

    A method that trains one size only gets the largest that fits every class that can take part at all. ``full`` is the cost of the full
    model, which deadlines may be multiples of; None takes that of ratio 1.
    """
    fastest_s = fastest_round_s(fleet, full or trace(1.0), training, samples)
    ratios = set()
    for fleet_class in fleet.classes:
        budget = budget_of(fleet_class, fleet.budget, fastest_s)

        def fits(ratio: float, device: DeviceProfile = fleet_class.device, budget: Budget = budget) -> bool:
            cost = trace(ratio)
            timing = timing_of(device, cost, training, samples, method.evaluated, 1 / clock_margin)
            return not shortfalls(cost, timing, budget, device.name, Tier(ratio))

        if ratio := largest_ratio(fits, partial(parts_of, method, architecture)):
            ratios.add(ratio)
    if not ratios:
        return (1 / STEPS,)  # the plan refuses it, with every need
    return (min(ratios),) if len(method.default_tiers) == 1 else tuple(sorted(ratios, reverse=True))


def resolve(config: RunConfig, data: Dataset) -> RunConfig:
    """Fill in the defaults that depend on other keys: the result is what ``config.toml`` records."""
    tiers = config.tiers or methods.load(config.method).default_tiers
    if tiers != "auto":
        check_tiers(config.method, tuple(tiers))
    model = config.model or data.default_model
    if not model:
        raise ConfigError(
            f"model: samples of {data.name} have the inputs {', '.join(data.input_shape)}, and reference networks take one; give --model "
            "with a network of your own whose forward takes them by name"
        )
    if not is_own(model):
        models.check(model)
    engine = config.engine or ("pool" if config.workers != 1 else "inline")
    per_round = config.per_round or max(1, (config.clients + 1) // 2)
    return config.model_copy(
        update={
            "tiers": tiers,
            "model": model,
            "local_epochs": config.local_epochs or data.default_local_epochs,
            "per_round": per_round,
            "buffer": config.buffer or (max(1, (per_round + 1) // 2) if config.mode == "async" else None),
            "engine": engine,
            "workers": 0 if is_remote(engine) and "workers" not in config.model_fields_set else config.workers,
        }
    )
