"""From a configuration to the parts of a run: data, network, method, costs and plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import nn

from edgefl.config import RunConfig
from edgefl.cost.explain import reason
from edgefl.cost.table import cost_of
from edgefl.cost.trace import Subject
from edgefl.data.sources import Dataset, Split
from edgefl.errors import ConfigError, EdgeflError
from edgefl.fleet.budget import Budget, budget_of, shortfalls
from edgefl.fleet.load import load_fleet
from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.local.client import Clients, Task
from edgefl.local.train import Training, optimizer_of
from edgefl.methods.base import GlobalState, Method, check_tiers
from edgefl.models.base import Architecture, Unfilled
from edgefl.planner.uniform import STEPS, largest_ratio
from edgefl.records import Batch, Cost, Tier
from edgefl.registry import datasets, methods, models
from edgefl.rng import generator
from edgefl.server.plan import Plan, fastest_round_s, make_plan, timing_of
from edgefl.server.rounds import Schedule
from edgefl.wire import payload_bytes


@dataclass(frozen=True)
class Session:
    """A run that is ready to start: every name resolved, every number checked, nothing written."""

    config: RunConfig
    fleet: Fleet
    data: Dataset
    architecture: Architecture
    method: Method
    tiers: tuple[Tier, ...]
    clients: Clients
    plan: Plan

    @property
    def schedule(self) -> Schedule:
        """Who takes part in a round."""
        assert self.config.per_round is not None  # resolved
        return Schedule(self.config.seed, self.config.per_round, self.config.tier_assignment, self.config.codec)

    @property
    def shard_sizes(self) -> list[int]:
        """Samples of every client."""
        return [len(shard) for shard in self.clients.shards]

    def first_state(self) -> GlobalState:
        """Return the state before the first round."""
        return self.method.init(self.architecture, self.tiers, generator(self.config.seed, "init"))

    def shards(self) -> Iterator[Split]:
        """Yield every client's samples, one client at a time."""
        return map(self.clients.shard, range(self.config.clients))


def prepare(config: RunConfig) -> Session:
    """Resolve ``config`` and work out the plan.

    Raises:
        InputError: a name, value or file is wrong.
        BudgetError: no class of the fleet fits any tier; the message has every need.
    """
    methods.check(config.method)
    fleet = load_fleet(config.profile)
    data: Dataset = datasets.load(config.dataset)(config.data_dir)
    config = resolve(config, data)
    architecture = Architecture(str(config.model), data.input_shape, data.classes, config.norm)
    training = training_of(config)
    clients = Clients(_task(config, architecture, training), data)
    trace = cache(lambda ratio: tier_cost(clients.method, architecture, Tier(ratio), training, config.codec))
    sizes = [len(shard) for shard in clients.shards]
    if config.tiers == "auto":
        config = config.model_copy(update={"tiers": auto_tiers(clients.method, fleet, trace, training, max(sizes))})
    tiers = tuple(Tier(ratio) for ratio in config.tiers or () if isinstance(ratio, float))
    costs = {tier: trace(tier.ratio) for tier in tiers}
    plan = make_plan(fleet, costs, training, sizes, config.seed, trace(1.0))
    plan.require_someone()
    return Session(config, fleet, data, architecture, clients.method, tiers, clients, plan)


def auto_tiers(
    method: Method, fleet: Fleet, trace: Callable[[float], Cost], training: Training, samples: int
) -> tuple[float, ...]:
    """Return the largest ratio that fits each class of the fleet with ``samples`` local samples, each once, largest first.

    A method that trains one size only gets the largest that fits every class that can take part at all.
    """
    fastest_s = fastest_round_s(fleet, trace(1.0), training, samples)
    ratios = set()
    for fleet_class in fleet.classes:
        budget = budget_of(fleet_class, fleet.budget, fastest_s)

        def fits(ratio: float, device: DeviceProfile = fleet_class.device, budget: Budget = budget) -> bool:
            cost = trace(ratio)
            return not shortfalls(cost, timing_of(device, cost, training, samples), budget, device.name, Tier(ratio))

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
    return config.model_copy(
        update={
            "tiers": tiers,
            "model": model,
            "local_epochs": config.local_epochs or data.default_local_epochs,
            "per_round": config.per_round or max(1, (config.clients + 1) // 2),
            "engine": config.engine or ("pool" if config.workers > 1 else "inline"),
        }
    )


def training_of(config: RunConfig) -> Training:
    """Return how clients train under ``config``."""
    keys = ("batch_size", "lr", "momentum", "weight_decay", "optimizer", "micro_batch")
    return Training(epochs=config.local_epochs or 1, **{key: getattr(config, key) for key in keys})


def tier_cost(method: Method, architecture: Architecture, tier: Tier, training: Training, codec: str = "fp32") -> Cost:
    """Return the cost of one tier's training step and inference at the batch size of ``training``.

    Raises:
        ConfigError: the network does not take this input, or what it computes depends on values.
    """
    network = partial(method.network, architecture, tier)
    try:
        shapes = method.shapes(architecture, tier)
        return network_cost(network, architecture, method, training, (payload_bytes(shapes), payload_bytes(shapes, codec)))
    except EdgeflError:
        raise
    except Exception as error:  # tracing runs the network's own code, which may raise anything
        raise ConfigError(f"model {architecture.model} does not take input {architecture}: {reason(error)}") from error


def network_cost(
    build: Callable[[], nn.Module], architecture: Architecture, method: Method, training: Training, sizes: tuple[int, int]
) -> Cost:
    """Return the cost of a network that ``method`` trains, and that sends ``sizes`` bytes down and up."""

    def batch(samples: int) -> Batch:
        present = torch.ones(architecture.classes, dtype=torch.bool) if architecture.classes else None
        return Batch(architecture.samples(samples), torch.zeros(samples, dtype=torch.int64), present)

    def unfilled() -> nn.Module:
        with Unfilled():
            return build()

    subject = Subject(
        build=unfilled,
        batch=batch,
        loss=lambda module, batch: method.local_loss(module, batch, {}),
        optimizer=lambda module: optimizer_of(method, module, training),
    )
    return cost_of(subject, training.batch_size, sizes, training.micro_batch)


def _task(config: RunConfig, architecture: Architecture, training: Training) -> Task:
    return Task(
        seed=config.seed,
        dataset=config.dataset,
        data_dir=config.data_dir,
        partition=config.partition,
        clients=config.clients,
        method=config.method,
        method_options=config.method_options,
        dynamic_tiers=config.tier_assignment == "dynamic",
        architecture=architecture,
        training=training,
        codec=config.codec,
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread: sums then come out to the same bits on any number of cores and workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
