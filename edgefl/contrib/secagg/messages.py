"""The messages between a client and the server, and their bytes.

A message is a row of entries of one fixed length, without a header: its length tells how many entries there are. Numbers of clients are
unsigned integers of 4 bytes. For a client with k neighbours that all answer:

===============  ==================================  =====================================
stage            client to server                    server to client
===============  ==================================  =====================================
public keys      two keys: 64                        number and two keys of each: 68 k
shares           number and two sealed shares: 86 k  the same from each neighbour: 86 k
masked vector    ⌈values · bits / 8⌉                 (the model)
unmasking        number and one share: 37 (k + 1)    numbers of those whose vector came: 4 k
===============  ==================================  =====================================
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from edgefl.contrib.secagg import ProtocolError
from edgefl.contrib.secagg.shamir import SHARE_BYTES

NUMBER_BYTES, KEY_BYTES, TAG_BYTES = 4, 32, 16
OWN_KEYS_BYTES = 2 * KEY_BYTES
KEYS_BYTES = NUMBER_BYTES + OWN_KEYS_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
SHARES_BYTES = NUMBER_BYTES + SEALED_BYTES
UNMASKING_BYTES = NUMBER_BYTES + SHARE_BYTES


def written(entries: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the message of ``entries``, (number of a client, content), in ascending order.

    >>> read(written([(7, b"ab"), (2, b"cd")]), 2)
    {2: b'cd', 7: b'ab'}
    """
    return b"".join(struct.pack("<I", number) + content for number, content in sorted(entries))


def read(message: bytes, content_bytes: int) -> dict[int, bytes]:
    """Return number → content of a message; ProtocolError if its length is wrong, or a number occurs twice or out of order."""
    size = NUMBER_BYTES + content_bytes
    if len(message) % size:
        raise ProtocolError(f"a message of {len(message)} bytes, expected a multiple of {size}")
    contents = dict(_entries(message, size))
    if list(contents) != sorted(contents) or len(contents) != len(message) // size:
        raise ProtocolError("a message with clients that are listed twice or out of order")
    return contents


def _entries(message: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    for begin in range(0, len(message), size):
        yield struct.unpack_from("<I", message, begin)[0], message[begin + NUMBER_BYTES : begin + size]


class ProtocolStage(NamedTuple):
    """The bytes of one stage of the protocol for one client, in both directions."""

    name: str
    upload_bytes: int
    download_bytes: int


def stages(keys: int, shares: int, vectors: int) -> tuple[ProtocolStage, ProtocolStage, ProtocolStage]:
    """Return the stages besides the masked vector of a client of whose neighbours so many sent ``keys``, ``shares`` and ``vectors``.

    >>> [(stage.name, stage.upload_bytes, stage.download_bytes) for stage in stages(10, 10, 10)]
    [('keys', 64, 680), ('shares', 860, 860), ('unmasking', 407, 40)]
    """
    return (
        ProtocolStage("keys", OWN_KEYS_BYTES, KEYS_BYTES * keys),
        ProtocolStage("shares", SHARES_BYTES * keys, SHARES_BYTES * shares),
        ProtocolStage("unmasking", UNMASKING_BYTES * (shares + 1), NUMBER_BYTES * vectors),
    )


def vector_bytes(values: int, bits: int) -> int:
    """Return the bytes of a masked vector.

    >>> vector_bytes(3, 20)
    8
    """
    return -(-values * bits // 8)
