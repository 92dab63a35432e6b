"""Functions that torch has and ONNX has not, in standard operators: forms of operators of the domain ``edgefl``.

Such an operator is differentiated as a whole: its gradient is the derivative of the function, and not that of the steps that approximate
it. The rules are in :mod:`edgefl.onnxgrad.gradients`, and what makes such operators of torch's is in :mod:`edgefl.onnxgrad.stand_ins`.
There is one file for each family of functions.
"""

from edgefl.onnxgrad.composites import matrices, special_functions, spectra  # noqa: F401  each enters its forms
