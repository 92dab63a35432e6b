"""How much each update differs from the others of its tier."""

import math
from collections.abc import Iterable, Sequence

from edgefl.records import Tier, Update
from edgefl.server.coordinates import Changes, middle_of


def cosines(updates: Iterable[Update]) -> dict[int, float]:
    """Return client → cosine of its change and the coordinate-wise median of its tier's changes; each update has what was ``sent``.

    Clients of a tier with fewer than three updates are left out: the median would be their own change. So are clients without a change.

    >>> import torch
    >>> def of(client, *change):
    ...     return Update(client, Tier(1.0), {"w": torch.tensor(change)}, {}, 1, sent={"w": torch.zeros(2)})
    >>> cosine_of = cosines([of(1, 1.0, 0.0), of(2, 2.0, 0.0), of(3, -4.0, 3.0)])
    >>> {client: round(cosine, 3) for client, cosine in cosine_of.items()}
    {1: 1.0, 2: 1.0, 3: -0.8}
    """
    tiers: dict[Tier, list[Update]] = {}
    for update in updates:
        tiers.setdefault(update.tier, []).append(update)
    cosine_of: dict[int, float] = {}
    for of_tier in tiers.values():
        if len(of_tier) >= _FEW:
            cosine_of |= _of_tier(of_tier)
    return cosine_of


_FEW = 3


def _of_tier(updates: Sequence[Update]) -> dict[int, float]:
    squares, products, middle = [0.0] * len(updates), [0.0] * len(updates), 0.0
    for block in Changes(tuple(updates), {}).blocks():
        centre = middle_of(block.values)
        middle += float(centre @ centre)
        for row, holder in enumerate(block.holders):
            squares[holder] += float(block.values[row] @ block.values[row])
            products[holder] += float(block.values[row] @ centre)
    return {
        update.client: product / math.sqrt(square * middle)
        for update, square, product in zip(updates, squares, products, strict=True)
        if square * middle > 0
    }
