"""A client's update as integers modulo 2ᵇ, which add up exactly: quantisation, and the bytes that travel."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgefl.contrib.secagg import ProtocolError
from edgefl.contrib.secagg.messages import vector_bytes

Values = NDArray[np.uint32]
_CHUNK = 1 << 16  # a multiple of 8, so that chunks of any number of bits end with a byte


@dataclass(frozen=True)
class Coding:
    """How a client's weighted change becomes integers, so that the sum of a group does not overflow.

    A change Δ is clipped to ±bound. With weight w of at most W it becomes w·Δ / step, rounded at random to a whole number such that the
    expected value is exact::

        levels = ⌊(2ᵇ⁻¹ − 1) / members⌋          step = bound · W / levels

    A sum of at most ``members`` such numbers lies in ±(2ᵇ⁻¹ − 1), so it can be read from its remainder modulo 2ᵇ. It differs from the sum
    of the clipped w·Δ by less than ``members · step``.

    Attributes:
        bits: b, of every value that travels, up to 32.
        members: the most clients of a group.
        bound: the largest magnitude of a change.
        most: W, the largest weight of a client.

    Raises:
        ValueError: so few bits cannot carry the sum of so many clients, or of their weights.

    >>> Coding(bits=16, members=10, bound=0.5, most=30).levels
    3276
    """

    bits: int
    members: int
    bound: float
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 32:
            raise ValueError(f"bits: got {self.bits}, expected 1 to 32")
        if not self.levels or self.members * self.most >= 2**self.bits:
            least = max(self.members * 2 + 1, self.members * self.most).bit_length()
            raise ValueError(
                f"bits: {self.bits} cannot carry the sum of {self.members} clients that weigh up to {self.most}; give at least {least}, "
                "or smaller groups"
            )

    @property
    def levels(self) -> int:
        """The largest magnitude of a client's integer."""
        return (2 ** (self.bits - 1) - 1) // self.members

    @property
    def step(self) -> float:
        """The change that one unit of a sum stands for."""
        return self.bound * self.most / self.levels

    def encoded(self, change: NDArray[np.floating], weight: int, rng: np.random.Generator) -> tuple[Values, int]:
        """Return ``weight · change`` (n,) as integers modulo 2³² (n,), and how many values were clipped.

        Raises:
            ValueError: the weight is not in 1 … W, or a change is NaN or infinite.
        """
        if not 1 <= weight <= self.most:
            raise ValueError(f"weight: got {weight}, expected 1 to {self.most}")
        exact = change.astype(np.float64)
        if not np.isfinite(exact).all():
            raise ValueError("change: got NaN or infinity, expected finite values")
        clipped = int(np.count_nonzero(np.abs(exact) > self.bound))
        np.clip(exact, -self.bound, self.bound, out=exact)
        exact *= weight / self.step
        below = np.floor(exact)
        below += rng.random(len(exact)) < exact - below
        np.clip(below, -self.levels, self.levels, out=below)  # the product above may exceed it by a rounding
        return below.astype(np.int64).astype(np.uint32), clipped

    def decoded(self, total: Values) -> NDArray[np.float64]:
        """Return what a sum of :meth:`encoded` integers, modulo 2ᵇ, stands for."""
        values, half = (total & self.mask).astype(np.int64), 1 << (self.bits - 1)
        return np.where(values >= half, values - 2 * half, values) * self.step

    @property
    def mask(self) -> np.uint32:
        """2ᵇ − 1."""
        return np.uint32(2**self.bits - 1)


def packed(values: Values, bits: int) -> bytes:
    """Return the lowest ``bits`` of every value (n,), one after the other from the lowest bit on: ⌈n · bits / 8⌉ bytes.

    >>> unpacked(packed(np.array([5, 1023, 0], np.uint32), 10), 3, 10).tolist()
    [5, 1023, 0]
    """
    octets = np.ascontiguousarray(values, "<u4").view(np.uint8).reshape(-1, 4)
    if bits % 8 == 0:
        return octets[:, : bits // 8].tobytes()
    return b"".join(
        np.packbits(np.unpackbits(octets[at : at + _CHUNK], axis=1, bitorder="little")[:, :bits], bitorder="little").tobytes()
        for at in range(0, len(octets), _CHUNK)
    )


def unpacked(message: bytes, count: int, bits: int) -> Values:
    """Return the ``count`` values that were :func:`packed`; ProtocolError if the message has another length."""
    if len(message) != vector_bytes(count, bits):
        raise ProtocolError(f"a vector of {len(message)} bytes, expected {vector_bytes(count, bits)}")
    octets = np.zeros((count, 4), np.uint8)
    if bits % 8 == 0:
        octets[:, : bits // 8] = np.frombuffer(message, np.uint8).reshape(count, bits // 8)
    else:
        for at in range(0, count, _CHUNK):
            some = octets[at : at + _CHUNK]
            part = np.frombuffer(message, np.uint8, vector_bytes(len(some), bits), at * bits // 8)
            digits = np.unpackbits(part, count=len(some) * bits, bitorder="little").reshape(-1, bits)
            some[:] = np.packbits(np.pad(digits, ((0, 0), (0, 32 - bits))), axis=1, bitorder="little")
    return octets.view("<u4").reshape(count)
