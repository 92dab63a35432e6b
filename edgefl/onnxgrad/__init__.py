"""Turns a torch module and a loss into plain ONNX graphs that infer and train; ``README.md`` in this folder explains the pipeline.

The public names load on first use: importing the package imports neither torch nor onnxruntime.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefl.onnxgrad.autodiff import differentiate as differentiate
    from edgefl.onnxgrad.exporter import export as export
    from edgefl.onnxgrad.gradients.op import register_rule as register_rule
    from edgefl.onnxgrad.macs import count_macs as count_macs
    from edgefl.onnxgrad.roles import Roles as Roles
    from edgefl.onnxgrad.roles import StepRule as StepRule
    from edgefl.onnxgrad.step import training_step as training_step
    from edgefl.onnxgrad.stepper import StepGraphs as StepGraphs
    from edgefl.onnxgrad.stepper import Stepper as Stepper

_HOMES = {
    "Roles": "roles", "StepGraphs": "stepper", "StepRule": "roles", "Stepper": "stepper", "count_macs": "macs",
    "differentiate": "autodiff", "export": "exporter", "register_rule": "gradients.op", "training_step": "step",
}  # fmt: skip
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgefl.onnxgrad' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"edgefl.onnxgrad.{_HOMES[name]}"), name)
