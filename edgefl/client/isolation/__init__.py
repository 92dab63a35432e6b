"""How a client is limited to the memory and time of its device."""
