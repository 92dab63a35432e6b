"""What ``rounds.py`` compares: rounds of two contestants, seconds per MAC of two methods, and the bars for both."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from speed.work import DISTURBED

RATIO_BAR, MAC_BAR = 1.0, 1.15
"""The most that edgefl's round may take of the two bare processes'; and a factorized method's second per MAC of FedAvg's."""


def ratio_of(entry: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """Return the ratios of median rounds, turn by turn, of those that nobody disturbed, if there are such.

    >>> runs = [[{"rounds_s": [s, s, 9], "others": o} for s, o in zip(seconds, (0, 0.5))] for seconds in ((1, 2), (2, 2))]
    >>> ratio_of({"runs": runs[0]}, {"runs": runs[1]})
    [0.5]
    """
    pairs = list(zip(entry["runs"], other["runs"], strict=True))
    quiet = [pair for pair in pairs if max(run["others"] for run in pair) <= DISTURBED]
    return [median(one["rounds_s"]) / median(two["rounds_s"]) for one, two in quiet or pairs]


def per_mac(entry: Mapping[str, Any]) -> float:
    """Return the seconds of a GMAC: the median over timed rounds, and over runs."""
    return median(
        median(s / (macs / 1e9) for s, macs in zip(run["rounds_s"], run["macs"][-len(run["rounds_s"]) :], strict=True))
        for run in entry["runs"]
    )


def rows_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is held to a bar."""
    rows = []
    for part in found["works"]:
        by_name = {entry["contestant"]: entry for entry in part["contestants"]}
        if "processes" in by_name:
            figure = median(ratio_of(by_name["fedavg"], by_name["processes"]))
            rows.append({"case": f"{part['work']}: edgefl ÷ two bare processes", "figure": figure, "bar": RATIO_BAR})
            continue
        for name in [name for name in by_name if name != "fedavg"]:
            figure = per_mac(by_name[name]) / per_mac(by_name["fedavg"])
            rows.append({"case": f"{part['work']}, {name}: seconds a MAC ÷ FedAvg's", "figure": figure, "bar": MAC_BAR})
    return rows
