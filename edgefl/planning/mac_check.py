"""A second count of a forward pass's MACs: over the ONNX graph of a tier's network, which other code makes and counts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edgefl.methods.base import Method
from edgefl.models.base import Architecture, Unfilled
from edgefl.records import Tier


def macs_in_onnx(method: Method, architecture: Architecture, tier: Tier) -> int | None:
    """Return the MACs of one sample's forward pass, counted over the exported graph; None if some operator is not counted.

    Raises:
        EdgeflError: an operation of the network has no ONNX form (named).
        InputError: the sizes of a counted operator are not known.
    """
    from edgefl.onnxgrad.exporter import export  # takes seconds to import
    from edgefl.onnxgrad.macs import macs_per_sample

    with Unfilled():
        network = method.network(architecture, tier).eval()
    samples = architecture.samples(2)
    inputs = samples if isinstance(samples, dict) else {"x": samples}
    zeros = {name: torch.zeros_like(tensor) for name, tensor in inputs.items()}
    module = _ByName(network, tuple(zeros)).eval() if isinstance(samples, dict) else network
    return macs_per_sample(export(module, zeros, ()))


class _ByName(nn.Module):
    """A network whose inputs have names, called with them in order."""

    def __init__(self, network: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.network, self.names = network, names

    def forward(self, *tensors: Tensor) -> Tensor:
        found: Tensor = self.network(dict(zip(self.names, tensors, strict=True)))
        return found
