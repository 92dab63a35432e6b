"""Plain ONNX graphs that infer and train, made of a torch module and a loss. ``README.md`` beside this file has an example.

The public names load on first use: importing the package imports neither torch nor onnxruntime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefl.onnxgrad.autodiff import differentiate as differentiate
    from edgefl.onnxgrad.exporter import export as export
    from edgefl.onnxgrad.gradients.tape import register_rule as register_rule
    from edgefl.onnxgrad.macs import count_macs as count_macs
    from edgefl.onnxgrad.roles import Roles as Roles
    from edgefl.onnxgrad.step import StepRule as StepRule
    from edgefl.onnxgrad.step import training_step as training_step
    from edgefl.onnxgrad.stepper import StepGraphs as StepGraphs
    from edgefl.onnxgrad.stepper import Stepper as Stepper

_HOMES = {
    "Roles": "edgefl.onnxgrad.roles",
    "StepGraphs": "edgefl.onnxgrad.stepper",
    "StepRule": "edgefl.onnxgrad.step",
    "Stepper": "edgefl.onnxgrad.stepper",
    "count_macs": "edgefl.onnxgrad.macs",
    "differentiate": "edgefl.onnxgrad.autodiff",
    "export": "edgefl.onnxgrad.exporter",
    "register_rule": "edgefl.onnxgrad.gradients.tape",
    "training_step": "edgefl.onnxgrad.step",
}
__all__ = [
    *("Roles", "StepGraphs", "StepRule", "Stepper", "count_macs", "differentiate", "export", "register_rule", "training_step")
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgefl.onnxgrad' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
