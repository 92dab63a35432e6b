"""none: the method's own loss."""

from dataclasses import dataclass
from typing import ClassVar

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("none")
@dataclass(frozen=True)
class Plain(Objective):
    """The method's own loss without a term."""

    adds: ClassVar[bool] = False


PLAIN = Plain(0.0)
"""The one object of this class that is needed, since it has no strength."""
