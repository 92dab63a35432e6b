"""Robust aggregation, one file per defence. The registry finds them by their decorators."""
