"""Operators of torch that neither its exporter nor its own decompositions bring to ONNX, as functions of others; traced in their place.

A function here has the arguments of the operator. It returns NotImplemented for arguments with which the operator stays as it is.
"""

from collections.abc import Callable
from typing import Any

from edgefl.onnxgrad.decompositions.indexed import INDEXED
from edgefl.onnxgrad.decompositions.matrices import MATRICES
from edgefl.onnxgrad.decompositions.numbers import NUMBERS
from edgefl.onnxgrad.decompositions.order import ORDER
from edgefl.onnxgrad.decompositions.windows import WINDOWED

DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {**INDEXED, **MATRICES, **NUMBERS, **ORDER, **WINDOWED}
"""Operator of torch → what computes it."""
