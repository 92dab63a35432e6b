"""Checks of what a training step is made from, before torch traces it: torch's own messages name neither the argument nor the remedy."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from edgefl.onnxgrad.errors import InputError, nearest
from edgefl.onnxgrad.fields import named
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, PREDICTION, SEED, SHARE, STATES, STEP_COUNT, Roles, StepRule

_CALL = 'training_step(network, lambda network, x, y: torch.nn.functional.cross_entropy(network(x), y), {"x": x, "y": y})'
_BUFFERS = {torch.float32, torch.float64, torch.float16}
"""Types of real numbers that buffers may have; the graphs read them as float32."""
_INPUTS = {*_BUFFERS, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
"""Types that inputs of a batch may have."""
_TAKEN = {LOSS, PREDICTION, STEP_COUNT, LEARNING_RATE, BETA, SHARE, SEED}


def check_arguments(network: Any, losses: Sequence[Any], batch: Any, shared: Any, rule: Any) -> None:
    """Raise an InputError unless these are arguments of :func:`edgefl.onnxgrad.step.training_step`; it shows the remedy."""
    if not isinstance(network, nn.Module):
        raise InputError(f"network: expected a torch.nn.Module, got {_kind(network)}; call {_CALL}")
    if not isinstance(rule, StepRule):
        raise InputError(f'rule: expected a StepRule such as StepRule("adam"), got {_kind(rule)}')
    if rule.optimizer not in STATES:
        name, known = str(rule.optimizer), sorted(STATES)
        hint = nearest(name, known)
        raise InputError(f"unknown optimizer {name!r};{hint} {'Known' if hint else 'known'}: {', '.join(known)}")
    if rule.clip_norm is not None and not 0 < rule.clip_norm < float("inf"):
        raise InputError(f"rule: clip_norm must be above 0 and finite, got {rule.clip_norm}; None does not clip")
    if not isinstance(batch, Mapping) or not batch:
        raise InputError(f"batch: expected a dictionary, name → example of an input, got {_kind(batch)}; call {_CALL}")
    counts = {name: _samples(name, value) for key, given in batch.items() for name, value in named(given, key).items()}
    if len(set(counts.values())) > 1:
        raise InputError(
            f"batch: all inputs need as many samples, got {', '.join(f'{n}: {count}' for n, count in counts.items())}"
        )
    if min(counts.values()) < 2:
        raise InputError("batch: the example has one sample, expected at least two; the graphs take any number, one included")
    for name, value in shared.items():
        _check_tensor(f"shared input {name}", value)
    for loss in losses:
        _check_loss(loss, [*batch, *shared])


def _samples(name: str, value: Any) -> int:
    """Return the number of samples of an input."""
    _check_tensor(f"input {name} of the batch", value)
    if not value.dim():
        raise InputError(
            f"input {name} of the batch is one number, expected (samples, …); an input of all samples goes into shared"
        )
    return len(value)


def _check_tensor(what: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise InputError(f"{what}: expected a torch.Tensor, got {_kind(value)}; torch.as_tensor makes one")
    if value.dtype not in _INPUTS:
        raise InputError(f"{what} is {value.dtype}, which training graphs cannot read; convert it, for instance by .float()")
    if value.layout is not torch.strided:
        raise InputError(f"{what} has the layout {value.layout}, expected a dense tensor; call .to_dense()")


def _check_loss(loss: Any, inputs: Sequence[str]) -> None:
    """Refuse a loss that cannot be called with the network and the inputs."""
    if not callable(loss):
        raise InputError(f"loss: expected a function (network, *inputs) → scalar, got {_kind(loss)}; call {_CALL}")
    whole = getattr(loss, "func", loss)  # of functools.partial
    name = getattr(whole, "__name__", type(whole).__name__)
    origin = type(whole).__module__ if isinstance(whole, nn.Module) else getattr(whole, "__module__", None)
    if str(origin).partition(".")[0] == "torch":
        raise InputError(f"loss: {name} compares outputs, but a loss is called with the network and the inputs; call {_CALL}")
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):  # a function of C
        return
    try:
        signature.bind(None, *inputs)
    except TypeError as error:
        raise InputError(f"loss: {name} is called with (network, {', '.join(inputs)}): {error}; for instance {_CALL}") from None


def _kind(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else f"a {type(value).__name__}"


def check_names(roles: Roles) -> None:
    """Raise an InputError if an input of a batch has the name of another value of training graphs."""
    tensors = {*roles.tensors.values(), *(f"{kind}.{name}" for name in roles.trained for kind in ("g", "m", "v"))}
    taken = _TAKEN | tensors | {name + OUT for name in tensors}
    for name in (*roles.batch, *roles.shared):
        if not name or name in taken:
            raise InputError(
                f"an input of the batch is called {name!r}, which training graphs use themselves; give it another name"
            )
        taken.add(name)


def check_network(network: nn.Module, failure: str) -> None:
    """Raise an InputError, which begins with ``failure``, for a network whose training graph would not compute what torch does."""
    for reason in _unfit(network):
        raise InputError(f"{failure}: {reason}")


def _unfit(network: nn.Module) -> Iterator[str]:
    """Yield what a training graph cannot express, with the remedy."""
    if isinstance(network, torch.jit.ScriptModule):
        yield "it is a scripted module; pass the module that was given to torch.jit"
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if is_lazy(tensor):
            yield f"{name} has no size yet; call the network once with an example"
        if tensor.device.type != "cpu":
            yield f"{name} is on the device {tensor.device}; call .cpu() on the network"
        if tensor.layout is not torch.strided:
            yield f"{name} has the layout {tensor.layout}, expected a dense tensor; call .to_dense()"
        if tensor.is_complex() or tensor.is_quantized:
            yield f"{name} is {tensor.dtype}, and training graphs compute with real numbers in float32; use tensors of those"
        if tensor.is_floating_point() and tensor.dtype not in ({torch.float32} if isinstance(tensor, nn.Parameter) else _BUFFERS):
            yield f"{name} is {tensor.dtype}, and training graphs compute in float32; call .float() on the network"
    for name, parameter in network.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001 - no public interface tells
            yield f"{name} has a hook on its gradient, which a graph cannot call; remove it, or change the gradient in the loss"
    yield from _frozen_parts(network)


def _frozen_parts(network: nn.Module) -> Iterator[str]:
    """Yield parts that the caller set to evaluation mode and that compute otherwise there: a step begins with ``network.train()``."""
    modes = {part: part.training for part in network.modules()}
    if network.training:
        network.train()
        changed = [name for name, part in network.named_modules() if part.training is not modes[part] and _reads_mode(part)]
        for part, training in modes.items():
            part.training = training
        for name in changed:
            yield f"{name} is in evaluation mode, but a step calls network.train(); let the network's train() leave it there"


def _reads_mode(part: nn.Module) -> bool:
    """Whether the code of a module asks for its mode, as BatchNorm and dropout do."""
    code = getattr(type(part).forward, "__code__", None)
    return code is None or "training" in code.co_names
