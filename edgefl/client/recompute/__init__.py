"""Recomputation of activations in the backward pass, a remedy for devices with little memory."""
