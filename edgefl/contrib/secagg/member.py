"""A client's half of the protocol: what it sends in each stage, and what it refuses to reveal."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from edgefl.contrib.secagg import ProtocolError
from edgefl.contrib.secagg.messages import KEY_BYTES, OWN_KEYS_BYTES, SEALED_BYTES, read, written
from edgefl.contrib.secagg.primitives import agreed, expanded, opened, public_key, purpose_of, sealed
from edgefl.contrib.secagg.shamir import SECRET_BYTES, SHARE_BYTES, Draw, shared
from edgefl.contrib.secagg.vector import Values


@dataclass
class Member:
    """One client in one group and round.

    Attributes:
        number: the client's number.
        context: names the run, round and group; keys of another context are other keys.
        threshold: shares that give a secret.
        draw: where secrets come from.
    """

    number: int
    context: bytes
    threshold: int
    draw: Draw
    _channel: bytes = field(init=False, repr=False)
    """The private key for encrypted shares, c in the paper."""
    _private: bytes = field(init=False, repr=False)
    """The private key for masks between two clients, s in the paper."""
    _seed: bytes = field(init=False, repr=False)
    """The seed of the client's own mask, b in the paper."""
    _peers: dict[int, bytes] = field(init=False, repr=False, default_factory=dict)
    _held: dict[int, bytes] = field(init=False, repr=False, default_factory=dict)
    _own: bytes = field(init=False, repr=False, default=b"")
    _stage: int = field(init=False, repr=False, default=0)

    def __post_init__(self) -> None:
        if self.threshold < 2:
            raise ProtocolError(f"a threshold of {self.threshold}, expected at least 2: one client alone could unmask another")
        self._channel, self._private, self._seed = self.draw(KEY_BYTES), self.draw(KEY_BYTES), self.draw(SECRET_BYTES)

    def keys(self) -> bytes:
        """Stage 1: return the client's two public keys."""
        return public_key(self._channel) + public_key(self._private)

    def shares(self, keys: bytes) -> bytes:
        """Stage 2: take the public keys of the neighbours, and return encrypted shares of the client's secrets for each of them.

        Raises:
            ProtocolError: there are too few neighbours, or the client is its own; or the stage is over.
        """
        self._advance(1)
        self._peers = read(keys, OWN_KEYS_BYTES)
        if self.number in self._peers:
            raise ProtocolError(f"client {self.number} was sent its own keys")
        if len(self._peers) + 1 < self.threshold:
            raise ProtocolError(f"keys of {len(self._peers)} neighbours, expected at least {self.threshold - 1}")
        holders = (*self._peers, self.number)
        of_key = shared(self._private, self.threshold, holders, self.draw)
        of_seed = shared(self._seed, self.threshold, holders, self.draw)
        self._own = of_seed[self.number]
        return written(
            (peer, sealed(self._sealing(keys, self.number, peer), of_key[peer] + of_seed[peer]))
            for peer, keys in self._peers.items()
        )

    def receive(self, shares: bytes) -> None:
        """Take the shares of those neighbours that sent some. Masks are with these neighbours only.

        Raises:
            ProtocolError: a share was changed, or is from a client that is no neighbour; or the stage is over.
        """
        self._advance(2)
        cipher = read(shares, SEALED_BYTES)
        if strangers := cipher.keys() - self._peers.keys():
            raise ProtocolError(f"shares of client {min(strangers)}, which is no neighbour of client {self.number}")
        self._held = {peer: opened(self._sealing(self._peers[peer], peer, self.number), text) for peer, text in cipher.items()}

    def masks(self) -> bytes:
        """Stage 3: return the seeds of the client's masks: its own, and one per neighbour, which one adds and the other subtracts."""
        self._advance(3)
        pairs = ((peer, self._peers[peer][KEY_BYTES:]) for peer in sorted(self._held))
        return written_seeds([(1, self._seed), *(pair_seed(self._private, self.number, *pair, self.context) for pair in pairs)])

    def unmask(self, arrived: bytes) -> bytes:
        """Stage 4: take the numbers of the neighbours whose vectors arrived. Return one share about each neighbour, and about the client.

        The share is of the seed of a neighbour whose vector arrived, and of the private key of one that was lost: never both.

        Raises:
            ProtocolError: fewer vectors arrived than the threshold; a number is of no neighbour; or the stage is over.
        """
        self._advance(4)
        present = read(arrived, 0)
        if strangers := present.keys() - self._held.keys():
            raise ProtocolError(f"client {min(strangers)} is no neighbour of client {self.number}")
        if len(present) + 1 < self.threshold:
            raise ProtocolError(f"vectors of {len(present)} neighbours, expected at least {self.threshold - 1}")
        revealed = {
            peer: shares[SHARE_BYTES:] if peer in present else shares[:SHARE_BYTES] for peer, shares in self._held.items()
        }
        return written({**revealed, self.number: self._own}.items())

    def _sealing(self, keys: bytes, sender: int, receiver: int) -> bytes:
        return agreed(self._channel, keys[:KEY_BYTES], purpose_of(self.context, "share", sender, receiver))

    def _advance(self, stage: int) -> None:
        if self._stage != stage - 1:
            raise ProtocolError(f"stage {stage} follows stage {stage - 1}, and client {self.number} has completed {self._stage}")
        self._stage = stage


def pair_seed(private: bytes, number: int, peer: int, public: bytes, context: bytes) -> tuple[int, bytes]:
    """Return sign and seed of the mask that client ``number`` has in common with ``peer``."""
    low, high = sorted((number, peer))
    return (1 if number == low else -1), agreed(private, public, purpose_of(context, "mask", low, high))


def masked(values: Values, masks: bytes) -> Values:
    """Return ``values`` (n,) plus all of a client's masks, modulo 2³²; ``masks``: see :meth:`edgefl.contrib.secagg.member.Member.masks`."""
    total = values.copy()
    for sign, seed in signed_seeds(masks):
        if sign > 0:
            total += expanded(seed, len(total))
        else:
            total -= expanded(seed, len(total))
    return total


def signed_seeds(masks: bytes) -> Iterable[tuple[int, bytes]]:
    """Yield sign and seed of every mask; ProtocolError if the text is damaged."""
    size = 1 + KEY_BYTES
    if len(masks) % size or any(masks[at] > 1 for at in range(0, len(masks), size)):
        raise ProtocolError(f"masks of {len(masks)} bytes, expected entries of {size} that begin with a sign")
    for at in range(0, len(masks), size):
        yield (1 if masks[at] else -1), masks[at + 1 : at + size]


def written_seeds(seeds: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the masks of a client, (sign, seed) each, as :func:`signed_seeds` reads them."""
    return b"".join(bytes([sign > 0]) + seed for sign, seed in seeds)
