"""The result of a finished comparison, in memory or read again from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from edgefl.errors import InputError
from edgefl.report.compare_tables import compact_comparison
from edgefl.report.comparison import FORMAT, ComparisonSummary, MethodResult
from edgefl.report.notebook import table_html, table_text
from edgefl.report.results import Result, Results, adapter
from edgefl.util.files import check_free, require_plain, whole_folder, write_bytes, write_json
from edgefl.util.validation import explain

RESULT = "compare.json"


@dataclass(frozen=True, repr=False)
class Comparison:
    """A finished comparison.

    Attributes:
        folder: the folder with ``compare.html`` and ``compare.json``.
        summary: the content of ``compare.json``.
    """

    folder: Path
    summary: ComparisonSummary

    @property
    def methods(self) -> Results[MethodResult]:
        """One row per method, in the order asked for."""
        return Results(self.summary.methods)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``compare.json``."""
        return self.summary.to_dict()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row per method."""
        return self.methods.to_pandas()

    def to_csv(self, out: Path | str) -> Path:
        """Write ``methods.csv``, ``verdict.csv`` and ``pairs.csv`` to ``out``, a new or empty folder, and return it.

        Raises:
            InputError: ``out`` exists and is not an empty folder.
            StorageError: the disk is full. Nothing is written in either case.
        """
        check_free(Path(out), InputError)
        tables: dict[str, Sequence[Result]] = {
            "methods": self.summary.methods,
            "verdict": self.summary.verdict.methods,
            "pairs": self.summary.verdict.pairs,
        }
        with whole_folder(Path(out)) as folder:
            for name, rows in tables.items():
                if rows:
                    (folder / f"{name}.csv").write_text(Results(rows).to_csv(), encoding="utf-8")
        return Path(out)

    def to_figures(self, out: Path | str, kind: Literal["svg", "pdf"] = "svg") -> Path:
        """Write the charts of the page as SVG or PDF to ``out``, a new or empty folder, and return it.

        Raises:
            InputError: ``out`` exists and is not an empty folder.
            StorageError: the disk is full. Nothing is written in either case.
        """
        from edgefl.report.figures import comparison_charts, write_charts

        check_free(Path(out), InputError)
        with whole_folder(Path(out)) as folder:
            write_charts(comparison_charts(self.summary), folder, kind)
        return Path(out)

    def paragraph(self) -> str:
        """Return a paragraph for a paper with every setting of the comparison, and the command that makes it again.

        Raises:
            InputError: a run of the comparison is missing, or names code that you have not consented to.
        """
        from edgefl.run.paragraph import paragraph

        return paragraph(self.folder, self.summary)

    def write(self) -> Path:
        """Write ``compare.html`` and ``compare.json``, and return the page."""
        from edgefl.report.compare_page import compare_page

        write_bytes(self.folder / "compare.html", compare_page(self.summary).encode())
        write_json(self.folder / RESULT, self.to_dict())
        return self.folder / "compare.html"

    def __repr__(self) -> str:
        """Return the table of the methods."""
        return table_text(str(self.folder), compact_comparison(self.summary))

    def _repr_html_(self) -> str:
        return table_html(str(self.folder), compact_comparison(self.summary))


def is_comparison(folder: Path) -> bool:
    """Whether a folder holds a finished comparison."""
    return (folder / RESULT).is_file()


def load_comparison(folder: Path | str) -> Comparison:
    """Return the finished comparison in ``folder``, checked.

    Raises:
        InputError: the folder holds no finished comparison, a damaged one, or one of an earlier version.

    Example:
        >>> load_comparison("runs/none-such")
        Traceback (most recent call last):
            ...
        edgefl.errors.InputError: runs/none-such/compare.json: no such file; give the folder of a finished comparison
    """
    path = Path(folder) / RESULT
    try:
        require_plain(path, InputError)
        text = path.read_bytes()
    except OSError:
        raise InputError(f"{path}: no such file; give the folder of a finished comparison") from None
    again = f"run edgefl compare --out {folder} --resume, which trains nothing again"
    try:
        summary: ComparisonSummary = adapter(ComparisonSummary).validate_json(text)
    except ValidationError as error:
        raise InputError(f"{path}: {explain(error.errors()[0])}; {again}") from None
    if summary.format != FORMAT:
        raise InputError(f"{path}: format {summary.format}, expected {FORMAT}; {again}")
    return Comparison(Path(folder), summary)
