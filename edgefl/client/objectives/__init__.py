"""The local objectives: what a client minimises besides its method's loss."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("none")
@dataclass(frozen=True)
class Plain(Objective):
    """The method's own loss without a term."""

    adds: ClassVar[bool] = False


PLAIN = Plain(0.0)
"""The one object of this class that is needed, since it has no strength."""


@objective("prox", needs=("received_weights",))
@dataclass(frozen=True)
class Prox(Objective):
    """μ/2·‖w − w₀‖² (Li et al. 2020, Eq. 2), μ = ``strength``."""


@objective("dyn", needs=("received_weights", "fixed_coordinates", "common_model", "rounds"))
@dataclass(frozen=True)
class Dyn(Objective):
    """α/2·‖w − w₀‖² − ⟨hₖ, w⟩ (Acar et al. 2021, Algorithm 1), α = ``strength``.

    After training, the client stores hₖ ← hₖ − α(w − w₀). The server stores h ← h − α/N·Σ(wₖ − w₀), where N is the number of all clients.
    Its new weights are the aggregate minus h/α.
    """

    remembers: ClassVar[bool] = True

    def remembered(self, before: Tensor, moved: Tensor, control: Tensor | None, steps: int, lr: float) -> Tensor:
        """Return hₖ."""
        return before - self.strength * moved

    def on_server(self, before: Tensor, total: Tensor, clients: int) -> Tensor:
        """Return h."""
        return before - self.strength / clients * total

    def corrected(self, aggregated: Tensor, stored: Tensor) -> Tensor:
        """Return the aggregate minus h/α."""
        return aggregated - stored / self.strength


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
