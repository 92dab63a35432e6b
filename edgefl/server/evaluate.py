"""The accuracy of a model on held-out samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    """Return the outputs of ``module`` (n, classes) for samples ``x`` (n, …), in evaluation mode."""
    module.eval()
    layout = layout_of(module, torch.tensor(x[:1]))
    parts = [module(torch.tensor(x[i : i + batch_size]).to(memory_format=layout)) for i in range(0, len(x), batch_size)]
    return torch.cat(parts).numpy()


def accuracy(module: nn.Module, split: Split, batch_size: int = BATCH_SIZE) -> float:
    """Return the share of ``split`` that ``module`` classifies correctly, in [0, 1]."""
    return share_correct(logits(module, np.asarray(split.x), batch_size), split.y)


def share_correct(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of rows whose largest entry is the label's.

    >>> share_correct(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]))
    0.5
    """
    return float((outputs.argmax(1) == labels).mean())


def with_statistics(module: nn.Module, shards: Iterable[Split], batch_size: int) -> nn.Module:
    """Give static BatchNorm layers their statistics from queries to clients (HeteroFL, section 4); other networks pass through.

    At most 50 clients are asked, each for its first four batches.
    """
    if needs_statistics(module):
        calibrate(module, _queries(shards, batch_size))
    return module


def _queries(shards: Iterable[Split], batch_size: int) -> Iterator[Tensor]:
    for count, shard in enumerate(shards):
        if count == QUERIED_CLIENTS:
            return
        for start in range(0, min(len(shard.y), QUERIED_BATCHES * batch_size), batch_size):
            yield torch.from_numpy(shard.x[start : start + batch_size])
