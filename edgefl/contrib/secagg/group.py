"""The server's half of the protocol: it passes messages on, adds up masked vectors, and removes the masks of the sum.

All that it ever receives are public keys, sealed shares, masked vectors, and one share per client and secret.
"""

from dataclasses import dataclass, field

import numpy as np

from edgefl.contrib.secagg import ProtocolError
from edgefl.contrib.secagg.graph import Graph, shortage
from edgefl.contrib.secagg.member import pair_seed
from edgefl.contrib.secagg.messages import KEY_BYTES, OWN_KEYS_BYTES, SEALED_BYTES, read, written
from edgefl.contrib.secagg.primitives import expanded, public_key
from edgefl.contrib.secagg.shamir import SHARE_BYTES, recovered
from edgefl.contrib.secagg.vector import Values, unpacked


@dataclass
class MaskedGroup:
    """One group in one round, as the server sees it.

    Attributes:
        graph: the neighbours of every member.
        context: names the run, round and group.
        threshold: shares that give a secret.
        count: values of a vector.
        bits: bits of a value.
    """

    graph: Graph
    context: bytes
    threshold: int
    count: int
    bits: int
    _keys: dict[int, bytes] = field(default_factory=dict, repr=False)
    _sealed: dict[int, dict[int, bytes]] = field(default_factory=dict, repr=False)
    _vectors: set[int] = field(default_factory=set, repr=False)
    _answers: dict[int, dict[int, bytes]] = field(default_factory=dict, repr=False)
    _total: Values = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._total = np.zeros(self.count, np.uint32)

    @property
    def agreed(self) -> set[int]:
        """The clients that agreed on masks."""
        return set(self._sealed)

    @property
    def vectors(self) -> set[int]:
        """The clients whose masked vectors arrived."""
        return set(self._vectors)

    def add_keys(self, member: int, keys: bytes) -> None:
        """Stage 1: take a client's public keys."""
        self._once(member, self._keys, self.graph)
        if len(keys) != OWN_KEYS_BYTES:
            raise ProtocolError(f"client {member}: keys of {len(keys)} bytes, expected {OWN_KEYS_BYTES}")
        self._keys[member] = keys

    def keys_for(self, member: int) -> bytes:
        """Return the public keys of a client's neighbours."""
        return written((peer, self._keys[peer]) for peer in self.graph[member] if peer in self._keys)

    def add_shares(self, member: int, shares: bytes) -> None:
        """Stage 2: take a client's sealed shares, one for each neighbour that sent keys."""
        self._once(member, self._sealed, self._keys)
        sealed = read(shares, SEALED_BYTES)
        if sealed.keys() != self.graph[member] & self._keys.keys():
            raise ProtocolError(f"client {member}: shares for other clients than its neighbours")
        self._sealed[member] = sealed

    def shares_for(self, member: int) -> bytes:
        """Return the sealed shares that a client's neighbours sent for it."""
        return written((peer, self._sealed[peer][member]) for peer in self.graph[member] if peer in self._sealed)

    def add_vector(self, member: int, vector: bytes) -> None:
        """Stage 3: add a client's masked vector to the sum."""
        self._once(member, self._vectors, self._sealed)
        self._total += unpacked(vector, self.count, self.bits)
        self._vectors.add(member)

    def arrived_for(self, member: int) -> bytes:
        """Return the numbers of those neighbours of a client whose vectors arrived."""
        return written((peer, b"") for peer in self.graph[member] if peer in self._vectors)

    def add_answer(self, member: int, answer: bytes) -> None:
        """Stage 4: take a client's shares."""
        self._once(member, self._answers, self._vectors)
        own = read(answer, SHARE_BYTES)
        if own.keys() != (self.graph[member] & self._sealed.keys()) | {member}:
            raise ProtocolError(f"client {member}: shares about other clients than its neighbours")
        self._answers[member] = own

    def total(self) -> Values:
        """Return the sum of the vectors, modulo 2ᵇ, without masks.

        Raises:
            ProtocolError: too few shares arrived, or a client lied about its shares.
        """
        if problem := shortage(self.graph, self._sealed, self._vectors, self._answers, self.threshold):
            raise ProtocolError(problem)
        total = self._total.copy()
        for member in sorted(self._sealed):
            peers = sorted(self.graph[member] & self._vectors)
            if member in self._vectors:
                total -= expanded(self._secret_of(member), self.count)
            elif peers:
                self._remove(member, peers, total)
        return total & np.uint32(2**self.bits - 1)

    def _remove(self, lost: int, peers: list[int], total: Values) -> None:
        """Remove from ``total`` the masks that ``peers`` have in common with a client that was lost."""
        private = self._secret_of(lost)
        if public_key(private) != self._keys[lost][KEY_BYTES:]:
            raise ProtocolError(f"the shares of client {lost} do not give its private key")
        for peer in peers:
            sign, seed = pair_seed(private, lost, peer, self._keys[peer][KEY_BYTES:], self.context)
            # The peer's sign is the other one, so what it added is removed by adding the mask of the client that was lost.
            if sign > 0:
                total += expanded(seed, self.count)
            else:
                total -= expanded(seed, self.count)

    def _secret_of(self, member: int) -> bytes:
        shares = {holder: own[member] for holder, own in self._answers.items() if member in own}
        return recovered(shares, self.threshold)

    def _once(self, member: int, done: object, before: object) -> None:
        if member in done or member not in before:  # type: ignore[operator]
            raise ProtocolError(f"client {member}: a message twice, or out of turn")
