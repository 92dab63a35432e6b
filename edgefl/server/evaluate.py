"""How good a model is on held-out samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.data.sources import Split
from edgefl.models.norm import calibrate, needs_statistics

BATCH_SIZE = 32  # larger batches of feature maps leave the caches: measured twice as slow at 256
QUERIED_CLIENTS = 50
QUERIED_BATCHES = 4


@torch.no_grad()
def logits(module: nn.Module, x: np.ndarray, batch_size: int) -> np.ndarray:
    """Return the outputs of ``module`` (n, classes) for samples ``x`` (n, …), in evaluation mode."""
    module.eval()
    layout = _layout(module, x[:1])
    parts = [module(_batch(x[i : i + batch_size], layout)) for i in range(0, len(x), batch_size)]
    return torch.cat(parts).numpy()


def _layout(module: nn.Module, sample: np.ndarray) -> torch.memory_format:
    """Return how images lie in memory: channel by channel last, which convolutions and pooling are quicker with, if ``module`` allows it.

    Measured on one core, against the usual layout: 1.4 times as quick with cnn-digits, 2.7 with cnn-femnist, 1.0 to 1.4 with cnn-fashion,
    and 1.0 with ResNet-18, VGG-11 and DeiT-tiny. Outputs differ in the last bits.
    """
    if sample.ndim != 4 or not len(sample):
        return torch.contiguous_format
    try:
        module(_batch(sample, torch.channels_last))
    except RuntimeError:  # as ``view`` raises of tensors that lie in another order
        return torch.contiguous_format
    return torch.channels_last


def _batch(x: np.ndarray, layout: torch.memory_format) -> Tensor:
    return torch.from_numpy(x.copy()).to(memory_format=layout)


def accuracy(module: nn.Module, split: Split, batch_size: int) -> float:
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
