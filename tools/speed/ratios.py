"""What ``rounds.py`` compares: rounds of two contestants, seconds per MAC of two methods, and the bars for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from speed.work import DISTURBED

MAC_BAR = 1.15
"""The most that a factorized method's second per MAC may be of FedAvg's."""


@dataclass(frozen=True)
class Bars:
    """The most that a round of edgefl may take, as a multiple of a loop's (None: the quickest) and of the best peer's."""

    loop: str | None
    of_loop: float
    of_peer: float


BARS = {"T": Bars(None, 1.05, 0.80), "T1000": Bars(None, 1.15, 0.75), "S": Bars("processes", 1.0, 0.60)}


def runs_of(entry: Mapping[str, Any]) -> float:
    """Return an entry's median over its runs of their median rounds."""
    return median(median(run["rounds_s"]) for run in entry["runs"])


def held_to(work: str, by_name: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the name of the loop that edgefl is held to."""
    return BARS[work].loop or min((name for name in by_name if name != "fedavg"), key=lambda name: runs_of(by_name[name]))


def ratio_of(entry: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """Return the ratios of median rounds, turn by turn, of undisturbed turns if there are any.

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
            loop = held_to(part["work"], by_name)
            figure = median(ratio_of(by_name["fedavg"], by_name[loop]))
            rows.append({"case": f"{part['work']}: edgefl ÷ {loop}", "figure": figure, "bar": BARS[part["work"]].of_loop})
            continue
        for name in [name for name in by_name if name != "fedavg"]:
            figure = per_mac(by_name[name]) / per_mac(by_name["fedavg"])
            rows.append({"case": f"{part['work']}, {name}: seconds a MAC ÷ FedAvg's", "figure": figure, "bar": MAC_BAR})
    return rows
