"""Graphs for devices: export, the bundle that carries them, and its verification."""
