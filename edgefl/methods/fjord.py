"""FjORD: a tier is a width, and in every step a client trains a random width up to its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.factor.gradient import called_with, held
from edgefl.methods.axes import Need
from edgefl.methods.capabilities import Draws
from edgefl.methods.losses import cross_entropy
from edgefl.methods.options import MethodConfig
from edgefl.methods.state import GlobalState, Tensors, places_in, shapes_of
from edgefl.models.base import Architecture, loaded, named_tensors
from edgefl.models.valueless import has_values
from edgefl.records import Batch, Place, Tier
from edgefl.registry import method


class FjORDConfig(MethodConfig):
    """Options of FjORD.

    Attributes:
        distill: whether narrower widths learn from the outputs of the client's own width (self-distillation) instead of labels.
        tiers: the run's widths, which a client draws from. Set by the run.
    """

    distill: bool = False
    tiers: tuple[float, ...] = (1.0, 0.5, 0.25)


@dataclass(frozen=True)
class Nested:
    """The narrower networks inside a client's network.

    Attributes:
        architecture: builds the network of each width.
        widths: in (0, 1], ascending; the last one is the client's own.
    """

    architecture: Architecture
    widths: tuple[float, ...]
    _narrow: dict[float, tuple[nn.Module, dict[str, Place]]] = field(default_factory=dict, repr=False)

    def drawn(self, draw: float | None) -> float:
        """Return the width of a step with ``draw`` in [0, 1). None, used to count costs, stands for the client's own width.

        >>> nested = Nested(Architecture("mlp", (4,), 2), (0.25, 0.5, 1.0))
        >>> nested.drawn(0.0), nested.drawn(0.34), nested.drawn(0.99), nested.drawn(None)
        (0.25, 0.5, 1.0, 1.0)
        """
        last = len(self.widths) - 1
        return self.widths[last if draw is None else min(int(draw * len(self.widths)), last)]

    def forward(self, module: nn.Module, width: float, x: Any) -> Tensor:
        """Return the logits (batch, classes) of the network of ``width``, which uses slices of the weights of ``module``."""
        if width == self.widths[-1]:
            return module(x)
        tensors = named_tensors(module)
        skeleton, places = self._narrower(module, width)
        slices = {name: tensors[name][place.index] for name, place in places.items()}
        skeleton.train(module.training)
        return called_with(skeleton, slices, x)

    def prepare(self, module: nn.Module) -> None:
        """Find the places of all widths in ``module`` now: an export that asks for them first would record how they are found."""
        for width in self.widths[:-1]:
            self._narrower(module, width)

    def _narrower(self, module: nn.Module, width: float) -> tuple[nn.Module, dict[str, Place]]:
        if width not in self._narrow:
            skeleton = self.architecture.skeleton(width)
            narrow, wide = shapes_of(named_tensors(skeleton)), shapes_of(named_tensors(module))
            self._narrow[width] = skeleton, places_in(self.architecture, skeleton, narrow, wide, width, self.widths[-1])
        return self._narrow[width]


@method("fjord")
class FjORD(Draws):
    """Ordered dropout: each step trains the leading channels of a width, drawn uniformly from the tiers up to the client's own.

    The drawn network is physically small and uses slices of the client's weights, so a step has the cost of its width. Every entry is
    averaged over the clients that hold it, by samples. Entries that no client holds do not change. Scales and shifts of normalisation are
    leading slices too; its statistics are those of the present batch or sample.

    With ``distill`` every step trains the client's own width on the labels. A narrower drawn width learns without labels. Its loss is the
    divergence KL(p ‖ q) of its softmax q from the softmax p of the client's own width, with p as a constant (the paper's α = T = 1). The
    cost of every step is then counted as that of the own width plus that of the widest narrower one.

    Differs from the paper: there, each width has BatchNorm statistics and scales of its own. Here all widths share slices of one set of
    scales, and no statistics are stored. Weight decay and momentum also act on entries outside of the drawn width, with a gradient of zero.
    """

    config: FjORDConfig
    title = "FjORD"
    paper = "Horváth et al., NeurIPS 2021"
    tier_meaning = "width p: the share of leading channels of every hidden layer that a client holds at most"
    travels = "the leading slice of every weight at the client's own width, both ways"
    trains_smaller = True

    @property
    def lacks(self) -> Mapping[Need, str]:
        """Capability → reason: ``own_loss`` with distillation, which compares class probabilities."""
        reason = "distillation compares class probabilities; give --method-option distill=false"
        return {"own_loss": reason} if self.config.distill else {}

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build(tier.ratio)
        nested = Nested(architecture, self._widths(tier))
        if has_values():
            nested.prepare(network)
        network.nested = nested  # type: ignore[assignment]
        return network

    def _widths(self, tier: Tier) -> tuple[float, ...]:
        return tuple(sorted({ratio for ratio in self.config.tiers if ratio < tier.ratio} | {tier.ratio}))

    def step_tiers(self, tier: Tier) -> tuple[Tier, ...]:
        """Return the tiers up to the client's own, or with ``distill`` the own tier, which every step then trains."""
        return (tier,) if self.config.distill else tuple(map(Tier, reversed(self._widths(tier))))

    def draws(self, tier: Tier) -> tuple[float | None, ...]:
        count = len(self._widths(tier))
        return tuple((kind + 0.5) / count for kind in range(count))

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of the drawn width; with ``distill``, that of the own width plus the divergence of the drawn one."""
        nested: Nested = module.nested  # type: ignore[assignment]
        width = nested.drawn(batch.draw)
        if not self.config.distill:
            return cross_entropy(nested.forward(module, width, batch.x), batch)
        teacher = module(batch.x)
        loss = cross_entropy(teacher, batch)
        if batch.draw is None:  # costs are counted for the most expensive draw: the widest narrower network
            width = nested.widths[-2:][0]
        if width == nested.widths[-1]:
            return loss
        student = F.log_softmax(nested.forward(module, width, batch.x), 1)
        return loss + F.kl_div(student, F.log_softmax(held(teacher), 1), reduction="batchmean", log_target=True)

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        tensors = self.submodel(state, tier, np.random.default_rng(0), client).tensors
        return loaded(state.architecture.build(tier.ratio), tensors)
