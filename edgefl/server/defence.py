"""The contract of a defence: robust aggregation as a step before a method's own aggregation. Updates go in, updates come out.

A :class:`Centre` replaces every client's change, coordinate by coordinate, by a robust centre of the clients that hold the coordinate. A
:class:`Filter` drops the updates that lie far from the others. Either way the method's own ``aggregate`` follows. So defences combine with
any method, if its clients share coordinates (:mod:`edgefl.server.coordinates`). A synchronous round is needed: all clients must
have started from the same model.

To add one, write a file in ``edgefl/contrib/attacks/`` with a class decorated ``@defence("name", needs=DEFENDED)``.
"""

import abc
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.errors import AggregationError, ConfigError
from edgefl.records import Update
from edgefl.registry import defences
from edgefl.server.coordinates import Changes, Gaps
from edgefl.util.compute import described


@dataclass(frozen=True)
class Defence(abc.ABC):
    """The server's treatment of updates that differ from the others.

    Attributes:
        strength: the defence's only number; its meaning is the defence's own.
        usual_strength: its value if a run does not set it.
        most: the largest strength that makes sense; None: any positive number.
        passes: whether updates pass unchanged. The server then does not hold them.
    """

    strength: float

    usual_strength: ClassVar[float] = 0.0
    most: ClassVar[float | None] = None
    passes: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return defences.name_of(type(self)) or type(self).__name__

    @abc.abstractmethod
    def defended(self, changes: Changes) -> list[Update]:
        """Return the updates to aggregate, from those of a round: changed, dropped, or as they are."""


class Centre(Defence):
    """A defence that computes with one coordinate at a time."""

    @abc.abstractmethod
    def centre(self, values: Tensor) -> Tensor:
        """Return the centre (coordinates,) of the changes ``values`` (clients, coordinates) float64, whatever the order of the clients."""

    def defended(self, changes: Changes) -> list[Update]:
        """Return every update with the centre as its change, at all coordinates that its client holds."""

        def centre(values: Tensor) -> Tensor:
            change: object = self.centre(values)
            if not isinstance(change, Tensor) or change.shape != values.shape[1:]:
                returned, expected = described(change), described(values[0])
                raise AggregationError(f"defence {self.name}: centre returned {returned}, expected {expected}")
            return change

        return changes.replaced(centre)


class Filter(Defence):
    """A defence that keeps or drops whole updates."""

    @abc.abstractmethod
    def kept(self, gaps: Gaps) -> Sequence[int]:
        """Return the positions of the updates to keep, at least one."""

    def defended(self, changes: Changes) -> list[Update]:
        """Return the updates that are kept, as they are."""
        positions, chosen = range(len(changes.updates)), self.kept(changes.gaps())
        if not isinstance(chosen, Sequence | Set) or not chosen or not set(chosen) <= set(positions):
            raise AggregationError(
                f"defence {self.name}: kept returned {chosen!r}, expected positions from 0 to {positions[-1]}, one at least"
            )
        return [changes.updates[position] for position in sorted(chosen)]


def defence_named(name: str, strength: float | None = None) -> Defence:
    """Return the defence ``name`` with its usual strength or ``strength``.

    Raises:
        UnknownNameError: there is no such defence.
        ConfigError: the strength is too large.

    >>> defence_named("trimmed-mean").strength
    0.2
    """
    kind: type[Defence] = defences.load(name)
    if strength is not None and kind.most is not None and strength >= kind.most:
        raise ConfigError(f"defence_strength: {name} takes a share below {kind.most:g}, got {strength:g}")
    return kind(kind.usual_strength if strength is None else strength)
