"""What a network returns: in plain containers, and the logits in it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def plain(output: Any) -> Any:
    """Return an output of tensors, dicts, lists and tuples; other mappings and objects, such as those of transformers, become dicts."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        return {key: plain(value) for key, value in output.items()}
    if type(output) in (tuple, list):
        return type(output)(map(plain, output))
    return plain(vars(output)) if hasattr(output, "__dict__") and not isinstance(output, tuple) else output


def logits_of(output: Any) -> Any:
    """Return the entry or attribute ``logits`` of an output, else its only floating-point tensor, else the whole in plain containers.

    >>> import torch
    >>> logits_of({"logits": torch.zeros(2, 3), "hidden": torch.zeros(2, 9)}).shape, logits_of([torch.zeros(2), 7]).shape
    (torch.Size([2, 3]), torch.Size([2]))
    """
    output = plain(output)
    if isinstance(output, dict):
        output = output.get("logits", output)
    found = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    return found[0] if len(found) == 1 else output
