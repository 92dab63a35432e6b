"""A computer that trains clients for a run."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeRecord:
    """A node of a cluster that took part in a run.

    Attributes:
        node: its address and name.
        fingerprint: what the bits of a trained model depend on there, as :class:`edgefl.engine.fingerprint.Fingerprint` describes it.
        differences: the facts in which it differs from the server, as text; empty if it trains to the same bits.
    """

    node: str
    fingerprint: Mapping[str, str]
    differences: tuple[str, ...] = ()
