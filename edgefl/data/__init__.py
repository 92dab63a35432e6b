"""Data: sources, and how their samples are spread over clients. NumPy only."""
