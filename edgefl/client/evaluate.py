"""The accuracy of a model on held-out samples, or the run's own metric."""

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion, predicted
from edgefl.client.fast.layout import laid, layout_of
from edgefl.data.split import Split
from edgefl.errors import MetricError
from edgefl.models.norm import calibrate, needs_statistics
from edgefl.util.compute import in_parallel
from edgefl.util.fields import Fields, each, first, rows

BATCH_SIZE = 32  # larger batches of feature maps leave the caches: measured twice as slow at 256
_KEEP_NOTHING = "torch.nn.", "edgefl.models.", "edgefl.factor."
"""Modules whose networks and layers keep nothing of a batch in evaluation mode."""
QUERIED_CLIENTS = 50
QUERIED_BATCHES = 4


def outputs(module: nn.Module, x: Fields[np.ndarray], batch_size: int = BATCH_SIZE, threads: int = 1) -> np.ndarray:
    """Return the outputs of ``module`` for samples ``x`` (n, …): float32 (n, outputs), such as logits. It is set to evaluation mode.

    So many ``threads`` take batches side by side on a CPU, if torch computes with one thread. The outputs have the same bits. Networks
    that may keep something of a batch, such as those of the user's own classes, get one batch after the other.
    """
    module.eval()
    device, starts = _device(module), range(0, len(first(x)), batch_size)

    def batch(start: int, size: int) -> Any:
        return each(lambda part: torch.tensor(part, device=device), rows(x, slice(start, start + size)))

    layout = layout_of(module, batch(0, 1))

    @torch.no_grad()  # here, because each thread has its own mode
    def of_batch(start: int) -> Tensor:
        logits: Tensor = module(laid(batch(start, batch_size), layout))
        return logits

    if threads > 1 and device.type == "cpu" and torch.get_num_threads() == 1 and _keeps_nothing(module):
        parts = [*in_parallel({str(start): partial(of_batch, start) for start in starts}, threads).values()]
    else:
        parts = [*map(of_batch, starts)]
    return torch.cat(parts).cpu().numpy()


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
        calibrate(module, _queries(shards, batch_size, _device(module)))
    return module


def _keeps_nothing(module: nn.Module) -> bool:
    """Whether a batch leaves no trace in ``module``: its parts are torch's or edgefl's, in evaluation mode, and nothing hooks into them.

    A network of the user's own may hold on to something of a batch until it returns, such as a list of outputs.
    """
    return all(
        type(part).__module__.startswith(_KEEP_NOTHING) and not part._forward_hooks and not part._forward_pre_hooks
        for part in module.modules()
    )


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters(), torch.empty(0)).device


def _queries(shards: Iterable[Split], batch_size: int, device: torch.device) -> Iterator[Fields[Tensor]]:
    for shard in islice(shards, QUERIED_CLIENTS):
        for start in range(0, min(len(shard.y), QUERIED_BATCHES * batch_size), batch_size):
            yield each(lambda x: torch.from_numpy(x).to(device), rows(shard.x, slice(start, start + batch_size)))
