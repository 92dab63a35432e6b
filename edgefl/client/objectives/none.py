"""none: the method's own loss."""

from dataclasses import dataclass
from typing import ClassVar

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("none")
@dataclass(frozen=True)
class Plain(Objective):
    """No term at all."""

    adds: ClassVar[bool] = False


PLAIN = Plain(0.0)
"""The only one there is: a strength means nothing to it."""
