"""Simulated attacks, and the defences against them."""
