"""norm-filter: updates with too large a change are dropped."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from edgefl.registry import defence
from edgefl.server.coordinates import Gaps
from edgefl.server.defence import Filter

_FEW = 3


@defence("norm-filter", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class NormFilter(Filter):
    """An update is dropped if the norm of its change is more than κ times the median norm of its tier.

    The strength is κ. It assumes that less than half of a tier is hostile and that honest changes have norms of one size. It cannot see
    attacks with changes of usual size, such as reversed ones. A tier with one or two clients is compared with the norms of the whole
    round: the values of a smaller tier change more, and there are fewer of them.

    Sun et al. 2019, Can You Really Backdoor Federated Learning? Differs from the paper: it
    scales a large change down to a given bound, as ``--clip-norm`` does; here the update is dropped, and the bound is a multiple of the
    median.
    """

    usual_strength: ClassVar[float] = 3.0

    def kept(self, gaps: Gaps) -> list[int]:
        rows, norms = [], gaps.rms if gaps.norms is None else gaps.norms
        for position, tier in enumerate(gaps.tiers):
            own = torch.tensor([of == tier for of in gaps.tiers])
            sizes, peers = (gaps.rms, own) if int(own.sum()) >= _FEW else (norms, own | True)
            if float(sizes[position]) <= self.strength * float(sizes[peers].quantile(0.5)):
                rows.append(position)
        return rows or [int(gaps.rms.argmin())]
