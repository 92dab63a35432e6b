"""FedAvg, its variants FedPer (personal last layers) and Per-FedAvg (adapted to each client), and training without federation."""

import copy
from collections.abc import Iterable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from edgefl.errors import ConfigError
from edgefl.factor.gradient import gradients
from edgefl.methods.axes import Need
from edgefl.methods.base import Method, MethodConfig, cross_entropy
from edgefl.methods.state import GlobalState, Tensors, copied
from edgefl.models.base import Architecture, weighted_layers
from edgefl.records import Batch, Submodel, Tier, Update
from edgefl.registry import method
from edgefl.rng import torch_seeded


@method("fedavg")
class FedAvg(Method):
    """w ← Σ n_k w_k / Σ n_k over the clients of a round (McMahan et al. 2017, Algorithm 1).

    With ``--tiers 0.5`` the global network itself has half the width: the "slimming model on all clients" of FedHM, section 4.1.
    """

    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = "McMahan et al., AISTATS 2017, Algorithm 1"
    tier_meaning: ClassVar[str] = "one tier only: the width of the network that everyone trains"
    travels: ClassVar[str] = "every weight, both ways"
    default_tiers: ClassVar[tuple[float, ...]] = (1.0,)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        with torch_seeded(rng):
            network = self.network(architecture, tiers[0])
        return GlobalState(architecture, tiers, copied(network))

    def trained(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network with what the server sends; what does not travel, such as personal tensors, has its first values."""
        network = self.network(state.architecture, tier)
        sent = self.submodel(state, tier, np.random.default_rng(0), client).tensors
        network.load_state_dict({**state.tensors, **sent, **(personal or {})})
        return network.eval()

    def global_tier(self, state: GlobalState) -> Tier:
        return state.tiers[0]


class FedPerConfig(MethodConfig):
    """Options of FedPer.

    Attributes:
        layers: how many of the last convolutions and linear layers are personal.
    """

    layers: int = Field(1, ge=1)


@method("fedper")
class FedPer(FedAvg):
    """Base layers are averaged by sample counts; the last ``layers`` layers are each client's own (Algorithms 1 and 2).

    Modules defined after the first personal layer, such as normalisation, are personal too.

    Differs from the paper: its clients draw their first personal layers; here the application ships the same ones to all.
    """

    config: FedPerConfig
    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    tier_meaning: ClassVar[str] = "one tier only: the width of the network that everyone trains"
    travels: ClassVar[str] = "every weight before the personal layers, both ways"
    personalised: ClassVar[bool] = True
    stays: ClassVar[str] = "the last layers: the classifier, or as many as the option layers says"

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if no layer is left to average."""
        network = architecture.skeleton(tiers[0].ratio)
        found = [name for name, _ in weighted_layers(network)]
        if self.config.layers > len(found) or self.personal(network) >= network.state_dict().keys():
            raise ConfigError(
                f"method_options.layers: {self.config.layers} personal layers leave none to average, {architecture.model} has "
                f"{len(found)}: {', '.join(found)}; give at most {len(found) - 1}"
            )

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the tensors from the first personal layer on, in the order of definition."""
        layers = [name for name, _ in weighted_layers(network)]
        first = layers[-min(self.config.layers, len(layers))]
        names = list(network.state_dict())
        return frozenset(names[next(i for i, name in enumerate(names) if name.startswith(f"{first}.")) :])


CHUNK = 32
"""Samples that go through the network at once while a model is adapted."""


class PerFedAvgConfig(MethodConfig):
    """Options of Per-FedAvg.

    Attributes:
        alpha: α, the rate of the inner step. The outer rate β is the run's ``lr``.
        adapt_steps: inner steps of a client before it uses the deployed model.
    """

    alpha: float = Field(0.01, gt=0, allow_inf_nan=False)
    adapt_steps: int = Field(1, ge=0)


@method("per-fedavg")
class PerFedAvg(FedAvg):
    """First-order MAML in the clients, FedAvg on the server (Fallah et al. 2020, Algorithm 1 without its Hessian term).

    Each step splits its batch in halves D and D': w̃ = w − α∇f(w, D), and w ← w − β∇f(w̃, D'); the gradient at w̃ is applied at w. The
    halves of an odd batch share its middle sample; a batch of one is both halves. A deployed model takes ``adapt_steps`` steps of rate α
    over all of the client's samples first. These belong to using the model and are not in the round's costs.

    Differs from the paper: only the first-order variant; clients are averaged by samples, where Algorithm 1 has the plain mean.
    """

    config: PerFedAvgConfig
    title: ClassVar[str] = "Per-FedAvg (first order)"
    paper: ClassVar[str] = "Fallah et al., Personalized Federated Learning with Theoretical Guarantees, NeurIPS 2020, Algorithm 1"
    personalised: ClassVar[bool] = True

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return f(w − α∇f(w, D), D'), whose gradient is the first-order one: ∇f(w, D) counts as a constant."""
        half = (batch.y.shape[0] + 1) // 2  # not len: an exported batch has no size yet
        first, second = (Batch(batch.x[part], batch.y[part], batch.present) for part in (slice(half), slice(-half, None)))
        parameters = dict(module.named_parameters())
        inner = cross_entropy(module(first.x), first)
        # A parameter that the forward pass does not use has a gradient of zeros, and does not move.
        slopes = gradients(inner, list(parameters.values()))
        adapted = {name: w - self.config.alpha * g for (name, w), g in zip(parameters.items(), slopes, strict=True)}
        return cross_entropy(functional_call(module, adapted, (second.x,)), second)

    def adapt(self, module: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        """Return a copy of ``module`` after ``adapt_steps`` steps of rate α on the mean loss of all samples ``x`` (n, …), ``y`` (n,)."""
        adapted = copy.deepcopy(module).train()
        parameters = list(adapted.parameters())
        for _ in range(self.config.adapt_steps):
            adapted.zero_grad()
            for part in torch.arange(len(y)).split(CHUNK):
                loss = cross_entropy(adapted(x[part]), Batch(x[part], y[part])) * (len(part) / len(y))
                loss.backward()
            with torch.no_grad():
                for parameter in parameters:
                    if parameter.grad is not None:
                        parameter.sub_(self.config.alpha * parameter.grad)
        adapted.zero_grad()
        return adapted.eval()


_NO_WEIGHTS = "nothing travels in stand-alone training: "


@method("standalone")
class StandAlone(Method):
    """Every client trains the widest dense network that fits it on its own samples; the server learns nothing.

    The baseline that any federation must beat. All clients of a tier begin with the same weights. The server's state has them, called
    ``<tier>/<name>``, and deploys them for a client that has never trained.
    """

    title: ClassVar[str] = "Stand-alone"
    paper: ClassVar[str] = "no federation; the baseline of personalised federated learning, as in FedPara, Figure 5"
    tier_meaning: ClassVar[str] = "width of the client's own network"
    travels: ClassVar[str] = "nothing"
    stays: ClassVar[str] = "the whole network"
    personalised: ClassVar[bool] = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "the server takes no updates",
        "received_weights": _NO_WEIGHTS + "no weights arrive that a client could be pulled to",
        "common_model": _NO_WEIGHTS + "there is no common direction to correct a client's gradient towards",
        "server_step": _NO_WEIGHTS + "the server has no step to take",
        "uploads": _NO_WEIGHTS + "there is nothing to compress",
        "changing_tiers": "a client's network has the width of its tier and lives on the client alone: with another tier it would be lost",
    }
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "one full-tier client alone wins outright": "nothing travels: the server learns nothing from a client, alone or not",
    }

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def personal(self, network: nn.Module) -> frozenset[str]:
        return frozenset(network.state_dict())

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        tensors: dict[str, Tensor] = {}
        for tier in tiers:
            first = self.first_personal(architecture, tier, copy.deepcopy(rng))  # as on clients: from the stream's start
            tensors |= {f"{tier.label}/{name}": tensor for name, tensor in first.items()}
        return GlobalState(architecture, tiers, tensors)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        return Submodel(tier, {}, partial(self.network, state.architecture, tier), {})

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Check that only sample counts arrived, and return the same state."""
        for _ in self.checked(state, updates):
            pass
        return state

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return a client's own network; None: its first one."""
        network = self.network(state.architecture, tier)
        network.load_state_dict(personal or {name: state.tensors[f"{tier.label}/{name}"] for name in network.state_dict()})
        return network.eval()

    def global_tier(self, state: GlobalState) -> Tier:
        """Return the widest: clients have no network in common."""
        return state.tiers[0]
