"""The server optimizers, one file each."""
