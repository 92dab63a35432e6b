"""The client samplers, one file each. The registry finds them by their decorators."""
