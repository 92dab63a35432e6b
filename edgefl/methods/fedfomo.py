"""FedFOMO: a client downloads other clients' models and moves towards those that are better on its own data."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.width import leading
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.capabilities import Remembers
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.losses import cross_entropy
from edgefl.methods.networks import submodel_of
from edgefl.methods.options import MethodConfig
from edgefl.methods.personal import Personal, Receives, Samples
from edgefl.methods.state import GlobalState, Shapes, Tensors, shapes_of, travelling_shapes
from edgefl.methods.updates import checked
from edgefl.models.base import Architecture, load, loaded
from edgefl.models.norm import needs_statistics
from edgefl.records import Batch, Submodel, Tier, Update
from edgefl.registry import method
from edgefl.rng import torch_seeded
from edgefl.util.fields import Fields, rows

CHUNK = 32
"""Samples in a batch while a model is validated."""
AFFINITY, ROUNDS = "affinity", "rounds"
"""Names in the server's memory of a client: its affinities (clients,), and the number of its rounds, a scalar."""


class FedFOMOConfig(MethodConfig):
    """Options of FedFOMO.

    Attributes:
        models: M, the number of other clients' models that a client downloads.
        validation: the share of a client's samples on which models are validated.
        epsilon: ε, the probability that a client receives random models in its first round.
        epsilon_decay: how much ε falls with each round of the client, down to 0.
    """

    models: int = Field(3, ge=1)
    validation: float = Field(0.2, gt=0, le=1)
    epsilon: float = Field(0.3, ge=0, le=1)
    epsilon_decay: float = Field(0.05, ge=0, le=1)


@method("fedfomo")
class FedFOMO(Receives, Personal, Remembers, FedAvg):
    """θ ← θ + Σ_n w_n (θ_n − θ) with w_n ∝ max((L(θ) − L(θ_n)) / ‖θ_n − θ‖, 0), Σ w_n = 1 (Zhang et al. 2021, Eq. 3 to 5).

    θ is the client's own model, θ_n one of M others, and L the mean cross-entropy on a part of the client's samples. Training follows.

    The server stores the latest model and the affinities of every client. A client's affinity to another is the sum of the weights that it
    reported for the other's models, before clipping at 0. The server sends the M models with the largest affinity, ties in random order,
    or with probability ε any M. If fewer than M other clients are known, the remaining slots hold the mean model of the last round, or at
    first the initial model. So all payloads have one size. A client stores its own model, which begins as the server's initial one. Without
    a particular client, the mean model is deployed.

    The default is half the width, because at full width the download of M models misses a deadline that a phone meets with one model.

    Differs from the paper: clients also train on their validation samples. A model that equals θ, or with a loss or distance that is not
    finite, has weight 0. ε falls with the client's own rounds.
    """

    config: FedFOMOConfig
    title = "FedFOMO"
    paper = "Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021"
    travels = "down: M other clients' models; up: the client's model and its weight for each of them"
    stays = "nothing that is not sent too: the client keeps its own model"
    default_tiers = (0.5,)
    per_client = True
    personalised = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "tier_means": "every client is sent the models of single other clients",
        "sample_losses": "clients judge the models of others on their own samples, and send their judgement",
        "stale_updates": "every client is sent the models of others in the same round",
        "server_step": "the server sends clients' models as they are and averages none: no step to scale or to gather momentum from",
        "own_loss": "its clients judge the models of others by cross-entropy",
        "shared_coordinates": "every client is sent models of others and sends its own: the server compares no changes of one model",
        "common_model": "every client has a model of its own: there is no common stationary point, and no mean gradient to turn to",
    }

    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "entries that nobody covered keep their value": "a client receives other clients' models and sends its own, which enters the "
        "mean model: the places of what it received are other tensors",
    }

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        if clients < 2:
            raise ConfigError(f"one client alone has no other models to download: clients is {clients}; FedFOMO takes 2 or more")
        super().check(architecture, tiers, clients)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the dense network, with a buffer (M,) for the weights that the client reports."""
        network = super().network(architecture, tier)
        network.register_buffer(AFFINITY, torch.zeros(self.config.models), persistent=False)
        return network

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def received_shapes(self, architecture: Architecture, tier: Tier) -> Shapes:
        model = travelling_shapes(architecture.skeleton(tier.ratio))
        return {f"model{slot}.{name}": shape for slot in range(self.config.models) for name, shape in model.items()}

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        return GlobalState(architecture, tiers, self.first_personal(architecture, tiers[0], rng))

    def first_personal(self, architecture: Architecture, tier: Tier, rng: np.random.Generator) -> dict[str, Tensor]:
        with torch_seeded(rng):
            return self.keep(architecture.build(tier.ratio))

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the models of M other clients; slots without a client hold the mean model."""
        chosen = self._choose(state, client, rng)
        tensors, places = {}, {}
        for slot in range(self.config.models):
            sender = chosen[slot] if slot < len(chosen) else None
            model = state.tensors if sender is None else state.clients[sender]
            for name in state.tensors:
                tensors[f"model{slot}.{name}"] = model[name].clone()
                places[f"model{slot}.{name}"] = replace(leading(name, tuple(model[name].shape)), client=sender)
        return submodel_of(self, state, tier, tensors, places)

    def _choose(self, state: GlobalState, client: int | None, rng: np.random.Generator) -> list[int]:
        """Return the owners of the models to send, at most M: those with the largest affinity, or with probability ε random ones."""
        others = [other for other in sorted(state.clients) if other != client]
        order = [others[i] for i in rng.permutation(len(others))]
        explores = float(rng.random())
        memory = _memory(state, client)
        rounds = float(memory[ROUNDS]) if memory else 0.0
        if memory and explores >= self.config.epsilon - self.config.epsilon_decay * rounds:
            affinity = memory[AFFINITY].tolist()
            # The sort is stable: ties stay in random order. Unknown clients rank between helpful and harmful ones.
            order.sort(key=lambda other: -affinity[other] if other < len(affinity) else 0.0)
        return order[: self.config.models]

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return a state with every client's model, its affinities plus the reported weights, and the mean model by samples."""
        clients, total = dict(state.clients), WeightedSum(state.tensors)
        for update in checked(self, state, updates):
            for name in state.tensors:
                total.add(name, update.tensors[name], float(update.samples))
            before = _memory(state, update.client)
            clients[update.client] = {
                **{name: update.tensors[name].clone() for name in state.tensors},
                AFFINITY: _added(before.get(AFFINITY, torch.zeros(0)), update),
                ROUNDS: before.get(ROUNDS, torch.zeros(())) + 1,
            }
        return state.replace(total.mean(state.tensors), clients=clients)

    def client_shapes(self, state: GlobalState) -> Mapping[str, tuple[int, ...] | None]:
        return {**shapes_of(state.tensors), AFFINITY: None, ROUNDS: ()}

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the client's own model: ``personal`` if given, else the server's copy, else the mean model."""
        memory = _memory(state, client)
        tensors = personal or {name: memory.get(name, tensor) for name, tensor in state.tensors.items()}
        return loaded(state.architecture.build(tier.ratio), tensors)

    def trained_network(
        self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None
    ) -> nn.Module:
        """Return the client's own model with its buffer: received models are validated, not trained."""
        return loaded(self.network(state.architecture, tier), self.deploy(state, tier, personal, client).state_dict())

    def receive(self, module: nn.Module, received: Tensors, personal: Tensors, batches: Samples) -> None:
        """Load the client's own model, moved towards the received models that are better on its validation samples (Eq. 3 to 5)."""
        count, samples = self._judged(len(batches[1])), len(batches[1])
        spread = torch.arange(count) * samples // count  # evenly: a shard may be sorted
        x, y = rows(batches[0], spread), batches[1][spread]
        others = [{name: received[f"model{slot}.{name}"] for name in personal} for slot in range(self.config.models)]
        own_loss = _loss(module, personal, x, y)
        raw = torch.tensor([_weight(own_loss - _loss(module, other, x, y), other, personal) for other in others])
        module.get_buffer(AFFINITY).copy_(raw)
        positive = raw.double().clamp_min(0.0)
        shares = (positive / positive.sum()).tolist() if float(positive.sum()) > 0 else [0.0] * len(others)
        moved = {name: tensor.double() for name, tensor in personal.items()}
        for share, other in zip(shares, others, strict=True):
            for name, tensor in other.items() if share else ():
                moved[name] += share * (tensor.double() - personal[name].double())
        load(module, {name: tensor.float() for name, tensor in moved.items()})

    def evaluated(self, samples: int) -> int:
        """Return M + 1 times the number of validation samples: for the client's own model and M others."""
        return (self.config.models + 1) * self._judged(samples)

    def _judged(self, samples: int) -> int:
        return max(1, math.ceil(self.config.validation * samples - 1e-9))

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        return {**self.keep(module), AFFINITY: module.get_buffer(AFFINITY).detach()}

    def keep(self, module: nn.Module) -> dict[str, Tensor]:
        state = module.state_dict()
        return {name: tensor.detach().clone() for name, tensor in state.items() if tensor.is_floating_point()}


def _memory(state: GlobalState, client: int | None) -> Tensors:
    return {} if client is None else state.clients.get(client, {})


def _added(before: Tensor, update: Update) -> Tensor:
    """Return a client's affinities (clients,) plus its reported weights. The update's places name the clients of the models."""
    places = update.places.items()
    senders = {
        int(name.removeprefix("model").split(".", 1)[0]): place.client for name, place in places if place.client is not None
    }
    after = torch.zeros(max([len(before) - 1, *senders.values()]) + 1)
    after[: len(before)] = before
    for slot, sender in senders.items():
        after[sender] += update.tensors[AFFINITY][slot]
    return after


@torch.no_grad()
def _loss(module: nn.Module, tensors: Tensors, x: Fields[Tensor], y: Tensor) -> float:
    """Return the mean cross-entropy of the model ``tensors`` on ``x`` (n, …), ``y`` (n,), in evaluation mode."""
    load(module, tensors)
    module.train(needs_statistics(module))  # static BatchNorm has no statistics on a client, and uses the batch's
    parts = torch.arange(len(y)).split(CHUNK)
    batches = [Batch(rows(x, part), y[part]) for part in parts]
    return sum(float(cross_entropy(module(batch.x), batch)) * len(batch.y) for batch in batches) / len(y)


def _weight(gain: float, other: Tensors, own: Tensors) -> float:
    """Return (L(θ) − L(θ_n)) / ‖θ_n − θ‖, or 0 if that is not finite."""
    squares = (float((other[name].double() - tensor.double()).square().sum()) for name, tensor in own.items())
    distance = math.sqrt(sum(squares))
    return gain / distance if distance > 0 and math.isfinite(gain) and math.isfinite(distance) else 0.0
