"""Functions of torch in operations that have an ONNX operator and a gradient rule; used while a module is traced.

Each function here has the arguments of torch's function and computes the same. It returns None for arguments with which torch's own
function is exported as it is.
"""

from collections.abc import Callable
from typing import Any

from edgefl.onnxgrad.rewrites.grids import GRIDS
from edgefl.onnxgrad.rewrites.indexed import INDEXED
from edgefl.onnxgrad.rewrites.layers import LAYERS
from edgefl.onnxgrad.rewrites.losses import LOSSES
from edgefl.onnxgrad.rewrites.matrices import MATRICES
from edgefl.onnxgrad.rewrites.pools import POOLS

REWRITES: dict[Any, Callable[..., Any]] = {**GRIDS, **INDEXED, **LAYERS, **LOSSES, **MATRICES, **POOLS}
"""Function of torch → the function here."""
