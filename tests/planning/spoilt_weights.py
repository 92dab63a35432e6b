"""Files of weights that are not the network's, each with its message."""

import safetensors.torch
import torch

from edgefl.models.base import Architecture


def tensors_of(model: str = "cnn-digits") -> dict[str, torch.Tensor]:
    return {name: t.contiguous() for name, t in Architecture(model, (1, 8, 8), 10).build().state_dict().items()}


def spoilt(kind: str) -> bytes:
    tensors = tensors_of("mlp" if kind == "another network" else "cnn-digits")
    if kind == "nan":
        next(iter(tensors.values())).view(-1)[3] = float("nan")
    if kind == "another shape":
        tensors["fc.weight"] = torch.zeros(10, 7)
    content = safetensors.torch.save(tensors)
    return content[: len(content) // 2] if kind == "truncated" else content


SPOILT = {
    "missing": r"cannot be read \(No such file or directory\)",
    "truncated": "not a valid safetensors file",
    "another network": "tensors missing or not expected: ",
    "another shape": r"fc.weight has shape \(10, 7\), expected \(10, 1024\)",
    "nan": "holds NaN or infinity, expected finite values",
}
