"""Features that edgefl can do without: each is found by name, and may need an extra. The core does not import them."""
