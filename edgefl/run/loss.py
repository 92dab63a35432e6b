"""From a configuration to what clients minimise: the loss of a run, checked on samples of its data."""

import numpy as np
import torch

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.config import RunConfig
from edgefl.data.sources import Dataset
from edgefl.errors import ConfigError
from edgefl.models.base import Architecture
from edgefl.rng import generator, torch_seeded
from edgefl.util.fields import each
from edgefl.util.modules import OBJECT
from edgefl.util.networks import title_of


def check_found(config: RunConfig, key: str, spec: str) -> None:
    """Check that the processes of a run find what ``spec`` names."""
    if spec.startswith(OBJECT) and (config.engine not in ("inline", "group") or config.workers != 1):
        raise ConfigError(
            f"{key}: {title_of(spec)} is an object that other processes cannot import; define it at the top of a module, or use engine "
            "inline"
        )


def criterion_of(config: RunConfig, data: Dataset) -> Criterion:
    """Return what clients minimise; raise :class:`InputError` if it does not fit the data, or there is no such function."""
    if config.loss is None:
        if not data.classes:
            if _one_hot(data.train.y):
                raise ConfigError(f"loss: {data.name} has one-hot targets; store labels instead, such as y.argmax(1)")
            raise ConfigError(
                f"loss: {data.name} has float32 targets, no labels; give a loss such as torch.nn.functional:mse_loss"
            )
        return CROSS_ENTROPY
    if data.target_shape is not None and config.permute_labels:
        raise ConfigError(f"permute_labels: {data.name} has float32 targets, no labels; leave the key out")
    check_found(config, "loss", config.loss)
    return Criterion.of(config.loss, None if data.classes else data.train.y)


def _one_hot(targets: np.ndarray) -> bool:
    """Return whether each sample has one 1 among zeros."""
    if targets.ndim != 2 or targets.shape[1] == 1:
        return False
    return bool(((targets == 1).sum(1) == 1).all() and ((targets != 0).sum(1) == 1).all())


def checked_loss(criterion: Criterion, architecture: Architecture, data: Dataset, seed: int) -> Criterion:
    """Return the criterion, checked with two samples and an initial network: see :meth:`Criterion.checked`."""
    two = data.train.taken(slice(2))
    with torch_seeded(generator(seed, "loss")):
        return criterion.checked(architecture.build(), each(torch.tensor, two.x), torch.tensor(two.y), data.classes)
