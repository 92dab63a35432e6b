"""Spans and stages of host time, never of simulated time."""
