"""The paragraph before a table: scale, protocol, how settings were chosen, which runs are stale or missing, and how to repeat a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from papers.runs import Entry
from papers.show import STALE

KINDS = {
    "quick": "Reduced scale (`--quick`): far fewer rounds and samples than in the paper",
    "full": "Full scale",
    "smoke": "Smoke test: the figures mean nothing",
}
_SHOWN = {"rounds": "rounds", "clients": "clients", "per_round": "a round", "local_epochs": "local epochs", "batch_size": "batch"}


def protocol(entries: Sequence[Entry], scale: str) -> str:
    """Return the sentences before a table: at which scale it was run, with what the runs share."""
    if not entries:
        return "Not run yet."
    said = [f"{_range([e['settings'][key] for e in entries])} {name}" for key, name in _SHOWN.items()]
    said += [f"{_range([e['figures']['samples'] for e in entries])} samples a client"]
    said += [f"{_range([e['figures']['evaluated'] for e in entries])} held-out samples"]
    networks = {_network(e["settings"]) for e in entries}
    optimizers = {e["settings"]["optimizer"] for e in entries}
    schedules = {e["settings"].get("lr_schedule", "constant") for e in entries}
    seeds = sorted({entry["seed"] for entry in entries})
    versions = ", ".join(sorted({entry["edgefl"] for entry in entries}))
    return (
        f"**{KINDS[scale]}.** {' and '.join(sorted(networks))}; {', '.join(said)}; {' and '.join(sorted(optimizers))}, "
        f"learning rates {' and '.join(sorted(schedules))} over the rounds; seeds {', '.join(map(str, seeds))}; edgefl {versions}. "
        f"Accuracies in percent, ± is the standard deviation over seeds. {_choice(entries)}{_stale(entries, scale)}"
    )


def again(table: str, entries: Sequence[Entry], scale: str) -> str:
    """Return the line with the command that repeats a cell; the first run stands for all of them."""
    if not entries:
        return ""
    flag = "" if scale == "full" else f"--{scale} "
    first = min(entries, key=lambda entry: (entry["seed"], entry["column"], entry["row"]))
    cell = f"{table}/{first['row']}/{first['column']}/{first['seed']}"
    return f'One cell again (table/row/column/seed): `python tools/paper_tables.py {flag}--only "{cell}" --again`'


def _choice(entries: Sequence[Entry]) -> str:
    """Say how rates and normalisation were chosen."""
    tuned = {(entry["row"], entry["column"]): entry["chosen"] for entry in entries if "chosen" in entry}
    if not tuned:
        rates = sorted({entry["settings"]["lr"] for entry in entries})
        return (
            f"Learning rate {' or '.join(f'{rate:g}' for rate in rates)}: rate and normalisation were fixed for the whole table after "
            "short runs of a few methods that looked at test images. They were not tuned for each method."
        )
    one = next(iter(tuned.values()))
    tried = {key: sorted({str(result[key]) for result in one["validation"]}) for key in one["choice"]}
    grid = "; ".join(f"{key} {', '.join(values)}" for key, values in tried.items())
    choices: dict[str, list[str]] = {}
    for (row, column), chosen in sorted(tuned.items()):
        choices.setdefault(" ".join(map(str, chosen["choice"].values())), []).append(f"{row} ({column})")
    listed = "; ".join(f"{choice}: {', '.join(rows)}" for choice, rows in sorted(choices.items()))
    rounds = _range([chosen["rounds"] for chosen in tuned.values()])
    columns = sorted({chosen["column"] for chosen in tuned.values() if "column" in chosen})
    where = f" Other columns have the choice of {' and '.join(columns)}." if columns else ""
    if "rows" in one:
        whose, listed, by = "One setting for all rows was", next(iter(choices)), "the mean over the rows' accuracies"
    else:
        whose, by = "The settings of each row were", "the accuracy"
    lost = any(point["accuracy"] is None for chosen in tuned.values() for point in chosen["validation"])
    out = " A setting that diverged, in a trial or in a whole run, is left out, and the next best one is taken." if lost else ""
    return (
        f"{whose} chosen from one grid ({grid}) by {by} on {100 * one['share']:g} % of the training samples, held out of the clients' "
        f"shards, in trials of {rounds} rounds with the whole schedule.{where} Test samples were used once. Chosen: {listed}.{out}"
    )


def _stale(entries: Sequence[Entry], scale: str) -> str:
    stale = [entry for entry in entries if entry.get("stale")]
    if not stale:
        return ""
    commits = sorted({str(entry.get("commit", "not recorded")) for entry in stale})
    count = "All" if len(stale) == len(entries) else f"{len(stale)} of {len(entries)}"
    flag = "" if scale == "full" else f" with `--{scale}`"
    return (
        f" **Stale ({STALE}): {count} of these runs were made by other code or settings than this version's** "
        f"(commit {', '.join(commits)}); the queue repeats them{flag}."
    )


def _network(settings: Mapping[str, Any]) -> str:
    return f"{settings['model']} on {settings['dataset']}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
