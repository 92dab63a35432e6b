"""How clients train: minibatches, an optimizer, a learning rate that may fall over the rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

OptimizerName = Literal["momentum", "sgd", "adam"]


@dataclass(frozen=True)
class Training:
    """How clients train.

    Attributes:
        momentum: of the optimizer of that name; "sgd" has none, "adam" uses 0.9 and 0.999.
        micro_batch: samples per pass. Gradients add up to the same step, unless the network normalises by batch statistics.
        cosine_rounds: T, over which the rate falls as lr/2·(1 + cos(π(t − 1)/T)) for t = 1 … T; None: it stays.
    """

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    optimizer: OptimizerName = "momentum"
    micro_batch: int | None = None
    cosine_rounds: int | None = None

    def at(self, round_: int) -> Training:
        """Return the training of one round: the learning rate is the round's own.

        >>> [round(Training(1, 32, 0.1, 0.9, 0.0, cosine_rounds=4).at(t).lr, 4) for t in (1, 3, 4)]
        [0.1, 0.05, 0.0146]
        """
        if self.cosine_rounds is None:
            return self
        share = (1 + math.cos(math.pi * min(1.0, (round_ - 1) / self.cosine_rounds))) / 2
        return replace(self, lr=self.lr * share, cosine_rounds=None)

    def steps(self, samples: int) -> int:
        """Return the steps of one client's round; the last batch of an epoch may be partial.

        >>> Training(2, 32, 0.1, 0.9, 0.0).steps(33)
        4
        """
        return self.epochs * -(-samples // self.batch_size)

    def passes(self, samples: int) -> int:
        """Return the forward and backward passes of one client's round: one per step, more with micro-batches.

        >>> Training(2, 32, 0.1, 0.9, 0.0, micro_batch=10).passes(33)
        10
        """
        whole, rest = divmod(samples, self.batch_size)
        micro = min(self.micro_batch or self.batch_size, self.batch_size)
        return self.epochs * (whole * -(-self.batch_size // micro) + -(-rest // micro))
