"""edgefl: which part of a network each class of device can train, at what cost, and what the fleet learns."""
