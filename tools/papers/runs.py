"""One run of a table: its settings, its place, and how long it takes."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from edgefl.config import RunConfig

Scale = Literal["full", "quick", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "quick", "smoke")
Settings = Mapping[str, Any]
Entry = Mapping[str, Any]
"""A stored run: a line of tools/results/."""

SAMPLES = {"digits": 1437, "digits-edges": 1437, "fashion-mnist": 60_000}
"""Data set → its training samples."""
SAMPLE_S = {
    **{"cnn-tiny": 5e-5, "mlp": 4e-5, "cnn-digits": 1.5e-4, "cnn-fashion": 9e-4, "cnn-flanc": 2.6e-3},
    **{"cnn-pooled": 5e-4, "cnn-deep": 3e-4},
    **{"resnet9": 4e-3, "resnet18": 4e-2},
}
"""Model → processor seconds of a training step for one sample, at full width."""
FACTORS = {("pfedpara", "mlp"): 8.0, ("fedpara", "cnn-fashion"): 1.3, ("prism", "cnn-tiny"): 3.0, ("prism", "cnn-deep"): 2.0}
"""Methods that take longer than the network's own MACs: composing the weights counts."""
NARROWER = ("heterofl", "fjord", "flanc", "fedhm", "origdrop", "prism", "depthfl")
"""Methods whose smaller tiers take less time, about in proportion."""
PROFILE = "laptop"
"""Every tier fits it, and a fleet of one device has no deadline: the protocol of the paper gives out tiers, not budgets."""
UNCLIPPED: dict[str, Any] = {"clip_gradient": "none"}
"""HeteroFL without the clipping of its authors' code: as all other rows, and as most stored runs were made."""
FULL, SMALLEST = "full network alone", "smallest tier alone"
"""Rows of the runs that tell whether there is capacity to lose."""


@dataclass(frozen=True)
class Run:
    """One run of a table.

    Attributes:
        row, column: where its figures belong; neither contains a slash.
        settings: what differs from edgefl's defaults.
        local: whether to measure the mean accuracy over clients, each on held-out samples of its own, also with one model for all.
        kind: a "trial" chooses settings on validation samples, and is in no cell.
        chosen: how trials chose some of the settings; None if nothing was chosen.
        since: the first round that is evaluated, at the pace of ``eval_every``: the cell has means over these rounds. 0: the last counts.
    """

    row: str
    column: str
    settings: Settings
    local: bool = False
    kind: Literal["run", "trial"] = "run"
    chosen: Mapping[str, Any] | None = None
    since: int = 0

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.settings["seed"])

    @property
    def config(self) -> RunConfig:
        """The configuration, checked."""
        return RunConfig.of(self.settings)

    @property
    def work(self) -> float:
        """Processor seconds that it takes, roughly: samples trained, times what one costs on one core of 2026. See :func:`hours_of`."""
        s = self.settings
        samples = SAMPLES[s["dataset"]] / s["clients"] * s.get("data_share", 1.0)
        tiers = s.get("tiers") or (1.0,)
        weights = s.get("tier_shares") or [1 / len(tiers)] * len(tiers)
        share = sum(tier * weight for tier, weight in zip(tiers, weights, strict=True)) if s["method"] in NARROWER else 1.0
        factor = FACTORS.get((s["method"], s["model"]), 1.0)
        return float(s["rounds"] * s["per_round"] * s["local_epochs"] * samples * SAMPLE_S[s["model"]] * share * factor)

    def at_seed(self, seed: int) -> Run:
        """Return the same run with another seed."""
        return replace(self, settings={**self.settings, "seed": seed})

    def name(self, table: str) -> str:
        """Return the name by which ``--only`` selects it: the cell of a run, the cell and the settings of a trial.

        >>> Run("FLANC", "IID", {"seed": 0}).name("flanc")
        'flanc/FLANC/IID/0'
        """
        cell = f"{table}/{self.row}/{self.column}"
        return f"{cell}/{self.seed}" if self.kind == "run" else f"{cell}/{' '.join(map(str, self.tried.values()))}"

    @property
    def tried(self) -> dict[str, Any]:
        """The settings that a trial tries."""
        return {key: self.settings[key] for key in ("lr", "norm") if key in self.settings} if self.kind == "trial" else {}

    def stored(self, figures: Mapping[str, Any], version: str, **about: Any) -> dict[str, Any]:
        """Return the JSON form of this run with its figures, and what else there is to tell ``about`` it."""
        place = {"row": self.row, "column": self.column, "seed": self.seed, "local": self.local, "kind": self.kind}
        chosen = {} if self.chosen is None else {"chosen": dict(self.chosen)}
        since = {"since": self.since} if self.since else {}
        return {
            **place,
            "settings": plain(self.settings),
            **since,
            **chosen,
            "edgefl": version,
            **about,
            "figures": dict(figures),
        }

    def is_stored_as(self, entry: Entry) -> bool:
        """Whether ``entry`` is this very run: same place, same settings."""
        same = entry["settings"] == plain(self.settings) and entry.get("since", 0) == self.since
        return same and same_place(self.stored({}, ""), entry)


def hours_of(runs: Iterable[Run], finished: Iterable[Entry]) -> float:
    """Return the processor hours of ``runs``: their work, times what ``finished`` runs of their row took for theirs, or of their table.

    >>> settings = {"method": "flanc", "model": "mlp", "dataset": "digits", "clients": 9, "rounds": 5, "per_round": 3, "local_epochs": 1}
    >>> one, other = Run("FLANC", "IID", {**settings, "seed": 0}), Run("FLANC", "IID", {**settings, "rounds": 10, "seed": 1})
    >>> round(hours_of([other], [one.stored({}, "", cpu_s=3600.0)]), 9)
    2.0
    """
    took: dict[str, list[float]] = {}
    for entry in finished:
        if "cpu_s" in entry:
            took.setdefault(entry["row"], []).append(entry["cpu_s"] / Run(entry["row"], "", entry["settings"]).work)
    of_row = {row: statistics.median(slower) for row, slower in took.items()}
    of_table = statistics.median([one for slower in took.values() for one in slower] or [1.0])
    return sum(run.work * of_row.get(run.row, of_table) for run in runs) / 3600


def same_place(one: Entry, other: Entry) -> bool:
    """Whether two entries are for the same cell and seed, or are the same trial: the newer one replaces the older one."""
    keys = ("row", "column", "seed", "local")
    if [one[key] for key in keys] != [other[key] for key in keys] or kind_of(one) != kind_of(other):
        return False
    return kind_of(one) == "run" or all(one["settings"].get(key) == other["settings"].get(key) for key in ("lr", "norm"))


def kind_of(entry: Entry) -> str:
    """Return whether an entry is a "run" or a "trial"; entries from before there were trials do not say so."""
    return str(entry.get("kind", "run"))


def plain(settings: Settings) -> dict[str, Any]:
    """Return ``settings`` as JSON reads them back: tuples are lists.

    >>> plain({"tiers": (1.0, 0.5)})
    {'tiers': [1.0, 0.5]}
    """
    return dict(json.loads(json.dumps(settings, sort_keys=True)))


def seeded(runs: Iterable[Run], seeds: Iterable[int]) -> list[Run]:
    """Return every run once for every seed."""
    per_seed = list(runs)
    return [run.at_seed(seed) for seed in seeds for run in per_seed]
