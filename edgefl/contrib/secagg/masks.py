"""A client's masks: what it adds to its vector, and how the seeds of masks travel inside a client."""

from collections.abc import Iterable

from edgefl.contrib.secagg.errors import ProtocolError
from edgefl.contrib.secagg.messages import KEY_BYTES
from edgefl.contrib.secagg.primitives import expanded
from edgefl.contrib.secagg.vector import Values


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
