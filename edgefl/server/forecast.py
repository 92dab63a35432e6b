"""What the server expects of clients before they train: their tiers, how long sessions take, and which sessions are lost.

No network is computed here. The expectation follows from (seed, turn, client) alone and has the same bits on every computer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from edgefl.fleet.clock import added_s, durations, training_spends, trips_s, with_joules
from edgefl.fleet.conditions import Choose, Conditions
from edgefl.fleet.time_model import train_s
from edgefl.records import Cost, Expected, Shortfall, Tier, Timing
from edgefl.rng import generator
from edgefl.server.assignment import Assignment, ClassPlan, Plan, split
from edgefl.server.meeting import APART, Meeting
from edgefl.server.sampler import Known, Sampler, choice
from edgefl.server.samplers import UNIFORM
from edgefl.server.sessions import Session

_Load = tuple[Cost, tuple[int, int], int, float, float, float]


@dataclass(frozen=True)
class Asked:
    """Clients that the server selects at one moment.

    Attributes:
        clients: client numbers, int64.
        turn: number of the round, or of the request in mode async; it seeds their random draws.
        start_s: that moment, in seconds on the simulated clock.
    """

    clients: np.ndarray
    turn: int
    start_s: float


@dataclass(frozen=True)
class Forecast:
    """Predicts the sessions of clients under a plan and the conditions of a run.

    Attributes:
        plan: which tier each class trains, in the present phase of the method.
        size_of: client → number of its training samples.
        meeting: how clients that are asked at one moment wait for one another.
        sampler: whom the server asks.
    """

    plan: Plan
    conditions: Conditions
    seed: int
    size_of: Callable[[int], int]
    meeting: Meeting = APART
    sampler: Sampler = UNIFORM
    _loads: dict[tuple[int, Assignment, int], _Load] = field(default_factory=dict, repr=False, compare=False)

    def expected(self, asked: Asked, drained_j: Mapping[int, float]) -> list[Expected]:
        """Return what is expected of each selected client, in their order.

        A session with the status ``expected`` ends with its :class:`Timing`. An ``interrupted`` or ``dropped`` one ends earlier; its
        record has the time, work and bytes until then. A ``refused`` client spends nothing. ``drained_j`` is client → joules that its
        sessions drew from its battery today.
        """
        clients, turn, conditions = asked.clients, asked.turn, self.conditions
        plans = self.plan.class_plans_of(clients, turn)
        assignments = self.plan.assigned(clients, plans, turn)
        sigmas = np.array([(c.device.link.spread_sigma.value, c.device.link.session_spread) for c in plans]).reshape(-1, 2)
        links = conditions.link_shares(self.seed, clients, (sigmas[:, 0], sigmas[:, 1]), turn).tolist()
        responses = conditions.responses(self.seed, clients, turn).tolist()
        interrupted, dropped, moments = (x.tolist() for x in conditions.fates(self.seed, clients, turn))
        until = conditions.availability.until(clients, asked.start_s).tolist()
        levels = conditions.battery_levels(self.seed, clients).tolist()
        found: list[Session] = []
        for i, client in enumerate(clients.tolist()):
            of_class, given = plans[i], assignments[i]
            whole = self._whole(of_class, given, client, links[i], responses[i], asked.start_s)
            if given is None or whole.timing is None:
                found.append(Session(of_class, whole))
                continue
            if short := _battery_short(of_class, given.tier, whole.timing, levels[i], drained_j.get(client, 0.0)):
                nothing = replace(whole, timing=None, macs=0, download_bytes=0, upload_bytes=0)
                found.append(Session(of_class, replace(nothing, status="refused", refusal=(short,))))
                continue
            end_s, status = whole.timing.total_s, whole.status
            if interrupted[i]:
                end_s, status = whole.timing.agree_s + whole.timing.download_s + moments[i] * whole.timing.train_s, "interrupted"
            elif dropped[i]:
                end_s, status = moments[i] * end_s, "dropped"
            if until[i] - asked.start_s < end_s:
                end_s, status = until[i] - asked.start_s, "interrupted"
            sizes = self._load(of_class, given, whole.samples)[1]
            found.append(Session(of_class, whole, end_s, status, until[i] - asked.start_s, links[i], sizes))
        return self.meeting.sessions(turn, found)

    def _whole(
        self, of_class: ClassPlan, given: Assignment | None, client: int, link: float, response: float, start_s: float
    ) -> Expected:
        samples, device = self.size_of(client), of_class.device
        known: dict[str, Any] = {"start_s": start_s, "memory_bytes": of_class.budget.memory_bytes, "state": of_class.state.name}
        if given is None:
            return Expected(client, device.name, "refused", None, samples, refusal=of_class.refusals, **known)
        cost, (down_bytes, up_bytes), macs, work_s, fixed_j, watts = self._load(of_class, given, samples)
        down_s, train_s, up_s = durations(device, down_bytes, work_s, up_bytes, link)
        parts, (agree_s, unmask_s) = (down_s, train_s * response, up_s), trips_s(device, cost, link)
        timing = Timing(*parts, 0.0, 0.0, 0.0, agree_s, unmask_s, fixed_j + watts * parts[1])
        return Expected(
            client,
            device.name,
            "expected",
            given.tier,
            samples,
            timing=with_joules(device, timing, cost.download_bytes, cost.upload_bytes),
            macs=macs,
            download_bytes=cost.download_bytes,
            upload_bytes=cost.upload_bytes,
            predicted_memory_bytes=cost.training_memory_bytes,
            micro_batch=given.micro_batch,
            recompute=given.recompute,
            **known,
        )

    def _load(self, of_class: ClassPlan, given: Assignment, samples: int) -> _Load:
        """Return a tier's costs, bytes down and up, and of one session MACs, seconds at the full rate, and what these spend."""
        key = id(of_class), given, samples  # the plan holds its class plans; two classes may give their devices one name
        if key not in self._loads:
            plan, cost = self.plan, self.plan.cost(given)
            training, evaluated = split(plan.workload.training, given), plan.workload.evaluated(samples)
            seen, passes, updates = training.amounts(samples)
            work_s = train_s(of_class.device.compute, cost, seen, passes, updates, evaluated) / of_class.state.speed_share
            work_s += added_s(of_class.device, cost) / of_class.state.speed_share
            spends = training_spends(of_class.device, cost.work_of(seen, passes, updates, evaluated))
            self._loads[key] = cost, cost.model_bytes, cost.macs_of(seen, passes, evaluated), work_s, *spends
        return self._loads[key]

    def choose(self, memory: Mapping[str, Tensor], turn: int, round_: int) -> Choose | None:
        """Return how clients are chosen, given the tensors of the server; None: the first eligible ones in random order.

        ``turn`` seeds the choice: the number of the round, or of the request in mode async.
        """
        if self.sampler.blind:
            return None
        population = self.plan.population.clients
        known = Known.of(memory, population, round_, lambda of: [c.device.name for c in self.plan.class_plans_of(of, turn)])
        return choice(self.sampler, known, lambda: generator(self.seed, turn, "sampler"))

    def class_plan_of(self, client: int, turn: int) -> ClassPlan:
        """Return the plan of a client's class in the state of its device during a turn."""
        return self.plan.class_plans_of(np.array([client]), turn)[0]


def _battery_short(of_class: ClassPlan, tier: Tier, timing: Timing, level: float, drained_j: float) -> Shortfall | None:
    """Return by how much a session exceeds a battery that began the day at ``level`` and was drained since; None if it does not."""
    full_j = of_class.device.battery_j
    if level == float("inf") or full_j is None or timing.total_j is None:  # a battery comes with figures of energy
        return None
    left_j = level * full_j - drained_j
    if timing.total_j <= left_j:
        return None
    return Shortfall("battery_j", timing.total_j, max(left_j, 0.0), of_class.device.name, tier.ratio)
