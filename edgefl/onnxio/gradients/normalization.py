"""Gradients of this family."""
