"""The error of this package."""


class ProtocolError(Exception):
    """A message is damaged, comes twice, or asks a client for what it must not reveal; or too few shares arrived."""
