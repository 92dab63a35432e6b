"""A data set and its division among clients, before anything runs: a record, and the text that shows it."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgefl.records import DataRecord
from edgefl.util.fields import Fields, each, listed
from edgefl.util.units import human_count, human_percent

_SHADES = " ▁▂▃▄▅▆▇█"
_MOST_CLIENTS, _MOST_CLASSES = 20, 20
_MOST_COLUMNS = 50


@dataclass(frozen=True)
class InspectedClient:
    """The samples of one client: how many it has, and of each class that it has, by the class's number (none in a regression)."""

    client: int
    samples: int
    by_class: dict[int, int]


@dataclass(frozen=True)
class DataInspection:
    """What :func:`edgefl.inspect_data` finds.

    Attributes:
        dataset, title: the name of the data set, and the one in reports.
        input_shape, vocabulary: the shape of a sample, and the number of token ids (0: samples are no ids); of several inputs, by name.
        class_names, train, test: one name, number of training and of held-out samples per class; of a regression no name, and one number
            of all samples.
        owners: the number of owners; 0 without owners.
        preprocessing: how devices prepare samples, as a bundle's manifest has it.
        partition, population: how the samples are divided, and among how many clients.
        smallest, mean, largest: training samples of a client, of all clients.
        clients: the first clients, at most 1,000.
        record: how the user's own data were read; None of a known data set.
    """

    dataset: str
    title: str
    input_shape: Fields[tuple[int, ...]]
    vocabulary: Fields[int]
    class_names: tuple[str, ...]
    train: tuple[int, ...]
    test: tuple[int, ...]
    owners: int
    preprocessing: dict[str, Any]
    partition: str
    population: int
    smallest: int
    mean: float
    largest: int
    clients: tuple[InspectedClient, ...]
    record: DataRecord | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON has it."""
        return asdict(self)

    def __str__(self) -> str:
        return data_text(self)


def _kind(shape: tuple[int, ...], vocabulary: int) -> str:
    size = "x".join(map(str, shape))
    return f"token ids {size}" if vocabulary else f"samples of {size}"


def data_text(found: DataInspection, width: int = 80) -> str:
    """Return the classes with their sizes, and the clients with theirs, in lines of at most ``width`` characters."""
    kind = listed(each(_kind, found.input_shape, found.vocabulary))
    owners = f", {found.owners} owners" if found.owners else ""
    labels = f"{len(found.class_names)} classes" if found.class_names else "targets of a regression"
    sizes = f"{sum(found.train):,} for training and {sum(found.test):,} held out, {kind}, {labels}{owners}"
    lines = [*textwrap.wrap(f"{found.title}: {sizes}", width), ""]
    if found.record is not None:
        told = found.record.lines()
        lines += [*(part for line in told for part in textwrap.wrap(line, width, subsequent_indent="  ")), ""]
    if found.class_names:
        lines += [*_class_table(found, width), ""]
    return "\n".join([*lines, *_client_table(found, width)])


def _class_table(found: DataInspection, width: int) -> Iterator[str]:
    names = [name if len(name) <= width - 40 else f"{name[: width - 41]}…" for name in found.class_names[:_MOST_CLASSES]]
    wide, total = max(5, *map(len, names)), max(1, sum(found.train))
    yield f"{'class':<{wide}}  training  held out   share"
    for name, train, test in zip(names, found.train, found.test, strict=False):
        bar = "█" * round(12 * train / max(found.train))
        yield f"{name:<{wide}}  {train:>8,}  {test:>8,}  {human_percent(train / total):>6}  {bar}".rstrip()
    if (rest := len(found.class_names) - _MOST_CLASSES) > 0:
        yield f"… and {rest} more, of {min(found.train):,} to {max(found.train):,} training samples"


def _client_table(found: DataInspection, width: int) -> Iterator[str]:
    some = found.clients[:_MOST_CLIENTS]
    shown = f"clients 0 to {len(some) - 1} of {human_count(found.population)}, partition {found.partition}"
    told = f"{shown}; {found.smallest:,} to {found.largest:,} samples each, mean {found.mean:,.0f}"
    if not found.class_names:
        yield from (*textwrap.wrap(told, width), "client  samples")
        yield from (f"{c.client:>6}  {c.samples:>7,}" for c in some)
        return
    columns = _grouped(len(found.class_names), min(_MOST_COLUMNS, width - 30))
    column = "class" if len(columns) == len(found.class_names) else f"group of at most {max(map(len, columns))} classes"
    yield from (*textwrap.wrap(f"{told}; a column per {column}, its height the share", width), "client  samples  classes")
    yield from (f"{c.client:>6}  {c.samples:>7,}  {len(c.by_class):>7}  |{_bars(c, columns)}|" for c in some)


def _grouped(classes: int, most: int) -> list[range]:
    """Return the classes of each column: neighbouring ones share a column if there are more than ``most``."""
    step = -(-classes // most)
    return [range(start, min(start + step, classes)) for start in range(0, classes, step)]


def _bars(client: InspectedClient, columns: Sequence[range]) -> str:
    """Return a character per column: the higher, the more of the client's samples.

    >>> _bars(InspectedClient(0, 8, {0: 8}), [range(0, 1), range(1, 2)])
    '█ '
    """
    counts = [sum(client.by_class.get(label, 0) for label in column) for column in columns]
    top = len(_SHADES) - 1
    return "".join(_SHADES[-(-count * top // max(1, client.samples))] for count in counts)
