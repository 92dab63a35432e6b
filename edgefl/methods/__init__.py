"""Methods: the state of the server, the sub-model of a tier, the loss of a client, and how updates become the next state."""
