"""Traces modules for torch's exporter, so that it does not trace them a second time.

The exporter traces every graph again to decompose operations without an ONNX operator. This takes a third to a half of the time of an
export, but few networks have such operations, apart from those that :mod:`edgefl.onnxgrad.plain` replaces. An LSTM would be traced step
by step, and a normalization operation by operation, only for the shapes of their results; custom operators stand for them.
"""

import contextlib
import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
import torch.fx.config
import torch.fx.experimental._config
import torch.nn.functional as F
import torch.onnx.ops
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from edgefl.onnxgrad.borders import BORDERS
from edgefl.onnxgrad.decompositions import DECOMPOSITIONS
from edgefl.onnxgrad.detached import DATA
from edgefl.onnxgrad.errors import EdgeflError
from edgefl.onnxgrad.graphs import OPSET
from edgefl.onnxgrad.plain import OTHER_NAMES, Replace, normalised, plain, replace
from edgefl.onnxgrad.replacements import Table, functional, inlined, with_borders
from edgefl.onnxgrad.rewrites import REWRITES
from edgefl.onnxgrad.rewrites.layers import projected_lstm
from edgefl.onnxgrad.stand_ins import BATCH_NORM, LSTM, STANDS_FOR

aten = torch.ops.aten
HasForm = Callable[[Any], bool]
"""Whether the exporter can translate an operator of torch to ONNX (the operator "has a form")."""
_DROPPED = {aten._assert_scalar.default, aten._assert_tensor_metadata.default, aten.sym_constrain_range_for_size.default}
"""Assertions, which the exporter drops."""


class _Whole(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_exporting():
            if func is torch.lstm and isinstance(args[1], (tuple, list)):
                x, states, weights, *options = args
                if states[0].shape[-1] != states[1].shape[-1]:
                    return projected_lstm(x, states, weights, *options)
                return LSTM(x, list(states), list(weights), *options)
            if func is Tensor.register_hook:  # hooks are judged when torch computes the step
                return RemovableHandle(OrderedDict())
            if func is Tensor.retain_grad:
                return None
            if func is torch._pack_padded_sequence:
                raise EdgeflError(
                    "pack_padded_sequence has no ONNX form; give the layer the padded batch, and take each sample's last output with "
                    "y.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, y.shape[2]))"
                )
            if func == DATA:  # the attribute itself is no tensor that can be traced
                return args[0].detach()
            if (rewrite := REWRITES.get(func)) is not None and (found := rewrite(*args, **(kwargs or {}))) is not None:
                return found
            if func is F.batch_norm:
                return _normalised_by_batch(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _normalised_by_batch(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Callable[[], Tensor] = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``torch.nn.functional.batch_norm``; in training as one operator and the update of the running statistics.

    As in torch, the batch is normalised by its variance over n, and the running variance is updated with the one over n − 1. One value
    per channel has none, and leaves the running variance as it is. A ``momentum`` that is a function returns the share of the batch in
    the statistics.
    """
    number = 0.0 if callable(momentum) else momentum
    if training == (running_mean is None):
        return cast(Tensor, BATCH_NORM(input, weight, bias, running_mean, running_var, training, number, eps))
    if not training or running_mean is None or running_var is None:  # torch says what is wrong
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, number, eps)
    channels = input.shape[1]
    weight = input.new_ones(channels) if weight is None else weight
    bias = input.new_zeros(channels) if bias is None else bias
    normal, mean, variance = (
        torch.onnx.ops.symbolic_multi_out(  # ``input`` normalised by its batch, the mean, the variance over n
            "BatchNormalization",
            (input, weight, bias, running_mean, running_var),
            attrs={"training_mode": 1, "momentum": 0.0, "epsilon": eps},
            dtypes=(input.dtype,) * 3,
            shapes=(input.shape, (channels,), (channels,)),
            version=OPSET,
        )
    )
    share: Any = momentum() if callable(momentum) else momentum
    count = input.numel() / input.shape[1]
    running_mean.copy_((1 - share) * running_mean + share * mean)
    spread = share * variance * (count / (count - 1))
    if math.prod(input.shape[2:]) == 1:  # a batch may be one value per channel
        spread = torch.where(torch.scalar_tensor(count) > 1, spread, share * running_var)
    running_var.copy_((1 - share) * running_var + spread)
    return normal


class _Lowered(ExportedProgram):
    """A traced module that is decomposed only if it contains an operation without a form."""

    has_form: HasForm | None

    def run_decompositions(
        self, decomp_table: dict[Any, Callable[..., Any]] | None = None, decompose_custom_triton_ops: bool = False
    ) -> ExportedProgram:
        """Return the program that the exporter translates; called by the exporter."""
        for part in self.graph_module.modules():
            if isinstance(part, fx.GraphModule):
                with_borders(part.graph)
                part.recompile()
        # Borders again: of what writes over a view, which is found by torch's decompositions, and of what these contain.
        table = {**(decomp_table or {}), **DECOMPOSITIONS, **BORDERS}
        spared = self.has_form is not None and _replaced(self, self.has_form, table)
        found = self if spared else super().run_decompositions(table)
        for node in list(found.graph_module.graph.nodes):
            if node.target is BATCH_NORM:
                if (by := normalised(node)) is not None:
                    replace(node, by)
            elif self.has_form is None or not self.has_form(node.target):
                node.target = STANDS_FOR.get(node.target, node.target)
            else:
                node.target = OTHER_NAMES.get(node.target, node.target)
        found.graph_module.recompile()
        return found


def traced(module: nn.Module, arguments: tuple[Any, ...], free: Any, has_form: HasForm | None) -> ExportedProgram:
    """Return ``module`` as torch.export traces it, ready for torch's exporter.

    ``free`` has the free dimensions of each argument, in the form of torch.export's ``dynamic_shapes``; a dimension that cannot be free
    becomes fixed. Without ``has_form`` all operations are decomposed. Errors are torch.export's own, of many types.
    """
    try:
        program = _traced(module, arguments, free, strict=False)
    except Exception as error:
        if isinstance(error, EdgeflError):
            raise
        fixes = str(getattr(error, "msg", ""))
        try:
            # Strict mode interprets the module's Python code, and takes longer. It traces len(x), which otherwise is the example's number.
            program = _traced(module, arguments, free, strict=True)
        except Exception:  # noqa: BLE001 - as above
            if "Suggested fixes" not in fixes:
                raise error from None
            try:
                free = torch.export.dynamic_shapes.refine_dynamic_shapes_from_suggested_fixes(fixes, free)
                program = _traced(module, arguments, free, strict=False)
            except Exception:  # noqa: BLE001 - as above
                raise error from None
    program.__class__ = _Lowered
    program.has_form = has_form  # type: ignore[attr-defined]  # of the class that it now has
    return program


def _traced(module: nn.Module, arguments: tuple[Any, ...], free: Any, strict: bool) -> ExportedProgram:
    name = "prefer_deferred_runtime_asserts_over_guards"  # no checks at trace time: the graph checks sizes when it runs
    options: dict[str, Any] = {name: True} if name in inspect.signature(torch.export.export).parameters else {}
    # As torch's exporter does: no special case for batches of one sample or none.
    one_rule = torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]  # made at run time
    # In older versions of torch, strict mode is the compiler's.
    compiler = torch.compiler.set_stance("default") if strict else contextlib.nullcontext()
    with _Whole(), one_rule, _without_stacks(), _unread_masks(), compiler:
        return torch.export.export(module, arguments, dynamic_shapes=free, strict=strict, **options)


@contextlib.contextmanager
def _without_stacks() -> Iterator[None]:
    """Let torch record no Python stack for each operation: that takes an eighth of a trace, and graphs contain none."""
    settings: Any = torch.fx.config
    before = getattr(settings, "do_not_emit_stack_traces", False)
    settings.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        settings.do_not_emit_stack_traces = before


@contextlib.contextmanager
def _unread_masks() -> Iterator[None]:
    """Let transformers apply their masks as they are: torch would compare each mask's values with a causal mask, only to be faster."""
    before = transformer._detect_is_causal_mask
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        transformer._detect_is_causal_mask = before


def _replaced(program: ExportedProgram, has_form: HasForm, table: Table) -> bool:
    """Replace operations without a form, in place, and return True; change nothing and return False if one cannot be replaced."""
    signature, module = program.graph_signature, program.graph_module
    parts = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    if parts != [module] or signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        return False
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    found: dict[fx.Node, Replace] = {}
    for node in calls:
        if not _stays(node, has_form):
            if (by := _plain(node, has_form, table)) is None:
                return False
            found[node] = by
    for node, by in found.items():
        replace(node, by)
    return True


def _plain(node: fx.Node, has_form: HasForm, table: Table) -> Replace | None:
    if node.target is BATCH_NORM:
        return normalised(node)
    return plain(node) or functional(node, has_form) or inlined(node, table, partial(_stays, has_form=has_form))


def _stays(node: fx.Node, has_form: HasForm) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return bool(target.__module__ == "_operator" or has_form(target))
    known = target in _DROPPED or (has_form(target) and target not in DECOMPOSITIONS)
    return known and not target._schema.is_mutable
