"""The documentation as a program: its blocks, the environment of a newcomer, notebooks of its tutorials."""
