"""The largest sub-model of each method that fits a budget."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgefl.errors import BudgetError, EdgeflError, first_line
from edgefl.planning.network import GivenInputs, Network, architecture_of
from edgefl.planning.plan import TOO_LITTLE, Planned, plan
from edgefl.registry import methods


@dataclass(frozen=True)
class Tried:
    """The plans of all methods for a budget, and the reasons of those without one.

    Attributes:
        plans: method → its largest sub-model that fits.
        refused: other method → why it has none: what the smallest needs, or why the method does not take the network.
    """

    plans: Mapping[str, Planned]
    refused: Mapping[str, str]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the JSON form: the plans, and then the reasons of methods without one."""
        plans = [{"method": name, **planned.to_dict()} for name, planned in self.plans.items()]
        return [*plans, *({"method": name, "refused": reason} for name, reason in self.refused.items())]


def plan_every_method(
    network: Network, inputs: GivenInputs = None, classes: int | None = None, *, norm: str | None = None, **options: Any
) -> Tried:
    """Return the plan of every method that makes sub-models of several sizes; ``options`` are those of :func:`edgefl.planning.plan.plan`.

    Raises:
        InputError: a name, value or file is wrong, or no method takes the network.
        BudgetError: no method has a size that fits; the message has what the smallest of each needs.
    """
    architecture = architecture_of(network, inputs, classes, norm)
    plans: dict[str, Planned] = {}
    errors: dict[str, EdgeflError] = {}
    for name in (name for name in methods.names() if len(methods.load(name).default_tiers) > 1):
        try:
            (plans[name],) = plan(architecture, method=name, **options)
        except EdgeflError as error:
            errors[name] = error
    tried = Tried(plans, {name: _short(error) for name, error in errors.items()})
    if plans:
        return tried
    if not any(isinstance(error, BudgetError) for error in errors.values()):
        raise next(iter(errors.values()))
    needs = "\n".join(f"  {name}: {reason}" for name, reason in tried.refused.items())
    raise BudgetError(f"no size of {architecture.model} fits with any method; of the smallest,\n{needs}")


def _short(error: EdgeflError) -> str:
    """Return what an error says in one line: of a budget, the needs that are not met."""
    needs = [line.strip().removesuffix(TOO_LITTLE) for line in str(error).splitlines() if line.endswith(TOO_LITTLE)]
    return ", ".join(needs) or first_line(error)
