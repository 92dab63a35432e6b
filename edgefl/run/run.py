"""A run that is ready to start: its parts, its rounds, its phases and its variations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from edgefl.client.client import Clients
from edgefl.client.criterion import Criterion
from edgefl.config import RunConfig
from edgefl.data.scaled import Scaled
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.engine.contract import Engine
from edgefl.errors import AggregationError, CheckpointError
from edgefl.fleet.conditions import Conditions
from edgefl.fleet.profile import Fleet
from edgefl.fleet.resolve import with_deadline
from edgefl.methods.base import Method
from edgefl.methods.capabilities import advanced, misfit
from edgefl.methods.create import check_tiers, create
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.planning.tier_costs import Costs
from edgefl.records import RoundRecord, Tier
from edgefl.report.run_files import Configured
from edgefl.rng import generator
from edgefl.run.feature import Feature, features_of, merged
from edgefl.run.network import inputs_of
from edgefl.run.resolved import chain_of, conditions_of, costs_of, method_of, plan_of, tiers_of
from edgefl.server.assignment import Plan
from edgefl.server.chain import Chain
from edgefl.server.client_store import ClientStore
from edgefl.server.distillation import Public
from edgefl.server.exchange import ExchangeRules
from edgefl.server.fedbuff import Buffer
from edgefl.server.forecast import Forecast
from edgefl.server.rounds import Server, run_round
from edgefl.server.sampler import sampler_of
from edgefl.server.state import ServerState
from edgefl.util.fields import Fields, named

if TYPE_CHECKING:
    from edgefl.bundle.tier_graphs import TierGraphs
    from edgefl.onnxgrad.stepper import StepGraphs


RunOne = Callable[[Server, ServerState], tuple[ServerState, RoundRecord]]
"""Runs the round after a state, and returns the next state and the record without accuracies."""
INTERIM_SAMPLES = 1000
"""Number of held-out samples in evaluations before the last round. Evaluation on all 10,000 took longer than a round's training."""
MAPPED_BYTES = 2**28
"""Of held-out samples that stay on the disk, so many bytes are evaluated after the last round if the configuration gives no number."""


@dataclass(frozen=True)
class Run:
    """A run that is ready to start: every name is resolved, every number is checked, and nothing is written."""

    config: RunConfig
    fleet: Fleet
    data: Dataset
    architecture: Architecture
    method: Method
    tiers: tuple[Tier, ...]
    clients: Clients
    plan: Plan
    costs: Costs
    conditions: Conditions = field(default_factory=Conditions)
    features: tuple[Feature, ...] = ()

    def round(
        self, state: ServerState, engine: Engine | None, store: ClientStore, run_one: RunOne = run_round
    ) -> tuple[ServerState, RoundRecord]:
        """Run the round after ``state``; return the next state and the record. Without an ``engine``, no simulated client trains."""
        buffer = self.config.buffer
        waiting = None if buffer is None else Buffer(buffer, self.per_round, self.config.staleness_power)
        asked = self.config.eval_after_training
        evaluates = self.evaluates(state.round + 1) and (self.method.personalised if asked is None else asked)
        server = Server(self.method, self.forecast, self.rules, self.per_round, engine, store, waiting, evaluates)
        after, record = run_one(server, state)
        observed = merged(feature.observed(record.round) for feature in self.features)
        lines = merged(feature.line(record) for feature in self.features)
        return after, replace(record, observed={**record.observed, **observed}, of_features=lines)

    def evaluates(self, round_: int) -> bool:
        """Whether ``round_`` is evaluated: every ``eval_every``-th one, and the last."""
        return round_ % self.config.eval_every == 0 or round_ == self.config.rounds

    @cached_property
    def inputs(self) -> Fields[InputSpec]:
        """What a sample consists of."""
        return inputs_of(self.data)

    @property
    def criterion(self) -> Criterion:
        """What clients minimise, and the metric of the run."""
        return self.clients.task.criterion

    @property
    def per_round(self) -> int:
        """Updates wanted per round; in mode async, the number of clients that train at any time."""
        assert self.config.per_round is not None  # resolved
        return self.config.per_round

    @property
    def rules(self) -> ExchangeRules:
        """How updates are sent and aggregated."""
        graphs, conduct = self.step_graphs if self.config.runtime == "onnx" else None, self.clients.task.conduct
        claimed = conduct.claimed if conduct is not None and conduct.claims else None
        return ExchangeRules(self.config.seed, self.chain, graphs, claimed, self.public)

    @cached_property
    def public(self) -> Public | None:
        """What the server trains on, if the method distils."""
        return None if self.data.public is None else Public.of(self.data.public, self.costs.of)

    @cached_property
    def chain(self) -> Chain:
        """What every update passes."""
        found = chain_of(self.config, self.features, self.clients.shards.largest)
        planned = [stage for feature in self.features for stage in feature.planned(self.config, self.plan)]
        return Chain.of((*found.stages, *planned)) if planned else found

    def graphs_of(self, method: Method, tier: Tier, parts: bool = False) -> TierGraphs:
        """Return the ONNX graphs that a client of ``tier`` trains and infers with, its weights outside; ``parts``: in micro-batches too."""
        from edgefl.bundle.tier_graphs import rule_of, tier_graphs  # a second to import, and most runs train in torch

        task = self.clients.task
        return tier_graphs(method, self.architecture, tier, rule_of(task.training), task.objective, parts, task.criterion)

    def step_graphs(self, method: Method, tier: Tier) -> StepGraphs:
        """Return the training steps of ``tier`` in ONNX."""
        return self.graphs_of(method, tier, parts=True).steps

    @cached_property
    def forecast(self) -> Forecast:
        """What the server expects of clients under the plan."""
        who = self.chain.meeting, sampler_of(self.config.sampler)
        return Forecast(self.plan, self.conditions, self.config.seed, self.clients.shards.size, *who)

    def at(self, method: Method) -> Run:
        """Return this run in the phase ``method``, with that phase's costs and plan."""
        costs = costs_of(self.config, method, self.clients.task)
        plan = plan_of(costs, self.config, self.fleet, self.clients, self.conditions, self.features)
        return replace(self, method=method, costs=costs, plan=plan)

    def start(self) -> ServerState:
        """Return the server's state before the first round."""
        return ServerState(self.first_state(), options=self.options)

    @property
    def options(self) -> dict[str, Any]:
        """The method's options in its present phase, as JSON has them."""
        return self.method.config.model_dump(mode="json")

    def advanced(self, state: ServerState) -> tuple[Run, ServerState]:
        """Return the run and the state for the next round; they change if a new phase of the method begins with it."""
        round_ = state.round + 1
        found: Any = advanced(self.method, state.model, round_, generator(self.config.seed, round_, "advance"))
        match found:
            case (Method() as method, GlobalState() as model):
                pass
            case _:
                title, got = type(self.method).title, type(found).__name__
                raise AggregationError(f"method {title}: advance returned {got}, expected a method and a GlobalState")
        run = self if method == self.method else self.at(method)
        return run, replace(state, model=model, options=run.options)

    def resumed(self, state: ServerState, source: str) -> Run:
        """Return this run in the phase of ``state``.

        Raises:
            CheckpointError: the state belongs to another method or network; the message names ``source``.
        """
        method = create(self.config.method, state.options)
        run = self if method == self.method else self.at(method)
        first, model = run.first_state(), state.model
        problem = misfit(method, first, model)
        if problem or (first.architecture, first.tiers) != (model.architecture, model.tiers):
            problem = problem or "it is of another model"
            remedy = "; restore the source that the run began with" if "model" in (self.config.sources or {}) else ""
            raise CheckpointError(f"{source}: {problem}; it cannot be resumed with this configuration{remedy}")
        return run

    def varied(self, **changes: Any) -> Run:
        """Return this run with other values of ``deadline_s``, ``tiers`` or ``over_selection``. It shares data and costs with this run.

        The result may fit no device: for dry runs only.

        Raises:
            ConfigError: a value is wrong, the method does not support the tiers, or a feature of the run makes no sense with it.
        """
        config = RunConfig.of({**self.config.model_dump(), **changes})
        tiers = tiers_of(config)
        check_tiers(config.method, tuple(tier.ratio for tier in tiers))
        method = method_of(config)
        method.check(self.architecture, tiers, config.clients)
        costs = self.costs if method == self.method else costs_of(config, method, self.clients.task)
        fleet = with_deadline(self.fleet, config.deadline_s)
        conditions = conditions_of(config, fleet, self.conditions.availability)
        features = features_of(config, conditions)
        for feature in features:
            feature.check(config, method, self.clients, conditions)
        plan = plan_of(costs, config, fleet, self.clients, conditions, features)
        run = Run(config, fleet, self.data, self.architecture, method, tiers, self.clients, plan, costs, conditions, features)
        run.check_sampler()
        return run

    def check_sampler(self) -> None:
        """Raise :class:`ConfigError` where the sampler makes no sense with the fleet, or with the clients that a round asks."""
        asked = 1 if self.config.mode == "async" else self.conditions.asked(self.per_round, self.config.clients)
        sampler_of(self.config.sampler).check(list(dict.fromkeys(c.device.name for c in self.fleet.classes)), asked)

    @cached_property
    def test(self) -> Split:
        """The held-out samples that the last round is evaluated on."""
        return self._held_out(self.config.eval_samples)

    @cached_property
    def _interim_test(self) -> Split:
        return self._held_out(self.config.eval_samples or INTERIM_SAMPLES)

    def test_of(self, round_: int) -> Split:
        """Return the held-out samples that a round is evaluated on: all of them, or fewer in rounds before the last."""
        return self.test if round_ == self.config.rounds else self._interim_test

    def _held_out(self, count: int | None) -> Split:
        test = self.data.test
        if count is None and (mapped := [x for x in named(test.x, "x").values() if isinstance(x, Scaled) and x.mapped]):
            count = max(INTERIM_SAMPLES, MAPPED_BYTES // (4 * sum(math.prod(x.shape[1:]) for x in mapped)))
        if count is None or count >= len(test):
            return test.taken()
        return test.taken(np.sort(generator(self.config.seed, "held out").permutation(len(test))[:count]))

    def first_state(self) -> GlobalState:
        """Return the state before the first round."""
        return self.method.init(self.architecture, self.tiers, generator(self.config.seed, "init"))

    def shards(self) -> Iterator[Split]:
        """Yield every client's samples, one client at a time."""
        return map(self.clients.shards.train, range(self.config.clients))


def about(run: Run) -> dict[str, Any]:
    """Return the part of a summary that is known before the first round."""
    config = {f.name: getattr(run.config, f.name) for f in fields(Configured)} | {"dataset": run.data.name}
    config |= {"model": run.architecture.model} if run.config.tier else {}
    asked = {"over_selection": run.conditions.over_selection, "deadline_s": run.plan.deadline_s}
    own = {"fleet": run.fleet.name, "fleet_title": run.fleet.title, "assumed": tuple(run.fleet.assumed)}
    own |= {} if run.conditions.calendar is None else {"calendar": str(run.conditions.calendar)}
    return {"format": 1, **config, **asked, **own, **merged(feature.known() for feature in run.features), "data": run.data.record}


def left_out(run: Run) -> str:
    """Return what is left out of the user's own data, on a line; "" if nothing is."""
    left = run.data.record.left_out if run.data.record else ()
    return f"left out of {run.data.name}: {'; '.join(left)}" if left else ""
