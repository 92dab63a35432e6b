"""Rows of settings that cover every pair of choices of two axes, with few runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs(row: Mapping[str, str]) -> set[Pair]:
    """Return the pairs of choices in ``row``."""
    return set(combinations(sorted(row.items()), 2))


def pairwise(axes: Mapping[str, Sequence[str]], allowed: Callable[[Row], bool]) -> Iterator[Row]:
    """Yield rows, one choice of each axis, that together have every pair of choices which is ``allowed`` without further ones.

    A row begins with a pair that no row before it has. Axis by axis it takes the choice with most such pairs, the first of equals. The
    rows are always the same ones.

    >>> axes = {"a": "01", "b": "01", "c": "01"}
    >>> ["".join(row[axis] for axis in axes) for row in pairwise(axes, lambda row: True)]
    ['000', '011', '101', '110']
    """
    every = [
        {one: a, other: b} for (one, first), (other, second) in combinations(axes.items(), 2) for a, b in product(first, second)
    ]
    missing = {next(iter(pairs(row))): row for row in every if allowed(row)}
    while missing:
        row = next(iter(missing.values()))
        for axis in [axis for axis in axes if axis not in row]:
            longer = [{**row, axis: choice} for choice in axes[axis] if allowed({**row, axis: choice})]
            row = max(longer, key=lambda row: len(pairs(row) & missing.keys()))
        missing = {pair: begun for pair, begun in missing.items() if pair not in pairs(row)}
        yield row
