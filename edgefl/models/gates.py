"""Recurrent layers in traces: one operation each, not one for every step of a sequence."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from edgefl.models.axes import Axis, Joined, NestedAxis, freeze, unify

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Function of torch that computes a recurrent layer → how many matrices its weights stack."""


class Recurrent(TorchFunctionMode):
    """Passes calls of recurrent layers to ``handle(name, args, run)``; ``run()`` returns outputs without values, on the device ``meta``.

    Packed sequences, whose steps have different batches, are computed step by step.
    """

    def __init__(self, handle: Callable[[str, tuple[Any, ...], Callable[[], Any]], Any]) -> None:
        super().__init__()
        self.handle = handle

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handle a call of a recurrent layer, make all others."""
        name = getattr(function, "__name__", "")
        if name not in GATES or kwargs or len(args) != 9 or type(args[3]) is not bool:
            return function(*args, **(kwargs or {}))
        return self.handle(name, args, lambda: _outputs(name, args))


def states_of(args: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return the states that a layer begins with: h, and c of an LSTM."""
    return (args[1],) if isinstance(args[1], Tensor) else tuple(args[1])


def _cells(args: Sequence[Any]) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield the number of the layer and the weights of each layer and direction: of inputs, of states, biases, of a projection."""
    directions, of_cell = 1 + args[7], len(args[2]) // (args[4] * (1 + args[7]))
    for cell in range(args[4] * directions):
        yield cell // directions, list(args[2][cell * of_cell : (cell + 1) * of_cell])


def axes_of(name: str, of: Callable[[Tensor], Sequence[Axis]], args: Sequence[Any]) -> list[list[Axis]]:
    """Return the axes of the outputs and of the last states; every gate's rows are the same axis, that of the hidden units."""
    x, states = of(args[0]), [list(of(state)) for state in states_of(args)]
    hidden, returned = states[-1][-1], states[0][-1]
    rows = NestedAxis((Axis(GATES[name], frozen=True), hidden)) if GATES[name] > 1 else hidden
    outputs = Joined([returned, returned]) if args[7] else returned
    batch = x[0 if args[8] else 1]
    for layers, samples, units in states:
        freeze(layers)
        unify(samples, batch)
        unify(units, hidden if units.size == hidden.size else returned)
    for layer, weights in _cells(args):
        first, second, *rest = [of(weight) for weight in weights]
        unify(first[0], rows)
        unify(second[0], rows)
        unify(first[1], outputs if layer else x[-1])
        unify(second[1], returned)
        for bias in (one for one in rest if len(one) == 1):
            unify(bias[0], rows)
        for projection in (one for one in rest if len(one) == 2):
            unify(projection[0], returned)
            unify(projection[1], hidden)
    return [[*x[:-1], outputs], *states]


def _outputs(name: str, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """Return the outputs and last states, without values; RuntimeError if the sizes of weights, inputs and states do not fit."""
    x, states = args[0], states_of(args)
    hidden, returned = states[-1].shape[-1], states[0].shape[-1]
    for layer, (first, second, *rest) in _cells(args):
        size = returned * (1 + args[7]) if layer else x.shape[-1]
        shapes = [(GATES[name] * hidden, size), (GATES[name] * hidden, returned)]
        biases = {len(bias) for bias in rest if bias.dim() == 1}
        projected = {tuple(weight.shape) for weight in rest if weight.dim() == 2}
        if [first.shape, second.shape] != shapes or biases - {GATES[name] * hidden} or projected - {(returned, hidden)}:
            raise RuntimeError(f"a recurrent layer of {size} inputs and {hidden} units has a weight of {tuple(first.shape)}")
    with _disable_current_modes():
        outputs = torch.empty(*x.shape[:-1], returned * (1 + args[7]), dtype=x.dtype, device="meta")
        return (outputs, *(torch.empty(state.shape, dtype=x.dtype, device="meta") for state in states))
