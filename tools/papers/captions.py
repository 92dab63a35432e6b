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


def protocol(entries: Sequence[Entry], scale: str, *notes: str) -> str:
    """Return the list before a table: at which scale it was run, what the runs share, and the table's own ``notes``."""
    if not entries:
        return "Not run yet."

    def setting(key: str) -> str:
        return _range([entry["settings"][key] for entry in entries])

    networks = sorted({_network(entry["settings"]) for entry in entries})
    optimizers = sorted({entry["settings"]["optimizer"] for entry in entries})
    schedules = sorted({entry["settings"].get("lr_schedule", "constant") for entry in entries})
    seeds = sorted({entry["seed"] for entry in entries})
    versions = ", ".join(sorted({entry["edgefl"] for entry in entries}))
    samples, evaluated = (_range([entry["figures"][key] for entry in entries]) for key in ("samples", "evaluated"))
    epochs = f"{setting('local_epochs')} local epoch{'' if setting('local_epochs') == '1' else 's'}"
    items = [
        f"*Task*: {' and '.join(networks)}. {setting('clients')} clients have {samples} samples each; {evaluated} samples are held out.",
        f"*Training*: {setting('rounds')} rounds of {setting('per_round')} clients, {epochs}, batches of {setting('batch_size')}. "
        f"Optimizer {' and '.join(optimizers)}, learning rate {' and '.join(schedules)}.",
        f"*Figures*: percent, mean ± standard deviation over the seeds {', '.join(map(str, seeds))}. Made with edgefl {versions}.",
        *_choice(entries),
        *_stale(entries, scale),
        *notes,
    ]
    return "\n".join([f"**{KINDS[scale]}.**", "", *(f"- {item}" for item in items)])


def work(entries: Sequence[Entry], paper: int) -> str:
    """Return the head of a table's first column: the most rounds times local epochs of a row, as a share of the ``paper``'s.

    >>> work([{"settings": {"rounds": 100, "local_epochs": 5}}], 200 * 10)
    "local work: 25 % of the paper's"
    """
    most = max((entry["settings"]["rounds"] * entry["settings"]["local_epochs"] for entry in entries), default=0)
    return f"local work: {100 * most / paper:.3g} % of the paper's"


def again(table: str, entries: Sequence[Entry], scale: str) -> str:
    """Return the line with the command that repeats a cell; the first run stands for all of them."""
    if not entries:
        return ""
    flag = "" if scale == "full" else f"--{scale} "
    first = min(entries, key=lambda entry: (entry["seed"], entry["column"], entry["row"]))
    cell = f"{table}/{first['row']}/{first['column']}/{first['seed']}"
    return f'One cell again (table/row/column/seed): `python tools/paper_tables.py {flag}--only "{cell}" --again`'


def _choice(entries: Sequence[Entry]) -> list[str]:
    """Say how rates and normalisation were chosen."""
    tuned = {(entry["row"], entry["column"]): entry["chosen"] for entry in entries if "chosen" in entry}
    if not tuned:
        rates = sorted({entry["settings"]["lr"] for entry in entries})
        return [
            f"*Learning rate*: {' or '.join(f'{rate:g}' for rate in rates)}. Rate and normalisation were fixed for the whole table, after "
            "short runs of a few methods that looked at test images. They were not tuned for each method."
        ]
    one = next(iter(tuned.values()))
    grown = {rate for chosen in tuned.values() for rate in chosen.get("grown", ())}
    tried = {key: sorted({str(result[key]) for result in one["validation"] if result[key] not in grown}) for key in one["choice"]}
    grid = "; ".join(f"{key} {', '.join(values)}" for key, values in tried.items())
    common = "rows" in one
    rounds = _range([chosen["rounds"] for chosen in tuned.values()])
    columns = sorted({chosen["column"] for chosen in tuned.values() if "column" in chosen})
    lost = any(point["accuracy"] is None for chosen in tuned.values() for point in chosen["validation"])
    said = [
        "All rows have one setting," if common else "Each row has its own setting,",
        f"chosen from one grid ({grid}).",
        *([f"Where its edge was best, the grid grew, up to {len(grown)} more rates."] if grown else []),
        f"Trials of {rounds} rounds with the whole schedule were compared on {100 * one['share']:g} % of the training samples,",
        f"{'by their mean over the rows' if common else 'which no client has'}.",
        *(["No client has these samples."] if common else []),
        *([f"Other columns have the choice of {' and '.join(columns)}."] if columns else []),
        *(["A setting that diverged, in a trial or in a whole run, gave way to the next best one."] if lost else []),
        "Test samples were used once.",
    ]
    return [f"*Learning rate*: {' '.join(said)}", f"*Chosen*: {_chosen(tuned, common)}."]


def _chosen(tuned: Mapping[tuple[str, str], Any], common: bool) -> str:
    """List each chosen setting with its rows; a row names its column only if it has another setting in another column."""
    of_rows: dict[str, dict[str, str]] = {}
    for (row, column), chosen in sorted(tuned.items()):
        of_rows.setdefault(row, {})[column] = " ".join(map(str, chosen["choice"].values()))
    choices: dict[str, dict[str, None]] = {}  # dicts keep the order, and each name once
    for row, of_columns in of_rows.items():
        one = len(set(of_columns.values())) == 1
        for column, choice in of_columns.items():
            choices.setdefault(choice, {})[row if one else f"{row} ({column})"] = None
    if common:
        return next(iter(choices))
    return ". ".join(f"**{choice}** for {'; '.join(rows)}" for choice, rows in sorted(choices.items()))


def _stale(entries: Sequence[Entry], scale: str) -> list[str]:
    stale = [entry for entry in entries if entry.get("stale")]
    if not stale:
        return []
    commits = sorted({str(entry.get("commit", "not recorded")) for entry in stale})
    count = f"All {len(entries)}" if len(stale) == len(entries) else f"{len(stale)} of {len(entries)}"
    flag = "" if scale == "full" else f" with `--{scale}`"
    return [
        f"**Stale ({STALE})**: {count} runs were made by code or settings that this version no longer has (commit {', '.join(commits)}). "
        f"The queue repeats them{flag}."
    ]


def _network(settings: Mapping[str, Any]) -> str:
    return f"{settings['model']} on {settings['dataset']}"


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
