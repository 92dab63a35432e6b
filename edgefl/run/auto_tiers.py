"""The tiers of "auto": the largest that fit each class of a fleet."""

from collections.abc import Collection, Iterable
from functools import cache, partial

from edgefl.client.client import Clients
from edgefl.config import RunConfig
from edgefl.errors import ConfigError
from edgefl.fleet.budget import budget_of, larger_than_allowed, shortfalls
from edgefl.fleet.profile import Fleet
from edgefl.methods.base import Method
from edgefl.methods.personal import evaluated
from edgefl.planning.sub_models import STEPS, largest_ratio, parts_of
from edgefl.records import Cost, Tier
from edgefl.run.feature import Feature
from edgefl.run.resolved import chain_of, conditions_of, costs_of, method_of
from edgefl.server.assignment import fastest_round_s, timing_of

Ratios = tuple[float, ...]
Chosen = dict[int, float]
"""Number of a class → its ratio."""

_STEPS = STEPS, 8, 4
"""Ratios are multiples of 1/1000, or of 1/8 or 1/4 if the method refuses those: FLANC's widths need a common divisor of channels."""
_PASSES = 4


def chosen_tiers(config: RunConfig, fleet: Fleet, clients: Clients, features: Iterable[Feature]) -> Ratios:
    """Return the largest ratio that fits each class of the fleet, each once, largest first, in a run with these ``features``.

    What a tier costs may depend on the run's other tiers: FjORD and DepthFL also train the smaller ones, and SplitMix trains copies of the
    smallest. So the classes choose again, the one with the smallest ratio first, until the choice of each fits those of the others. A
    method that trains one size only gets the largest that fits every class that can take part at all.
    """
    search = _Search(config, fleet, clients, features)
    refused = []
    for steps in _STEPS:
        alone = search.alone(steps)
        if alone and search.allowed(_distinct(alone)):
            return _distinct(search.together(alone, steps))
        refused.append(_distinct(alone))
    return refused[0] or (1 / STEPS,)  # the method refuses it, with the reason, or the plan, with every need


class _Search:
    """Lets each class of a fleet choose the largest ratio that fits, with the ratios of the others given."""

    def __init__(self, config: RunConfig, fleet: Fleet, clients: Clients, features: Iterable[Feature]) -> None:
        self._config, self._fleet, self._task, self._samples = config, fleet, clients.task, clients.shards.largest
        self._asked = conditions_of(config, fleet).asked(config.per_round or 1, config.clients)
        # By options, which differ between ratios only if the method's costs depend on the other tiers.
        self._costs = cache(lambda method: costs_of(config, method, self._task))
        self._chain, self._cost = chain_of(config, features), cache(self._whole)
        self._method = cache(lambda ratios: method_of(config.model_copy(update={"tiers": ratios})))
        full = self._costs(self._method((1.0,))).full
        fastest_s = fastest_round_s(fleet, full, self._task.training, self._samples)
        self._budgets = [budget_of(fleet_class, fleet.budget, fastest_s) for fleet_class in fleet.classes]

    def alone(self, steps: int) -> Chosen:
        """Return the choices in runs of a single tier, as multiples of 1/``steps``; without the classes that cannot take part."""
        found = {number: self._largest(number, (), steps) for number in range(len(self._budgets))}
        ratios = {number: ratio for number, ratio in found.items() if ratio}
        one_size = len(self._method((1.0,)).default_tiers) == 1
        return dict.fromkeys(ratios, min(ratios.values())) if ratios and one_size else ratios

    def together(self, ratios: Chosen, steps: int) -> Chosen:
        """Return the choices in one run, from those that classes would make alone."""
        for _ in range(_PASSES if len({*ratios.values()}) > 1 else 0):
            before = ratios
            for number in sorted(before, key=before.__getitem__):
                others = {ratio for other, ratio in ratios.items() if other != number}
                ratios = {**ratios, number: self._largest(number, others, steps) or ratios[number]}
            if ratios == before:
                break
        return ratios

    def allowed(self, ratios: Ratios) -> bool:
        """Whether the method takes these tiers together."""
        try:
            self._method(ratios).check(self._task.architecture, tuple(map(Tier, ratios)), self._config.clients)
        except ConfigError:
            return False
        return True

    def _largest(self, number: int, others: Collection[float], steps: int) -> float | None:
        """Return the largest ratio that fits a class of the fleet in a run that has the tiers ``others`` too; None if none does."""

        def among(ratio: float) -> Ratios:
            return tuple(sorted({ratio, *others}, reverse=True))

        def fits(ratio: float) -> bool:
            return (not others or self.allowed(among(ratio))) and self._fits(number, Tier(ratio), self._method(among(ratio)))

        return largest_ratio(fits, lambda ratio: parts_of(self._method(among(ratio)), self._task.architecture, ratio), steps)

    def _fits(self, number: int, tier: Tier, method: Method) -> bool:
        of_class = self._fleet.classes[number]
        if larger_than_allowed(of_class, tier):
            return False
        device, cost = of_class.device, self._cost(method, tier)
        margin = self._config.clock_margin
        timing = timing_of(device, cost, self._task.training, self._samples, partial(evaluated, method), margin=margin)
        return not shortfalls(cost, timing, self._budgets[number], device.name, tier)

    def _whole(self, method: Method, tier: Tier) -> Cost:
        return self._chain.adds(self._costs(method).of(tier), method, self._task.architecture, tier, self._asked)


def _distinct(chosen: Chosen) -> Ratios:
    return tuple(sorted(set(chosen.values()), reverse=True))
