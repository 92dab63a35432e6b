"""Rounds of edgefl with real devices, as an app of Flower."""
