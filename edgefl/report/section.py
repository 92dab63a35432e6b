"""What features of a run add to its page: facts at the top, and a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from edgefl.registry import sections
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary
from edgefl.report.tables import PlainTable


@dataclass(frozen=True)
class Section:
    """What a page shows of one feature. A function decorated ``@section("name", place=1)`` returns it, or None without the feature.

    Attributes:
        key, title: the anchor and the heading of the section.
        table, caption, label: its table, with a sentence on it, and its name for screen readers; None: there is no section.
        look: the style of the table.
        facts: name and value of facts at the top of the page.
        remarks: lines of the command line, which gives no rounds.
        advice: a sentence on what to do; the page of a run gives the most urgent one.
    """

    key: str = ""
    title: str = ""
    table: PlainTable | None = None
    caption: str = ""
    label: str = ""
    look: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    advice: str = ""


def sections_of(summary: AnySummary, rounds: Sequence[RoundLine]) -> list[Section]:
    """Return what the features of a run show, in the order of their places."""
    names = sorted(sections.names(), key=lambda name: int(sections.facts(name)["place"]))
    return [found for name in names if (found := sections.load(name)(summary, rounds)) is not None]
