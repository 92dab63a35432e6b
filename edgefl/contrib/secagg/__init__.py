"""Secure aggregation: the server learns the sum of a group's updates, and no update of one client.

SecAgg (Bonawitz et al. 2017, Practical Secure Aggregation for Privacy-Preserving Machine Learning, the protocol without its
consistency check) and SecAgg+ (Bell et al. 2020, Secure Single-Server Aggregation with (Poly)Logarithmic Overhead), for a server that
follows the protocol. A client's half needs NumPy and ``cryptography`` only, so that a device can run it too: no module of this package
imports another part of edgefl.
"""


class ProtocolError(Exception):
    """A message is damaged, comes twice, or asks a client for what it must not reveal; or too few shares arrived."""
