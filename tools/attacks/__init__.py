"""Attacks on edgefl: one file for each kind, and the harness that they share."""
