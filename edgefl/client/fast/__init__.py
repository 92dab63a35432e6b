"""Faster training on a client: captured steps, groups of clients, and the memory order of images."""
