"""What the larger tiers of a method with truncated layers hold that the smaller ones lack, in a sentence."""

from collections.abc import Iterable
from itertools import accumulate

from edgefl.report.tables import Row
from edgefl.report.words import tier_label
from edgefl.util.units import human_percent

IDLE = 0.01
"""A tier has learned almost nothing beyond a smaller one if its extra ranks have less than this share of the energy."""


def energy_sentence(tiers: Iterable[Row]) -> str:
    """Return what the larger ``tiers`` of a ``summary.json`` hold beyond the smaller ones; "" if no layers are truncated.

    The energy of a layer is the sum of squares of its weight.

    >>> tiers = [{"tier": tier, "energy_share": share, "macs_train_step": macs} for tier, share, macs in ((1, 0, 400), (0.25, 1, 100))]
    >>> energy_sentence(tiers).split(": ")[1]
    'its extra ranks hold 0 % of the sum of squares of its factorized weights.'
    """
    rows = sorted((row for row in tiers if row.get("energy_share") is not None), key=lambda row: float(row["tier"]))
    if len(rows) < 2:
        return ""
    held = list(accumulate(row["energy_share"] for row in rows))
    largest = rows[-1]
    for row, of_row in zip(rows[:-1], held, strict=False):
        if (beyond := 1 - of_row / held[-1]) < IDLE:
            same, times = tier_label(row["tier"]), largest["macs_train_step"] / row["macs_train_step"]
            nothing = f"has learned almost nothing that tier {same} cannot hold, but costs {times:.1f} times the MACs"
            share = f"{human_percent(max(beyond, 0.0))} of the sum of squares of its factorized weights"
            return f"Tier {tier_label(largest['tier'])} {nothing}: its extra ranks hold {share}."
    first, *others = ((tier_label(row["tier"]), human_percent(row["energy_share"])) for row in rows)
    added = ", ".join(f"{share} in those that tier {tier} adds" for tier, share in others)
    rest = f", {human_percent(1 - held[-1])} in ranks that no tier has" if 1 - held[-1] > 1e-6 else ""
    return f"Sum of squares of the factorized weights: {first[1]} in the ranks of tier {first[0]}, {added}{rest}."
