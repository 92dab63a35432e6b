"""Updates that differ from the others of their tier, in words and as a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from edgefl.records import Screened
from edgefl.report.round_lines import RoundLine
from edgefl.report.tables import Column, PlainTable, cell, text, under
from edgefl.report.words import clients_of, tier_label
from edgefl.util.units import MISSING

FAR = 3.0
"""A change whose norm is more than so many times its tier's median is remarked on."""
_MOST = 20


@dataclass(frozen=True)
class UpdateFile:
    """The file of an update, and the samples that it claims."""

    file: str
    client: str
    tier: float
    samples: int


@dataclass(frozen=True)
class ScreenedFile(Screened, UpdateFile):
    """The file of an update with the figures of its screening."""


@dataclass(frozen=True)
class ScreenedClient:
    """What the server found in the updates of one client over a run.

    Attributes:
        rounds: how many of its updates were screened.
        change_norm, norm_ratio, cosine: medians; None: not measured.
        clipped, dropped, capped, remarked: in how many rounds it was scaled down, left out, counted for fewer samples, and remarked on.
    """

    client: int
    rounds: int
    change_norm: float | None
    norm_ratio: float | None
    cosine: float | None
    clipped: int
    dropped: int
    capped: int
    remarked: int


def remarks(screened: Screened) -> list[str]:
    """Return what is suspicious about an update; nothing if it looks like the others.

    A cap on its samples is not: an honest client may have far more data than the median.

    >>> remarks(Screened(norm_ratio=11.2, cosine=-0.9, clipped=True, counted_samples=360))
    ["change 11.2 times the tier's median", 'opposite to its tier (cosine -0.90)']
    >>> remarks(Screened(norm_ratio=1.1, cosine=0.5, clipped=True))
    []
    """
    found = []
    if screened.norm_ratio is not None and screened.norm_ratio > FAR:
        found.append(f"change {screened.norm_ratio:,.3g} times the tier's median")
    if screened.cosine is not None and screened.cosine < 0:
        found.append(f"opposite to its tier (cosine {screened.cosine:.2f})")
    if screened.dropped:
        found.append("left out by the defence")
    return found


def _figure(key: str, head: str, form: str) -> Column:
    return Column("change", head, cell(key, lambda value: MISSING if value is None else format(value, form)))


_FIGURES = (_figure("change_norm", "norm", ".4g"), _figure("norm_ratio", "/ median", ".3g"), _figure("cosine", "cosine", ".2f"))


def update_table(rows: Iterable[ScreenedFile]) -> PlainTable:
    """Return the table of a round's update files: all of them if there are few, else those with remarks.

    "counted" are the samples that a capped update counted for.
    """
    every = list(rows)
    shown = every if len(every) <= _MOST else [row for row in every if remarks(row)]
    columns = (
        text("update", "", "file"),
        *under("tier", tier_label, tier=""),
        *under("samples", "{:,}".format, samples=""),
        *_FIGURES,
        Column("counted", "", lambda row: MISSING if row.counted_samples is None else f"{row.counted_samples:,}"),
        Column("clipped", "", lambda row: "yes" if row.clipped else "", numeric=False),
        Column("remarks", "", lambda row: ", ".join(remarks(row)), numeric=False),
    )
    return PlainTable.of(columns, shown)


def screened_clients(rounds: Sequence[RoundLine]) -> list[ScreenedClient]:
    """Return a row for each client of a run whose updates were screened; those with the most remarks come first."""
    found: dict[int, list[Screened]] = {}
    for client in clients_of(rounds):
        if client.screened is not None:
            found.setdefault(client.client, []).append(client.screened)
    return sorted(map(_of_client, found, found.values()), key=lambda row: (-row.remarked, -(row.norm_ratio or 0.0), row.client))


def _of_client(client: int, found: Sequence[Screened]) -> ScreenedClient:
    return ScreenedClient(
        client,
        len(found),
        _middle(one.change_norm for one in found),
        _middle(one.norm_ratio for one in found),
        _middle(one.cosine for one in found),
        clipped=sum(one.clipped for one in found),
        dropped=sum(one.dropped for one in found),
        capped=sum(one.counted_samples is not None for one in found),
        remarked=sum(bool(remarks(one)) for one in found),
    )


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def client_table(rounds: Sequence[RoundLine]) -> PlainTable:
    """Return the table of :func:`screened_clients`, of the first clients; without rows if no update was screened."""
    columns = (
        *under("client", str, client=""),
        *under("rounds", str, rounds="", remarked="with remarks"),
        *_FIGURES,
        *under("rounds in which it was", str, clipped="clipped", dropped="left out", capped="capped"),
    )
    return PlainTable.of(columns, screened_clients(rounds)[:_MOST])
