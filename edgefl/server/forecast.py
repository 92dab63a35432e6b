"""The sessions that the server expects of clients before they train: their tiers, their seconds, and which are lost.

No network is computed here. The expectation follows from (seed, turn, client) alone and has the same bits on every computer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from edgefl.fleet.clock import added_s, training_spends
from edgefl.fleet.conditions import Choose, Conditions
from edgefl.fleet.time_model import train_s
from edgefl.records import Expected
from edgefl.rng import generator
from edgefl.server.assignment import Assignment, ClassPlan, Plan, split
from edgefl.server.foreseen import DROPPED, EXPECTED, INTERRUPTED, REFUSED, Foreseen, Load, Timings, rates_of, whole_timings
from edgefl.server.meeting import APART, Meeting
from edgefl.server.sampler import Known, Sampler, choice
from edgefl.server.samplers import UNIFORM


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
    _loads: dict[tuple[int, int, int], Load] = field(default_factory=dict, repr=False, compare=False)

    def expected(self, asked: Asked, drained_j: Mapping[int, float]) -> list[Expected]:
        """Return what is expected of each selected client, in their order.

        A session with the status ``expected`` ends with its :class:`Timing`. An ``interrupted`` or ``dropped`` one ends earlier; its
        record has the time, work and bytes until then. A ``refused`` client spends nothing. ``drained_j`` is client → joules that its
        sessions drew from its battery today.
        """
        return self.meeting.sessions(asked.turn, list(self.foreseen(asked, drained_j).sessions()))

    def foreseen(self, asked: Asked, drained_j: Mapping[int, float]) -> Foreseen:
        """Return what is expected of the clients as columns, before they wait for one another; see :meth:`expected`."""
        clients, turn, conditions = asked.clients, asked.turn, self.conditions
        plans = self.plan.class_plans_of(clients, turn)
        assignments = self.plan.assigned(clients, plans, turn)
        loads = [self._load(*session) for session in zip(plans, assignments, map(self.size_of, clients.tolist()), strict=True)]
        rates = rates_of(loads)
        link = conditions.link_shares(self.seed, clients, (rates.spread_sigma, rates.session_sigma), turn)
        whole = whole_timings(loads, rates, link, conditions.responses(self.seed, clients, turn))
        left_j = np.full(len(clients), np.inf)
        if conditions.battery:
            drained = np.array([drained_j.get(client, 0.0) for client in clients.tolist()], np.float64)
            left_j = conditions.battery_levels(self.seed, clients) * rates.battery_j - drained
        until_s = conditions.availability.until(clients, asked.start_s) - asked.start_s
        fits = np.array([assignment is not None for assignment in assignments], bool)
        empty = fits & (whole.total_j > left_j)
        status, end_s = self._ends(asked, whole, until_s)
        status[empty | ~fits] = REFUSED
        return Foreseen(clients, asked.start_s, loads, rates, whole, status, end_s, until_s, link, left_j, empty)

    def _ends(self, asked: Asked, whole: Timings, until_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return how the sessions end, and when."""
        interrupted, dropped, moments = self.conditions.fates(self.seed, asked.clients, asked.turn)
        end_s, status = whole.total_s, np.where(interrupted, INTERRUPTED, np.where(dropped, DROPPED, EXPECTED))
        end_s = np.where(dropped, moments * end_s, end_s)
        end_s = np.where(interrupted, whole.agree_s + whole.download_s + moments * whole.train_s, end_s)
        gone = until_s < end_s
        return np.where(gone, INTERRUPTED, status), np.where(gone, until_s, end_s)

    def _load(self, of_class: ClassPlan, assignment: Assignment | None, samples: int) -> Load:
        """Return what one session takes."""
        key = id(of_class), id(assignment), samples  # the plan holds both; two classes may give their devices one name
        if key not in self._loads:
            self._loads[key] = (
                Load(of_class, None, samples) if assignment is None else self._load_of(of_class, assignment, samples)
            )
        return self._loads[key]

    def _load_of(self, of_class: ClassPlan, assignment: Assignment, samples: int) -> Load:
        plan, cost, device = self.plan, self.plan.cost(assignment), of_class.device
        training, evaluated = split(plan.workload.training, assignment), plan.workload.evaluated(samples)
        seen, passes, updates = training.amounts(samples)
        work_s = train_s(device.compute, cost, seen, passes, updates, evaluated) / of_class.state.speed_share
        work_s += added_s(device, cost) / of_class.state.speed_share
        spends = training_spends(device, cost.work_of(seen, passes, updates, evaluated))
        return Load.of(of_class, assignment, samples, cost, cost.macs_of(seen, passes, evaluated), work_s, spends)

    def choose(self, memory: Mapping[str, Tensor], turn: int, round_: int) -> Choose | None:
        """Return how clients are chosen, given the tensors of the server; None: the first eligible ones in random order.

        ``turn`` seeds the choice: the number of the round, or of the request in mode async.
        """
        if self.sampler.blind:
            return None
        population = self.plan.population.clients
        known = Known.of(memory, population, round_, lambda some: [c.device.name for c in self.plan.class_plans_of(some, turn)])
        return choice(self.sampler, known, lambda: generator(self.seed, turn, "sampler"))

    def class_plan_of(self, client: int, turn: int) -> ClassPlan:
        """Return the plan of a client's class in the state of its device during a turn."""
        return self.plan.class_plans_of(np.array([client]), turn)[0]
