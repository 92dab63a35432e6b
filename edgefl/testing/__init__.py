"""Tests that a plug-in can be held to; only this room imports pytest."""
