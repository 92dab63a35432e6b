"""What a tier costs: multiply-accumulates, peak memory and bytes, from its graph and without running it."""
