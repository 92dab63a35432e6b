"""The accuracy of a model on held-out samples."""

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.fast.layout import layout_of
from edgefl.data.sources import Split
from edgefl.models.norm import calibrate, needs_statistics

BATCH_SIZE = 32  # larger batches of feature maps leave the caches: measured twice as slow at 256
QUERIED_CLIENTS = 50
QUERIED_BATCHES = 4


@torch.no_grad()
def logits(module: nn.Module, x: np.ndarray, batch_size: int) -> np.ndarray:
    """Return the outputs of ``module`` for samples ``x`` (n, …): float32 (n, classes). It is set to evaluation mode."""
    module.eval()
    device = _device(module)
    layout = layout_of(module, torch.tensor(x[:1], device=device))
    batches = (torch.tensor(x[i : i + batch_size], device=device) for i in range(0, len(x), batch_size))
    return torch.cat([module(batch.to(memory_format=layout)) for batch in batches]).cpu().numpy()


def accuracy(module: nn.Module, split: Split, batch_size: int = BATCH_SIZE) -> float:
    """Return the share of ``split`` that ``module`` classifies correctly, in [0, 1]."""
    return share_correct(logits(module, np.asarray(split.x), batch_size), split.y)


def share_correct(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of rows of ``outputs`` (n, classes) whose largest entry is at the row's label; ``labels`` is (n,).

    >>> share_correct(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    0.5
    """
    return float((outputs.argmax(1) == labels).mean())


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
