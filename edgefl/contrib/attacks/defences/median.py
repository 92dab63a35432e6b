"""median: the coordinate-wise median of the changes."""

from dataclasses import dataclass

from torch import Tensor

from edgefl.registry import defence
from edgefl.server.coordinates import middle_of
from edgefl.server.defence import Centre


@defence("median", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class Median(Centre):
    """Every coordinate changes by the median of its holders' changes; of an even number, by the mean of the two in the middle.

    It assumes that less than half of the clients that hold a coordinate are hostile, and that honest clients change it alike. If labels
    are spread unevenly, the median loses what only a minority of clients learns. A coordinate that one client holds changes as that
    client says, and of two clients the mean is taken: there is no defence for them. Samples do not weigh. The strength has no meaning.

    Yin et al. 2018, Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
    Differs from the paper: it takes the median of gradients; here it is that of the changes of several local steps.

    >>> import torch
    >>> Median(0.0).centre(torch.tensor([[1.0, 5.0], [2.0, 7.0], [-90.0, 6.0]]).double()).tolist()
    [1.0, 6.0]
    """

    def centre(self, values: Tensor) -> Tensor:
        return middle_of(values)
