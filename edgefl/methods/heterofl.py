"""HeteroFL: a tier is a width, and a client trains the leading slice of every tensor; and OrigDrop, without the full width."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.methods.capabilities import ByLabel
from edgefl.methods.losses import cross_entropy, masked_cross_entropy
from edgefl.methods.options import MethodConfig
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture, classifier_tensors, load, once_per_network, weighted_layers
from edgefl.records import Batch, Tier
from edgefl.registry import method


class HeteroFLConfig(MethodConfig):
    """Options of HeteroFL.

    Attributes:
        mask_labels: whether a client's loss ignores labels that it has no samples of (section 4). If clients have few labels and rounds
            are few, the global model is far better without it.
        label_rows: whether a row of the classifier is averaged only over clients that have samples of its label, as in the authors' code.
            Clients then send the list of their labels.
    """

    mask_labels: bool = True
    label_rows: bool = True


@method("heterofl")
class HeteroFL(ByLabel):
    """A client of width p trains the leading slice of every tensor. Every entry is averaged over the clients that hold it.

    Entries that no client holds do not change. The rows of the classifier are averaged over the clients that have samples of the row's
    label, as in the authors' code (``combine`` in fed.py). In training, the outputs of hidden layers are divided by p, so that activations
    are of the same size at all widths (section 4, "scaler"). The loss is masked to the client's own labels. BatchNorm, if any, is static.
    Unless a run says otherwise, the gradient of a step has a norm of at most 1, as in the authors' code (train_classifier_fed.py). The
    scaler lengthens gradients, so that training diverges at lower rates without this bound.

    Differs from the paper: a deployed tier has the scaler folded into its weights, while the paper deploys the full width (p = 1) only.
    The scaler follows every layer that is narrower than at full width. In the paper it stands before normalisation layers, where the two
    cancel except for ε. Recurrent layers and embeddings have no scaler, because inside a recurrence it would act at every step. Each gate
    of a recurrent weight is sliced separately.
    """

    config: HeteroFLConfig
    title = "HeteroFL"
    paper = "Diao et al., ICLR 2021"
    tier_meaning = "width p: the share of channels of every hidden layer"
    travels = "the leading slice of every weight, both ways"
    weighs_samples = False
    clip_gradient: ClassVar[float | None] = 1.0

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = architecture.build(tier.ratio)
        if tier.ratio < 1:
            for name in _narrowed(architecture, tier.ratio):
                network.get_submodule(name).register_forward_hook(lambda module, inputs, output: output / tier.ratio)
        return network

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        return (masked_cross_entropy if self.config.mask_labels else cross_entropy)(module(batch.x), batch)

    def label_rows(self, architecture: Architecture) -> frozenset[str]:
        return classifier_tensors(architecture) if self.config.label_rows else frozenset()

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the plain network of width p with the scalers folded into its weights."""
        network = state.architecture.build(tier.ratio)
        load(network, self.submodel(state, tier, np.random.default_rng(0)).tensors)
        with torch.no_grad():
            for name in _narrowed(state.architecture, tier.ratio):
                for parameter in network.get_submodule(name).parameters():
                    parameter.div_(tier.ratio)
        return network.eval()


@method("origdrop")
class OrigDrop(HeteroFL):
    """HeteroFL's leading slices and training, but no client has the full width (PriSM, section 4, Baselines).

    The server holds the network of the largest tier only, because no client trains the other entries of the full network. Scalers and
    initial weights are those of HeteroFL at full width, and gradients are not clipped. A run therefore equals one of HeteroFL at the same
    tiers with ``clip_gradient = "none"``, bit for bit.
    """

    title = "OrigDrop"
    paper = "Niu et al., TMLR 2023, section 4 (Baselines)"
    default_tiers = (0.4, 0.2)
    clip_gradient = None
    whole = False
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "the full tier computes what the global model computes": "a deployed network has the scaler of its width folded into its "
        "weights, and the largest width is below 1 here",
    }

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the largest tier's slice of the full network's initial weights."""
        full = HeteroFL(self.config)
        state = full.init(architecture, tiers, rng)
        return state.replace(full.submodel(state, max(tiers), rng).tensors)


@once_per_network
def _narrowed(architecture: Architecture, width: float) -> tuple[str, ...]:
    """Return the names of the layers that have fewer outputs at ``width`` than at width 1: never the classifier."""
    outputs = {name: layer.weight.shape[0] for name, layer in weighted_layers(architecture.skeleton())}
    return tuple(name for name, layer in weighted_layers(architecture.skeleton(width)) if layer.weight.shape[0] < outputs[name])
