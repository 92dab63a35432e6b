"""The metric by which the models of a run are compared."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """A metric of held-out samples.

    Attributes:
        name: in reports.
        better: which values are better.
        share: whether values are shares in [0, 1], which reports show in percent.
    """

    name: str = "accuracy"
    better: Literal["higher", "lower"] = "higher"
    share: bool = True


ACCURACY = Metric()
