"""What edgefl changes in torch's exporter and its optimizer, once per process; other versions of them are left as they are."""

import functools
from typing import Any

import onnx_ir as ir
import torch

_MERGE_BOUNDS = {
    *("FuseSuccessiveMin", "FuseSuccessiveMax", "FuseMinMaxToClip", "FuseMaxMinToClip"),
    *("FuseSuccessiveClip", "FuseSuccessiveClipRelu", "FuseSuccessiveReluClip"),
}
"""Rules of the optimizer that merge Min, Max, Clip and Relu: the result has other slopes on its bounds."""


@functools.cache
def adjust_exporter() -> None:
    """Make the changes, unless they are made already."""
    _list_operators_once()
    try:
        from onnxscript.rewriter import _DEFAULT_REWRITE_RULES, _pattern_ir
    except ImportError:
        return
    for rule in _DEFAULT_REWRITE_RULES:
        _skip_other_operators(rule)
        # They would take all constants up to 1e-8 for zero: x + 1e-12 became x, and a quotient by it NaN where x is 0.
        for node in rule._target_pattern:  # noqa: SLF001 - the public interface sets tolerances for new rules only
            for value in node.inputs:
                if isinstance(value, _pattern_ir.Constant):
                    vars(value).update(_rel_tol=0.0, _abs_tol=0.0)
        if rule.name in _MERGE_BOUNDS:
            vars(rule)["try_rewrite"] = lambda *args, **options: None


def _list_operators_once() -> None:
    """Let torch list the operators that it may decompose once, until one is registered. It lists them in each export of a small network.

    That takes a fifth of the export.
    """
    try:
        from torch._export import utils
        from torch.export import decomp_utils, exported_program

        original, named, composites = (
            utils._collect_all_valid_cia_ops,  # noqa: SLF001 - a speed-up
            torch._C._dispatch_get_all_op_names,  # noqa: SLF001
            torch._C._dispatch_get_registrations_for_dispatch_key,  # noqa: SLF001
        )
    except (ImportError, AttributeError):
        return

    @functools.lru_cache(maxsize=1)
    def of(names: int, registrations: int) -> Any:
        return original()

    def listed() -> Any:
        return of(len(named()), len(composites("CompositeImplicitAutograd")))

    for module in (utils, decomp_utils, exported_program):
        if vars(module).get(original.__name__) is original:
            vars(module)[original.__name__] = listed


def _skip_other_operators(rule: Any) -> None:
    """Let a rule of the optimizer look only at nodes of the operator that its pattern ends with; what it finds is the same.

    Otherwise a rule with several outputs in its pattern lists the whole graph for every node, and rules take four fifths of the time.
    """
    try:
        matcher, last = rule._matcher, rule._target_pattern.output_nodes[0]  # noqa: SLF001 - a speed-up
    except AttributeError:
        return
    match = matcher.match

    def matched(model: Any, graph: Any, node: ir.Node, **options: Any) -> Any:
        return last.op.matches(node.op_type) and match(model, graph, node, **options)

    vars(matcher)["match"] = matched
