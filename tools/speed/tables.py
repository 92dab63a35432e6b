"""The tables of docs/speed.md, from the figures in ``tools/results``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from counters.markdown import table

from speed.peers import FLOWER, against, best_peer, quickest_loop, seconds_of
from speed.ratios import BARS, MAC_BAR, held_to, per_mac, ratio_of, runs_of
from speed.rows import bars_table, bold
from speed.work import DISTURBED, WORKS

Found = Mapping[str, Any]
TITLES = {
    "sequential": "bare loop",
    "processes": "two processes",
    "flat": "two, flat buffers",
    "grouped": "two, grouped",
    "fedavg": "edgefl",
}
NONE = "–"


def seconds(value: float) -> str:
    """Return seconds in three digits.

    >>> seconds(0.2441), seconds(12.34)
    ('0.244', '12.3')
    """
    return f"{value:.3f}" if value < 1 else f"{value:.3g}"


def about(found: Found) -> str:
    """Return what the figures were taken on."""
    here = found["machine"]
    python, torch = here["python"], str(here["torch"]).partition("+")[0]
    return f"{here['cores']} cores, {here['system']}, Python {python}, torch {torch}; commit {found['commit'] or 'unknown'}"


def speed_markdown(found: Found, peers: Sequence[Found]) -> str:
    """Return the page's first table: seconds of a round, and edgefl's as a multiple of others'."""
    rows = []
    for part in found["works"]:
        by_name = {entry["contestant"]: entry for entry in part["contestants"]}
        ours, beside = by_name["fedavg"], seconds_of(peers, part["work"])
        bars, loop = BARS[part["work"]], held_to(part["work"], by_name)
        ratio = median(ratio_of(ours, by_name[loop]))
        peer = best_peer({name: s for name, s in beside.items() if not name.startswith(FLOWER)})
        over = None if peer is None else against(peers, part["work"], peer)
        least = quickest_loop(beside)
        loop_over = None if peer is None or least is None else against(peers, part["work"], peer, least)
        rows.append(
            [
                WORKS[part["work"]].title,
                *(seconds(runs_of(by_name[kind])) for kind in TITLES),
                bold(f"{ratio:.2f} ({TITLES[loop]}, ≤ {bars.of_loop:g})", ratio > bars.of_loop),
                NONE if peer is None else f"{seconds(beside[peer])} ({peer})",
                seconds(beside[FLOWER]) if FLOWER in beside else NONE,
                NONE if over is None else bold(f"{over:.2f} (≤ {bars.of_peer:g})", over > bars.of_peer),
                NONE if loop_over is None else f"{loop_over:.2f} ({least})",
            ]
        )
    turns = min(len(entry["runs"]) for part in found["works"] for entry in part["contestants"])
    said = (
        f"Seconds of a round: the median of ten after three of warm-up, over {turns} run{'s in turns' if turns > 1 else ''}. A ratio "
        f"compares two runs of one turn. Data: {', '.join(sorted(datasets(found)))}. Bars are in brackets; missed bars are bold. The loop "
        "of *÷ loop* is the quickest one on T and T1000, and two processes on S. Peers, and the ratios to them, are from separate runs. "
        f"{about(found)}."
    )
    ratios_titles = ["÷ loop", "best peer", "Flower", "÷ best peer", "quickest loop ÷ best peer"]
    return f"{said}\n\n{table(['work', *TITLES.values(), *ratios_titles], rows)}"


def datasets(found: Found) -> set[str]:
    """Return the data sets that the runs used."""
    return {run["dataset"] for part in found["works"] for entry in part["contestants"] for run in entry["runs"]}


def rounds_markdown(found: Found) -> str:
    """Return the table of what surrounds the rounds: start, first round, memory, and the accuracy that proves the same learning."""
    rows = []
    for part in found["works"]:
        for entry in part["contestants"]:
            runs = entry["runs"]
            all_s = sorted(s for run in runs for s in run["rounds_s"])
            disturbed = sum(run["others"] > DISTURBED for run in runs)
            rows.append(
                [
                    f"{part['work']}, {TITLES.get(entry['contestant'], entry['contestant'])}",
                    *(seconds(s) for s in (runs_of(entry), all_s[0], all_s[-1])),
                    seconds(median(run["first_s"] for run in runs)),
                    f"{median(run['startup_s'] for run in runs):.1f}",
                    *memory_cells(entry),
                    f"{100 * median(run['accuracy'] for run in runs):.1f} %",
                    f"{len(runs)}{f', {disturbed} disturbed' if disturbed else ''}",
                ]
            )
    titles = ["", "round, s", "least", "most", "first round, s", "start, s", "MB, process", "MB a worker", "accuracy", "runs"]
    return f"{about(found)}.\n\n{table(titles, rows)}"


def memory_cells(entry: Found) -> list[str]:
    """Return the proportional memory of the process itself, and of the largest worker with their number."""
    workers = f"{entry['worker_bytes'] / 1e6:,.0f} ({entry['workers']:.0f})" if entry["workers"] else NONE
    return [f"{entry['server_bytes'] / 1e6:,.0f}", workers]


def methods_markdown(found: Found) -> str:
    """Return the table of methods: rounds a minute, and seconds per MAC as a multiple of FedAvg's."""
    (part,) = found["works"]
    plain = per_mac(next(entry for entry in part["contestants"] if entry["contestant"] == "fedavg"))
    rows = []
    for entry in part["contestants"]:
        factor = per_mac(entry) / plain
        macs = median(m for run in entry["runs"] for m in run["macs"])
        rows.append(
            [
                entry["contestant"],
                f"{60 / runs_of(entry):.1f}",
                seconds(runs_of(entry)),
                f"{macs / 1e9:,.1f}",
                bold(f"{factor:.2f}", factor > MAC_BAR),
                seconds(median(run["first_s"] for run in entry["runs"])),
                *memory_cells(entry),
            ]
        )
    said = f"{WORKS[part['work']].title}. Bar: {MAC_BAR:g}, bold where missed. {about(found)}."
    titles = ["method", "rounds a minute", "round, s", "GMAC a round", "s a MAC ÷ FedAvg's", "first round, s"]
    return f"{said}\n\n{table([*titles, 'MB, process', 'MB a worker'], rows)}"


def growth_markdown(found: Found) -> str:
    """Return the table of growth, the rows that have a bar, and the plot."""
    rows = []
    for point in found["points"]:
        server = NONE if point["server_s"] is None else seconds(point["server_s"])
        cells = [f"{point['axis']}: {point['value']:,}", seconds(point["seconds"]), server, f"{point['macs'] / 1e9:,.1f}"]
        rows.append([*cells, *memory_cells(point)])
    titles = ["", "round, s", "of it the server's", "GMAC a round", "MB, process", "MB a worker"]
    plot = (
        "![Seconds of a round against its clients, the population, the network's parameters and the number of tiers](growth.svg)"
    )
    return f"{about(found)}.\n\n{table(titles, rows)}\n\n{bars_table(found['rows'])}\n\n{plot}"


def bars_markdown(found: Found) -> str:
    """Return the table of a tool that measures figures with bars."""
    said = f"{about(found)}.\n\n" if "machine" in found and "commit" in found else ""
    return f"{said}{bars_table(found['rows'])}"
