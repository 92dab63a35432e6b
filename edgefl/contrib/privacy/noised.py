"""Local differential privacy: a client clips its own change and adds noise to it, before anything leaves the device."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from edgefl.client.clipping import clipped
from edgefl.contrib.privacy.guarantee import Privacy


def gaussian(shape: Sequence[int], std: float, rng: np.random.Generator) -> Tensor:
    """Return N(0, std²) of ``shape``, float64."""
    return torch.from_numpy(np.asarray(rng.standard_normal(tuple(shape)) * std))


def noised(
    update: Mapping[str, Tensor], sent: Mapping[str, Tensor], privacy: Privacy, rng: np.random.Generator
) -> dict[str, Tensor]:
    """Return sent + min(1, C/‖Δ‖)·Δ + N(0, (zC)²) with Δ = update − sent, in the dtypes of ``update``.

    Args:
        update: name → tensor to send; all of them together are one change.
        sent: name → tensor that the client received. A tensor that it did not receive changes from zeros.
        privacy: C and z.
        rng: draws the noise of the tensors in the order of ``update``.

    >>> quiet = Privacy("local", clip=2.5, noise_multiplier=1e-9, delta=1e-5)
    >>> found = noised({"w": torch.tensor([4.0, -3.0])}, {"w": torch.tensor([1.0, 1.0])}, quiet, np.random.default_rng(0))
    >>> found["w"].tolist()
    [2.5, -1.0]
    """
    bounded, _ = clipped(update, sent, privacy.clip)
    noise = {name: gaussian(tensor.shape, privacy.noise_std, rng) for name, tensor in update.items()}
    return {name: (tensor.double() + noise[name]).to(update[name].dtype) for name, tensor in bounded.items()}
