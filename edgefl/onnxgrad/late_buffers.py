"""Buffers that are None until ``forward`` sets them, such as a mask that is made once. torch.export cannot follow that."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from edgefl.onnxgrad.errors import InputError
from edgefl.onnxgrad.fields import Fields, each
from edgefl.onnxgrad.stateless import unset_buffers

Inputs = Mapping[str, Fields[Tensor]]


def set_late_buffers(network: nn.Module, run: Callable[[Inputs], Any], inputs: Inputs, failure: str) -> None:
    """Let ``run``, which calls ``network``, set the buffers that are None.

    InputError, which begins with ``failure``, if input decides their values: a graph would compute with those of one batch for ever.
    """
    if not (late := unset_buffers(network)):
        return
    other = {name: each(_other, value) for name, value in inputs.items()}
    found = []
    for given, again in ((other, False), (inputs, False), (other, True)):
        if not again:
            for buffers, name in late:
                buffers[name] = None
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            run(given)
        found.append([buffers[name] for buffers, name in late])
    for (_, name), *values in zip(late, *found, strict=True):
        first, *rest = values
        if any((first is None) != (value is None) or (first is not None and not torch.equal(first, value)) for value in rest):
            raise InputError(
                f"{failure}: forward sets its buffer {name}, which is None before, to values of its input; give it values in __init__"
            )


def _other(value: Tensor) -> Tensor:
    return 2 * value + 1 if value.is_floating_point() else torch.zeros_like(value)
