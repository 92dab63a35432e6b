"""Factorized-FL and its variant β: rank-1 weights with a sparse correction, averaged for each client over similar clients."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.compose import composed_network
from edgefl.factor.rank1 import RankOne, RankOneConv2d, RankOneLinear, cosines, fill, matching_weights, prune, rank_one
from edgefl.factor.width import cut
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import MethodConfig
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.state import GlobalState, Shapes, Tensors, copied
from edgefl.models.base import Architecture, Unfilled, replace_layer, weighted_layers
from edgefl.records import Submodel, Tier, Update
from edgefl.registry import method
from edgefl.rng import torch_seeded


class FactorizedFLConfig(MethodConfig):
    """Options of Factorized-FL.

    Attributes:
        sparsity: λ of λ·‖μ‖₁ (Eq. 6); smaller entries of μ are pruned. The paper has 5e-4 to 1e-3.
        threshold: τ; clients of a smaller cosine similarity are left out (Eq. 4). The paper has 0 to 0.75.
        scale: ε of softmax(ε·σ) (Eq. 5). The paper has 1 to 20.
        personal_classifier: whether the last layer never leaves the client, for permuted labels or different tasks.
    """

    sparsity: float = Field(5e-4, ge=0, allow_inf_nan=False)
    threshold: float = Field(0.5, ge=-1, le=1)
    scale: float = Field(10.0, ge=0, allow_inf_nan=False)
    personal_classifier: bool = True


@method("factorized-fl")
class FactorizedFL(FedAvg):
    """W = π(u vᵀ ⊕ μ) in every convolution and linear layer, trained as u, v and μ with λ‖μ‖₁ (Eq. 2, 3 and 6); μ begins at zero.

    A client sends the u of its layers and v of the second-last layer. The server stores what each client sent last. Client k receives
    u_k = Σ_i softmax(ε·σ)_i u_i over the clients with σ_i ≥ τ, where σ_i is the cosine of that v with its own, and 1 for itself (Eq. 4
    and 5, Algorithm 1). v, μ, biases and normalisation stay on the client. A new client receives the mean of the last round, by samples,
    at first the initial u. Deployed networks are dense, with the entries of μ below λ pruned. Without a client, the network has that mean
    and the first values of all other tensors. The server's memory grows with the number of clients that took part.

    1×1 convolutions are factorized as linear layers on every pixel: by Eq. 3 their u would be one number. Convolutions with padding other
    than zeros, and layers that are neither convolutions nor linear, stay dense and on the client.

    A step moves W by (1 + ‖u‖² + ‖v‖²)·η, about ten times as far as a dense weight: choose a lower rate than for the dense network.

    Differs from the paper: Eq. 5 prints the sum over u_i outside of the weights, which gives every client a multiple of the plain sum.
    Here each u_i has its own weight. The sum runs over all clients that ever took part, not over those of this round. The paper does not
    print its first values (:func:`edgefl.factor.rank1.first_factors`).
    """

    config: FactorizedFLConfig
    title: ClassVar[str] = "Factorized-FL"
    paper: ClassVar[str] = "Jeong and Hwang, Factorized-FL: Agnostic Personalized Federated Learning, NeurIPS 2022"
    tier_meaning: ClassVar[str] = "one tier only: the width of the network that everyone factorizes"
    travels: ClassVar[str] = "down: u of every layer, averaged for each client; up: u, and v of the second-last layer"
    stays: ClassVar[str] = "v and μ of every layer, biases, normalisation, and the classifier (personal_classifier)"
    per_client: ClassVar[bool] = True
    personalised: ClassVar[bool] = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "clients are matched by comparing the factors of one round",
        "server_step": "every client receives an average of its own: there is no one server step to scale, or to gather momentum from",
        "common_model": "every client has an average of its own: there is no common stationary point, and no mean gradient to turn to",
    }

    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "entries that nobody covered keep their value": "a client sends v of the second-last layer, which it does not receive, so that "
        "no place covers it",
    }

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Require another client, and a layer before the classifier whose v is compared."""
        if clients < 2:
            raise ConfigError(f"one client alone for similarity matching: clients is {clients}; Factorized-FL takes 2 or more")
        for tier in tiers:
            _second_last(_skeleton(architecture, tier))

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return _factorized(architecture.build(tier.ratio), False)

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def personal(self, network: nn.Module) -> frozenset[str]:
        return frozenset(network.state_dict()) - self._down(network)

    def upload_shapes(self, architecture: Architecture, tier: Tier) -> Shapes:
        network = _skeleton(architecture, tier)
        up = self._up(network)
        return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if name in up}

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the first values of the whole network, personal tensors included."""
        with torch_seeded(rng):
            network = _factorized(architecture.build(tiers[0].ratio), True)
        return GlobalState(architecture, tiers, copied(network))

    def first_personal(self, architecture: Architecture, tier: Tier, rng: np.random.Generator) -> dict[str, Tensor]:
        names = self.personal(_skeleton(architecture, tier))
        return {name: tensor for name, tensor in self.init(architecture, (tier,), rng).tensors.items() if name in names}

    def _down(self, network: nn.Module) -> frozenset[str]:
        layers = list(rank_one_layers(network))
        return frozenset(f"{layer}.u" for layer in (layers[:-1] if self.config.personal_classifier else layers))

    def _up(self, network: nn.Module) -> frozenset[str]:
        return self._down(network) | {f"{_second_last(network)}.v"}

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the client's own average, or the last round's mean for a new client or none."""
        places, weights = self.places(state, tier, rng, client), self._weights(state, client)
        tensors = {name: _mixed(state, name, weights) for name in places} if weights else cut(state.tensors, places)
        return Submodel(tier, tensors, partial(self.network, state.architecture, tier), places)

    def _weights(self, state: GlobalState, client: int | None) -> dict[int, float]:
        """Return client → weight of its u in the average for ``client``, without zeros; empty for a new client."""
        members = state.once("members", lambda: sorted(state.clients))
        if client not in members:
            return {}
        key = f"{_second_last(state.once('skeleton', lambda: _skeleton(state.architecture, state.tiers[0])))}.v"
        rows = partial(torch.stack, [state.clients[member][key].flatten() for member in members])
        similarity = state.once("similarity", lambda: cosines(rows()))
        own = members.index(client)
        weights = matching_weights(similarity[own], own, self.config.threshold, self.config.scale)
        return {member: float(weight) for member, weight in zip(members, weights, strict=True) if weight > 0}

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Remember what each client sent, and average it for new clients."""
        sent, clients = {name: state.tensors[name] for name in self.client_shapes(state)}, dict(state.clients)
        total = WeightedSum(sent)
        for update in self.checked(state, updates):
            for name, tensor in update.tensors.items():
                total.add(name, tensor, float(update.samples))
            clients[update.client] = {name: tensor.clone() for name, tensor in update.tensors.items()}
        return state.replace({**state.tensors, **total.mean(sent)}, clients=clients)

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> dict[str, Any]:
        """Return how many clients are known, and over how many, in the mean, a client's average is taken."""
        members = sorted(state.clients)
        matched = [len(self._weights(state, member)) for member in members]
        return {"known_clients": len(members), "matched_clients": sum(matched) / len(matched)} if members else {}

    def client_shapes(self, state: GlobalState) -> Shapes:
        return self.upload_shapes(state.architecture, state.tiers[0])

    def composed(self, architecture: Architecture, tier: Tier, network: nn.Module) -> nn.Module:
        """Return the dense network of u vᵀ ⊕ μ, with μ pruned."""
        return composed_network(network)

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network of rank-1 layers, with μ pruned."""
        received = self.submodel(state, tier, np.random.default_rng(0), client).tensors
        tensors = {**state.tensors, **received, **(personal or {})}
        with Unfilled():
            network = self.network(state.architecture, tier)
        for name in rank_one_layers(network):
            tensors[f"{name}.mu"] = prune(tensors[f"{name}.mu"], self.config.sparsity)
        network.load_state_dict(tensors)
        return network.eval()

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return λ·‖μ‖₁ of each layer (Eq. 6)."""
        sparsity = self.config.sparsity
        return (sparsity * layer.mu.abs().sum() for layer in rank_one_layers(module).values() if sparsity)

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        up = self._up(module)
        return {name: tensor.detach() for name, tensor in module.state_dict().items() if name in up}


@method("factorized-fl-beta")
class FactorizedFLBeta(FactorizedFL):
    """Factorized-FL whose u, v and μ all travel and are averaged with the same weights (section 5.1, Algorithm 2).

    Biases and normalisation, which the paper does not mention, travel too; the classifier stays on the client with
    ``personal_classifier``. Uploads have zeros for the entries of μ below λ, which the codec ``sparse`` leaves out. Downloads are averages
    of several clients' μ, at full length. The server remembers a whole network of every client that took part.
    """

    title: ClassVar[str] = "Factorized-FL β"
    travels: ClassVar[str] = "both ways: u, v, μ, biases, normalisation; μ goes up pruned, short under --codec sparse; down dense"
    stays: ClassVar[str] = "the classifier (personal_classifier)"
    contract_exceptions: ClassVar[Mapping[str, str]] = {}

    def _down(self, network: nn.Module) -> frozenset[str]:
        classifier = list(rank_one_layers(network))[-1] if self.config.personal_classifier else ""
        state = network.state_dict()
        return frozenset(name for name, t in state.items() if t.is_floating_point() and name.rpartition(".")[0] != classifier)

    def _up(self, network: nn.Module) -> frozenset[str]:
        return self._down(network)

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        mus = {f"{name}.mu" for name in rank_one_layers(module)}
        return {name: prune(t, self.config.sparsity) if name in mus else t for name, t in super().upload(module).items()}


def _factorized(network: nn.Module, filled: bool) -> nn.Module:
    """Replace the layers of ``network`` that can be factorized; ``filled``: by factors of their weights, not by zeros."""
    for name, dense in list(weighted_layers(network)):
        if isinstance(dense, nn.Conv2d) and dense.padding_mode != "zeros":
            continue
        layer = rank_one(dense)
        if filled:
            fill(layer, dense.weight)
        replace_layer(network, name, layer)
    return network


def _skeleton(architecture: Architecture, tier: Tier) -> nn.Module:
    return _factorized(architecture.skeleton(tier.ratio), False)


def rank_one_layers(network: nn.Module) -> dict[str, RankOne]:
    """Return the rank-1 layers by name, in the order of definition."""
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, (RankOneConv2d, RankOneLinear))}


def _second_last(network: nn.Module) -> str:
    """Return the name of the layer before the classifier, or raise :class:`ConfigError` if there is none."""
    names = list(rank_one_layers(network))
    if len(names) < 2:
        raise ConfigError(
            f"Factorized-FL compares clients by v of the layer before the classifier; the network has {len(names)} layers that can be "
            f"factorized ({', '.join(names) or 'none'}), 2 or more are needed"
        )
    return names[-2]


def _mixed(state: GlobalState, name: str, weights: Mapping[int, float]) -> Tensor:
    """Return Σ weight · what each client sent last under ``name``, summed in float64."""
    parts = (weight * state.clients[client][name].double() for client, weight in weights.items())
    return sum(parts, torch.zeros((), dtype=torch.float64)).float()
