"""From a configuration to the parts of a run: data, network, method, costs and plan."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from edgefl.client.client import Clients
from edgefl.client.isolation.isolate import check_limit
from edgefl.client.job import Task
from edgefl.config import RunConfig
from edgefl.data.given import Reading
from edgefl.data.mix import load
from edgefl.data.prescribed import prescribed
from edgefl.data.shards import held_out_of_each
from edgefl.data.sources import Dataset
from edgefl.engine.contract import is_remote
from edgefl.errors import ConfigError
from edgefl.fleet.load import load_fleet
from edgefl.fleet.resolve import with_deadline
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Distils
from edgefl.methods.create import check_tiers, create
from edgefl.methods.personal import stored
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.models.ties import second_names
from edgefl.records import Tier
from edgefl.registry import methods, models
from edgefl.rng import generator, torch_seeded
from edgefl.run.auto_tiers import chosen_tiers
from edgefl.run.checks import (
    check_axes,
    check_described,
    check_device,
    check_networks,
    check_prepared,
    check_reach,
    check_stages,
)
from edgefl.run.feature import conduct_of, features_of
from edgefl.run.network import check_finite, checked_loss, criterion_of, network_of, with_weights
from edgefl.run.resolved import chain_of, conditions_of, costs_of, method_of, objective_of, plan_of, tiers_of, training_of
from edgefl.run.run import Run
from edgefl.run.sources import own_networks, sources_of
from edgefl.util.networks import is_own
from edgefl.util.ratios import check_ratios

_OF_TASK = (
    "seed", "dataset", "data_dir", "partition", "clients", "permute_labels", "data_share", "validation_share", "enforce",
    "cpu_limit_s", "device", "plugins",
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
    public = public_share(config)
    data = load(config.dataset, config.data_dir, config.validation_share, reading, public)
    check_described(data)
    check_prepared(config, data)
    config = config.model_copy(update={"preprocessing": reading.preprocessing or None})  # not the file, which may change
    config = resolve(config, data)
    check_reach(config)
    features = features_of(config, conditions)
    for feature in features:
        config = feature.resolved(config)
    criterion = criterion_of(config, data)
    architecture = network_of(config, data)
    if config.weights is not None:
        architecture = with_weights(architecture, config.weights, config.new_classifier)
    if criterion.loss is not None:
        criterion = checked_loss(criterion, architecture, data, config.seed)
    sources = sources_of(config, architecture, data, criterion, fleet_file)
    config = config.model_copy(update={"sources": sources or None})
    task = Task(
        architecture=architecture,
        training=training_of(config),
        objective=objective_of(config),
        criterion=criterion,
        reading=reading,
        stages=chain_of(config, features).at_clients,
        conduct=conduct_of(features),
        public_share=public,
        test_samples=held_out_of_each(config.clients, config.eval_samples),
        **{key: getattr(config, key) for key in _OF_TASK},
    )
    clients = Clients(task, data)
    if config.tiers == "auto":
        config = config.model_copy(update={"tiers": chosen_tiers(config, fleet, clients, features)})
    tiers, method = tiers_of(config), method_of(config)
    check_networks(method, config)
    check_axes(method, config)
    check_stages(method, config)
    method.check(architecture, tiers, config.clients)
    for feature in features:
        feature.check(config, method, clients, conditions)
    for own in own_networks(architecture) if architecture.weights is None and "uploads" not in method.lacks else ():
        with torch_seeded(generator(config.seed, "finite")):
            check_finite(own.build(), own.model)
    if architecture.weights is not None:
        begun(method, architecture, tiers, architecture.weights.tensors(), config.seed)
    costs = costs_of(config, method, task)
    plan = plan_of(costs, config, fleet, clients, conditions, features)
    if required:
        plan.require_someone()
    if config.enforce == "hard" and not is_remote(config.engine):  # each node of a cluster checks it
        for device, memory_bytes in plan.memory_limits.items():
            check_limit(device, memory_bytes)
    run = Run(config, fleet, data, architecture, method, tiers, clients, plan, costs, conditions, features)
    run.check_sampler()
    return run


def public_share(config: RunConfig) -> float:
    """Return the share of the training samples that belongs to the server, where the method distils."""
    if not issubclass(methods.load(config.method), Distils):
        return 0.0
    distils: Any = create(config.method, config.method_options)
    return float(distils.public_share)


def reading_of(config: RunConfig) -> Reading:
    """Return what a configuration says about the files of a user's data set."""
    how = prescribed(config.preprocessing, config.weights)
    return Reading(config.label, config.owner, config.features or (), config.held_out, preprocessing=how)


def begun(
    method: Method, architecture: Architecture, tiers: tuple[Tier, ...], given: Mapping[str, Tensor], seed: int
) -> GlobalState:
    """Return the server's first state; ConfigError unless it, and what clients store, begin with the network's ``given`` weights."""
    state = method.init(architecture, tiers, generator(seed, "init"))
    ratios = ",".join(f"{tier.ratio:g}" for tier in tiers)
    second = second_names(architecture.skeleton())
    given = {second.get(name, name): tensor for name, tensor in given.items()}
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
        if tier.ratio < 1 and (own := sorted(stored(method, architecture, tier))):
            raise ConfigError(
                f"weights: clients of tier {tier.label} store {own[0]} of their own, which the file does not have; give tiers 1"
            )
    return state


def _usual_tiers(method: str) -> tuple[float, ...]:
    """Return the tiers of a run that names none; ConfigError if the method, of a plug-in, has others than a run may have."""
    tiers: tuple[float, ...] = methods.load(method).default_tiers
    try:
        check_ratios(tiers)
    except ValueError as error:
        raise ConfigError(f"method {method}: default_tiers: {error}") from None
    return tiers


def resolve(config: RunConfig, data: Dataset) -> RunConfig:
    """Fill in the defaults that depend on other keys: the result is what ``config.toml`` records."""
    tiers = config.named_tiers or _usual_tiers(config.method)
    if tiers != "auto":
        check_tiers(config.method, tiers)
    model = config.model or (config.tier or {}).get("1") or data.default_model
    if not model:
        raise ConfigError(
            f"model: samples of {data.name} have the inputs {', '.join(data.input_shape)}, and reference networks take one; give --model "
            "with a network of your own whose forward takes them by name"
        )
    for name in (model, *(config.tier or {}).values()):
        if not is_own(name):
            models.check(name)
    own = methods.load(config.method).clip_gradient
    if own is not None:
        RunConfig.of({"clip_gradient": own}, f"method {config.method}")
    engine = config.engine or ("pool" if config.workers != 1 else "inline")
    per_round = config.per_round or max(1, (config.clients + 1) // 2)
    return config.model_copy(
        update={
            "tiers": tiers,
            "model": model,
            # "none" is recorded only where it differs from the method's own, so that naming the default makes no other run.
            "clip_gradient": None if own is None and config.clip_gradient == "none" else config.clip_gradient or own,
            "local_epochs": config.local_epochs or data.default_local_epochs,
            "per_round": per_round,
            "buffer": config.buffer or (max(1, (per_round + 1) // 2) if config.mode == "async" else None),
            "engine": engine,
            "workers": 0 if is_remote(engine) and "workers" not in config.model_fields_set else config.workers,
        }
    )
