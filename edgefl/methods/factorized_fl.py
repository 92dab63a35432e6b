"""Factorized-FL: rank-1 weights u·vᵀ with a sparse correction. u is averaged over similar clients; in β, all parts are."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.compose import composed_network
from edgefl.factor.rank1 import Init, RankOne, RankOneConv, RankOneLinear, cosines, fill, matching_weights, prune, rank_one
from edgefl.factor.width import cut
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.capabilities import Composes, Figures, Remembers
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.layer_rules import kept_layers
from edgefl.methods.networks import skeleton, slices, submodel_of, upload_shapes
from edgefl.methods.options import PersonalClassifierConfig, Scenario
from edgefl.methods.penalties import Penalised
from edgefl.methods.personal import Personal, Receives
from edgefl.methods.state import GlobalState, Shapes, Tensors, travelling_shapes
from edgefl.methods.updates import checked
from edgefl.models.base import Architecture, replace_layer, weighted_layers
from edgefl.records import Observed, Submodel, Tier, Update
from edgefl.registry import method


@dataclass(frozen=True)
class Matching:
    """Which clients are averaged for a client, and with which weights.

    Attributes:
        threshold: τ, the least cosine similarity of a client that is averaged.
        scale: ε of the weights softmax(ε·σ).
        least_share: the share of the known clients that are averaged at least.
    """

    threshold: float
    scale: float
    least_share: float


MATCHING: dict[Scenario, Matching] = {
    "alike": Matching(0.0, 1.0, 1.0),
    "permuted": Matching(0.0, 1.0, 0.5),
    "domains": Matching(0.95, 20.0, 0.2),
}
"""Scenario → values of the authors' code (``main.py``). It averages at least 20, 10 and 4 of 20 clients."""


class FactorizedFLConfig(PersonalClassifierConfig):
    """Options of Factorized-FL. The values for None are those of the authors' code (``main.py``), by scenario.

    Attributes:
        sparsity: λ. Smaller entries of μ are pruned where a network is evaluated or deployed, and in β's uploads. They are trained on, as
            in the authors' code. The paper has 5e-4 to 1e-3.
        penalty: weight of ‖μ‖₁ in the loss of every batch. 0: none, as in the authors' code, where no gradient of the penalty reaches μ.
            Eq. 6 of the text has λ, once an epoch.
        threshold: τ. Clients with a smaller cosine similarity are left out of a client's average (Eq. 4). None: 0; with domains 0.95.
        scale: ε of softmax(ε·σ) (Eq. 5). None: 1; with domains 20.
        least_share: the share of the known clients that are averaged at least: the most similar ones, rounded up. None: 0 if a
            ``threshold`` is given. Otherwise 1 if labels are alike, 0.5 if permuted, 0.2 with domains: 20, 10 and 4 of 20 clients.
        init: the size of the first u and v: ``xavier`` as in the authors' code, or ``dense`` with the norm of dense initial weights.
        reshape: how π orders the values of kernels above 1×1 (:mod:`edgefl.factor.rank1`). ``flat``, as in the authors' code: filters are
            pieces of v, times entries of u. ``filters``, as in the text: every filter of a layer is a multiple of u.
    """

    sparsity: float = Field(5e-4, ge=0, allow_inf_nan=False)
    penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    threshold: float | None = Field(None, ge=-1, le=1)
    scale: float | None = Field(None, ge=0, allow_inf_nan=False)
    least_share: float | None = Field(None, ge=0, le=1)
    init: Init = "xavier"
    reshape: Literal["filters", "flat"] = "flat"

    def matching(self) -> Matching:
        """Return τ, ε and the least share of clients. An option that is None has the value of the scenario."""
        usual = MATCHING[self.scenario]
        given = {"threshold": self.threshold, "scale": self.scale, "least_share": self.least_share}
        if self.threshold is not None and self.least_share is None:
            given["least_share"] = 0.0  # otherwise the threshold would have no effect where all clients are averaged
        return replace(usual, **{name: value for name, value in given.items() if value is not None})


@method("factorized-fl")
class FactorizedFL(Receives, Personal, Penalised, Composes, Remembers, Figures, FedAvg):
    """W = π(u vᵀ ⊕ μ) in every convolution and linear layer; u, v and μ are trained (Eq. 2 and 3).

    A client sends u of every layer and v of the second-last layer. The server stores the latest u and v of each client. Client k receives
    u_k = Σ_i softmax(ε·σ)_i u_i over the clients i with σ_i ≥ τ (Eq. 4 and 5, Algorithm 1). σ_i is the cosine similarity of their v and
    the client's own, and 1 for the client itself. v, μ, biases and normalisation stay on the client. The average has at least the share
    ``least_share`` of the clients, the most similar ones: by default all if labels are alike, half if they are permuted. The authors' code
    does the same (``get_weights`` of ``server.py``).

    Text and code differ in two points, and the defaults are the code's. The text trains a penalty λ‖μ‖₁ (Eq. 6). The code adds it from
    detached tensors, without a gradient, and only drops small entries of μ: ``penalty`` is the text's. The text makes every filter a
    multiple of u, so that the kernels of a layer have rank 1. The code fills the weight row after row, which gives them full rank:
    ``reshape``.

    A new client receives the last round's mean of u, by samples; in the first round it is the initial u. Deployed networks are dense, with
    entries of μ below λ pruned. A network for no particular client has this mean, and initial values of all other tensors. The server's
    memory grows with the number of clients that took part.

    1×1 convolutions are factorized as linear layers on every pixel, because by Eq. 3 their u would be a single number. Convolutions that
    pad with other values than zeros, and layers of other kinds, stay dense and on the client.

    μ is zero at first. A step of rate η moves W by up to (1 + ‖u‖² + ‖v‖²)·η. With ``init`` xavier that is 5 times as far as a dense
    weight, so the dense network's rate can be used (section C.3 has one rate for all methods). With ``init`` dense it is 10 to 20 times as
    far.

    Differs from the paper: Eq. 5 prints the sum over u_i outside of the weights, which gives every client a multiple of the plain sum. Here
    each u_i has its own weight. The sum includes all clients that ever took part, not only those of the present round. The paper does not
    print the initial values (:func:`edgefl.factor.rank1.first_factors`), or τ and ε for its scenarios. These are from the authors' code.
    That code averages normalisation, sends β's μ unpruned, starts μ of the classifier at random, and resets the classifier in every round
    if labels are alike.
    """

    config: FactorizedFLConfig
    title = "Factorized-FL"
    paper = "Jeong and Hwang, Factorized-FL: Agnostic Personalized Federated Learning, NeurIPS 2022"
    tier_meaning = "one tier only: the width of the network that everyone factorizes"
    unlike_networks = False
    travels = "down: u of every layer, averaged for each client; up: u, and v of the second-last layer"
    stays = (
        "v and μ of every layer, biases, normalisation; the classifier too, by default with permuted labels or several data sets"
    )
    per_client = True
    personalised = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "tier_means": "every client is sent an average of its own, over the clients that resemble it",
        "stale_updates": "clients are matched by comparing the factors of one round",
        "server_step": "every client receives an average of its own: there is no one server step to scale, or to gather momentum from",
        "shared_coordinates": "every client starts from an average of its own: its change is not that of a model that others share",
        "common_model": "every client has an average of its own: there is no common stationary point, and no mean gradient to turn to",
    }

    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "entries that nobody covered keep their value": "a client sends v of the second-last layer, which it does not receive, so that "
        "no place covers it",
    }

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` for a single client, or if no layer before the classifier has a v to compare."""
        if clients < 2:
            raise ConfigError(f"one client alone for similarity matching: clients is {clients}; Factorized-FL takes 2 or more")
        for tier in tiers:
            _second_last(skeleton(self, architecture, tier))

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return self._factorized(architecture.build(tier.ratio), None)

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def personal(self, network: nn.Module) -> frozenset[str]:
        return frozenset(network.state_dict()) - self._down(network)

    def received_shapes(self, architecture: Architecture, tier: Tier) -> Shapes:
        network = skeleton(self, architecture, tier)
        down = self._down(network)
        return {name: shape for name, shape in travelling_shapes(network).items() if name in down}

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        def build() -> nn.Module:
            return self._factorized(architecture.build(tiers[0].ratio), self.config.init)

        return GlobalState.begun(architecture, tiers, rng, build)

    def first_personal(self, architecture: Architecture, tier: Tier, rng: np.random.Generator) -> dict[str, Tensor]:
        names = self.personal(skeleton(self, architecture, tier))
        return {name: tensor for name, tensor in self.init(architecture, (tier,), rng).tensors.items() if name in names}

    def _factorized(self, network: nn.Module, init: Init | None) -> nn.Module:
        """Replace every layer of ``network`` that can be factorized; ``init`` chooses the first u and v, and None leaves zeros."""
        reasons = kept_layers(network)
        for name, dense in list(weighted_layers(network)):
            if name in reasons:
                continue
            layer = rank_one(dense, self.config.reshape == "flat")
            if init is not None:
                fill(layer, dense.weight, init)
            replace_layer(network, name, layer)
        return network

    def _down(self, network: nn.Module) -> frozenset[str]:
        classifier = _classifier(network) if self.config.keeps_classifier else ""
        return frozenset(f"{layer}.u" for layer in rank_one_layers(network) if layer != classifier)

    def _up(self, network: nn.Module) -> frozenset[str]:
        return self._down(network) | {f"{_second_last(network)}.v"}

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the client's own average, or the last round's mean for a new client or no particular one."""
        places, weights = slices(self, state, tier, self.received_shapes), self._weights(state, client)
        tensors = {name: _mixed(state, name, weights) for name in places} if weights else cut(state.tensors, places)
        return submodel_of(self, state, tier, tensors, places)

    def _weights(self, state: GlobalState, client: int | None) -> dict[int, float]:
        """Return client → weight of its u in the average for ``client``, without zeros; empty for a new client."""
        members = state.once("members", lambda: sorted(state.clients))
        if client not in members:
            return {}
        key = f"{_second_last(state.once('skeleton', lambda: skeleton(self, state.architecture, state.tiers[0])))}.v"
        rows = partial(torch.stack, [state.clients[member][key].flatten() for member in members])
        similarity = state.once("similarity", lambda: cosines(rows()))
        position = members.index(client)
        chosen = self.config.matching()
        # A share is a decimal: 0.2 of 20 clients are 4, although the product of the two floats may be a bit more.
        least = math.ceil(chosen.least_share * len(members) - 1e-9)
        weights = matching_weights(similarity[position], position, chosen.threshold, chosen.scale, least)
        return {member: float(weight) for member, weight in zip(members, weights, strict=True) if weight > 0}

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return a state with the latest tensors of each client, and with their mean by samples for new clients."""
        sent, clients = {name: state.tensors[name] for name in self.client_shapes(state)}, dict(state.clients)
        total = WeightedSum(sent)
        for update in checked(self, state, updates):
            for name, tensor in update.tensors.items():
                total.add(name, tensor, float(update.samples))
            clients[update.client] = {name: tensor.clone() for name, tensor in update.tensors.items()}
        return state.replace({**state.tensors, **total.mean(sent)}, clients=clients)

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> Observed:
        """Return the number of known clients, and the mean number of clients in a client's average."""
        members = sorted(state.clients)
        matched = [len(self._weights(state, member)) for member in members]
        return {"known_clients": len(members), "matched_clients": sum(matched) / len(matched)} if members else {}

    def client_shapes(self, state: GlobalState) -> Shapes:
        return upload_shapes(self, state.architecture, state.tiers[0])

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the dense network with the weights π(u vᵀ ⊕ μ)."""
        return composed_network(self.factored(state, tier, personal, client))

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network of rank-1 layers, with entries of μ below λ pruned."""
        network = self.trained_network(state, tier, personal, client)
        for layer in rank_one_layers(network).values():
            layer.mu.data = prune(layer.mu.data, self.config.sparsity)
        return network

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return ``penalty``·‖μ‖₁ of each layer (Eq. 6)."""
        penalty = self.config.penalty
        return (penalty * layer.mu.abs().sum() for layer in rank_one_layers(module).values() if penalty)

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        up = self._up(module)
        return {name: tensor.detach() for name, tensor in module.state_dict().items() if name in up}


@method("factorized-fl-beta")
class FactorizedFLBeta(FactorizedFL):
    """Factorized-FL in which u, v and μ travel, averaged with the same weights (section 5.1, Algorithm 2).

    Biases and normalisation, which the paper does not mention, travel too. A personal classifier stays on the client. In uploads the
    entries of μ below λ are zero, and the codec ``sparse`` leaves them out. Downloads have averages of several clients' μ, which are not
    sparse. The server stores a whole network for every client that took part.
    """

    title = "Factorized-FL β"
    travels = "both ways: u, v, μ, biases, normalisation; μ goes up pruned, short under --codec sparse; down dense"
    stays = "the classifier, if it is personal: by default with permuted labels or several data sets"
    contract_exceptions: ClassVar[Mapping[str, str]] = {}

    def _down(self, network: nn.Module) -> frozenset[str]:
        classifier = _classifier(network) if self.config.keeps_classifier else ""
        state = network.state_dict()
        return frozenset(name for name, t in state.items() if t.is_floating_point() and name.rpartition(".")[0] != classifier)

    def _up(self, network: nn.Module) -> frozenset[str]:
        return self._down(network)

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        mus = {f"{name}.mu" for name in rank_one_layers(module)}
        return {name: prune(t, self.config.sparsity) if name in mus else t for name, t in super().upload(module).items()}


def rank_one_layers(network: nn.Module) -> dict[str, RankOne]:
    """Return the rank-1 layers by name, in the order of definition."""
    return {name: layer for name, layer in network.named_modules() if isinstance(layer, (RankOneConv, RankOneLinear))}


def _classifier(network: nn.Module) -> str:
    """Return the name of the last layer, of rank 1 or dense; "" if there is none."""
    layers = {**dict(weighted_layers(network)), **rank_one_layers(network)}
    return next((name for name in reversed([name for name, _ in network.named_modules()]) if name in layers), "")


def _second_last(network: nn.Module) -> str:
    """Return the name of the last rank-1 layer before the classifier, or raise :class:`ConfigError` if there is none."""
    classifier = _classifier(network)
    names = [name for name in rank_one_layers(network) if name != classifier]
    if not names:
        raise ConfigError(
            "Factorized-FL compares clients by v of the last layer before the classifier that it factorizes; the network has none"
            f"{classifier and f' before {classifier}'}"
        )
    return names[-1]


def _mixed(state: GlobalState, name: str, weights: Mapping[int, float]) -> Tensor:
    """Return Σ weight · tensor over the latest tensors ``name`` of the clients, summed in float64, as float32."""
    parts = (weight * state.clients[client][name].double() for client, weight in weights.items())
    return sum(parts, torch.zeros((), dtype=torch.float64)).float()
