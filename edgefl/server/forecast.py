"""What the server expects of clients before they train: their tiers, how long sessions take, and which sessions are lost.

No network is computed here. The expectation follows from (seed, turn, client) alone and has the same bits on every computer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edgefl.fleet.clock import durations, energies
from edgefl.fleet.conditions import Conditions
from edgefl.fleet.time_model import train_s
from edgefl.records import Expected, Foreseen, Shortfall, Tier, Timing
from edgefl.server.assignment import Assignment, ClassPlan, Plan, split


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
    """

    plan: Plan
    conditions: Conditions
    seed: int
    size_of: Callable[[int], int]
    _loads: dict[tuple[int, Assignment, int], tuple[int, float]] = field(default_factory=dict, repr=False, compare=False)

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
        found = []
        for i, client in enumerate(clients.tolist()):
            of_class, given = plans[i], assignments[i]
            whole = self._whole(of_class, given, client, links[i], responses[i], asked.start_s)
            if given is None or whole.timing is None:
                found.append(whole)
                continue
            if short := _battery_short(of_class, given.tier, whole.timing, levels[i], drained_j.get(client, 0.0)):
                nothing = replace(whole, timing=None, macs=0, download_bytes=0, upload_bytes=0)
                found.append(replace(nothing, status="refused", refusal=(short,)))
                continue
            end_s, status = whole.timing.total_s, whole.status
            if interrupted[i]:
                end_s, status = whole.timing.download_s + moments[i] * whole.timing.train_s, "interrupted"
            elif dropped[i]:
                end_s, status = moments[i] * end_s, "dropped"
            if until[i] - asked.start_s < end_s:
                end_s, status = until[i] - asked.start_s, "interrupted"
            found.append(whole if status == "expected" else cut(of_class, whole, end_s, status))
        return found

    def _whole(
        self, of_class: ClassPlan, given: Assignment | None, client: int, link: float, response: float, start_s: float
    ) -> Expected:
        samples, device = self.size_of(client), of_class.device
        known: dict[str, Any] = {"start_s": start_s, "memory_bytes": of_class.budget.memory_bytes, "state": of_class.state.name}
        if given is None:
            return Expected(client, device.name, "refused", None, samples, refusal=of_class.refusals, **known)
        cost, (macs, work_s) = self.plan.cost(given), self._load(of_class, given, samples)
        down_s, train_s, up_s = durations(device, cost.download_bytes, work_s, cost.upload_bytes, link)
        parts = down_s, train_s * response, up_s
        spent = energies(device, macs, cost.download_bytes, cost.upload_bytes, sum(parts))
        return Expected(
            client,
            device.name,
            "expected",
            given.tier,
            samples,
            timing=Timing(*parts, *spent),
            macs=macs,
            download_bytes=cost.download_bytes,
            upload_bytes=cost.upload_bytes,
            predicted_memory_bytes=cost.training_memory_bytes,
            micro_batch=given.micro_batch,
            recompute=given.recompute,
            **known,
        )

    def _load(self, of_class: ClassPlan, given: Assignment, samples: int) -> tuple[int, float]:
        """Return the MACs of one session, and its seconds at the device's full rate."""
        key = id(of_class), given, samples  # the plan holds its class plans; two classes may give their devices one name
        if key not in self._loads:
            plan, cost = self.plan, self.plan.cost(given)
            training, evaluated = split(plan.workload.training, given), plan.workload.evaluated(samples)
            seen, passes = samples * training.epochs, training.passes(samples)
            work_s = train_s(of_class.device.compute, cost, seen, passes, evaluated) / of_class.state.speed_share
            self._loads[key] = cost.macs_of(seen, passes, evaluated), work_s
        return self._loads[key]

    def class_plan_of(self, client: int, turn: int) -> ClassPlan:
        """Return the plan of a client's class in the state of its device during a turn."""
        return self.plan.class_plans_of(np.array([client]), turn)[0]


def cut(of_class: ClassPlan, whole: Expected, end_s: float, status: Foreseen) -> Expected:
    """Return a session that ends ``end_s`` seconds after its start, with the work, bytes and joules until then."""
    timing = whole.timing
    assert timing is not None
    down_s = min(timing.download_s, end_s)
    train_s = min(max(end_s - timing.download_s, 0.0), timing.train_s)
    up_s = min(max(end_s - timing.download_s - timing.train_s, 0.0), timing.upload_s)
    return _took(of_class, whole, (down_s, train_s, up_s), status)


def failed_after(of_class: ClassPlan, whole: Expected, steps: int, of_steps: int) -> Expected:
    """Return a session that ends after ``steps`` of its training steps: nothing is sent back."""
    assert whole.timing is not None
    return _took(of_class, whole, (whole.timing.download_s, whole.timing.train_s * (steps / of_steps), 0.0), whole.status)


def _took(of_class: ClassPlan, whole: Expected, parts: tuple[float, float, float], status: Foreseen) -> Expected:
    """Return a session cut to ``parts``: seconds of download, training and upload."""
    timing = whole.timing
    assert timing is not None
    of_parts = timing.download_s, timing.train_s, timing.upload_s
    # A part that is not cut has a share of exactly 1, so nothing of it is lost in rounding.
    down, train, up = (took_s / of_s if of_s else 0.0 for took_s, of_s in zip(parts, of_parts, strict=True))
    macs, download_bytes, upload_bytes = int(whole.macs * train), int(whole.download_bytes * down), int(whole.upload_bytes * up)
    spent = energies(of_class.device, macs, download_bytes, upload_bytes, sum(parts))
    took = replace(whole, macs=macs, download_bytes=download_bytes, upload_bytes=upload_bytes)
    return replace(took, status=status, timing=Timing(*parts, *spent))


def _battery_short(of_class: ClassPlan, tier: Tier, timing: Timing, level: float, drained_j: float) -> Shortfall | None:
    """Return by how much a session exceeds a battery that began the day at ``level`` and was drained since; None if it does not."""
    if level == float("inf") or of_class.device.power.battery_wh is None:
        return None
    left_j = level * of_class.device.power.battery_wh.value * 3600 - drained_j
    if timing.total_j <= left_j:
        return None
    return Shortfall("battery_j", timing.total_j, max(left_j, 0.0), of_class.device.name, tier.ratio)
