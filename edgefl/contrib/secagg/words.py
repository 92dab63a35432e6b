"""The secure sums of a run: how many groups of each tier could be summed, why others could not, and what their messages took."""

from collections import Counter
from collections.abc import Sequence

from edgefl.contrib.secagg.records import OfSums, SecureSum
from edgefl.records import Observed
from edgefl.registry import section
from edgefl.report.added import added
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary
from edgefl.report.section import Section
from edgefl.report.tables import Column, PlainTable, cell, under
from edgefl.report.words import tier_label
from edgefl.util.units import human_bytes, human_seconds


def secure_sums(rounds: Sequence[RoundLine]) -> tuple[SecureSum, ...]:
    """Return the secure sums of each tier, largest first; none if updates were sent plain."""
    of_tier: dict[float, list[Observed]] = {}
    for line in (line for record in rounds for line in record.observed.get("secure_aggregation", ())):
        of_tier.setdefault(line["tier"], []).append(line)
    return tuple(_of(tier, of_tier[tier]) for tier in sorted(of_tier, reverse=True))


def _of(tier: float, lines: Sequence[Observed]) -> SecureSum:
    groups = [line for line in lines if line["group"] is not None]
    count = max(1, len(groups))
    return SecureSum(
        tier,
        len(groups),
        sum(line["summed"] for line in groups),
        len(lines) - len(groups),
        sum(line["clients"] for line in groups),
        sum(line["clients"] - line["vectors"] for line in groups),
        sum(line["upload_bytes"] for line in groups),
        sum(line["download_bytes"] for line in groups),
        sum(line["agree_s"] for line in groups) / count,
        sum(line["unmask_s"] for line in groups) / count,
        tuple(reason for reason, _ in Counter(line["reason"] for line in groups if not line["summed"]).most_common(3)),
    )


@section("secure-sums", place=1)
def secure_section(summary: AnySummary, rounds: Sequence[RoundLine]) -> Section | None:
    """Return the table of secure sums; None if updates were sent plain."""
    if not (sums := added(summary, OfSums).secure_sums):
        return None
    columns = (
        Column("tier", "", cell("tier", tier_label)),
        *under("groups", str, groups="formed", summed="summed"),
        *under("rounds", str, not_asked="with too few clients"),
        *under("clients", str, clients="in groups", lost="whose vector did not arrive"),
        *under("messages without vectors", human_bytes, upload_bytes="up", download_bytes="down"),
        *under("mean wait of a group", human_seconds, agree_s="to agree", unmask_s="to unmask"),
        Column("not summed, because", "", lambda row: "\n".join(row.reasons) or "–", numeric=False, wraps=True),
    )
    caption = "Per tier: groups whose updates were added up securely, the clients that were lost, and what the messages took."
    return Section("secure", "Secure sums", PlainTable.of(columns, sums), caption, "secure sums")
