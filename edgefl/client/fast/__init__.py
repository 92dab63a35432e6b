"""How a client trains faster: captured steps, groups, memory layout."""
