"""What edgefl can do without: features that are found by name, each of which may need an extra. The core does not import them."""
