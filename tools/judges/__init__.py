"""Judges from outside: each file compares edgefl with a database that others wrote. ``tools/conformance.py`` runs them.

A file has one :class:`judges.verdict.Judge` called ``JUDGE``. A judge has subjects, such as operators, and cases of each.
A case gives a verdict.
"""

NAMES = ("operators", "modules", "onnx_nodes", "onnx_models", "autodiff", "lora", "flower", "memory", "published", "vision")
"""The files of the judges, in the order of the page."""
