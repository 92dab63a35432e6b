"""The table of an inspected network: a row per layer, and what its words mean."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from edgefl.report.inspected import InspectedLayer, Inspection, LayerAtTier
from edgefl.report.words import tier_label
from edgefl.util.units import human_bytes, human_count

_LEAST_NAME = 10
_MOST_LISTED = 6
_SHORT = {"depthwise": "dw"}


def inspect_text(found: Inspection, width: int = 80) -> str:
    """Return the table of the layers with channels, at most ``width`` columns wide, what its words mean, and the totals of the tiers.

    Names that are too long are shortened in the middle. Tiers in which all layers are as in the network itself have no column.
    """
    rows = [row for row in found.layers if row.channels]
    numbers = [n for n, _ in enumerate(found.tiers) if any(row.tiers[n].form != "dense" for row in found.layers)]
    groups = _groups(rows)
    texts = [["layer", "kind", "in→out", "MACs", "bytes", *(f"at {tier_label(found.tiers[n].tier)}" for n in numbers), "why"]]
    for row in rows:
        at = [row.tiers[n] for n in numbers]
        figures = [_arrow(row.channels), human_count(row.macs_forward), human_bytes(row.parameter_bytes)]
        texts.append([row.layer or "(network)", _kind(row), *figures, *map(_cell, at), _why(row, groups)])
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    widths[0] = min(widths[0], max(_LEAST_NAME, width - sum(widths[1:]) - len(widths) + 1))
    lines = [" ".join(_aligned(text, widths)).rstrip() for text in texts]
    below = [*_legend(rows, groups), *_rest(found), *found.notes, *_totals(found)]
    wrapped = (line for text in below for line in textwrap.wrap(text, width, subsequent_indent="  "))
    return "\n".join([*lines, "", *wrapped])


def _aligned(texts: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Yield the cells of a row: its name, kind and reason on the left, figures on the right."""
    for number, (text, width) in enumerate(zip(texts, widths, strict=True)):
        left = number in (0, 1, len(texts) - 1)
        yield shortened(text, width).ljust(width) if left else text.rjust(width)


def shortened(name: str, width: int) -> str:
    """Return ``name`` with its middle left out if it is longer than ``width``.

    >>> shortened("blocks.2.0.conv_pw", 11), shortened("fc", 11)
    ('block…nv_pw', 'fc')
    """
    before = (width - 1) // 2
    return name if len(name) <= width else f"{name[:before]}…{name[len(name) - (width - 1 - before) :]}"


def _kind(row: InspectedLayer) -> str:
    kernel = "x".join(map(str, row.shape[2:])) if row.kind in ("conv", "depthwise", "grouped") else ""
    return f"{_SHORT.get(row.kind, row.kind)} {kernel}".strip()


def _arrow(channels: tuple[int, int] | None) -> str:
    return "" if channels is None else f"{channels[0]}→{channels[1]}"


def _cell(at: LayerAtTier) -> str:
    if at.form == "factorized":
        return "factors" if at.rank is None else f"rank {at.rank}"
    return _arrow(at.channels) if at.form == "cut" else at.form


def _why(row: InspectedLayer, groups: Mapping[frozenset[str], int]) -> str:
    why = next((at.why for at in row.tiers if at.why), "")
    return f"tied {groups[_members(row)]}" if why == "tied" else why


def _members(row: InspectedLayer) -> frozenset[str]:
    return frozenset((row.layer, *row.tied_with))


def _groups(rows: Iterable[InspectedLayer]) -> dict[frozenset[str], int]:
    """Return the groups of layers that are cut together → their numbers, from 1."""
    found = dict.fromkeys(_members(row) for row in rows if row.tied_with)
    return {group: number for number, group in enumerate(found, 1)}


def _legend(rows: Sequence[InspectedLayer], groups: Mapping[frozenset[str], int]) -> list[str]:
    reasons: dict[str, set[str]] = {}
    for at in (at for row in rows for at in row.tiers if at.why and at.why != "tied"):
        reasons.setdefault(at.why, set()).add(at.reason.partition(": ")[0] if at.why == "no gain" else at.reason)
    order = {row.layer: number for number, row in enumerate(rows)}
    found = [f"{why}: {'; '.join(sorted(of))}" for why, of in reasons.items()]
    for group, number in groups.items():
        names = sorted(group, key=lambda name: order.get(name, len(order)))
        more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
        found.append(f"tied {number}: cut together: {', '.join(names[:_MOST_LISTED])}{more}")
    return found


def _rest(found: Inspection) -> list[str]:
    rest = [row for row in found.layers if not row.channels]
    counts = ", ".join(f"{number} {kind}" for kind, number in Counter(row.kind for row in rest).items())
    return [f"not shown: {counts} ({human_bytes(sum(row.parameter_bytes for row in rest))})"] if rest else []


def _totals(found: Inspection) -> list[str]:
    lines = []
    for tier in found.tiers:
        macs = (
            f"{human_count(tier.macs_forward)} MACs forward, {human_count(tier.macs_train_step)} per step of {found.batch_size}"
        )
        forms = ", ".join(f"{number} {form}" for form, number in tier.layers.items())
        uncounted = f"; not counted: {', '.join(tier.uncounted_ops)}" if tier.uncounted_ops else ""
        memory = f"{human_bytes(tier.training_memory_bytes)} of memory in training"
        lines.append(f"tier {tier_label(tier.tier)}: {macs}, {memory}; {forms}{uncounted}")
    return lines
