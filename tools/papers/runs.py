"""One run of a table: its settings, and the figures that came out, as tools/results/ stores them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgefl.config import RunConfig

Scale = Literal["full", "quick", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "quick", "smoke")
Settings = Mapping[str, Any]

PROFILE = "laptop"
"""Every tier fits it, and a fleet of one device has no deadline: the protocol of the paper gives out tiers, not budgets."""


@dataclass(frozen=True)
class Run:
    """One run: ``row`` and ``column`` are where its figures belong in the table, ``settings`` what differs from edgefl's defaults.

    ``local`` asks for the mean accuracy over clients, each on held-out samples of its own, also where one model is everyone's.
    """

    row: str
    column: str
    settings: Settings
    local: bool = False

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
        """How long it takes, roughly, in the same unit for all: samples trained times the cost of one. Decides the order only."""
        s = self.settings
        samples = {"digits": 1437, "fashion-mnist": 60_000}[s["dataset"]] / s["clients"] * s.get("data_share", 1.0)
        size = {"mlp": 0.05, "cnn-digits": 0.2, "cnn-fashion": 3.0, "resnet9": 4.0, "resnet18": 40.0}[s["model"]]
        tiers = s.get("tiers") or (1.0,)
        share = sum(tiers) / len(tiers) if s["method"] in ("heterofl", "fjord", "origdrop", "prism") else 1.0
        return float(s["rounds"] * s["per_round"] * s["local_epochs"] * samples * size * share)

    def stored(self, figures: Mapping[str, Any], version: str) -> dict[str, Any]:
        """Return the JSON form of this run with its figures."""
        place = {"row": self.row, "column": self.column, "seed": self.seed, "local": self.local}
        return {**place, "settings": plain(self.settings), "edgefl": version, "figures": dict(figures)}

    def is_stored_as(self, entry: Mapping[str, Any]) -> bool:
        """Whether ``entry`` is this very run: same place, same settings."""
        return self.is_sibling_of(entry) and entry["seed"] == self.seed

    def is_sibling_of(self, entry: Mapping[str, Any]) -> bool:
        """Whether ``entry`` is this run but perhaps for its seed."""

        def but_seed(settings: Settings) -> dict[str, Any]:
            return {key: value for key, value in plain(settings).items() if key != "seed"}

        same_place = (entry["row"], entry["column"], entry["local"]) == (self.row, self.column, self.local)
        return same_place and but_seed(entry["settings"]) == but_seed(self.settings)


def plain(settings: Settings) -> dict[str, Any]:
    """Return ``settings`` as JSON reads them back: tuples are lists.

    >>> plain({"tiers": (1.0, 0.5)})
    {'tiers': [1.0, 0.5]}
    """
    return dict(json.loads(json.dumps(settings, sort_keys=True)))


def pruned(entries: Iterable[Mapping[str, Any]], runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the entries that some run still stands for, whatever its seed: what changed settings made stale is dropped."""
    return [dict(entry) for entry in entries if any(run.is_sibling_of(entry) for run in runs)]


def missing(entries: Sequence[Mapping[str, Any]], runs: Sequence[Run]) -> list[Run]:
    """Return the runs that are not among ``entries``."""
    return [run for run in runs if not any(run.is_stored_as(entry) for entry in entries)]


def seeded(runs: Iterable[Run], seeds: Iterable[int]) -> list[Run]:
    """Return every run once for every seed."""
    per_seed = list(runs)
    return [Run(r.row, r.column, {**r.settings, "seed": seed}, r.local) for seed in seeds for r in per_seed]
