"""Tensor maths of the factorizations, and the modules made of their factors."""
