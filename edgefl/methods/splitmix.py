"""Split-Mix: narrow base networks are trained apart. A tier is the number of them that a client trains and a device runs."""

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.losses import cross_entropy
from edgefl.methods.networks import cut_out, upload_shapes
from edgefl.methods.options import MethodConfig
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Batch, Place, Submodel, Tier
from edgefl.registry import method


class SplitMixConfig(MethodConfig):
    """Options of Split-Mix.

    Attributes:
        base: width b of a base network. None: the run's smallest tier.
        tiers: the run's tiers. Set by the run.
    """

    base: float | None = Field(None, gt=0, le=1)
    tiers: tuple[float, ...] = (1.0, 0.5, 0.25)


class Ensemble(nn.Module):
    """Networks of one architecture, named ``base0``, ``base1``, …. Their logits are averaged."""

    def __init__(self, bases: Iterable[nn.Module]) -> None:
        super().__init__()
        for number, base in enumerate(bases):
            self.add_module(f"base{number}", base)

    def forward(self, x: Any) -> Tensor:
        """Return the mean of the bases' logits (batch, classes)."""
        first, *others = (base(x) for base in self.children())
        return sum(others, first) / (1 + len(others)) if others else first


@method("splitmix")
class SplitMix(Method):
    """K = round(1/b) base networks of width b; a client of tier p trains ⌊p/b⌋ of them, each on its own loss (Hong et al., section 3).

    In every round each client draws a first base, all equally likely, and takes the bases that follow it cyclically. On average every base
    is trained by the same share of clients. A base is averaged over the clients that trained it, by samples. The model of tier p is the
    mean of the logits of the first ⌊p/b⌋ bases, in one graph. A client has at least one base and at most K.

    The bases share no weight, so the gradients of the sum of their losses are those of training each base alone. Costs are those of
    training all side by side: the peak memory includes the activations of all.

    Differs from the paper: its server deals the bases to a round's clients in turn. Here each client draws alone, so that its bases do not
    depend on other clients. Bases have no layer-wise rescaling: each is initialised as a narrow network. Adversarially trained
    normalisation (its section 4) is left out.
    """

    config: SplitMixConfig
    title = "Split-Mix"
    paper = "Hong et al., ICLR 2022"
    tier_meaning = "total width p: as many base networks as add up to it"
    travels = "as many base networks as the tier holds, drawn for each client and round, both ways"
    per_client = True
    trains_smaller = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "tier_means": "clients of a tier train other base networks each, drawn at random",
        "fixed_coordinates": "a client trains other base networks every round: remembered gradients and control variates would be of other "
        "weights",
    }

    @property
    def base(self) -> Tier:
        """The width of a base network."""
        return Tier(self.config.base or min(self.config.tiers))

    @property
    def bases(self) -> int:
        """K, the number of base networks.

        >>> [SplitMix(SplitMixConfig(base=b)).bases for b in (1.0, 0.5, 0.3, 0.125)]
        [1, 2, 3, 8]
        """
        return max(1, round(1 / self.base.ratio))

    def held(self, tier: Tier) -> int:
        """Return the number of base networks of a client of ``tier``.

        >>> [SplitMix(SplitMixConfig(base=0.25)).held(Tier(p)) for p in (1.0, 0.7, 0.5, 0.25, 0.1)]
        [4, 2, 2, 1, 1]
        """
        return min(self.bases, max(1, math.floor(tier.ratio / self.base.ratio + 1e-9)))

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return Ensemble(architecture.build(self.base.ratio) for _ in range(self.held(tier)))

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        return GlobalState.begun(architecture, tiers, rng, partial(self.network, architecture, Tier(1.0)))

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the bases that ``client`` trains; the first bases for no particular client."""
        start = 0 if client is None else int(rng.integers(self.bases))
        # Ascending, so that a client with all bases has each under its own name.
        numbers = sorted((start + slot) % self.bases for slot in range(self.held(tier)))
        places = {}
        for name in upload_shapes(self, state.architecture, tier):
            slot, _, rest = name.partition(".")
            number = numbers[int(slot.removeprefix("base"))]
            places[name] = Place(f"base{number}.{rest}", ())
        return cut_out(self, state, tier, places)

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the bases' cross-entropies, so that each base has the gradients of training it alone."""
        losses = [cross_entropy(base(batch.x), batch) for base in module.children()]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]
