"""Methods: what the server keeps, what a tier receives, what a client minimises, how updates become the next state."""
