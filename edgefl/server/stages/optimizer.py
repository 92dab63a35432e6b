"""The server optimizer as a stage: the aggregate of a round is a gradient."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from edgefl.client.stage import Stage, StagePlace, Turn
from edgefl.methods.state import Tensors
from edgefl.server.optimizer import ServerOptimizer


@dataclass(frozen=True)
class Optimized(Stage):
    """The model moves towards the aggregate of a round by a server optimizer, which stores its slots.

    Attributes:
        lr_shares: the share of the rate in each round, by its rule; the last one holds for rounds after them. Empty: it is constant.
    """

    optimizer: ServerOptimizer
    lr_shares: tuple[float, ...] = ()

    place = StagePlace.STEPPED

    @property
    def name(self) -> str:
        """The class of the optimizer, for messages."""
        return f"server optimizer {type(self.optimizer).__name__}"

    def step(self, before: Tensors, after: Tensors, turn: Turn) -> Mapping[str, Tensor]:
        """Return the optimizer's step from the tensors ``before`` towards their aggregate."""
        share = self.lr_shares[min(turn.number, len(self.lr_shares)) - 1] if self.lr_shares else 1.0
        tensors, slots = replace(self.optimizer, lr=self.optimizer.lr * share).step(before, after, turn.memory)
        turn.after.update(slots)
        return tensors
