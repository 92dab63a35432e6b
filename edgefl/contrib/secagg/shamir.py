"""Shamir's secret sharing (1979) of 32 bytes: any ``threshold`` shares give the secret, fewer say nothing about it.

A secret s is a number below 2²⁵⁶. The shares are values of a random polynomial f of degree ``threshold − 1`` with f(0) = s, over the
integers modulo the prime 2²⁵⁶ + 297. A share is 33 bytes.
"""

from collections.abc import Callable, Iterable, Mapping

from edgefl.contrib.secagg import ProtocolError

PRIME = 2**256 + 297
"""The smallest prime above 2²⁵⁶."""
SECRET_BYTES = 32
SHARE_BYTES = 33

Draw = Callable[[int], bytes]
"""Returns so many random bytes: ``secrets.token_bytes`` on a device."""


def shared(secret: bytes, threshold: int, holders: Iterable[int], draw: Draw) -> dict[int, bytes]:
    """Return holder → its share of ``secret`` (32 bytes). Holders are different numbers from 0.

    >>> import secrets
    >>> shares = shared(b"k" * 32, 2, [3, 5, 8], secrets.token_bytes)
    >>> recovered({5: shares[5], 3: shares[3]}, 2)
    b'kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk'
    """
    # 16 bytes more than the prime has: the remainder is uniform up to 2⁻¹²⁸.
    coefficients = [
        int.from_bytes(secret, "big"),
        *(int.from_bytes(draw(SHARE_BYTES + 16), "big") % PRIME for _ in range(threshold - 1)),
    ]
    shares = {}
    for holder in holders:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (holder + 1) + coefficient) % PRIME
        shares[holder] = value.to_bytes(SHARE_BYTES, "big")
    return shares


def recovered(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Return the secret of ``shares``, holder → share: f(0) by Lagrange's formula from the first ``threshold`` of them.

    Raises:
        ProtocolError: there are fewer than ``threshold`` shares, or they are not of one secret.
    """
    if len(shares) < threshold:
        raise ProtocolError(f"{len(shares)} shares of a secret, expected at least {threshold}")
    points = [(holder + 1, int.from_bytes(share, "big")) for holder, share in sorted(shares.items())[:threshold]]
    secret = 0
    for x, value in points:
        above, below = 1, 1
        for other, _ in points:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        secret += value * above * pow(below, -1, PRIME)
    secret %= PRIME
    if secret >= 2**256:
        raise ProtocolError("shares that do not belong to one secret")
    return secret.to_bytes(SECRET_BYTES, "big")
