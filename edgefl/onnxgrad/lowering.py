"""Traced modules made ready for torch's exporter, which then need not trace them a second time.

The exporter traces every graph again to decompose operations without an ONNX form: a third to a half of an export's time, though few
networks have any besides those in :data:`_PLAIN`. And an LSTM is traced step by step, only to learn the shapes of its results.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx.experimental._config
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
HasForm = Callable[[Any], bool]
_DROPPED = {aten._assert_scalar.default, aten._assert_tensor_metadata.default, aten.sym_constrain_range_for_size.default}
"""Checks, which the exporter drops."""


@torch.library.custom_op("edgefl::lstm", mutates_args=())
def _lstm(
    x: Tensor, states: list[Tensor], weights: list[Tensor], biased: bool, layers: int, dropout: float, train: bool, both: bool, first: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Stand for torch's LSTM while a module is traced."""
    raise NotImplementedError


@_lstm.register_fake
def _lstm_shapes(
    x: Tensor, states: list[Tensor], weights: list[Tensor], biased: bool, layers: int, dropout: float, train: bool, both: bool, first: bool
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    hidden, cell = states
    return x.new_empty(*x.shape[:2], hidden.shape[-1] * (1 + both)), torch.empty_like(hidden), torch.empty_like(cell)


LSTM = torch.ops.edgefl.lstm.default
"""What the exporter is to translate as it does ``aten.lstm.input``."""


class _Whole(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.lstm and isinstance(args[1], (tuple, list)) and torch.compiler.is_exporting():
            x, states, weights, *options = args
            return LSTM(x, list(states), list(weights), *options)
        return func(*args, **(kwargs or {}))


class _Lowered(ExportedProgram):
    """A traced module that is decomposed only where it holds an operation for which the exporter has no form."""

    has_form: HasForm | None

    def run_decompositions(
        self, decomp_table: dict[Any, Callable[..., Any]] | None = None, decompose_custom_triton_ops: bool = False
    ) -> ExportedProgram:
        """Return a program without the operations of ``decomp_table``, for which the exporter has no form."""
        spared = self.has_form is not None and _replaced(self, self.has_form)
        found = self if spared else super().run_decompositions(decomp_table)
        if self.has_form is None or not self.has_form(LSTM):
            for node in found.graph_module.graph.nodes:
                node.target = aten.lstm.input if node.target is LSTM else node.target
        found.graph_module.recompile()
        return found


def traced(module: nn.Module, arguments: tuple[Any, ...], free: Any, has_form: HasForm | None) -> ExportedProgram:
    """Return ``module`` as torch.export traces it, ready for torch's exporter.

    ``free`` are the free dimensions of each argument; one that the module needs fixed is fixed. Without ``has_form`` everything is
    decomposed.

    Raises:
        Exception: torch.export's own, of many types.
    """
    try:
        program = _traced(module, arguments, free, strict=False)
    except Exception as error:  # noqa: BLE001 - torch.export raises many types
        fixes = str(getattr(error, "msg", ""))
        try:
            if "Suggested fixes" in fixes:
                free = torch.export.dynamic_shapes.refine_dynamic_shapes_from_suggested_fixes(fixes, free)
            # Without a fix, by another way, which reads the module's Python code and takes longer.
            program = _traced(module, arguments, free, strict="Suggested fixes" not in fixes)
        except Exception:  # noqa: BLE001 - as above
            raise error from None
    program.__class__ = _Lowered
    program.has_form = has_form  # type: ignore[attr-defined]  # of the class that it now has
    return program


def _traced(module: nn.Module, arguments: tuple[Any, ...], free: Any, strict: bool) -> ExportedProgram:
    name = "prefer_deferred_runtime_asserts_over_guards"  # sizes are checked while the graph runs, which ONNX does anyway
    options: dict[str, Any] = {name: True} if name in inspect.signature(torch.export.export).parameters else {}
    # As torch's exporter does: a batch of one sample, or of none, takes no way of its own through the network.
    with _Whole(), torch.fx.experimental._config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]  # made at run time
        return torch.export.export(module, arguments, dynamic_shapes=free, strict=strict, **options)


def _replaced(program: ExportedProgram, has_form: HasForm) -> bool:
    """Replace, in place, operations without a form by others that have one; return False, and change nothing, where one would be left."""
    signature, module = program.graph_signature, program.graph_module
    parts = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    if parts != [module] or signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        return False
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if not all(_stays(node, has_form) or _plain(node) for node in calls):
        return False
    for node in calls:
        if replace := _plain(node):
            with module.graph.inserting_before(node):
                node.target, node.args = replace()
            node.kwargs = {}
    return True


def _stays(node: fx.Node, has_form: HasForm) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return bool(target.__module__ == "_operator")
    known = target in _DROPPED or has_form(target)
    return known and not target._schema.is_mutable


Replace = Callable[[], tuple[Any, tuple[Any, ...]]]
"""Adds the nodes that come before a node, and returns the node's new target and arguments."""


def _plain(node: fx.Node) -> Replace | None:
    """Return what says ``node`` in operations that have a form, None where it is not among :data:`_PLAIN` or not as simple as there."""
    known = _PLAIN.get(node.target)
    return None if known is None else known(node)


def _before(node: fx.Node, target: Any, *args: Any, value: Any) -> fx.Node:
    other = node.graph.call_function(target, args)
    other.meta = {**node.meta, "val": value}
    return other


def _flattened(node: fx.Node) -> Replace | None:
    """Flattening is reshaping: each size is a number, or that of a dimension before the first one that is flattened."""
    of, first, *_ = (*node.args, 0)
    sizes = list(node.meta["val"].shape)
    free = [axis for axis, size in enumerate(sizes) if not isinstance(size, int)]
    if not isinstance(first, int) or not all(axis < first for axis in free):
        return None

    def replace() -> tuple[Any, tuple[Any, ...]]:
        whole = [
            _before(node, aten.sym_size.int, of, axis, value=size) if axis in free else size for axis, size in enumerate(sizes)
        ]
        return aten.reshape.default, (of, whole)

    return replace


def _normalised(node: fx.Node) -> Replace | None:
    """BatchNorm by given statistics, as in evaluation, or by the batch's where none are kept."""
    x, weight, bias, mean, variance, training, momentum, eps = node.args[:8]
    if training and mean is not None:
        return None
    target, args = aten._native_batch_norm_legit_no_training.default, [x, weight, bias, mean, variance, momentum, eps]
    if training:
        target, args = aten._native_batch_norm_legit.no_stats, [x, weight, bias, True, momentum, eps]
    value, empty = node.meta["val"], node.meta["val"].new_empty(0)
    return lambda: (operator.getitem, (_before(node, target, *args, value=(value, empty, empty)), 0))


_PLAIN: dict[Any, Callable[[fx.Node], Replace | None]] = {
    aten.numpy_T.default: lambda node: (lambda: (aten.t.default, node.args)) if node.meta["val"].dim() == 2 else None,
    aten.square.default: lambda node: lambda: (aten.pow.Tensor_Scalar, (node.args[0], 2)),
    aten.flatten.using_ints: _flattened,
    aten.batch_norm.default: _normalised,
}
