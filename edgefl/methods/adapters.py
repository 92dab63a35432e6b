"""Methods with LoRA adapters: a frozen base, a pair of small trained layers beside some of its layers, and a dense classifier.

A tier p has pairs of rank r = ⌊p·``rank``⌋, at least 1 and at most a layer's full rank. A layer with m inputs and n outputs computes
W x + s·B A x (Hu et al., LoRA, ICLR 2022). Initially A (r × m) has torch's values for linear layers, and B (n × r) is zero. The scale
s = α/r is the same for every rank, because FLoRA's code sets α = 2r. A convolution has FedHM's pair of convolutions.

The base is part of the application, with its initial weights. It is never sent, so it costs memory and MACs but no bytes. Autograd computes
no gradients of its weights, and stores nothing for them. The gradients of activations still pass through it to the first adapter.
BatchNorm layers with running statistics use those of the base. A device runs the base with its adapters merged into it.

Papers about language models adapt the query and value projections of attention (LoRA, section 7.1; FLoRA's code). If a network has layers
of such names, these have the adapters. Otherwise the layers that FedHM factorizes have them, and frozen ones too. The option ``factorize``
chooses others. A weight that two layers share has no adapter.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgefl.factor.adapter import attach, merged, names_of
from edgefl.factor.layers import unrolled_factors
from edgefl.factor.svd import unroll
from edgefl.factor.width import leading
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.capabilities import Factorizes
from edgefl.methods.layer_rules import FactorizingConfig
from edgefl.methods.networks import cut_out, upload_shapes
from edgefl.methods.personal import Personal, download_shapes, trained_network
from edgefl.methods.ranks import Ranks, dense_reasons, never_factorized, rank_candidates
from edgefl.methods.state import GlobalState, Tensors
from edgefl.methods.updates import checked
from edgefl.models.base import Architecture, stem_and_classifier, weighted_layers
from edgefl.models.ties import tied
from edgefl.records import Batch, Submodel, Tier, Update

QUERY_AND_VALUE = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "to_q", "to_v", "qkv", "query_key_value", "c_attn")
"""How common libraries name attention's projections to queries and values: the last part of a layer's name. Some also compute keys."""


class AdapterConfig(FactorizingConfig):
    """Options of every method with adapters; ``factorize`` chooses the layers that have one.

    Attributes:
        rank: the rank of tier 1. A tier p has rank ⌊p·rank⌋, at least 1.
        scale: s = α/r, the factor of the adapters' product. It is the same for all ranks.
        head: whether the classifier is trained, as a dense layer. Set it to false if the base's own classifier fits the labels. A
            classifier whose weight is also an embedding is always frozen.
    """

    rank: int = Field(8, ge=1)
    scale: float = Field(2.0, gt=0, allow_inf_nan=False)
    head: bool = True


class Adapted(Personal, Factorizes):
    """A method that trains adapters of a frozen network. The server's state has the network and adapters of the option ``rank``."""

    config: AdapterConfig
    travels = "the adapters of the tier's rank and the classifier, both ways"
    stays = "the frozen base: it is part of the application"
    stored = False

    def rank(self, tier: Tier) -> int:
        """Return the tier's rank in layers whose full rank is not smaller."""
        return max(1, math.floor(tier.ratio * self.config.rank + 1e-9))

    def ranks(self, network: nn.Module, rank: int) -> Ranks:
        """Return layer → rank of its adapter in a dense ``network``: ``rank``, or the layer's full rank if that is smaller.

        Raises:
            ConfigError: no layer can have an adapter, or the option ``factorize`` is wrong.
        """
        layers = rank_candidates(network, self.config.factorize or _usual(network), adapted=True)
        return {name: min(rank, *unroll(layer.weight).shape) for name, layer in layers.items()}

    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        return dense_reasons(network, self.config.factorize or _usual(network), adapted=True)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return self.with_adapters(architecture, self.rank(tier))

    def with_adapters(self, architecture: Architecture, rank: int) -> nn.Module:
        """Return the dense network with adapters of ``rank``; only they and the classifier have gradients."""
        network = architecture.build()
        ranks, head = self.ranks(network, rank), self._head(architecture, network)
        for name, parameter in network.named_parameters(remove_duplicate=False):
            if name.rpartition(".")[0] != head:
                parameter.requires_grad_(False)
        for name, rank in ranks.items():
            attach(network.get_submodule(name), rank, self.config.scale)  # type: ignore[arg-type]
        return network

    def _head(self, architecture: Architecture, network: nn.Module) -> str | None:
        """Return the name of the classifier if it is trained."""
        if not self.config.head:
            return None
        name = stem_and_classifier(network)[1]
        rows = dict(weighted_layers(network))[name].weight.shape[0]
        shared = any(f"{name}.weight" in names for names in tied(network))
        # A network whose last layer has another number of outputs has no classifier of its own, such as a decoder that uses its embedding.
        return None if shared or rows != (architecture.classes or rows) else name

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the dense network: adapters are merged into it."""
        return architecture.build()

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        return merged(trained_network(self, state, tier, personal, client))

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        return GlobalState.begun(architecture, tiers, rng, partial(self.with_adapters, architecture, self.config.rank))

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the base's tensors."""
        trained = {name for name, parameter in network.named_parameters(remove_duplicate=False) if parameter.requires_grad}
        return frozenset(network.state_dict().keys() - trained)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return leading slices: a smaller rank has the first rows of A and the first columns of B."""
        shapes = download_shapes(self, state.architecture, tier)
        return cut_out(self, state, tier, {name: leading(name, shape) for name, shape in shapes.items()})

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        if module.training:
            for layer in module.modules():
                if isinstance(layer, _BatchNorm) and layer.track_running_stats:
                    layer.eval()
        return super().local_loss(module, batch)

    def layers(self, state: GlobalState) -> Ranks:
        """Return layer → rank of the adapters in ``state``."""
        return state.once("adapters", lambda: self.ranks(state.architecture.skeleton(), self.config.rank))

    def pair_energies(self, state: GlobalState) -> dict[str, list[float]]:
        """Return layer → ‖BA‖²_F of the ranks of each band alone: one per tier, smallest first (:meth:`Figures.energy_bands`).

        A tier's ranks are the leading rows of A and columns of B. The band of a tier that was pruned below a smaller one is empty.
        """
        energies = {}
        for layer, most in self.layers(state).items():
            ends = [0, *accumulate((min(self.rank(tier), most) for tier in sorted(state.tiers)), max)]
            left, right = (factor.double() for factor in unrolled_factors(*(state.tensors[name] for name in names_of(layer))))
            energies[layer] = [float(torch.linalg.vector_norm(left[:, a:b] @ right[a:b]) ** 2) for a, b in pairwise(ends)]
        return energies

    def with_heads(self, state: GlobalState, updates: Iterable[Update], heads: dict[str, Tensor]) -> Iterator[Update]:
        """Yield ``updates``, each checked, and fill ``heads`` after the last one.

        ``heads`` then has name → mean, weighted by samples, of the dense tensors that clients trained: those of the classifier.
        """
        pairs = {name for layer in self.layers(state) for name in names_of(layer)}
        dense = [name for name in upload_shapes(self, state.architecture, state.tiers[0]) if name not in pairs]
        total = WeightedSum({name: state.tensors[name] for name in dense})
        for update in checked(self, state, updates):
            for name in dense:
                total.add(name, update.tensors[name], float(update.samples))
            yield update
        heads |= total.mean({name: state.tensors[name] for name in dense})


def _usual(network: nn.Module) -> str:
    """Return rules that choose the projections of attention to queries and values, "" if there are none."""
    never = never_factorized(network, adapted=True)
    layers = (name for name, _ in weighted_layers(network) if name not in never)
    return ",".join(name for name in layers if name.rpartition(".")[2] in QUERY_AND_VALUE)
