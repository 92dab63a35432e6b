"""The groups of a round. Their masked updates add up to one sum per tier.

In a simulation this process acts for the clients, too: it runs their half of the protocol (:class:`edgefl.contrib.secagg.member.Member`).
The server's half (:class:`edgefl.contrib.secagg.group.MaskedGroup`) gets from them nothing but the bytes of messages.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch

from edgefl.contrib.secagg import ProtocolError
from edgefl.contrib.secagg.grouping import Grouping, Key, groups_in
from edgefl.contrib.secagg.masking import Masking, values_of
from edgefl.contrib.secagg.vector import Coding, Values, unpacked
from edgefl.errors import WireError
from edgefl.methods.base import Method
from edgefl.methods.tier_sum import TierSum, tier_sum
from edgefl.models.base import Architecture
from edgefl.records import Expected, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.timing.spans import span
from edgefl.util.exact_sum import ExactSum


@dataclass
class SecureSums:
    """The secure sums of one round.

    Attributes:
        grouping: how clients form groups.
        most: the largest weight of a client.
        turn: number of the round.
        asked: what is expected of all clients that were asked.
    """

    method: Method
    architecture: Architecture
    grouping: Grouping
    most: int
    turn: int
    asked: Sequence[Expected]
    _groups: dict[Key, "_Group"] = field(init=False, repr=False)
    _sessions: dict[int, Expected] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._groups, self._sessions = {}, {session.client: session for session in self.asked}
        for key, members in groups_in(self.asked).items():
            coding = self.grouping.coding(len(members), self.most)
            total = tier_sum(self.method, self.architecture, key[0])
            self._groups[key] = _Group(self.grouping, self.turn, key, members, coding, total)

    def masking(self, session: Expected, weight: int) -> Masking:
        """Return how a client masks its update, of this weight."""
        return self._group(session).masking(session.client, weight)

    def add(self, update: Update) -> None:
        """Add the masked update of a client that has trained; WireError if it is damaged."""
        with span("aggregate", client=update.client):
            try:
                self._group(self._sessions[update.client]).add(update)
            except ProtocolError as error:
                raise WireError(f"client {update.client}: {error}") from None

    def sums(self, sent: Callable[[Tier], Submodel]) -> dict[Tier, TierSum]:
        """Return the sum of every tier in which a group could unmask its sum; ``sent`` returns the tiers' sub-models."""
        sums: dict[Tier, TierSum] = {}
        for (tier, _), group in self._groups.items():
            if (total := group.unmasked(sent)) is None:
                continue
            if tier in sums:
                sums[tier].merge(total)
            else:
                sums[tier] = total
        return sums

    def _group(self, session: Expected) -> "_Group":
        assert session.tier is not None  # only clients of a group are sent a job
        assert session.grouped is not None
        return self._groups[session.tier, session.grouped.group]


class _Group:
    """One group: the clients' half, the server's half, and how integers become a sum of tensors."""

    def __init__(
        self, grouping: Grouping, turn: int, key: Key, members: Sequence[Expected], coding: Coding, total: TierSum
    ) -> None:
        self._grouping, self._turn, self._key, self._members = grouping, turn, key, members
        self._coding, self._total = coding, total
        classes = len(total.label_weights)
        self._count = values_of(total.shapes.values(), classes)
        self._sum: Values = np.zeros(self._count, np.uint32)
        self._vectors: set[int] = set()
        self._real = None
        if grouping.rules.masks == "real":
            with span("aggregate", round=turn):
                self._real = _Real(grouping, turn, key, members, self._count)

    def masking(self, client: int, weight: int) -> Masking:
        total = self._total
        masks = b"" if self._real is None else self._real.masks[client]
        return Masking(self._coding, weight, tuple(sorted(total.by_label)), len(total.label_weights), masks)

    def add(self, update: Update) -> None:
        if self._real is not None:
            self._real.server.add_vector(update.client, update.payload)
        else:
            self._sum += unpacked(update.payload, self._count, self._coding.bits)
        self._vectors.add(update.client)

    def unmasked(self, sent_to: Callable[[Tier], Submodel]) -> TierSum | None:
        """Return the sum of the group's updates; None if too few clients were left to unmask it."""
        end = self._grouping.ending(self._turn, self._key, self._members, self._vectors)
        if end.reason:
            return None
        sent = sent_to(self._key[0])
        values = self._sum & self._coding.mask if self._real is None else self._real.unmasked(end.answers)
        total, classes = self._total, len(self._total.label_weights)
        changes, (weight, *labels) = values[: -1 - classes], values[-1 - classes :].tolist()
        flat = torch.from_numpy(self._coding.decoded(changes))
        # A change is relative to what was sent: Σ w·x = Σ w·Δ + Σ w · sent, row by row where only some labels count.
        names = sorted(total.shapes)
        parts = dict(zip(names, flat.split([torch.Size(total.shapes[name]).numel() for name in names]), strict=True))
        summed = []
        for name, shape in total.shapes.items():
            start, part = sent.tensors.get(name), parts[name].view(shape)
            if start is not None and start.shape == part.shape:
                of_row = torch.tensor(labels).view(-1, *[1] * (part.dim() - 1)) if name in total.by_label else weight
                part = part + start.double() * of_row
            summed.append(part.reshape(-1))
        sums = ExactSum.zeros((len(flat),))
        if summed:
            sums.add(torch.cat(summed))
        return TierSum(total.shapes, total.classes, total.by_label, sums, labels, weight)


class _Real:
    """The protocol of one group with real masks: this process acts for its clients."""

    def __init__(self, grouping: Grouping, turn: int, key: Key, members: Sequence[Expected], count: int) -> None:
        from edgefl.contrib.secagg.group import MaskedGroup  # only real masks need cryptography
        from edgefl.contrib.secagg.member import Member

        clients = [m.client for m in members]
        context = struct.pack("<QQdI", grouping.seed % 2**64, turn, key[0].ratio, key[1])
        threshold = grouping.threshold(len(clients))
        self.server = MaskedGroup(grouping.graph(turn, key, clients), context, threshold, count, grouping.rules.bits)
        # A simulation has the same bits again. A device draws from its operating system.
        draws = {client: partial(_drawn, generator(grouping.seed, turn, client, "secrets")) for client in clients}
        self._members = {client: Member(client, context, threshold, draws[client]) for client in clients}
        agreed = [m.client for m in members if m.grouped is not None and m.grouped.agreed]
        for member in members:
            if member.grouped is not None and any(stage.name == "keys" for stage in member.grouped.stages):
                self.server.add_keys(member.client, self._members[member.client].keys())
        for client in agreed:
            self.server.add_shares(client, self._members[client].shares(self.server.keys_for(client)))
        self.masks = {}
        for client in agreed:
            self._members[client].receive(self.server.shares_for(client))
            self.masks[client] = self._members[client].masks()

    def unmasked(self, answers: set[int]) -> Values:
        """Return the sum of the vectors, after the clients ``answers`` have sent their shares."""
        for client in sorted(answers):
            self.server.add_answer(client, self._members[client].unmask(self.server.arrived_for(client)))
        return self.server.total()


def _drawn(rng: np.random.Generator, count: int) -> bytes:
    return rng.bytes(count)
