"""The operations of a network, with the axes of every tensor, from one forward pass without values."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from edgefl.models.axes import Axis, explain, freeze, unify
from edgefl.models.axis_rules import axes_after, fresh
from edgefl.models.gates import Recurrent, axes_of
from edgefl.util.tensors import tensors_in

_LEFT_OUT = {"detach", "alias", "lift_fresh", "clone"}
_VIEWS = {"view", "_unsafe_view", "reshape", "_reshape_alias"}


def seen(operation: Any) -> str:
    """Return the name of an operation, "" if it is left out: how many copies and what views there are depends on strides."""
    name: str = operation.overloadpacket.__name__
    return "" if name in _LEFT_OUT else "view" if name in _VIEWS else name


def packed(operation: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operation. Its new tensors lie row by row, because strides decide which operations follow.

    A narrow network may have other strides: those of heads of one channel. Tensors on the device ``meta`` share no values.
    """
    out = operation(*args, **(kwargs or {}))
    arguments = {id(tensor) for tensor in tensors_in((args, kwargs))}
    return tree_map_only(Tensor, lambda one: one.contiguous() if one.is_meta and id(one) not in arguments else one, out)


@dataclass(frozen=True)
class TracedCall:
    """One operation of a traced network.

    Attributes:
        name: the operation's name.
        layer: the innermost module that it is part of.
        inputs, outputs: axes of the tensors that it reads and returns.
        known: whether there is a rule for it.
    """

    name: str
    layer: str
    inputs: Sequence[Sequence[Axis]]
    outputs: Sequence[Sequence[Axis]]
    known: bool = True


class _Tracer(TorchDispatchMode):
    """Follows the axes of tensors through a forward pass."""

    def __init__(self, network: nn.Module, layer: Callable[[], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.layer = layer
        self.calls: list[TracedCall] = []
        self._axes: dict[int, Sequence[Axis]] = {}
        self._alive: list[Tensor] = []
        self._unread: dict[int, Sequence[Axis]] = {}
        self.tensors: dict[str, Sequence[Axis]] = {
            name: self.of(tensor, False)
            for named in (network.named_parameters, network.named_buffers)
            for name, tensor in named(remove_duplicate=False)  # tied weights have two names
        }
        self._unread.update(self._axes)

    @property
    def unread(self) -> list[Axis]:
        """The axes of parameters and buffers that no operation has read, without those of one entry."""
        return [axis for axes in self._unread.values() for axis in axes if axis.size > 1]

    def of(self, tensor: Tensor, frozen: bool = True) -> Any:
        """Return the axes of a tensor; those of one that comes from outside stay whole."""
        if id(tensor) not in self._axes:
            self._set(tensor, [Axis(size, frozen) for size in tensor.shape])
            for axis in self._axes[id(tensor)]:
                explain(axis, "input")
        return self._axes[id(tensor)]

    def _read(self, tensors: Iterable[Tensor]) -> list[Sequence[Axis]]:
        axes = []
        for tensor in tensors:
            self._unread.pop(id(tensor), None)
            axes.append(self.of(tensor))
        return axes

    def _set(self, tensor: Tensor, axes: Sequence[Axis]) -> None:
        self._axes[id(tensor)] = axes
        self._alive.append(tensor)  # an id is good as long as its tensor lives

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = packed(operation, args, kwargs)
        tensors = list(tensors_in([*args, *(kwargs or {}).values()]))
        made = list(tensors_in(out))
        inputs = self._read(tensors)
        try:
            axes = axes_after(operation, self.of, args, out)
        except (ValueError, IndexError, TypeError):  # arguments that no rule explains
            axes = None
        known = axes is not None
        listed = [axes] if isinstance(out, Tensor) else [a for a in axes or () if a is not None]
        if not known or [[a.size for a in one] for one in listed] != [list(t.shape) for t in made]:
            known = not tensors or not made
            for axis in (axis for one in inputs for axis in one):
                freeze(axis)
            listed = [fresh(tensor) for tensor in made]
        for tensor, one in zip(made, listed, strict=True):
            if any(tensor is other for other in tensors):  # in place
                for axis, before in zip(one, self.of(tensor), strict=True):
                    if axis.size > 1:
                        unify(axis, before)
            else:
                self._set(tensor, one)
        name, layer = seen(operation), self.layer()
        for axis in (axis for one in (*inputs, *listed) for axis in one):
            explain(axis, f"{operation.overloadpacket.__name__} in {layer or 'the network'}")
        if name:
            self.calls.append(TracedCall(name, layer, inputs, listed, known))
        return out

    def recurrent(self, name: str, args: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        """Follow the axes through a recurrent layer, all steps at once."""
        out = run()
        axes = axes_of(name, self.of, args)
        for tensor, one in zip(out, axes, strict=True):
            self._set(tensor, one)
        inputs = self._read(tensors_in(args))
        for axis in (axis for one in (*inputs, *axes) for axis in one):
            explain(axis, f"{name} in {self.layer() or 'the network'}")
        self.calls.append(TracedCall(name, self.layer(), inputs, axes))
        return out


@contextmanager
def layers(network: nn.Module) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the name of the innermost module that runs at the moment."""
    stack, handles = [""], []
    names = {module: name for name, module in network.named_modules()}

    def enter(module: nn.Module, args: Any) -> None:
        stack.append(names[module])

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()

    for module in names:
        handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]
    try:
        yield lambda: stack[-1]
    finally:
        for handle in handles:
            handle.remove()


def traced(network: nn.Module, run: Callable[[nn.Module], Any]) -> tuple[dict[str, Sequence[Axis]], list[TracedCall]]:
    """Return the axes of every parameter and buffer of ``network``, and the operations of ``run(network)`` in evaluation.

    Its outputs stay whole, and so does what it reads neither in evaluation nor in training, as nothing says how to cut it.
    """
    seeds = torch.random.fork_rng(devices=[])  # a network may draw real numbers
    with seeds, layers(network) as layer, _Tracer(network, layer) as tracer, Recurrent(tracer.recurrent):
        outputs, calls = [run(network.eval())], list(tracer.calls)
        if tracer.unread:
            with suppress(Exception):  # a user's network may raise anything; its training is checked elsewhere
                outputs.append(run(network.train()))
    for axis in tracer.unread:
        freeze(axis, "unused")
    for output in outputs:
        for tensor in tensors_in(list(output.values()) if isinstance(output, Mapping) else output):
            for axis in tracer.of(tensor):
                freeze(axis, "output")
    for name, module in network.named_modules():
        if isinstance(module, nn.MultiheadAttention):  # its queries and its output have the channels of all heads
            outputs, heads = tracer.tensors[f"{name}.out_proj.weight".lstrip(".")]
            queries = "q_proj_weight" if module.in_proj_weight is None else "in_proj_weight"
            unify(outputs, heads)
            unify(tracer.tensors[f"{name}.{queries}".lstrip(".")][1], outputs)
    return tracer.tensors, calls
