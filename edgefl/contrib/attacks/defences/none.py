"""none: updates are aggregated as they are."""

from dataclasses import dataclass
from typing import ClassVar

from edgefl.records import Update
from edgefl.registry import defence
from edgefl.server.coordinates import Changes
from edgefl.server.defence import Defence


@defence("none")
@dataclass(frozen=True)
class NoDefence(Defence):
    """Updates are aggregated as they are. It assumes that every client is honest."""

    passes: ClassVar[bool] = True

    def defended(self, changes: Changes) -> list[Update]:
        return list(changes.updates)


UNDEFENDED = NoDefence(0.0)
"""The one object of this class that is needed, since it has no strength."""
