"""How a run aggregates securely: what ``secure_aggregation`` of its configuration says."""

import difflib
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

PROTOCOLS = ("secagg", "secagg+")
"""All members of a group are neighbours, or each has some."""


@dataclass(frozen=True)
class SecureAggregation:
    """The protocol and its parameters; a text such as ``secagg+:neighbours=12,bits=24``.

    Attributes:
        protocol: "secagg" or "secagg+".
        neighbours: with how many others a client shares masks, an even number; only for secagg+.
        group: the most clients whose updates are added up; the clients of a tier and round are divided into groups.
        least: the fewest clients whose updates are added up. A tier with fewer in a round is not asked.
        threshold: more than this share of a client's neighbours, with itself, must answer to recover its masks.
        bits: bits of a value that travels.
        bound: largest magnitude of a change of a weight; larger changes are clipped.
        stage_s: how long the server waits for the answers of a stage, in simulated seconds.
        masks: "real": clients mask their vectors; "costed": the same integers travel without masks, which gives the same sums.

    >>> SecureAggregation.of("secagg+:bits=24")
    SecureAggregation(protocol='secagg+', neighbours=20, group=100, least=3, threshold=0.5, bits=24, bound=1.0, stage_s=5.0, masks='real')
    """

    protocol: str = "secagg"
    neighbours: int = 20
    group: int = 100
    least: int = 3
    threshold: float = 0.5
    bits: int = 32
    bound: float = 1.0
    stage_s: float = 5.0
    masks: Literal["real", "costed"] = "real"

    def __post_init__(self) -> None:
        _within("least", self.least, 2, 10**6)
        _within(
            "group", self.group, 2 * self.least - 1, 10**6, "so that a tier can be divided into groups that are not too small"
        )
        _within("neighbours", self.neighbours, 2, 10**6)
        _within("bits", self.bits, 8, 32)
        if self.neighbours % 2:
            raise ValueError(f"neighbours: got {self.neighbours}, expected an even number")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold: got {self.threshold:g}, expected a share between 0 and 1")
        for name in ("bound", "stage_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}: got {getattr(self, name):g}, expected a positive number")
        if self.masks not in ("real", "costed"):
            raise ValueError(f"masks: got {self.masks}, expected real or costed")

    @classmethod
    def of(cls, text: str) -> Self | None:
        """Return what a text says; None for "off".

        Raises:
            ValueError: the protocol or a parameter is unknown, or a value is wrong.

        >>> SecureAggregation.of("off") is None
        True
        >>> SecureAggregation.of("secagg:group=ten")
        Traceback (most recent call last):
            ...
        ValueError: group: got ten, expected a whole number
        """
        protocol, _, rest = text.partition(":")
        if protocol == "off" and not rest:
            return None
        if protocol not in PROTOCOLS:
            raise ValueError(f"got {text}, expected off, secagg or secagg+, with parameters as in secagg+:neighbours=12,bits=24")
        parameters: dict[str, Any] = {}
        for part in rest.split(",") if rest else ():
            name, equals, value = part.partition("=")
            if name not in _KINDS or (name == "neighbours" and protocol == "secagg"):
                raise ValueError(f"{name or text}: {_unknown(name, protocol)}")
            if not equals or name in parameters:
                raise ValueError(f"{name}: expected {name}=VALUE, once")
            parameters[name] = _read(name, value)
        return replace(cls(protocol), **parameters)

    def neighbours_in(self, members: int) -> int:
        """Return how many neighbours each client has in a group of so many members."""
        return members - 1 if self.protocol == "secagg" else min(self.neighbours, members - 1)

    def sizes(self, clients: int) -> list[int]:
        """Return the sizes of the groups that so many clients of a tier form, as equal as possible; none if they are too few.

        >>> SecureAggregation(group=10).sizes(23), SecureAggregation(least=5, group=9).sizes(4)
        ([8, 8, 7], [])
        """
        if clients < self.least:
            return []
        count = -(-clients // self.group)
        return [clients // count + (place < clients % count) for place in range(count)]


_KINDS: dict[str, type] = {field.name: type(field.default) for field in fields(SecureAggregation) if field.name != "protocol"}


def _read(name: str, value: str) -> Any:
    kind = _KINDS[name]
    try:
        return kind(value)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name}: got {value or 'nothing'}, expected {expected}") from None


def _unknown(name: str, protocol: str) -> str:
    if name == "neighbours":
        return "secagg makes all clients of a group neighbours; give secagg+"
    near = difflib.get_close_matches(name, _KINDS, 1)
    return f"{protocol} has no such parameter;{f' did you mean {near[0]}?' if near else ''} known: {', '.join(_KINDS)}"


def _within(name: str, value: int, least: int, most: int, why: str = "") -> None:
    if not least <= value <= most:
        raise ValueError(f"{name}: got {value}, expected {least} to {most}{f', {why}' if why else ''}")
