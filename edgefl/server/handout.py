"""What a bundle gives a device to train: what the server would send a client in the round that comes next."""

from __future__ import annotations

from torch import Tensor

from edgefl.methods.base import Method
from edgefl.records import Submodel, Tier
from edgefl.server.control_variates import Control
from edgefl.server.exchange import Outbox, Rules
from edgefl.server.state import Standing
from edgefl.wire.payload import decode

FIRST_CLIENT = 0
"""Whose draws decide, where every client of a tier is sent a part of its own: all devices of a tier train the same part in a round."""


def handed_out(
    method: Method, standing: Standing, rules: Rules, clients: int, round_: int, tier: Tier
) -> tuple[Submodel, dict[str, Tensor]]:
    """Return the sub-model that a bundle made after ``round_`` rounds has for ``tier``, and the tensors sent with it.

    The same arguments give the same parts of the state: which they are need not be stored in the bundle for an update to find its place.
    ``clients`` is how many the run has. With ``scaffold`` the tensors hold the server's control variates too, under ``control:``.
    """
    outbox = Outbox(method, standing.state, rules, Control(rules.objective, standing.memory, clients), round_ + 1)
    submodel, payload = outbox.send(FIRST_CLIENT, tier)
    return submodel, decode(payload, outbox.shapes(tier), f"the server to tier {tier.label}")
