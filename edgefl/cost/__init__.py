"""The cost of a tier: multiply-accumulates, peak memory and bytes, from its graph and without running it."""
