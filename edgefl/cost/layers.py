"""Which layer of a network an operation belongs to, in the forward pass and in the backward pass that follows."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

NETWORK = "(network)"
INPUT = "(input)"
LOSS = "(loss)"
OPTIMIZER = "(optimizer)"
_LEAF = 2**63  # autograd numbers the nodes that accumulate a parameter's gradient from the top


class LayerTracker:
    """Follows a network's modules while they run: :meth:`current` names the one that an operation is part of.

    In the forward pass it is the innermost named module; work in the outermost ``forward`` itself is :data:`NETWORK`, outside of it
    :data:`LOSS`. Autograd numbers the nodes of its graph in the order of the forward pass; a node of the backward pass belongs to
    the module that ran when its number was given out.
    """

    def __init__(self, network: nn.Module) -> None:
        self._names = {module: name or NETWORK for name, module in network.named_modules()}
        self._of_parameter = {id(p): name.rpartition(".")[0] or NETWORK for name, p in network.named_parameters()}
        self._stack: list[str] = []
        self._starts: list[int] = [0]
        self._layers: list[str] = [LOSS]
        self.outside = LOSS

    def __enter__(self) -> LayerTracker:
        enter, leave = self._enter, self._leave
        self._handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        if module in self._names:
            self._stack.append(self._names[module])
            self._change()

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if module in self._names and self._stack:
            self._stack.pop()
            self._change()

    def _change(self) -> None:
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._layers.append(self._stack[-1] if self._stack else LOSS)

    def current(self) -> str:
        """Return the layer that runs now."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return self.outside
        number = node._sequence_nr()
        if number >= _LEAF:
            parameter = getattr(node, "variable", None)
            return self._of_parameter.get(id(parameter), LOSS) if isinstance(parameter, Tensor) else LOSS
        return self._layers[bisect_right(self._starts, number) - 1]
