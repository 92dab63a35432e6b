"""Tiers that are widths, with the leading corner of every tensor: HeteroFL, OrigDrop (small clients only) and FjORD (nested widths)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.factor.gradient import held
from edgefl.factor.width import cut, nested, stacked_in
from edgefl.methods.base import Method, MethodConfig, cross_entropy, masked_cross_entropy
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture, named_tensors, stem_and_classifier, weighted_layers
from edgefl.records import Batch, Tier
from edgefl.registry import method


class HeteroFLConfig(MethodConfig):
    """Options of HeteroFL.

    Attributes:
        mask_labels: whether a client's loss leaves out labels that it has no samples of (section 4). If clients have few labels, a
            global model of few rounds is far better without.
    """

    mask_labels: bool = True


@method("heterofl")
class HeteroFL(Method):
    """Every tensor of width p is a leading slice. Every entry is averaged over the clients that hold it; others keep their value.

    In training, the outputs of hidden layers are divided by p, so that activations have one size at all widths (section 4, "scaler"). The
    loss is masked to the client's own labels. BatchNorm is static if the model has it.

    Differs from the paper: a deployed tier has the scaler folded into its weights; the paper deploys the full width only, where p = 1. The
    scaler follows every layer except the classifier. Before a normalisation layer, where the paper has all its scalers, the two cancel
    except for ε. Recurrent layers and embeddings have none: inside a recurrence it would act at every step. Each gate of recurrent weights
    is sliced separately.
    """

    config: HeteroFLConfig
    title: ClassVar[str] = "HeteroFL"
    paper: ClassVar[str] = "Diao et al., ICLR 2021"
    tier_meaning: ClassVar[str] = "width p: the share of channels of every hidden layer"
    travels: ClassVar[str] = "the leading slice of every weight, both ways"
    weighs_samples: ClassVar[bool] = False

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build(tier.ratio)
        if tier.ratio < 1:
            for layer in _hidden(network).values():
                layer.register_forward_hook(partial(_divide, tier.ratio))
        return network

    def criterion(self, logits: Tensor, batch: Batch) -> Tensor:
        return (masked_cross_entropy if self.config.mask_labels else cross_entropy)(logits, batch)

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the plain network of width p with the scalers folded into its weights."""
        network = state.architecture.build(tier.ratio)
        network.load_state_dict(self.submodel(state, tier, np.random.default_rng(0)).tensors)
        with torch.no_grad():
            for layer in _hidden(network).values():
                for parameter in layer.parameters():
                    parameter.div_(tier.ratio)
        return network.eval()


@method("origdrop")
class OrigDrop(HeteroFL):
    """The leading slice of every weight, trained as HeteroFL trains it, with no client at full width (PriSM, section 4).

    The server holds the network of the largest trained tier only: no client ever has the full network's other entries. Scalers and
    first weights are HeteroFL's for the full width, so that a run has the bits of HeteroFL at the same tiers.
    """

    title: ClassVar[str] = "OrigDrop"
    paper: ClassVar[str] = "Niu et al., TMLR 2023, section 4 (Baselines)"
    default_tiers: ClassVar[tuple[float, ...]] = (0.4, 0.2)
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "the full tier computes what the global model computes": "a deployed network has the scaler of its width folded into its "
        "weights, and the largest width is below 1 here",
    }

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the largest tier's slice of the full network's initial weights."""
        state = super().init(architecture, tiers, rng)
        return state.replace(cut(state.tensors, self.submodel(state, max(tiers), rng).places))

    def global_tier(self, state: GlobalState) -> Tier:
        return max(state.tiers)


def _hidden(network: nn.Module) -> dict[str, nn.Module]:
    classifier = stem_and_classifier(network)[1]
    return {name: layer for name, layer in weighted_layers(network) if name != classifier}


def _divide(ratio: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output / ratio


class FjORDConfig(MethodConfig):
    """Options of FjORD.

    Attributes:
        distill: whether narrower widths learn from the client's own width (self-distillation) instead of the labels.
        tiers: the run's widths, from which a client draws; set by the run.
    """

    distill: bool = False
    tiers: tuple[float, ...] = (1.0, 0.5, 0.25)


@dataclass(frozen=True)
class Nested:
    """The narrower networks inside a client's network: the leading channels of every layer."""

    architecture: Architecture
    widths: tuple[float, ...]
    _skeletons: dict[float, nn.Module] = field(default_factory=dict, repr=False)

    def drawn(self, draw: float | None) -> float:
        """Return the width of a step; None, while costs are counted, stands for the client's own.

        >>> nested = Nested(Architecture("mlp", (4,), 2), (0.25, 0.5, 1.0))
        >>> nested.drawn(0.0), nested.drawn(0.34), nested.drawn(0.99), nested.drawn(None)
        (0.25, 0.5, 1.0, 1.0)
        """
        last = len(self.widths) - 1
        return self.widths[last if draw is None else min(int(draw * len(self.widths)), last)]

    def forward(self, module: nn.Module, width: float, x: Any) -> Tensor:
        """Return the logits of the sub-network of ``width``, computed with slices of the weights of ``module``."""
        if width == self.widths[-1]:
            return module(x)
        if width not in self._skeletons:
            self._skeletons[width] = self.architecture.skeleton(width)
        skeleton = self._skeletons[width].train(module.training)
        own = named_tensors(module)
        narrow = {name: tuple(t.shape) for name, t in named_tensors(skeleton).items()}
        wide = {name: tuple(tensor.shape) for name, tensor in own.items()}
        slices = {name: own[name][place.index] for name, place in nested(narrow, wide, stacked_in(skeleton)).items()}
        return torch.func.functional_call(skeleton, slices, (x,))


@method("fjord")
class FjORD(Method):
    """Ordered dropout: in each step a client draws a width uniformly from the tiers up to its own and trains those leading channels.

    The drawn network is physically small: it uses slices of the client's weights, so a step costs what its width costs. Every entry is
    averaged over the clients that hold it, by samples; entries that no client holds keep their value. Scales and shifts of normalisation
    are leading slices too, and statistics never outlive a batch or sample.

    With ``distill`` a step trains the client's own width on the labels. The drawn width, if narrower, learns
    KL(softmax of the own width's logits, held fixed ‖ its own softmax) at temperature 1 and without labels, the paper's α = T = 1. Costs
    are then those of the own width and the widest below it, in every step.

    Differs from the paper: it has BatchNorm statistics and scales for each width; here widths share slices of one set of scales, and no
    statistics are stored. Weight decay and momentum act on the entries outside of a drawn width too, as if their gradient were zero.
    """

    config: FjORDConfig
    title: ClassVar[str] = "FjORD"
    paper: ClassVar[str] = "Horváth et al., NeurIPS 2021"
    tier_meaning: ClassVar[str] = "width p: the share of leading channels of every hidden layer that a client holds at most"
    travels: ClassVar[str] = "the leading slice of every weight at the client's own width, both ways"

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build(tier.ratio)
        network.nested = Nested(architecture, self._widths(tier))  # type: ignore[assignment]
        return network

    def _widths(self, tier: Tier) -> tuple[float, ...]:
        return tuple(sorted({ratio for ratio in self.config.tiers if ratio < tier.ratio} | {tier.ratio}))

    def step_tiers(self, tier: Tier) -> tuple[Tier, ...]:
        """Return the tiers up to the client's own; with distillation every step trains the own width."""
        return (tier,) if self.config.distill else tuple(map(Tier, reversed(self._widths(tier))))

    def draws(self, tier: Tier) -> tuple[float | None, ...]:
        count = len(self._widths(tier))
        return tuple((kind + 0.5) / count for kind in range(count))

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the cross-entropy of the drawn width; with distillation, that of the own width plus the drawn one's divergence."""
        nested: Nested = module.nested  # type: ignore[assignment]
        width = nested.drawn(batch.draw)
        if not self.config.distill:
            return cross_entropy(nested.forward(module, width, batch.x), batch)
        teacher = module(batch.x)
        loss = cross_entropy(teacher, batch)
        if batch.draw is None:  # the most expensive choice: the widest of the narrower networks
            width = nested.widths[-2:][0]
        if width == nested.widths[-1]:
            return loss
        student = F.log_softmax(nested.forward(module, width, batch.x), 1)
        return loss + F.kl_div(student, F.log_softmax(held(teacher), 1), reduction="batchmean", log_target=True)

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        network = state.architecture.build(tier.ratio)
        network.load_state_dict(self.submodel(state, tier, np.random.default_rng(0), client).tensors)
        return network.eval()
