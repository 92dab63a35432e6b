"""The accuracy of a model on held-out samples, or the run's own metric."""

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion, predicted
from edgefl.client.fast.layout import laid, layout_of
from edgefl.data.sources import Split
from edgefl.errors import MetricError
from edgefl.models.norm import calibrate, needs_statistics
from edgefl.util.fields import Fields, each, first, rows

BATCH_SIZE = 32  # larger batches of feature maps leave the caches: measured twice as slow at 256
QUERIED_CLIENTS = 50
QUERIED_BATCHES = 4


@torch.no_grad()
def outputs(module: nn.Module, x: Fields[np.ndarray], batch_size: int) -> np.ndarray:
    """Return the outputs of ``module`` for samples ``x`` (n, …): float32 (n, outputs), such as logits. It is set to evaluation mode."""
    module.eval()
    device, count = _device(module), len(first(x))

    def batch(start: int, size: int) -> Any:
        return each(lambda part: torch.tensor(part, device=device), rows(x, slice(start, start + size)))

    layout = layout_of(module, batch(0, 1))
    return torch.cat([module(laid(batch(i, batch_size), layout)) for i in range(0, count, batch_size)]).cpu().numpy()


def accuracy(module: nn.Module, split: Split, batch_size: int = BATCH_SIZE) -> float:
    """Return the share of ``split`` that ``module`` classifies correctly, in [0, 1]."""
    return score(module, split, CROSS_ENTROPY, batch_size)


def score(module: nn.Module, split: Split, criterion: Criterion, batch_size: int = BATCH_SIZE) -> float:
    """Return the metric of ``module`` on all samples of ``split``."""
    return criterion.measured(outputs(module, split.taken().x, batch_size), split.y)


def classes_of(module: nn.Module, split: Split) -> np.ndarray:
    """Return the class that ``module`` predicts for each sample of ``split``, (n,) int64; MetricError if its outputs are not finite."""
    return predicted(outputs(module, split.taken().x, BATCH_SIZE))


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


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters(), torch.empty(0)).device


def _queries(shards: Iterable[Split], batch_size: int, device: torch.device) -> Iterator[Fields[Tensor]]:
    for shard in islice(shards, QUERIED_CLIENTS):
        for start in range(0, min(len(shard.y), QUERIED_BATCHES * batch_size), batch_size):
            yield each(lambda x: torch.from_numpy(x).to(device), rows(shard.x, slice(start, start + batch_size)))
