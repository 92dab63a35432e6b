"""FLoRA: the server stacks clients' adapters. Clients add the stack to their base, and begin every round with fresh adapters."""

import math
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.factor.adapter import names_of
from edgefl.factor.layers import composed_weight
from edgefl.methods.adapters import Adapted, AdapterConfig
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Phased
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import Receives, Samples
from edgefl.methods.state import GlobalState, Shape, Tensors
from edgefl.models.base import Architecture, load, loaded, named_tensors
from edgefl.records import Tier, Update
from edgefl.registry import method
from edgefl.rng import torch_seeded

_FRESH = "clients begin every round with adapters of their own, drawn anew"


class FLoRAConfig(AdapterConfig):
    """Options of FLoRA.

    Attributes:
        stacked: layer → the ranks of all adapters that were added to the base so far, summed. Set by the run.
    """

    stacked: dict[str, int] = Field({})


@method("flora")
class FLoRA(Phased, Adapted, Receives):
    """B = [B₁ … B_K], A = [p₁A₁; …; p_KA_K], pₖ = nₖ/Σn; W ← W + s·B A = W + s·Σ pₖBₖAₖ.

    Client k has nₖ samples; s is the scale of all adapters. The product of the stacks is exactly the sum of the products. The product of
    averaged Aₖ and Bₖ is not. Clients of any ranks stack. The next round begins with a fresh A, drawn by each client, and B = 0.

    A client receives the stack of all rounds so far and adds it to the base of its application. It stores nothing, so it may have missed
    rounds. The stack grows by the ranks of every client of a round. Once the stack of a layer is no smaller than the layer's weight, the
    weight is sent instead. The MACs of adding the stack are not counted. Each rank takes at most as many as one sample's forward pass.

    The base is frozen and part of the application. Adapters are beside attention's projections to queries and values. If there are
    none, they are beside the layers that FedHM factorizes. Devices run the base with the adapters merged into it
    (``edgefl/methods/adapters.py``).

    Differs from the paper: there, every client takes part in every round and stores its base. So it receives the stack of the last round
    only, as here in the second round. Classifiers are averaged by samples.
    """

    config: FLoRAConfig
    title = "FLoRA"
    every_update = "the server stacks the adapters of all clients"
    paper = "Wang et al., NeurIPS 2024, arXiv 2409.05976"
    tier_meaning = "rank of the adapters: the share p of the option rank; the frozen base is the same in all tiers"
    travels = "the stack of all adapters so far and the classifier come down; a client's adapters and classifier go up"
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "cost grows with the tier": "all tiers receive the same stack; what a client sends grows with its rank, as do MACs and memory",
    }
    lacks: ClassVar[Mapping[Need, str]] = {
        "received_weights": _FRESH,
        "fixed_coordinates": _FRESH,
        "stale_updates": "what is sent grows from step to step, while clients are at work",
        "server_step": "the server adds the stack to the base: it has no weights to move to an aggregate",
    }

    def received_shapes(self, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
        """Return name → shape of the dense classifier, and of each layer's stack or, if that is no smaller, its weight."""
        pairs = {name for layer in self.ranks(architecture.skeleton(), 1) for name in names_of(layer)}
        heads = {name: shape for name, shape in upload_shapes(self, architecture, tier).items() if name not in pairs}
        return heads | self.base_shapes(architecture)

    def base_shapes(self, architecture: Architecture) -> dict[str, Shape]:
        """Return name → shape of the tensors that a client makes its base from."""
        shapes: dict[str, Shape] = {}
        weights = named_tensors(architecture.skeleton()) if self.config.stacked else {}
        for layer, rank in self.config.stacked.items():
            n, m, *sides = weight = tuple(weights[f"{layer}.weight"].shape)
            first, others = sides[:1], sides[1:]
            stack = (rank, m, *first, *(1 for _ in others)), (n, rank, *(1 for _ in first), *others)
            dense = math.prod(weight) <= sum(map(math.prod, stack))
            shapes |= {f"{layer}.weight": weight} if dense else dict(zip(_stack(layer), stack, strict=True))
        return shapes

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the dense network, and stacks of zeros in the shapes of the option ``stacked``, as a later state has them."""
        state = GlobalState.begun(architecture, tiers, rng, architecture.build)
        stacks = {name: torch.zeros(shape) for name, shape in self.base_shapes(architecture).items() if name not in state.tensors}
        return state.replace({**state.tensors, **stacks})

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the state with the mean of the classifiers; ``warm`` has the stack that :meth:`advance` adds to what is sent."""
        heads, samples, pairs = dict[str, Tensor](), list[int](), list[Tensors]()
        layers = self.layers(state)
        for update in self.with_heads(state, updates, heads):
            samples.append(update.samples)
            pairs.append({name: update.tensors[name] for layer in layers for name in names_of(layer)})
        warm = dict(state.warm)
        for layer in layers:
            (u, v), (stacked_u, stacked_v) = names_of(layer), _stack(layer)
            a = torch.cat([pair[u] * (count / sum(samples)) for pair, count in zip(pairs, samples, strict=True)])
            b = torch.cat([pair[v] for pair in pairs], 1)
            warm |= {stacked_u: _after(warm, stacked_u, a, 0), stacked_v: _after(warm, stacked_v, b, 1)}
        return state.replace({**state.tensors, **heads}, warm=warm)

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        """Return the method and state for the next round: clients then receive the stack of the last round too."""
        if not state.warm:
            return self, state
        tensors, layers = dict(state.tensors), self.layers(state)
        added = {layer: len(state.warm[_stack(layer)[0]]) for layer in layers}
        stacked = self.config.stacked | {layer: self.config.stacked.get(layer, 0) + rank for layer, rank in added.items()}
        later = self.with_options(stacked=stacked)
        sent = later.base_shapes(state.architecture)  # a weight that is sent once is sent from then on
        for layer in layers:
            name, parts = f"{layer}.weight", _stack(layer)
            stack = {part: _after(tensors, part, state.warm[part], axis) for axis, part in enumerate(parts)}
            if name in sent:
                tensors[name] = self._added(tensors, stack)[name]
                tensors = {part: tensor for part, tensor in tensors.items() if part not in parts}
            else:
                tensors |= stack
        return later, state.replace(tensors, warm={})

    def _added(self, base: Tensors, *stacks: Tensors) -> dict[str, Tensor]:
        """Return ``base`` without stacks, after the products of ``stacks`` are added to its weights."""
        tensors, end = {name: tensor for name, tensor in base.items() if ".stack." not in name}, ".stack.u.weight"
        for layer in dict.fromkeys(name.removesuffix(end) for stack in stacks for name in stack if name.endswith(end)):
            pairs = [[stack[name] for name in _stack(layer)] for stack in stacks if _stack(layer)[0] in stack]
            a, b = (torch.cat(parts, axis) for axis, parts in enumerate(zip(*pairs, strict=True)))
            name = f"{layer}.weight"
            tensors[name] = tensors[name] + self.config.scale * composed_weight(a, b)
        return tensors

    def receive(self, module: nn.Module, received: Tensors, personal: Tensors, batches: Samples) -> None:
        """Load the base with the received stack added to it, and fresh adapters."""
        load(module, {**_fresh(module), **self._added({**personal, **received}, received)})

    def trained_network(
        self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None
    ) -> nn.Module:
        network = self.network(state.architecture, tier)
        with torch_seeded(np.random.default_rng(0)):
            fresh = _fresh(network)
        return loaded(network, {**fresh, **self._added(state.tensors, state.tensors, state.warm)})


def _stack(layer: str) -> tuple[str, str]:
    """Return the names of the stacked weights (A, B) of a layer."""
    return f"{layer}.stack.u.weight", f"{layer}.stack.v.weight"


def _after(tensors: Tensors, name: str, more: Tensor, axis: int) -> Tensor:
    return torch.cat([tensors[name], more], axis) if name in tensors else more


def _fresh(network: nn.Module) -> dict[str, Tensor]:
    """Return name → weight of new adapters for ``network``: A as torch draws it, B zero."""
    fresh: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        if name.endswith(".adapter.u.weight"):
            fresh[name] = nn.init.kaiming_uniform_(torch.empty_like(tensor), a=math.sqrt(5))
        elif name.endswith(".adapter.v.weight"):
            fresh[name] = torch.zeros_like(tensor)
    return fresh
