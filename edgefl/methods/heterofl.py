"""HeteroFL, whose tiers are widths with the leading corner of every tensor, and OrigDrop, which has small clients only."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.factor.width import cut
from edgefl.methods.base import Method, MethodConfig, cross_entropy, masked_cross_entropy
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture, stem_and_classifier, weighted_layers
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
        """Return the network of width p, with scalers."""
        network = architecture.build(tier.ratio)
        if tier.ratio < 1:
            for layer in _hidden(network).values():
                layer.register_forward_hook(partial(_divide, tier.ratio))
        return network

    def criterion(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return cross-entropy, with ``mask_labels`` over the labels that the client has."""
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
        """Return the largest trained width."""
        return max(state.tiers)


def _hidden(network: nn.Module) -> dict[str, nn.Module]:
    classifier = stem_and_classifier(network)[1]
    return {name: layer for name, layer in weighted_layers(network) if name != classifier}


def _divide(ratio: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output / ratio
