"""The contract of a method: a frozen record of options with pure functions, for both the server and the client.

Here is what every method decides. What only some methods do, such as personal tensors or phases, is a capability
(:mod:`edgefl.methods.capabilities`, :mod:`edgefl.methods.personal`, :mod:`edgefl.methods.penalties`). What follows from these decisions is
a function that takes the method (:mod:`edgefl.methods.networks`, :mod:`edgefl.methods.tier_sum`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from torch import Tensor, nn

from edgefl.methods.averaging import averaged
from edgefl.methods.axes import Need
from edgefl.methods.losses import cross_entropy
from edgefl.methods.moved import OldNames
from edgefl.methods.networks import cut_out, filled, slices, upload_shapes
from edgefl.methods.options import MethodConfig
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture
from edgefl.records import Batch, Submodel, Tier, Update


@dataclass(frozen=True)
class Method(OldNames):
    """A federated method for clients of several capacities.

    A subclass defines its title. By default a client receives the leading slice of every tensor, and every
    entry is averaged over the clients that hold it.

    Attributes:
        config: the method's options, of the class that the subclass annotates.
        title: its name in reports.
        paper: its source.
        tier_meaning: the meaning of a tier's ratio.
        travels: one line: the tensors that are sent, by direction.
        stays: one line: the tensors that never leave the client; empty if there are none.
        default_tiers: ratios in (0, 1] for a run that names none. A single one means that the method trains one size only.
        whole: whether the server has the network of tier 1 even if all clients have smaller ones; otherwise that of the largest tier.
        per_client: whether clients of one tier receive different sub-models.
        personalised: whether every client ends up with its own model, which is then evaluated.
        weighs_samples: whether :meth:`aggregate` weights clients by their samples; otherwise their number has no influence.
        every_update: why the server needs single updates, not their sums per tier; for methods with an :meth:`aggregate` of their own.
        clip_gradient: largest norm of a step's gradient in a run that names none; None: gradients are not clipped.
        trains_smaller: whether a client also trains every tier below its own, as parts of its network.
        unlike_networks: whether tiers may have networks that share no tensor; otherwise all are made from one network.
        truncates: whether layers are truncated decompositions of dense ones, so that a plan may choose a rank for each.
    """

    config: MethodConfig

    title: ClassVar[str]
    paper: ClassVar[str] = "none"
    tier_meaning: ClassVar[str] = "width: the share of channels of every hidden layer"
    travels: ClassVar[str] = "the leading slice of every weight, both ways"
    stays: ClassVar[str] = ""
    default_tiers: ClassVar[tuple[float, ...]] = (1.0, 0.5, 0.25)
    whole: ClassVar[bool] = True
    per_client: ClassVar[bool] = False
    personalised: ClassVar[bool] = False
    weighs_samples: ClassVar[bool] = True
    every_update: ClassVar[str] = "its server aggregates by a rule of its own, which reads every update"
    clip_gradient: ClassVar[float | None] = None
    trains_smaller: ClassVar[bool] = False
    unlike_networks: ClassVar[bool] = False
    truncates: ClassVar[bool] = False

    @property
    def lacks(self) -> Mapping[Need, str]:
        """Capability (:mod:`edgefl.methods.axes`) → why the method lacks it, with these options."""
        return {}

    @property
    def contract_exceptions(self) -> Mapping[str, str]:
        """Rule of the contract tests → why it cannot hold for the method, with these options."""
        return {}

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError`, with layer and numbers, if the method cannot train this network with these tiers and ``clients``."""
        for tier in tiers:
            upload_shapes(self, architecture, tier)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network that a client of ``tier`` trains, with arbitrary weights, on torch's default device.

        By default it is the dense network at the width of the tier's ratio. On the device ``meta`` its tensors have no values.
        """
        return architecture.build(tier.ratio)

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network that a device runs, with arbitrary weights: by default the one that its client trains."""
        return self.network(architecture, tier)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the state before the first round: by default the initial weights of the dense network."""
        return GlobalState.begun(architecture, tiers, rng, architecture.build)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the sub-model for ``client`` of ``tier`` (None: no particular one): by default copies of leading slices."""
        return cut_out(self, state, tier, slices(self, state, tier, partial(upload_shapes, self)))

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the scalar that a client minimises on one batch: by default the mean cross-entropy."""
        return cross_entropy(module(batch.x), batch)

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that the client sends back: by default all of floating point."""
        return {name: tensor.detach() for name, tensor in module.state_dict().items() if tensor.is_floating_point()}

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the next state: by default every entry is its mean over the clients that hold it. Other entries do not change.

        ``updates`` are read one at a time, so memory does not grow with the number of clients.

        Raises:
            AggregationError: no update, a client without samples, a label that is no class, NaN or infinity, or a tensor that is missing
                or of another shape.
        """
        return averaged(self, state, updates)

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the tier's network as a device runs it, in evaluation mode: by default the one that ``client`` trains.

        ``personal`` has the tensors that the client stored. Without a ``client`` it is the network of no particular one.
        """
        return filled(self, state, tier, personal, client)
