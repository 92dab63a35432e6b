"""Functions of torch that need more than a few lines in operations with an ONNX form; the table is in :mod:`edgefl.onnxgrad.rewrites`.

Each has the arguments of torch's function and computes the same. It returns None for arguments with which torch's own function is
exported as it is.
"""
