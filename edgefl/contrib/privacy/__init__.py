"""Differential privacy: what a run promises, and the accountant that says how much it has spent."""
