"""none, prox, dyn and scaffold: terms of the loss that tie clients to the weights that arrived, or correct their drift."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("none")
@dataclass(frozen=True)
class Plain(Objective):
    """No term at all."""

    adds: ClassVar[bool] = False


PLAIN = Plain(0.0)
"""The only one there is: a strength means nothing to it."""


@objective("prox", needs=("received_weights",))
@dataclass(frozen=True)
class Prox(Objective):
    """μ/2·‖w − w₀‖² (Li et al. 2020, Eq. 2), μ = ``strength``."""


@objective("dyn", needs=("received_weights", "fixed_coordinates", "common_model", "rounds"))
@dataclass(frozen=True)
class Dyn(Objective):
    """α/2·‖w − w₀‖² − ⟨hₖ, w⟩ (Acar et al. 2021, Algorithm 1), α = ``strength``.

    After training, hₖ ← hₖ − α(w − w₀) stays on the client. The server has h ← h − α/N·Σ(wₖ − w₀), N counting all clients, and its new
    weights are the aggregate less h/α.
    """

    remembers: ClassVar[bool] = True

    def remembered(self, before: Tensor, moved: Tensor, control: Tensor | None, steps: int, lr: float) -> Tensor:
        """Return hₖ."""
        return before - self.strength * moved

    def on_server(self, before: Tensor, total: Tensor, clients: int) -> Tensor:
        """Return h."""
        return before - self.strength / clients * total

    def corrected(self, aggregated: Tensor, stored: Tensor) -> Tensor:
        """Return the aggregate less h/α."""
        return aggregated - stored / self.strength


@objective("scaffold", needs=("received_weights", "fixed_coordinates", "common_model", "rounds", "plain_sgd"))
@dataclass(frozen=True)
class Scaffold(Objective):
    """⟨c − cₖ, w⟩ (Karimireddy et al. 2020, Algorithm 1, option II); ``strength`` means nothing here.

    The server sends c with the weights. After K steps at rate η, cₖ⁺ = cₖ − c + (w₀ − w)/(K·η) stays on the client and cₖ⁺ − cₖ goes up:
    c ← c + 1/N·Σ(cₖ⁺ − cₖ), N counting all clients.
    """

    remembers: ClassVar[bool] = True
    controls: ClassVar[bool] = True

    def terms(self, weight: Tensor, start: Tensor, shift: Tensor | None) -> Iterator[Tensor]:
        """Yield ⟨c − cₖ, w⟩."""
        assert shift is not None  # it remembers
        yield (shift * weight).sum()

    def remembered(self, before: Tensor, moved: Tensor, control: Tensor | None, steps: int, lr: float) -> Tensor:
        """Return cₖ⁺."""
        assert control is not None  # it travels
        return before - control - moved / (steps * lr)

    def on_server(self, before: Tensor, total: Tensor, clients: int) -> Tensor:
        """Return c."""
        return before + total / clients
