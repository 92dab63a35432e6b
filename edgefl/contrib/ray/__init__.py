"""The engine of a Ray cluster."""
