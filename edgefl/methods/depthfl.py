"""DepthFL: a tier is a depth, and a client trains the first blocks of the network with an exit after each depth."""

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from edgefl.factor.gradient import held
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Phased
from edgefl.methods.losses import cross_entropy
from edgefl.methods.networks import filled
from edgefl.methods.options import MethodConfig
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture, loaded, scaled
from edgefl.models.cuts import Cut, Cuts, carried, shortened
from edgefl.records import Batch, Tier
from edgefl.registry import method

RAMP_STEPS = 10
"""Steps in which the weight of distillation rises. After each, training steps and training graphs are captured anew."""


class DepthFLConfig(MethodConfig):
    """Options of DepthFL.

    Attributes:
        distill: weight λ of mutual self-distillation; 0 trains the exits on labels alone.
        ramp_rounds: T, the rounds over which this weight rises to λ, in ten steps. After t rounds it is λ·exp(−5·(1 − t/T)²). 0: it is
            λ from the start.
        ramp_step: how many of the ten steps are over. Set by the run.
        ensemble: whether a device averages the logits of all exits of its tier, as in the paper; otherwise it runs the deepest only.
        tiers: the run's tiers: there is an exit at the depth of each. Set by the run.
    """

    distill: float = Field(1.0, ge=0, allow_inf_nan=False)
    ramp_rounds: int = Field(300, ge=0)
    ramp_step: int = Field(0, ge=0, le=RAMP_STEPS)
    ensemble: bool = False
    tiers: tuple[float, ...] = (1.0, 0.5, 0.25)


class _EndError(Exception):
    """The network has run up to its last exit."""


class EarlyExits(nn.Module):
    """The first blocks of a network (``body``) with ``exits`` after some depths: means over positions, then a linear classifier.

    Attributes:
        cuts: depth in blocks → where the exit takes its features.
        whole: whether ``body`` is the whole network. Its own classifier is then the deepest exit.
        ensemble: whether the output is the mean of the logits of all exits, instead of those of the deepest exit.
    """

    def __init__(self, body: nn.Module, cuts: Mapping[int, Cut], outputs: int, whole: bool, ensemble: bool) -> None:
        super().__init__()
        self.cuts, self.whole, self.ensemble = dict(cuts), whole, ensemble
        self.body = body if whole else shortened(body, cuts[max(cuts)])
        self.exits = nn.ModuleDict({str(depth): nn.Linear(_values(cut), outputs) for depth, cut in cuts.items()})

    def logits(self, x: Any) -> list[Tensor]:
        """Return the logits (batch, classes) of every exit, the shallowest first."""
        features: dict[int, Tensor] = {}
        deepest = 0 if self.whole else max(self.cuts)
        final: list[Tensor] = []
        body = _twin(self.body) if torch.compiler.is_exporting() else self.body

        def watch(depth: int) -> Any:
            def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
                tensor = carried(args, kwargs)
                assert tensor is not None  # as when the network was cut
                features.setdefault(depth, tensor)
                if depth == deepest:
                    raise _EndError

            return body.get_submodule(self.cuts[depth].layer).register_forward_pre_hook(enter, with_kwargs=True)

        # For one call only: a hook that stays would not be copied with the network.
        handles = [watch(depth) for depth in self.cuts]
        try:
            final.append(body(x))
        except _EndError:
            pass
        finally:
            for handle in handles:
                handle.remove()
        depths = sorted(features)
        return [self.exits[str(depth)](_pooled(features[depth], self.cuts[depth])) for depth in depths] + final

    def forward(self, x: Any) -> Tensor:
        """Return logits (batch, classes): those of the deepest exit, or with ``ensemble`` the mean."""
        logits = self.logits(x)
        return torch.stack(logits).mean(0) if self.ensemble and len(logits) > 1 else logits[-1]


def _is_map(cut: Cut) -> bool:
    return len(cut.sides) == 2 and cut.axis == 1 and min(cut.sides) > 1


def _values(cut: Cut) -> int:
    """Return how many values :func:`_pooled` returns per sample."""
    return 4 * cut.channels if _is_map(cut) else cut.channels


def _pooled(features: Tensor, cut: Cut) -> Tensor:
    """Return (batch, values): the means of the four quarters of a feature map, or of all tokens."""
    if not _is_map(cut):
        positions = [axis for axis in range(1, features.dim()) if axis != cut.axis]
        return features.mean(positions) if positions else features
    # Adaptive pooling to 2×2: quarters overlap by a row or column if a side is odd.
    height, width = cut.sides
    return F.avg_pool2d(features, (height - height // 2, width - width // 2), (height // 2, width // 2)).flatten(1)


def _twin(network: nn.Module) -> nn.Module:
    """Return new modules with the tensors of ``network``. torch.export follows calls of modules that it knows, and fails if one raises."""
    twin = copy.copy(network)
    children = network.named_modules(remove_duplicate=False)
    twin.__dict__["_modules"] = {name: _twin(child) for name, child in children if name and "." not in name}
    return twin


@method("depthfl")
class DepthFL(Phased):
    """A client of depth d trains the first d of n blocks: it has no later layer. Every tensor is averaged over the clients that hold it.

    Blocks are found by tracing (:mod:`edgefl.models.cuts`): a network can be cut before a layer with weights if one tensor carries
    everything to the rest. A residual connection around two layers keeps them in one block, and so does a long skip connection. A tier p
    has the first ⌈p·n⌉ blocks. The paper's four depths of ResNet-18, after each of its stages, are the tiers 1, .75, .5 and .25. A network
    that cannot be cut is refused for tiers below 1. One with code that reads values of tensors is refused for all tiers.

    There is an exit at the depth of each tier of the run. It is a linear layer on the means of the four quarters of a feature map, or on
    the mean of all tokens. Early features are local: one mean over a map would not tell where something is. At full depth the exit is the
    network's own classifier. The loss of a client with the exits 1 … m is, with the softmax pᵢ of exit i,

        Σᵢ cross-entropy(pᵢ) + λ/(m − 1) · Σᵢ Σ_{j≠i} KL(pⱼ ‖ pᵢ)

    with pⱼ as a constant and temperature 1 (section 3.2, mutual self-distillation). The weight rises from 0.0067·λ over the first rounds,
    as in the authors' code: exits that have learned nothing yet are bad teachers.

    A device runs the deepest exit of its tier; with ``ensemble`` it averages the logits of all, as the paper evaluates the global model.

    Differs from the paper: there, the exits of ResNets have separable convolutions up to the width of the last stage, and in the authors'
    code also attention. Here all networks have the same small exits. Clients are weighted by samples, not equally. The paper trains with
    FedDyn, which is ``objective = "dyn"`` here.
    """

    config: DepthFLConfig
    title = "DepthFL"
    paper = "Kim et al., ICLR 2023"
    tier_meaning = "depth p: the share of the network's blocks that a client has, from the first on, rounded up"
    travels = "the weights of the first blocks and of their exits, both ways"
    trains_smaller = True
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "cost grows with the tier [mlp]": "a perceptron with one hidden layer has one block, so all tiers are the whole network",
    }

    @property
    def lacks(self) -> Mapping[Need, str]:
        """Capability → reason: ``own_loss`` with distillation, which compares class probabilities."""
        reason = "distillation compares class probabilities; give --method-option distill=0"
        return {"own_loss": reason} if self.config.distill else {}

    def depth(self, architecture: Architecture, tier: Tier) -> int:
        """Return how many blocks a client of ``tier`` has.

        >>> [DepthFL(DepthFLConfig()).depth(Architecture("resnet18", (3, 32, 32), 10), Tier(p)) for p in (1.0, 0.75, 0.5, 0.25)]
        [9, 7, 5, 3]
        """
        return scaled(architecture.cuts.blocks, tier.ratio)

    @property
    def weight(self) -> float:
        """The present weight of self-distillation.

        >>> [round(DepthFL(DepthFLConfig(ramp_step=step)).weight, 4) for step in (0, 5, 10)]
        [0.0067, 0.2865, 1.0]
        """
        over = self.config.ramp_step / RAMP_STEPS if self.config.ramp_rounds else 1.0
        return self.config.distill * math.exp(-5 * (1 - over) ** 2)

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        """Return the method with the weight of self-distillation of round ``round_``."""
        step = min(RAMP_STEPS, RAMP_STEPS * (round_ - 1) // self.config.ramp_rounds) if self.config.ramp_rounds else 0
        if step == self.config.ramp_step:
            return self, state
        return self.with_options(ramp_step=step), state

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if a tier is below 1 and the network has one block only."""
        architecture.cuts.check_several(f"{self.title} cannot cut {architecture.model}", min(tiers).ratio)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return self._network(architecture, tier, all_exits=True)

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network with the deepest exit only: at full depth the plain one. With ``ensemble`` it is the trained network."""
        return self._network(architecture, tier, all_exits=self.config.ensemble)

    def _network(self, architecture: Architecture, tier: Tier, all_exits: bool) -> nn.Module:
        cuts: Cuts = architecture.cuts
        deepest, body = self.depth(architecture, tier), architecture.build()
        depths = {self.depth(architecture, Tier(ratio)) for ratio in self.config.tiers if all_exits} | {deepest}
        exits = {depth: cuts.cuts[depth - 1] for depth in sorted(depths) if depth <= deepest and depth < cuts.blocks}
        return EarlyExits(body, exits, cuts.outputs, deepest == cuts.blocks, self.config.ensemble) if exits else body

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        return GlobalState.begun(architecture, tiers, rng, partial(self.network, architecture, Tier(1.0)))

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the sum over exits of the cross-entropy and of the weighted mean divergence from the other exits."""
        if not isinstance(module, EarlyExits):
            return super().local_loss(module, batch)
        logits = module.logits(batch.x)
        loss = torch.stack([cross_entropy(one, batch) for one in logits]).sum()
        if not self.weight or len(logits) == 1:
            return loss
        logs = [F.log_softmax(one, 1) for one in logits]
        teachers = [held(log) for log in logs]
        pairs = [(log, teacher) for i, log in enumerate(logs) for j, teacher in enumerate(teachers) if i != j]
        divergences = [F.kl_div(log, teacher, reduction="batchmean", log_target=True) for log, teacher in pairs]
        return loss + self.weight / (len(logits) - 1) * torch.stack(divergences).sum()

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        network = self.device_network(state.architecture, tier)
        tensors = filled(self, state, tier, personal, client).state_dict()
        return loaded(network, {name: tensors.get(name, tensors.get(f"body.{name}")) for name in network.state_dict()})  # type: ignore[misc]
