"""Calls of a module with other tensors than its own. Afterwards the module is as it was.

``torch.func.functional_call`` leaves the given tensors in a module that has two names, as in ``nn.Sequential(layer, nn.ReLU(), layer)``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from edgefl.onnxgrad.errors import InputError
from edgefl.onnxgrad.fields import Fields, each


def called(module: nn.Module, tensors: dict[str, Tensor], args: tuple[Any, ...]) -> Any:
    """Return ``module(*args)``, computed with ``tensors`` in place of its parameters and buffers of these names.

    One name of a tensor that has several suffices. All parameters and buffers are the module's own again afterwards, also if it raises an
    error. If ``forward`` assigns a buffer of ``tensors``, ``tensors`` has the new one: see :func:`carry`.

    Raises:
        KeyError: the module has no parameter or buffer of a name.
        ValueError: two names of one tensor have different ``tensors``.

    >>> layer = nn.Linear(2, 1, bias=False)
    >>> called(nn.Sequential(layer), {"0.weight": torch.tensor([[1.0, 2.0]])}, (torch.tensor([3.0, 4.0]),)).tolist()
    [11.0]
    """
    slots = _slots(module, tensors)
    own = {part: (dict(part._parameters), dict(part._buffers)) for part in module.modules()}
    new: dict[Tensor, Tensor] = {}
    for name, (held, key) in slots.items():
        if (before := held[key]) is not None and new.setdefault(before, tensors[name]) is not tensors[name]:
            raise ValueError(f"{name} is a tensor with several names, and another of them has other values")
    try:
        for part in own:
            for held in (part._parameters, part._buffers):
                for key, tensor in held.items():
                    if tensor is not None and tensor in new:
                        held[key] = new[tensor]  # type: ignore[assignment]
        for name, (held, key) in slots.items():  # a buffer that is None as well
            held[key] = tensors[name]
        return module(*args)
    finally:
        for name, (held, key) in slots.items():
            now = held.get(key)
            if now is not None:
                tensors[name] = now
        for part, (parameters, buffers) in own.items():
            _put_back(part._parameters, parameters)
            _put_back(part._buffers, buffers)


def carry(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Copy the buffers that a module has assigned in :func:`called` into the tensors that it was called with, as torch keeps them.

    RuntimeError: a buffer has another shape now.
    """
    with torch.no_grad():
        for name, tensor in before.items():
            if (now := after[name]) is not tensor:
                if now.shape != tensor.shape:
                    raise RuntimeError(f"{name} has shape {tuple(now.shape)} after a step, expected {tuple(tensor.shape)}")
                tensor.copy_(now.detach())


def settled(module: nn.Module, own: Mapping[str, Tensor]) -> bool:
    """Copy what ``module`` has assigned to its buffers into their tensors ``own``, by name, which it has again; whether that is possible.

    It is not if a buffer has another shape or type now.
    """
    for name, (held, key) in _slots(module, own).items():
        tensor, now = own[name], held[key]
        if now is not tensor:
            if now is None or (now.shape, now.dtype) != (tensor.shape, tensor.dtype):
                return False
            tensor.detach().copy_(now.detach())
            held[key] = tensor
    return True


def unset_buffers(module: nn.Module) -> list[tuple[dict[str, Any], str]]:
    """Return where parts of ``module`` have a buffer that is None, for ``forward`` to set: their buffers, and the name there.

    Layers of torch and edgefl set none.
    """
    return [
        (part._buffers, key)
        for part in module.modules()
        if type(part).__module__.partition(".")[0] not in ("torch", "edgefl")
        for key, buffer in part._buffers.items()
        if buffer is None
    ]


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Give all parts of ``module`` the attributes, parameters and buffers back that they had before a block, such as a trace.

    Values of tensors that the block changes in place stay changed.
    """
    before = [
        (part, dict(vars(part)), [dict(held) for held in _of(part)], set(part._non_persistent_buffers_set))
        for part in module.modules()
        if not isinstance(part, torch.jit.ScriptModule)
    ]
    try:
        yield
    finally:
        for part, attributes, tensors, unsaved in before:
            vars(part).clear()
            vars(part).update(attributes)
            for held, own in zip(_of(part), tensors, strict=True):
                _put_back(held, own)
            part._non_persistent_buffers_set.clear()
            part._non_persistent_buffers_set.update(unsaved)


def _of(part: nn.Module) -> tuple[dict[str, Any], ...]:
    return part._parameters, part._buffers, part._modules


def _slots(module: nn.Module, names: Mapping[str, Tensor]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return for each name where its tensor is held: the parameters or buffers of a part, and the name there."""
    parts = {path: module.get_submodule(path) for path in {name.rpartition(".")[0] for name in names}}
    found = {}
    for name in names:
        path, _, key = name.rpartition(".")
        held = next((of for of in (parts[path]._parameters, parts[path]._buffers) if key in of), None)
        if held is None:
            raise KeyError(f"{type(module).__name__} has no parameter or buffer {name}")
        found[name] = held, key
    return found


def _put_back(held: dict[str, Any], own: Mapping[str, Any]) -> None:
    if held.keys() != own.keys():
        for key in held.keys() - own.keys():
            del held[key]
    for key, tensor in own.items():
        if held.get(key) is not tensor:
            held[key] = tensor


Inputs = Mapping[str, Fields[Tensor]]


def set_late_buffers(network: nn.Module, run: Callable[[Inputs], Any], inputs: Inputs, failure: str) -> None:
    """Let ``run``, which calls ``network``, set the buffers that are None, such as a mask that is made once.

    torch.export cannot follow that. InputError, which begins with ``failure``, if input decides their values: a graph would compute with
    those of one batch for ever.
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
