"""The result of a finished run, in memory or read again from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgefl.errors import InputError
from edgefl.report.evaluation import ClientScore
from edgefl.report.results import Results, adapter
from edgefl.report.round_lines import RoundRow, SessionRow
from edgefl.report.run_files import AnySummary, DrySummary, RunSummary, read_rounds, stored_summary
from edgefl.report.run_rows import ClassRow, TierRow
from edgefl.report.words import contents
from edgefl.util.files import check_free, whole_folder

if TYPE_CHECKING:  # reading a result does not import torch
    from torch import nn


@dataclass(frozen=True, repr=False)
class RunResult:
    """A finished run.

    Attributes:
        folder: the run folder.
        summary: the content of ``summary.json``: accuracies, costs per tier, budgets per class, totals.
    """

    folder: Path
    summary: Mapping[str, Any]

    @cached_property
    def record(self) -> AnySummary:
        """The summary as a record, whose attributes are its keys."""
        found: AnySummary = adapter(DrySummary if "dry_run" in self.summary else RunSummary).validate_python(self.summary)
        return found

    @property
    def global_accuracy(self) -> float:
        """Share of held-out samples that the global model classifies correctly, or the value of the run's own metric.

        InputError: it was a dry run, which trains nothing.
        """
        if isinstance(self.record, DrySummary):
            raise InputError(f"{self.folder}: a dry run trains nothing, and has no accuracy")
        return float(self.summary["global_accuracy"])

    @property
    def tiers(self) -> Results[TierRow]:
        """One row per tier, largest first: accuracy, costs, bytes, simulated seconds and joules."""
        return Results(self.record.tiers)

    @property
    def classes(self) -> Results[ClassRow]:
        """One row per device class: its tier, its budgets, and why it takes no larger tier."""
        return Results(self.record.classes)

    @property
    def rounds(self) -> Results[RoundRow]:
        """One row per round: accuracy of each tier, the simulated clock, bytes, MACs and joules.

        Raises:
            InputError: ``rounds.jsonl`` in the folder is missing or damaged.
        """
        return Results(line.row for line in read_rounds(self.folder / "rounds.jsonl"))

    @property
    def clients(self) -> Results[ClientScore]:
        """One row per evaluated client: accuracy of its final model on held-out samples with its own shares of labels.

        There are none in a run with a loss of its own, and in a dry run.
        """
        return Results(() if (found := self.record.evaluation) is None else found.clients)

    @property
    def sessions(self) -> Results[SessionRow]:
        """One row per client and round in which it was selected: how its session ended, its loss, cost, seconds and joules.

        Raises:
            InputError: ``rounds.jsonl`` in the folder is missing or damaged.
        """
        return Results(row for line in read_rounds(self.folder / "rounds.jsonl") for row in line.sessions)

    @property
    def contents(self) -> str:
        """The files and folders of the run that its user looks at first, in words."""
        return contents(self.record.no_bundle)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary and ``folder`` as JSON has them."""
        return {"folder": str(self.folder), **self.summary}

    def to_pandas(self) -> Any:
        """Return the tiers as a ``pandas.DataFrame`` with a row each."""
        return self.tiers.to_pandas()

    def network(self, tier: float | None = None, client: int | None = None) -> nn.Module:
        """Return a trained network as a torch module, in evaluation mode: the one whose accuracy the report shows.

        A network of your own is of your own class. Tiers that are dense and have its full width have its tensors by their names; in
        others, layers are narrower, or have factors in their place.

        Args:
            tier: a ratio of the run; None: the largest.
            client: whose network, where clients have networks of their own; None: the first client of the tier that has trained.

        Raises:
            InputError: the run has no such tier or client, or its data or network is not there any more.
            CheckpointError: the folder has no model, or a damaged one.

        Example:
            >>> import tempfile
            >>> from edgefl import RunConfig, simulate
            >>> small = RunConfig(method="heterofl", model="mlp", rounds=1, clients=2, local_epochs=1, data_share=0.1)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     network = simulate(small, f"{folder}/run").network(tier=0.5)
            >>> network.fc.in_features, network.training
            (128, False)
        """
        from edgefl.run.finished import finished, network_of

        with finished(self.folder) as trained:
            return network_of(trained, tier, client)

    def to_csv(self, out: Path | str) -> Path:
        """Write every table that has rows to a file in ``out``, a new or empty folder, and return it: ``rounds.csv``, ``tiers.csv``, ….

        Raises:
            InputError: ``out`` exists and is not an empty folder, or a file of the run is damaged.
            StorageError: the disk is full. Nothing is written in either case.
        """
        check_free(Path(out), InputError)
        with whole_folder(Path(out)) as folder:
            for name in ("rounds", "sessions", "tiers", "classes", "clients"):
                if rows := getattr(self, name):
                    (folder / f"{name}.csv").write_text(rows.to_csv(), encoding="utf-8")
        return Path(out)

    def __repr__(self) -> str:
        """Return the run in a line, and its table of tiers."""
        from edgefl.report.notebook import run_text

        return run_text(self.folder, self.record)

    def _repr_html_(self) -> str:
        from edgefl.report.notebook import run_html

        return run_html(self.folder, self.record, read_rounds(self.folder / "rounds.jsonl"))


def load_run(folder: Path | str) -> RunResult:
    """Return the finished run in ``folder``, checked; a dry run too.

    Raises:
        InputError: the folder holds no finished run, or a damaged one; the message names file and key.

    Example:
        >>> load_run("runs/none-such")
        Traceback (most recent call last):
            ...
        edgefl.errors.InputError: runs/none-such/summary.json: no such file; give the folder of a finished run
    """
    return RunResult(Path(folder), stored_summary(Path(folder) / "summary.json"))
