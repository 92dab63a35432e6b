"""How the samples of a data set were read: what was used, what was left out, and what was guessed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

Preparation = dict[str, Any]
"""How a device prepares samples for a network, in the JSON form of a bundle's manifest, which checks it."""
_MOST_LISTED = 5


@dataclass(frozen=True)
class DataRecord:
    """A reader's account of a user's data. Every entry is a text for people.

    Attributes:
        files: what was read.
        features, label, owner: the columns, arrays or folders that samples, labels and owners are from; "" if none.
        images: modes of the images with their bits, and how many images have each.
        left_out: what was there and was not used, with the reason.
        guessed: what the data do not say, and how it was read.
        scaling: how the values of each input become what a network takes.
    """

    files: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    label: str = ""
    owner: str = ""
    images: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    scaling: tuple[str, ...] = ()

    def beside(self, other: "DataRecord") -> "DataRecord":
        """Return the record of two parts of a data set: the lists of both without repetitions, and the names of the first."""
        values: dict[str, Any] = {}
        for name in (field.name for field in fields(self)):
            own, more = getattr(self, name), getattr(other, name)
            values[name] = tuple(dict.fromkeys([*own, *more])) if isinstance(own, tuple) else own or more
        return DataRecord(**values)

    def lines(self) -> list[str]:
        """Return a line per entry, ``key: text``.

        >>> DataRecord(files=("own.csv",), label="kind", left_out=("id: it numbers the rows",)).lines()
        ['files: own.csv', 'label: kind', 'left out: id: it numbers the rows']
        """
        lines = []
        for name in (field.name for field in fields(self)):
            value, key = getattr(self, name), name.replace("_", " ")
            if name in ("files", "features"):
                value = (some(value, 20),) if value else ()
            lines += [f"{key}: {text}" for text in ([value] if isinstance(value, str) else value) if text]
        return lines


UNREAD = DataRecord()
"""Of samples that no reader has described."""


def some(names: Iterable[str], most: int = _MOST_LISTED) -> str:
    """Return the first few of ``names``, and how many more there are.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    listed: Sequence[str] = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more:,} more" if more > 0 else "")
