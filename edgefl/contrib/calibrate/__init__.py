"""Measure a device, fit its costs, and check the fit."""
