"""What the larger tiers of a method with truncated layers hold that the smaller ones lack, in a sentence."""

from collections.abc import Iterable
from itertools import accumulate

from edgefl.report.tables import Row
from edgefl.report.words import tier_label
from edgefl.util.units import human_percent

IDLE = 0.01
"""If a tier has less than this share of its factorized layers' energy beyond a smaller tier's ranks, it computes the same as that one."""


def energy_sentence(tiers: Iterable[Row]) -> str:
    """Return how the energy of factorized layers divides between the ``tiers`` of a ``summary.json``; "" if no layers are truncated.

    >>> tiers = [{"tier": tier, "energy_share": share, "macs_train_step": macs} for tier, share, macs in ((1, 0, 400), (0.25, 1, 100))]
    >>> energy_sentence(tiers).rpartition(": ")[2]
    'it computes the same as tier 0.25, with 4.0 times the MACs.'
    """
    rows = sorted((row for row in tiers if row.get("energy_share") is not None), key=lambda row: float(row["tier"]))
    if len(rows) < 2:
        return ""
    held = list(accumulate(row["energy_share"] for row in rows))
    largest = rows[-1]
    for row, of_row in zip(rows[:-1], held, strict=False):
        if (beyond := 1 - of_row / held[-1]) < IDLE:
            same, times = tier_label(row["tier"]), largest["macs_train_step"] / row["macs_train_step"]
            energy = f"{human_percent(max(beyond, 0.0))} of its factorized layers' energy beyond the ranks of tier {same}"
            limit = f"less than {100 * IDLE:g} %"
            same_as = f"it computes the same as tier {same}, with {times:.1f} times the MACs."
            return f"Tier {tier_label(largest['tier'])} has {energy} ({limit}): {same_as}"
    first, *others = ((tier_label(row["tier"]), human_percent(row["energy_share"])) for row in rows)
    added = ", ".join(f"{share} in those that tier {tier} adds" for tier, share in others)
    rest = f", {human_percent(1 - held[-1])} in ranks that no tier has" if 1 - held[-1] > 1e-6 else ""
    return f"Energy of the factorized layers: {first[1]} in the ranks of tier {first[0]}, {added}{rest}."
