"""The server optimizers."""
