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
WORST_CLIENT = Metric("accuracy of the worst client", share=False)
METRICS = {
    "accuracy": ACCURACY,
    "macro-f1": Metric("macro F1"),
    "balanced-accuracy": Metric("balanced accuracy"),
    "worst-client": WORST_CLIENT,
}
"""The metrics that a run may name, of labels. That of the worst client is one number of all clients, and no share of one client's."""
