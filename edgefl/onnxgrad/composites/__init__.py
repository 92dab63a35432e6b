"""Functions that torch has and ONNX has not: each is one node of the domain ``edgefl``, until a graph is written in standard operators.

:mod:`~edgefl.onnxgrad.composites.table` has the table and what writes graphs out. The other files have one family of functions each. Their
gradient rules are in :mod:`edgefl.onnxgrad.gradients`, and what makes such nodes of torch's operators is in
:mod:`edgefl.onnxgrad.translations`.
"""

from edgefl.onnxgrad.composites import bessel, gamma, hypotenuse, matrices, normal, spectra  # noqa: F401  each enters its functions into the table
from edgefl.onnxgrad.composites.table import DOMAIN, in_standard_operators, is_composite, written_out

__all__ = ["DOMAIN", "in_standard_operators", "is_composite", "written_out"]
