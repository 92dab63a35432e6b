"""Secure sums as a stage: the server opens nothing but sums of groups."""

from dataclasses import dataclass, replace
from typing import Any

from edgefl.client.stage import Stage, TierSums, Turn
from edgefl.contrib.secagg.grouping import Grouping
from edgefl.contrib.secagg.masked import Masked
from edgefl.contrib.secagg.masking import values_of
from edgefl.contrib.secagg.messages import stages, vector_bytes
from edgefl.contrib.secagg.protocol import SecureAggregation
from edgefl.contrib.secagg.secure_sums import SecureSums
from edgefl.methods.base import Method
from edgefl.methods.capabilities import label_rows
from edgefl.methods.networks import upload_shapes
from edgefl.models.base import Architecture
from edgefl.records import Added, Cost, Expected, RoundTrip, Tier, Update


@dataclass(frozen=True)
class SecureGroups(Masked):
    """Clients mask their updates, and the masks of a group cancel in its sum.

    Attributes:
        grouping: how clients form groups.
        most: the most samples of a client.
    """

    grouping: Grouping
    most: int = 1

    sums = True

    @property
    def name(self) -> str:
        """The name of the client's half."""
        return "masked"

    def at_client(self) -> Stage:
        """Return the client's half."""
        return Masked()

    @property
    def meeting(self) -> Grouping:
        """Clients wait for the others of their group."""
        return self.grouping

    def hands(self, session: Expected, weight: int, turn: Turn) -> Any:
        """Return how the client masks its update."""
        return self._groups(turn).masking(session, weight).row()

    def admit(self, update: Update, turn: Turn) -> Update:
        """Add the masked update to the sum of its group; WireError if it is damaged."""
        self._groups(turn).add(update)
        return replace(update, payload=b"", folded=True)

    def summed(self, sums: TierSums, turn: Turn) -> TierSums:
        """Return the sums of the tiers in which a group could unmask its sum."""
        return self._groups(turn).sums(turn.submodel)

    def adds(self, cost: Cost, method: Method, architecture: Architecture, tier: Tier, clients: int) -> Cost:
        """Return the cost with the messages of the protocol. The masked vector replaces the encoded update."""
        return secured(cost, method, architecture, tier, self.grouping.rules, clients)

    def _groups(self, turn: Turn) -> SecureSums:
        def groups() -> SecureSums:
            most = self.most if turn.method.weighs_samples else 1
            return SecureSums(turn.method, turn.model.architecture, self.grouping, most, turn.number, turn.asked)

        sums: SecureSums = turn.notes(self, groups)
        return sums


def secured(cost: Cost, method: Method, architecture: Architecture, tier: Tier, rules: SecureAggregation, clients: int) -> Cost:
    """Return the cost of a tier whose updates are added up in the largest groups that ``clients`` clients can form."""
    values = masked_values(method, architecture, tier)
    neighbours = max(1, rules.neighbours_in(min(rules.group, clients)))
    *agreement, unmasking = (RoundTrip(*stage) for stage in stages(neighbours, neighbours, neighbours))
    # The stream of each mask is written and read, and the update is read and written, at 4 bytes a value each.
    added = Added(tuple(agreement), (unmasking,), 16 * (neighbours + 1) * values)
    sent = sum(trip.upload_bytes for trip in added.round_trips) + vector_bytes(values, rules.bits)
    received = sum(trip.download_bytes for trip in added.round_trips)
    return replace(cost, upload_bytes=sent, download_bytes=cost.download_bytes + received, added=added)


def masked_values(method: Method, architecture: Architecture, tier: Tier) -> int:
    """Return how many values the masked vector of a tier has."""
    shapes = upload_shapes(method, architecture, tier)
    classes = architecture.classes if label_rows(method, architecture) & shapes.keys() else 0
    return values_of(shapes.values(), classes)
