"""scaffold: SCAFFOLD, control variates that correct the drift of clients."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("scaffold", needs=("received_weights", "fixed_coordinates", "common_model", "rounds", "plain_sgd"))
@dataclass(frozen=True)
class Scaffold(Objective):
    """⟨c − cₖ, w⟩ (Karimireddy et al. 2020, Algorithm 1, option II); ``strength`` has no effect.

    The server sends c with the weights. After K steps at rate η the client stores cₖ⁺ = cₖ − c + (w₀ − w)/(K·η) and sends cₖ⁺ − cₖ. The
    server stores c ← c + 1/N·Σ(cₖ⁺ − cₖ), where N is the number of all clients.
    """

    remembers: ClassVar[bool] = True
    controls: ClassVar[bool] = True

    def terms(self, weight: Tensor, start: Tensor, shift: Tensor | None) -> Iterator[Tensor]:
        """Yield ⟨c − cₖ, w⟩."""
        assert shift is not None  # because it remembers
        yield (shift * weight).sum()

    def remembered(self, before: Tensor, moved: Tensor, control: Tensor | None, steps: int, lr: float) -> Tensor:
        """Return cₖ⁺."""
        assert control is not None  # because it controls
        return before - control - moved / (steps * lr)

    def on_server(self, before: Tensor, total: Tensor, clients: int) -> Tensor:
        """Return c."""
        return before + total / clients
