"""The accuracy of a model on held-out samples, or the metric of the run's own loss."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.fast.layout import layout_of
from edgefl.data.sources import Split
from edgefl.models.norm import calibrate, needs_statistics

BATCH_SIZE = 32  # larger batches of feature maps leave the caches: measured twice as slow at 256
QUERIED_CLIENTS = 50
QUERIED_BATCHES = 4


@torch.no_grad()
def outputs(module: nn.Module, x: np.ndarray, batch_size: int) -> np.ndarray:
    """Return the outputs of ``module`` for samples ``x`` (n, …): float32 (n, outputs), such as logits. It is set to evaluation mode."""
    module.eval()
    device = _device(module)
    layout = layout_of(module, torch.tensor(x[:1], device=device))
    batches = (torch.tensor(x[i : i + batch_size], device=device) for i in range(0, len(x), batch_size))
    return torch.cat([module(batch.to(memory_format=layout)) for batch in batches]).cpu().numpy()


def accuracy(module: nn.Module, split: Split, batch_size: int = BATCH_SIZE) -> float:
    """Return the share of ``split`` that ``module`` classifies correctly, in [0, 1]."""
    return score(module, split, CROSS_ENTROPY, batch_size)


def score(module: nn.Module, split: Split, criterion: Criterion, batch_size: int = BATCH_SIZE) -> float:
    """Return the metric of ``module`` on all samples of ``split``."""
    return criterion.measured(outputs(module, np.asarray(split.x), batch_size), split.y)


def with_statistics(module: nn.Module, shards: Iterable[Split], batch_size: int) -> nn.Module:
    """Compute the statistics of static BatchNorm layers on clients' samples (HeteroFL, section 4), and return ``module``.

    The first four batches of at most 50 clients are used. A network without such layers stays as it is.
    """
    if needs_statistics(module):
        device = _device(module)
        calibrate(module, (batch.to(device) for batch in _queries(shards, batch_size)))
    return module


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters(), torch.empty(0)).device


def _queries(shards: Iterable[Split], batch_size: int) -> Iterator[Tensor]:
    for shard in islice(shards, QUERIED_CLIENTS):
        for start in range(0, min(len(shard.y), QUERIED_BATCHES * batch_size), batch_size):
            yield torch.from_numpy(shard.x[start : start + batch_size])
