"""The tiers of "auto": the largest that fit each class of a fleet."""

from collections.abc import Callable
from functools import cache, partial

from edgefl.client.client import Clients
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.fleet.budget import Budget, budget_of, shortfalls
from edgefl.fleet.profile import DeviceProfile, Fleet
from edgefl.fleet.resolve import conditions_of
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.largest_ratio import STEPS, largest_ratio, parts_of
from edgefl.planning.secure_costs import secured
from edgefl.planning.tier_costs import Costs
from edgefl.records import Cost, Tier
from edgefl.server.assignment import fastest_round_s, timing_of


def chosen_tiers(config: RunConfig, fleet: Fleet, clients: Clients) -> tuple[float, ...]:
    """Return the tiers of "auto": the largest that fit each class of the fleet."""
    task = clients.task
    architecture, training = task.architecture, task.training

    def sized(ratio: float) -> Method:
        """Return the method of a run with this tier alone: the others are not known yet."""
        return create(config.method, config.method_options, tiers=(ratio,))

    def costs(ratio: float) -> Costs:
        return Costs(sized(ratio), config, architecture, training, task.criterion)

    asked = conditions_of(config, fleet).asked(config.per_round or 1, config.clients)

    @cache
    def trace(ratio: float) -> Cost:
        tier = Tier(ratio)
        return secured(costs(ratio).of(tier), sized(ratio), architecture, tier, config.secure, asked)

    samples = clients.shards.largest
    return auto_tiers(sized(1.0), architecture, fleet, trace, training, samples, costs(1.0).full, config.clock_margin)


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
            timing = timing_of(device, cost, training, samples, method.evaluated, margin=clock_margin)
            return not shortfalls(cost, timing, budget, device.name, Tier(ratio))

        if ratio := largest_ratio(fits, partial(parts_of, method, architecture)):
            ratios.add(ratio)
    if not ratios:
        return (1 / STEPS,)  # the plan refuses it, with every need
    return (min(ratios),) if len(method.default_tiers) == 1 else tuple(sorted(ratios, reverse=True))
