"""A network's output in plain containers, and the logits in it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from edgefl.errors import InputError


def plain(output: Any) -> Any:
    """Return an output of tensors, dicts, lists and tuples; other mappings and objects, such as those of transformers, become dicts."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return {key: plain(value) for key, value in output.items()}
    if type(output) in (tuple, list):
        return type(output)(map(plain, output))
    if dataclasses.is_dataclass(output):  # one with slots has no ``vars``
        return {field.name: plain(getattr(output, field.name)) for field in dataclasses.fields(output)}
    return plain(vars(output)) if hasattr(output, "__dict__") and not isinstance(output, tuple) else output


def logits_of(output: Any) -> Any:
    """Return the entry or attribute ``logits`` of an output, else its only floating-point tensor, else the whole in plain containers.

    >>> import torch
    >>> logits_of({"logits": torch.zeros(2, 3), "hidden": torch.zeros(2, 9)}).shape, logits_of([torch.zeros(2), 7]).shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    output = plain(output if named is None else named)
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return leaves[0] if len(leaves) == 1 else output


def read_out(module: nn.Module, args: Any, output: Any) -> Any:
    """Return logits (batch, …) for a loss, from all floating-point outputs; in evaluation the output itself, in plain containers."""
    output = plain(output)
    if not module.training:
        return output
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim()]
    if not leaves:
        raise InputError(
            f"{type(module).__name__} returns no tensor of floating-point numbers with a row per sample: there is nothing to train"
        )
    rows = [leaf.flatten(1) if leaf.dim() > 1 else leaf.unsqueeze(1) for leaf in leaves]
    same = [row for row in rows if row.shape[0] == rows[0].shape[0]]
    trains = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters())
    if trains and not any(row.requires_grad for row in same):
        raise InputError(f"{type(module).__name__} returns values that depend on no parameter: there is nothing to train")
    return same[0] if len(same) == 1 else torch.cat(same, 1)


def unwrapped(module: nn.Module, args: Any, output: Any) -> Any:
    """Return the output itself, in plain containers; in evaluation one number per sample is (batch, 1). ``args`` are not used."""
    output = plain(output)
    return output.unsqueeze(1) if isinstance(output, Tensor) and output.dim() == 1 and not module.training else output
