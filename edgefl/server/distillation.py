"""The server's own training: public samples, which no client has, and what it computes on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from edgefl.client.stage import Turn
from edgefl.data.split import Split
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Distils
from edgefl.methods.state import GlobalState
from edgefl.records import Cost, Tier, Update
from edgefl.server.state import check_aggregated
from edgefl.timing.spans import span
from edgefl.util.fields import each


@dataclass(frozen=True)
class Public:
    """The data of a server that trains after it has aggregated.

    Attributes:
        samples: (n, …), or name → (n, …), without labels.
        cost_of: tier → cost of its network.
    """

    samples: Any
    cost_of: Callable[[Tier], Cost]

    @classmethod
    def of(cls, public: Split, cost_of: Callable[[Tier], Cost]) -> Self:
        """Return the samples of ``public`` as tensors."""
        return cls(each(torch.tensor, public.taken().x), cost_of)

    def distilled(
        self, method: Method, state: GlobalState, updates: Sequence[Update], turn: Turn
    ) -> tuple[GlobalState, dict[str, int]]:
        """Return the next state, given the aggregate ``state`` of ``updates``, and figures: teachers, and MACs of the server."""
        assert isinstance(method, Distils)
        with span("distil", round=turn.number):
            distillation = method.distilled(state, updates, self.samples, turn.draw("distil"))
        check_aggregated(state, distillation.state, f"method {type(method).title}: distillation")
        macs = sum(count * self.cost_of(tier).macs_forward for tier, count in distillation.evaluated.items())
        macs += sum(count * _pass(self.cost_of(tier)) for tier, count in distillation.trained.items())
        return distillation.state, {"teachers": len(updates), "macs": macs}


def _pass(cost: Cost) -> int:
    """Return the MACs of a forward and a backward pass of one sample, which saves all activations."""
    return cost.macs_forward + cost.macs_backward
