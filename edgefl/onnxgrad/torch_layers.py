"""Replaces the nodes of a graph's module by torch's own layers, which methods know how to factorize."""

from collections import Counter
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from edgefl.onnxgrad.errors import InputError
from edgefl.onnxgrad.graphs import free_batch
from edgefl.onnxgrad.rules import Signature, inputs_of
from edgefl.onnxgrad.to_torch import Node, load_onnx, module_of

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_CONVOLUTIONS: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def network_in(path: Path) -> tuple[nn.Module, Signature]:
    """Return the network of an ONNX file for any batch size, made of torch's layers where possible, and the inputs of the file.

    Raises:
        InputError: the file is missing or damaged, or a part of its graph cannot be used; names file and fault.
    """
    model = load_onnx(path)
    try:
        return with_torch_layers(module_of(free_batch(model))[0]), inputs_of(model.graph)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def with_torch_layers(graph: nn.Module) -> nn.Module:
    """Replace, in place, every node that computes the same as a convolution or ``nn.Linear`` of torch, unless its weights are shared."""
    readers = Counter(parameter for node in graph.children() for parameter in node.parameters())
    for name, node in list(graph.named_children()):
        alone = all(readers[parameter] == 1 for parameter in node.parameters())
        if isinstance(node, Node) and alone and (layer := _layer(node)) is not None:
            setattr(graph, name, layer)
    return graph


def _layer(node: Node) -> nn.Module | None:
    stored = {slot: node.get_parameter(name) for slot, name in node.stored.items() if name in dict(node.named_parameters())}
    if node.given != (0,) or 1 not in stored or len(stored) != len(node.stored):
        return None
    weight, bias = stored[1], stored.get(2)
    if node.op == "Conv" and weight.dim() in (3, 4, 5):
        return _convolution(node, weight, bias)
    if node.op == "Gemm" and weight.dim() == 2:
        plain = node.get("alpha", 1.0) == node.get("beta", 1.0) == 1.0 and not node.get("transA", 0)
        if plain and (bias is None or bias.dim() == 1):
            return _linear(weight if node.get("transB", 0) else weight.T, bias)
    if node.op == "MatMul" and weight.dim() == 2:
        return _linear(weight.T, None)
    return None


def _convolution(node: Node, weight: Tensor, bias: Tensor | None) -> nn.Module | None:
    axes = weight.dim() - 2
    pads = list(node.get("pads", [0, 0] * axes))
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or pads[:axes] != pads[axes:] or min(pads) < 0:
        return None
    groups, sizes = node.get("group", 1), tuple(weight.shape[2:])
    strides, dilations = (tuple(node.get(name, [1] * axes)) for name in ("strides", "dilations"))
    channels = weight.shape[1] * groups, weight.shape[0]
    settings = *channels, sizes, strides, tuple(pads[:axes]), dilations, groups, bias is not None
    layer = _CONVOLUTIONS[axes](*settings, device="meta")
    return _filled(layer, weight, bias)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    return _filled(nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta"), weight, bias)


def _filled(layer: Convolution | nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = nn.Parameter(weight.detach().contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach())
    return layer
