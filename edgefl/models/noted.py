"""Sizes that modules note themselves, as attributes, and that a narrow network has to note too."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from edgefl.models.channels import TracedCall

Attributes = dict[str, dict[str, Any]]
# The sizes of its tensors that a layer of torch notes: attribute → (tensor, dimension).
_NOTED: dict[type[nn.Module], dict[str, tuple[str, int]]] = {
    nn.Linear: {"in_features": ("weight", 1), "out_features": ("weight", 0)},
    nn.modules.batchnorm._BatchNorm: {"num_features": ("weight", 0)},
    **{kind: {"num_features": ("weight", 0)} for kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)},
    nn.GroupNorm: {"num_channels": ("weight", 0)},
    nn.Embedding: {"embedding_dim": ("weight", 1)},
    nn.RNNBase: {"input_size": ("weight_ih_l0", 1), "hidden_size": ("weight_hh_l0", 1)},
    nn.RNNCellBase: {"input_size": ("weight_ih", 1), "hidden_size": ("weight_hh", 1)},
    nn.PReLU: {"num_parameters": ("weight", 0)},
    nn.MultiheadAttention: {"embed_dim": ("out_proj.weight", 0), "kdim": ("out_proj.weight", 0), "vdim": ("out_proj.weight", 0)},
}
_INSTANCE_NORMS: dict[type[nn.Module], int] = {nn.InstanceNorm1d: -2, nn.InstanceNorm2d: -3, nn.InstanceNorm3d: -4}
"""The normalizations that count the channels of a sample, and in which dimension; without weights they have no tensor of that size."""


def note(module: nn.Module) -> None:
    """Make the attributes in which torch's layers note shapes agree with their tensors."""
    if isinstance(module, nn.modules.conv._ConvNd):
        whole, share = module.weight.shape[:2]  # the channels of one side, and a group's share of the other side's
        if module.groups == module.in_channels > 1:  # depthwise: as many groups as inputs
            module.groups = whole if module.transposed else whole // (module.out_channels // module.groups)
        sides = whole, share * module.groups
        module.in_channels, module.out_channels = sides if module.transposed else sides[::-1]
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and module.weight is not None:
        module.normalized_shape = tuple(module.weight.shape)
    for kind, attributes in _NOTED.items():
        if isinstance(module, kind):
            for name, (path, dim) in attributes.items():
                holder, _, tensor = path.rpartition(".")
                weight = getattr(module.get_submodule(holder), tensor, None)
                if weight is not None:
                    setattr(module, name, weight.shape[dim])
    if isinstance(module, nn.RNNBase) and module.proj_size:
        module.proj_size, module.hidden_size = module.get_parameter("weight_hr_l0").shape
    if isinstance(module, nn.MultiheadAttention):
        module.head_dim = module.embed_dim // module.num_heads


def of_inputs(network: nn.Module, calls: Iterable[TracedCall], width: float) -> Attributes:
    """Return what layers of ``network`` without weights note of their inputs at ``width``: torch warns in every pass of another number.

    ``calls`` are those of the whole network. The last call in a layer returns what the layer returns, of the same shape as its input.
    """
    attributes: Attributes = {}
    for call in calls:
        layer = network.get_submodule(call.layer)
        dim = _INSTANCE_NORMS.get(type(layer))
        if dim is not None and layer.weight is None and call.outputs and len(call.outputs[0]) >= -dim:
            attributes[call.layer] = {"num_features": call.outputs[0][dim].count(width)}
    return attributes


def patched(narrow: nn.Module, call: TracedCall, width: float, attributes: Attributes) -> bool:
    """Change attributes of the call's module whose value is a size that the plan changes; return whether there was one."""
    sizes: dict[int, set[int]] = {}
    for axis in (axis for axes in (*call.outputs, *call.inputs) for axis in axes):
        sizes.setdefault(axis.size, set()).add(axis.count(width))
    certain = {size: narrow_.pop() for size, narrow_ in sizes.items() if len(narrow_) == 1}
    layer = call.layer
    while not (changed := _patched_like(narrow, layer, certain, attributes)) and layer:
        layer = layer.rpartition(".")[0]
    return changed


def _patched_like(narrow: nn.Module, layer: str, sizes: Mapping[int, int], attributes: Attributes) -> bool:
    """Change attributes of ``layer``, and of modules of its class with the same value, by ``sizes``: size → size in the narrow network."""
    module = narrow.get_submodule(layer)
    if _follows_tensors(module):
        return False  # :func:`note` knows what they note
    names = {name: value for name, value in vars(module).items() if _resized(value, sizes) != value}
    new = {name: value for name, value in names.items() if name not in attributes.get(layer, {})}
    if _is_torchs(module) and not isinstance(module, nn.Transformer):
        alike = [(layer, module)]  # others of its kind may work with other channels
    else:
        alike = [(path, other) for path, other in narrow.named_modules() if type(other) is type(module)]
    for name, value in new.items():
        for path, other in alike:
            if getattr(other, name, None) == value and name not in attributes.get(path, {}):
                setattr(other, name, _resized(value, sizes))
                attributes.setdefault(path, {})[name] = _resized(value, sizes)
    return bool(new)


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.")


def _follows_tensors(module: nn.Module) -> bool:
    """Whether a layer of torch notes sizes of its own tensors only; a normalization without weights notes those of its input."""
    return (
        _is_torchs(module)
        and not isinstance(module, (nn.Transformer, nn.Unflatten))
        and getattr(module, "weight", module) is not None
    )


def _resized(value: Any, sizes: Mapping[int, int]) -> Any:
    """Return a size, or a list or tuple of sizes, in the narrow network; another value as it is."""
    if type(value) in (list, tuple) and all(type(size) is int for size in value):
        return type(value)(sizes.get(size, size) for size in value)
    return sizes.get(value, value) if type(value) is int else value
