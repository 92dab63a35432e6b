"""From a configuration to the parts of a run: data, network, method, costs and plan."""

from __future__ import annotations

from collections.abc import Callable

import torch

from edgefl.client.client import Clients
from edgefl.client.isolation.isolate import check_limit
from edgefl.client.job import Task
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.data.mix import load
from edgefl.data.sources import Dataset
from edgefl.errors import ConfigError
from edgefl.fleet.budget import Budget, budget_of, shortfalls
from edgefl.fleet.load import load_fleet
from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.fleet.resolve import conditions_of, with_deadline
from edgefl.methods.axes import AXES, conflict
from edgefl.methods.base import Method, check_tiers, create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import STEPS, Costs, largest_ratio, objective_of, training_of
from edgefl.records import Cost, Tier
from edgefl.registry import methods, models
from edgefl.run.run import Run, method_of, plan_of, tiers_of
from edgefl.server.assignment import fastest_round_s, timing_of

_OF_TASK = (
    "seed", "dataset", "data_dir", "partition", "clients", "codec", "permute_labels", "data_share", "enforce", "cpu_limit_s", "device",
)  # fmt: skip


def prepare(config: RunConfig, required: bool = True) -> Run:
    """Resolve ``config`` and work out the plan; ``required``: some device must fit it.

    Raises:
        InputError: a name, value or file is wrong.
        BudgetError: no class of the fleet fits any tier; the message names every need.
    """
    methods.check(config.method)
    check_device(config)
    fleet = with_deadline(load_fleet(config.profile), config.deadline_s)
    conditions = conditions_of(config, fleet)
    data = load(config.dataset, config.data_dir)
    config = resolve(config, data)
    architecture = Architecture(str(config.model), data.input_shape, data.classes, config.norm)
    _check_inputs(data, architecture)
    training = training_of(config)
    task = Task(
        architecture=architecture,
        training=training,
        objective=objective_of(config),
        **{key: getattr(config, key) for key in _OF_TASK},
    )
    clients = Clients(task, data)
    if config.tiers == "auto":
        config = config.model_copy(update={"tiers": chosen_tiers(config, fleet, architecture, training, clients)})
    tiers, method = tiers_of(config), method_of(config)
    check_axes(method, config)
    method.check(architecture, tiers, config.clients)
    costs = Costs(method, config, architecture, training)
    plan = plan_of(costs, config, fleet, clients, conditions)
    if required:
        plan.require_someone()
    if config.enforce == "hard":
        for of_class in (of_class for states in plan.class_plans for of_class in states):
            check_limit(of_class.device.name, of_class.device.training_bytes * of_class.state.memory_share)
    return Run(config, fleet, data, architecture, method, tiers, clients, plan, costs, conditions)


def check_device(config: RunConfig) -> None:
    """Raise :class:`ConfigError` if clients cannot train on the run's device, or torch does not find it."""
    if config.device == "cuda" and (config.enforce == "hard" or config.runtime == "onnx"):
        raise ConfigError(
            "device: cuda trains in torch, and holds no client to a limit; give runtime torch, and enforce meter or plan"
        )
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device: cuda, but torch finds no CUDA device here; use cpu, or install torch with CUDA and its driver")


def _check_inputs(data: Dataset, architecture: Architecture) -> None:
    """Raise :class:`ConfigError` if the data are images and the network reads text, or the reverse."""
    kinds = {True: "token ids", False: "images"}
    known, model = architecture.vocabulary, architecture.model
    if (has := bool(data.vocabulary)) != (takes := bool(known)):
        raise ConfigError(
            f"model: {model} takes {kinds[takes]}, and {data.name} has {kinds[has]}; choose another model or dataset"
        )
    if data.vocabulary > known:
        raise ConfigError(f"model: {model} knows {known} token ids, {data.name} has {data.vocabulary}")


def chosen_tiers(
    config: RunConfig, fleet: Fleet, architecture: Architecture, training: Training, clients: Clients
) -> tuple[float, ...]:
    """Return the tiers of "auto": the largest that fit each class of the fleet."""
    method = create(config.method, config.method_options)
    costs = Costs(method, config, architecture, training)
    return auto_tiers(method, fleet, lambda ratio: costs.of(Tier(ratio)), training, clients.shards.largest, costs.full)


def check_axes(method: Method, config: RunConfig) -> None:
    """Raise :class:`ConfigError` where ``method`` makes no sense with one of the other axes of ``config``."""
    name = type(method).title
    for key in AXES:
        choice = getattr(config, key)
        if reason := conflict(method.lacks, key, choice):
            raise ConfigError(f"{key}: {choice} makes no sense with {name}: {reason}")
    if config.server_lr not in (None, 1.0) and "server_step" in method.lacks:
        raise ConfigError(f"server_lr: {config.server_lr:g} makes no sense with {name}: {method.lacks['server_step']}")


def auto_tiers(
    method: Method, fleet: Fleet, trace: Callable[[float], Cost], training: Training, samples: int, full: Cost | None = None
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
            timing = timing_of(device, cost, training, samples, method.evaluated)
            return not shortfalls(cost, timing, budget, device.name, Tier(ratio))

        if ratio := largest_ratio(fits):
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
    models.check(model)
    per_round = config.per_round or max(1, (config.clients + 1) // 2)
    return config.model_copy(
        update={
            "tiers": tiers,
            "model": model,
            "local_epochs": config.local_epochs or data.default_local_epochs,
            "per_round": per_round,
            "buffer": config.buffer or (max(1, (per_round + 1) // 2) if config.mode == "async" else None),
            "engine": config.engine or ("pool" if config.workers > 1 else "inline"),
        }
    )
