"""Copies of a user's network, also without values, and which networks there are none of."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from edgefl.errors import InputError

_UNSCRIPTED = "give the module before torch.jit.script or torch.jit.trace"


def check_network(network: nn.Module, model: str) -> None:
    """Raise :class:`InputError` for a network that cannot be copied, sent or counted."""
    if isinstance(network, torch.jit.ScriptModule):
        raise InputError(f"{model} is a TorchScript module; {_UNSCRIPTED}")
    if lazy := [name for name, parameter in network.named_parameters() if is_lazy(parameter)]:
        raise InputError(
            f"{model}: {lazy[0]} has no shape yet; give its layer all sizes, or run a batch through it in the factory"
        )
    for name, part in network.named_modules():
        if any(isinstance(hook, WeightNorm) for hook in part._forward_pre_hooks.values()):
            remedy = "use nn.utils.parametrizations.weight_norm"
            raise InputError(f"{model}: {name or 'it'} has nn.utils.weight_norm, which cannot be copied; {remedy}")
    for name, tensor in network.state_dict().items():
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float32:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InputError(f"{model}: {name} is {kind}, expected float32; call .float() on the network")


def as_written(network: Any) -> Any:
    """Return the network that ``torch.compile`` was given, as nothing is compiled here; any other network or factory as it is."""
    return getattr(network, "_orig_mod", network)


def copies_of(network: nn.Module) -> Callable[[], nn.Module]:
    """Return a factory of copies of ``network``; it makes fake or meta tensors if the caller's mode or device does.

    InputError: there are no copies of such a network.
    """
    module: nn.Module = as_written(network)
    check_network(module, type(module).__name__)

    def build() -> nn.Module:
        fake = detect_fake_mode()
        device = torch.get_default_device()
        if fake is not None and (
            scripted := [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
        ):
            raise InputError(
                f"{type(module).__name__}: {scripted[0]} is a TorchScript module, which is not traced; {_UNSCRIPTED}"
            )
        # deepcopy does not copy the tensors in its memo, so a fake network allocates no second set of weights.
        memo: dict[int, Any] = {}
        other: Tensor
        for tensor in (*module.parameters(), *module.buffers(), *_noted(module)):
            if fake is not None:
                other = _fake(tensor, fake)
            else:
                other = tensor.detach().to(device) if device.type == "meta" else tensor.detach().clone()
            memo[id(tensor)] = nn.Parameter(other, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else other
        return copy.deepcopy(module, memo)

    return build


def _noted(network: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that modules have as plain attributes, such as a weight that a hook computes, or the last output."""
    for part in network.modules():
        yield from (value for value in tree_leaves(vars(part)) if type(value) is Tensor)


def _fake(tensor: Tensor, fake: FakeTensorMode) -> Tensor:
    """Return a fake tensor like ``tensor``, which may be fake already; a counter has its value, which layers compute with."""
    if isinstance(tensor, FakeTensor) or tensor.dim() or tensor.is_floating_point() or tensor.device.type == "meta":
        return fake.from_tensor(tensor)
    with _disable_current_modes():
        value = tensor.item()
    with fake:
        return torch.tensor(value, dtype=tensor.dtype, device=tensor.device)
