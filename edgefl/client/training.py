"""The settings of local training: epochs, batches, the optimizer, and a learning rate that may change over the rounds."""

from dataclasses import dataclass, replace
from typing import Literal, Self

OptimizerName = Literal["momentum", "sgd", "adam"]
Augment = Literal["none", "flip"]


@dataclass(frozen=True)
class Training:
    """The settings of local training, the same for all clients.

    Attributes:
        momentum: coefficient of optimizer "momentum"; "sgd" has none, "adam" uses 0.9 and 0.999.
        weight_decay: L2 coefficient, added to the gradients.
        micro_batch: samples per pass. Gradients add up to the same step, unless the network normalises by batch statistics.
        lr_shares: the share of the rate in each round, by its rule; the last one holds for rounds after them. Empty: it is constant.
        recompute: names of layers. A segment begins before each, and the backward pass computes its values again, see
            :mod:`edgefl.client.recompute`. Empty: the forward pass saves everything.
        augment: ``flip`` mirrors each training sample, an image, left-right with probability ½ in every epoch. It has no cost: a device
            reads pixels in another order when it copies the batch.
        clip_gradient: largest norm of a step's gradient, of all trained tensors together; None: gradients are not clipped.
        sample_clip: C of DP-SGD, the longest gradient of a sample, see :mod:`edgefl.client.per_sample`. None: gradients are
            those of batches.
        noise_multiplier: z of DP-SGD.
    """

    epochs: int
    batch_size: int
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 1e-4
    optimizer: OptimizerName = "momentum"
    micro_batch: int | None = None
    lr_shares: tuple[float, ...] = ()
    augment: Augment = "none"
    recompute: tuple[str, ...] = ()
    clip_gradient: float | None = None
    sample_clip: float | None = None
    noise_multiplier: float = 0.0

    def at(self, round_: int) -> Self:
        """Return the settings of one round, counted from 1, with the learning rate of that round.

        >>> [round(Training(1, 32, 0.1, 0.9, 0.0, lr_shares=(0.5, 1.0)).at(t).lr, 4) for t in (1, 2, 3)]
        [0.05, 0.1, 0.1]
        """
        if not self.lr_shares:
            return self
        share = self.lr_shares[min(round_, len(self.lr_shares)) - 1]
        return replace(self, lr=self.lr * share, lr_shares=())

    def steps(self, samples: int) -> int:
        """Return how many steps a client with ``samples`` samples takes in a round; the last batch of an epoch may be partial.

        >>> Training(2, 32, 0.1, 0.9, 0.0).steps(33)
        4
        """
        return self.epochs * -(-samples // self.batch_size)

    def passes(self, samples: int) -> int:
        """Return how many forward and backward passes it takes: one per step, more with micro-batches.

        >>> Training(2, 32, 0.1, 0.9, 0.0, micro_batch=10).passes(33)
        10
        """
        whole, rest = divmod(samples, self.batch_size)
        micro = min(self.micro_batch or self.batch_size, self.batch_size)
        return self.epochs * (whole * -(-self.batch_size // micro) + -(-rest // micro))

    def amounts(self, samples: int) -> tuple[int, int, int]:
        """Return the samples that it sees in a round, over all epochs, and its passes and steps: what a clock charges time for.

        >>> Training(2, 32, 0.1, 0.9, 0.0, micro_batch=10).amounts(33)
        (66, 10, 4)
        """
        return samples * self.epochs, self.passes(samples), self.steps(samples)
