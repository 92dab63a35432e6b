"""Figures in words: means and spreads over seeds, sizes, and the sentence that says how a table's runs were made."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
NONE = "–"


def percent(values: Sequence[float]) -> str:
    """Return mean ± sample standard deviation of shares, in percent; one value stands alone, none is a dash.

    >>> percent([0.80, 0.82, 0.84]), percent([0.5]), percent([])
    ('82.0 ± 2.0', '50.0', '–')
    """
    if not values:
        return NONE
    mean = 100 * statistics.mean(values)
    return f"{mean:.1f}" if len(values) == 1 else f"{mean:.1f} ± {100 * statistics.stdev(values):.1f}"


def size(amount: float | None, unit: str = "") -> str:
    """Return three digits with k, M, G or T.

    >>> size(285_186), size(1.25e9, "B"), size(999_600), size(12), size(None)
    ('285 k', '1.25 GB', '1 M', '12', '–')
    """
    if amount is None:
        return NONE
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if amount >= 0.9995 * factor:
            return f"{amount / factor:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}".rstrip()


class Figures:
    """The stored runs of one table, asked by row and column."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries

    def of(self, row: str, column: str | None = None) -> list[Entry]:
        """Return the entries of a row: of one column, or of all."""
        return [entry for entry in self.entries if entry["row"] == row and column in (None, entry["column"])]

    def accuracy(self, row: str, column: str, tier: str = "global") -> str:
        """Return mean ± spread of a tier's accuracy."""
        return percent([entry["figures"]["accuracy"][tier] for entry in self.of(row, column)])

    def local(self, row: str, column: str) -> str:
        """Return mean ± spread of the mean accuracy over clients."""
        return percent([entry["figures"]["local_accuracy"] for entry in self.of(row, column)])

    def mean(self, row: str, column: str | None, read: Callable[[Entry], float]) -> float | None:
        """Return the mean over seeds of what ``read`` takes from an entry's figures; None without entries."""
        found = [read(entry["figures"]) for entry in self.of(row, column)]
        return statistics.mean(found) if found else None

    def cost(self, row: str, column: str | None, tier: str, key: str) -> float | None:
        """Return a cost of one client's round at a tier."""
        return self.mean(row, column, lambda figures: figures["tiers"][tier][key])

    def bytes_of_round(self, row: str, column: str | None, tier: str) -> float | None:
        """Return what travels down and up in one client's round."""
        return self.mean(row, column, lambda f: f["tiers"][tier]["download_bytes"] + f["tiers"][tier]["upload_bytes"])

    def total(self, row: str, column: str | None, *keys: str) -> float | None:
        """Return a total over all rounds and clients; several keys are added."""
        return self.mean(row, column, lambda figures: sum(figures["total"][key] for key in keys))

    def traffic(self, row: str, column: str | None = None) -> str:
        """Return all bytes of a run, both ways."""
        return size(self.total(row, column, "download_bytes", "upload_bytes"), "B")

    def setting(self, row: str, key: str) -> Any:
        """Return a setting of a row's first run, None without one."""
        found = self.of(row)
        return found[0]["settings"].get(key) if found else None


def protocol(entries: Sequence[Entry], scale: str) -> str:
    """Return the sentence before a table: at which scale it was run, with what the runs share."""
    if not entries:
        return "Not run yet."
    shown = (
        ("rounds", "rounds"), ("clients", "clients"), ("per_round", "a round"), ("local_epochs", "local epochs"), ("batch_size", "batch"),
    )  # fmt: skip
    said = [f"{_range([e['settings'][key] for e in entries])} {name}" for key, name in shown]
    said += [f"{_range([e['figures']['samples'] for e in entries])} samples a client"]
    said += [f"{_range([e['figures']['evaluated'] for e in entries])} held-out samples"]
    networks = {_network(e["settings"]) for e in entries}
    rates = {f"{e['settings']['optimizer']}, learning rate {e['settings']['lr']:g}" for e in entries}
    schedules = {e["settings"].get("lr_schedule", "constant") for e in entries}
    seeds = sorted({entry["seed"] for entry in entries})
    kind = {
        "quick": "Reduced scale (`--quick`): far fewer rounds and samples than in the paper",
        "full": "Full scale",
        "smoke": "Smoke test: the figures mean nothing",
    }[scale]
    versions = ", ".join(sorted({entry["edgefl"] for entry in entries}))
    return (
        f"**{kind}.** {' and '.join(sorted(networks))}; {', '.join(said)}; {' and '.join(sorted(rates))} "
        f"({' and '.join(sorted(schedules))}); seeds {', '.join(map(str, seeds))}; edgefl {versions}. "
        "Accuracies in percent, ± is the standard deviation over seeds. Learning rate and normalisation were chosen once per table, by the "
        "held-out accuracy of short runs of a few of its methods, not for each method."
    )


def _network(settings: Mapping[str, Any]) -> str:
    norm = f" with {settings['norm']} normalisation" if "norm" in settings else ""
    return f"{settings['model']}{norm} on {settings['dataset']}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
