"""The accuracy of a model on held-out samples, or the run's own metric."""

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion, predicted
from edgefl.client.fast.layout import laid, layout_of
from edgefl.data.sources import Split
from edgefl.errors import MetricError
from edgefl.models.norm import calibrate, needs_statistics
from edgefl.util.compute import in_parallel
from edgefl.util.fields import Fields, each, first, rows

BATCH_SIZE = 32  # larger batches of feature maps leave the caches: measured twice as slow at 256
QUERIED_CLIENTS = 50
QUERIED_BATCHES = 4


def outputs(module: nn.Module, x: Fields[np.ndarray], batch_size: int = BATCH_SIZE, threads: int = 1) -> np.ndarray:
    """Return the outputs of ``module`` for samples ``x`` (n, …): float32 (n, outputs), such as logits. It is set to evaluation mode.

    So many ``threads`` take batches side by side on a CPU, if torch computes with one thread. The outputs have the same bits. A network
    that draws random numbers, or changes in its first batch, gets one batch after the other.
    """
    module.eval()
    device, starts = _device(module), range(0, len(first(x)), batch_size)

    def batch(start: int, size: int) -> Any:
        return each(lambda part: torch.tensor(part, device=device), rows(x, slice(start, start + size)))

    layout = layout_of(module, batch(0, 1))

    @torch.no_grad()  # here, because each thread has its own mode
    def of(start: int) -> Tensor:
        found: Tensor = module(laid(batch(start, batch_size), layout))
        return found

    beside = threads > 1 and device.type == "cpu" and torch.get_num_threads() == 1
    before = _Condition.of(module) if beside else None
    found = [of(start) for start in starts[:1]]
    if before is not None and _Condition.of(module).same(before):
        found += in_parallel({str(start): partial(of, start) for start in starts[1:]}, threads).values()
    else:
        found += map(of, starts[1:])
    return torch.cat(found).cpu().numpy()


def accuracy(module: nn.Module, split: Split, batch_size: int = BATCH_SIZE) -> float:
    """Return the share of ``split`` that ``module`` classifies correctly, in [0, 1]."""
    return score(module, split, CROSS_ENTROPY, batch_size)


def score(module: nn.Module, split: Split, criterion: Criterion, batch_size: int = BATCH_SIZE, threads: int = 1) -> float:
    """Return the metric of ``module`` on all samples of ``split``; for ``threads`` see :func:`outputs`."""
    return criterion.measured(outputs(module, split.taken().x, batch_size, threads), split.y)


def classes_of(module: nn.Module, split: Split, threads: int = 1) -> np.ndarray:
    """Return the class that ``module`` predicts for each sample of ``split``, (n,) int64; MetricError if its outputs are not finite.

    For ``threads`` see :func:`outputs`.
    """
    return predicted(outputs(module, split.taken().x, threads=threads))


@contextlib.contextmanager
def evaluating(what: str) -> Iterator[None]:
    """Make a :class:`MetricError` of the block begin with ``what`` is evaluated."""
    try:
        yield
    except MetricError as error:
        raise MetricError(f"{what}: {error}") from None


def with_statistics(module: nn.Module, shards: Iterable[Split], batch_size: int) -> nn.Module:
    """Compute the statistics of static BatchNorm layers on clients' samples (HeteroFL, section 4), and return ``module``.

    The first four batches of at most 50 clients are used. A network without such layers stays as it is.
    """
    if needs_statistics(module):
        device = _device(module)
        calibrate(module, _queries(shards, batch_size, device))
    return module


@dataclass(frozen=True)
class _Condition:
    """What a batch may change for the next one: the attributes of a network, and values of its buffers and of torch's generator."""

    attributes: Sequence[object]
    values: Sequence[Tensor]

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        """Return the present condition of a network."""
        held = (each for part in module.modules() for each in (vars(part), part._buffers))
        return cls(
            [value for values in held for value in values.values()], [torch.get_rng_state(), *map(torch.clone, module.buffers())]
        )

    def same(self, other: Self) -> bool:
        """Whether nothing has changed since ``other``."""
        return (
            len(self.attributes) == len(other.attributes)
            and all(map(operator.is_, self.attributes, other.attributes))
            and all(map(torch.equal, self.values, other.values))
        )


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters(), torch.empty(0)).device


def _queries(shards: Iterable[Split], batch_size: int, device: torch.device) -> Iterator[Fields[Tensor]]:
    for shard in islice(shards, QUERIED_CLIENTS):
        for start in range(0, min(len(shard.y), QUERIED_BATCHES * batch_size), batch_size):
            yield each(lambda x: torch.from_numpy(x).to(device), rows(shard.x, slice(start, start + batch_size)))
