"""The contract of a method: a frozen record of options with pure functions, for both the server and the client."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, ClassVar, Self, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.factor.width import cut
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.losses import cross_entropy
from edgefl.methods.options import MethodConfig
from edgefl.methods.ranks import energy_figures
from edgefl.methods.state import GlobalState, Shape, Tensors, copied, shapes_of, travelling_shapes
from edgefl.methods.tier_sum import TierSum
from edgefl.methods.updates import checked, moved
from edgefl.models.base import Architecture, Unfilled, load, loaded, once_per_network
from edgefl.records import Batch, Place, Submodel, Tier, Update
from edgefl.rng import torch_seeded


@dataclass(frozen=True)
class Method:
    """A federated method for clients of several capacities.

    A subclass defines the class attributes without a default. By default a client receives the leading slice of every tensor, and every
    entry is averaged over the clients that hold it.

    Attributes:
        config: the method's options, of the class that the subclass annotates.
        title: its name in reports.
        paper: its source.
        tier_meaning: the meaning of a tier's ratio.
        travels: one line: the tensors that are sent, by direction.
        stays: one line: the tensors that never leave the client; empty if there are none.
        default_tiers: ratios in (0, 1] for a run that names none. A single one means that the method trains one size only.
        per_client: whether clients of one tier receive different sub-models.
        personalised: whether every client ends up with its own model, which is then evaluated.
        weighs_samples: whether :meth:`aggregate` weights clients by their samples; otherwise their number has no influence.
        every_update: why the server needs single updates, not their sums per tier; for methods with an :meth:`aggregate` of their own.
        clip_gradient: largest norm of a step's gradient in a run that names none; None: gradients are not clipped.
        trains_smaller: whether a client also trains every tier below its own, as parts of its network.
        truncates: whether layers are truncated decompositions of dense ones, so that a plan may choose a rank for each.
    """

    config: MethodConfig

    title: ClassVar[str]
    paper: ClassVar[str]
    tier_meaning: ClassVar[str]
    travels: ClassVar[str]
    stays: ClassVar[str] = ""
    default_tiers: ClassVar[tuple[float, ...]] = (1.0, 0.5, 0.25)
    per_client: ClassVar[bool] = False
    personalised: ClassVar[bool] = False
    weighs_samples: ClassVar[bool] = True
    every_update: ClassVar[str] = "its server aggregates by a rule of its own, which reads every update"
    clip_gradient: ClassVar[float | None] = None
    trains_smaller: ClassVar[bool] = False
    truncates: ClassVar[bool] = False

    @property
    def lacks(self) -> Mapping[Need, str]:
        """Capability (:mod:`edgefl.methods.axes`) → why the method lacks it, with these options."""
        return {}

    @property
    def contract_exceptions(self) -> Mapping[str, str]:
        """Rule of the contract tests → why it cannot hold for the method, with these options."""
        return {}

    @classmethod
    @cache
    def config_class(cls) -> type[MethodConfig]:
        """Return the class that annotates ``config``."""
        return get_type_hints(cls)["config"]

    # Shapes and first values.

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network that a client of ``tier`` trains, with arbitrary weights, on torch's default device.

        By default it is the dense network at the width of the tier's ratio. On the device ``meta`` its tensors have no values.
        """
        return architecture.build(tier.ratio)

    def skeleton(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return :meth:`network` on the ``meta`` device: names and shapes without memory or random draws."""
        with torch.device("meta"), Unfilled():
            return self.network(architecture, tier)

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network that a device runs, with arbitrary weights: by default the one that its client trains."""
        return self.network(architecture, tier)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError`, with layer and numbers, if the method cannot train this network with these tiers and ``clients``."""
        for tier in tiers:
            self.shapes(architecture, tier)

    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        """Return name → why the method does not factorize this layer of the dense ``network``; "" if it may.

        By default empty: the method has no rules for layers.
        """
        return {}

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names in ``network``'s state_dict that stay on the client."""
        return frozenset()

    def shapes(self, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
        """Return name → shape of the tensors that a client of ``tier`` receives; payloads are checked against it."""
        return dict(_shapes(architecture, tier, self))

    def upload_shapes(self, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
        """Return name → shape of the tensors that a client of ``tier`` sends back: by default those that it receives."""
        return self.shapes(architecture, tier)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the state before the first round: by default the weights of :meth:`first_network`."""
        with torch_seeded(rng):
            network = self.first_network(architecture, tiers)
        return GlobalState(architecture, tiers, copied(network))

    def first_network(self, architecture: Architecture, tiers: tuple[Tier, ...]) -> nn.Module:
        """Return the server's network with initial weights: by default the dense one."""
        return architecture.build()

    def first_personal(self, architecture: Architecture, tier: Tier, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return the personal tensors of a client that never trained; with the ``rng`` of :meth:`init`, those of the server's network."""
        if not (names := self.personal(self.skeleton(architecture, tier))):
            return {}
        with torch_seeded(rng):
            network = self.network(architecture, tier)
        return {name: tensor for name, tensor in copied(network).items() if name in names}

    # The server's half.

    def places(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None) -> Mapping[str, Place]:
        """Return name → place in ``state`` of a client's sub-model: by default, each tensor is a leading slice."""
        return state.slices(tier, self.shapes, within=self.global_tier(state).ratio)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the sub-model for ``client`` of ``tier`` (None: no particular one): by default copies of the entries at :meth:`places`."""
        places = self.places(state, tier, rng, client)
        return Submodel(tier, cut(state.tensors, places), partial(self.network, state.architecture, tier), places)

    def checked(self, state: GlobalState, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield ``updates``, each checked against the :meth:`upload_shapes` of its tier; see :meth:`aggregate` for the errors."""
        shapes = {tier: self.upload_shapes(state.architecture, tier) for tier in state.tiers}
        return checked(updates, lambda update: shapes[update.tier], state.architecture.classes)

    def label_rows(self, architecture: Architecture) -> frozenset[str]:
        """Return the names of the state's tensors that have a row for each label: by default none.

        Such a row is averaged over the clients that have samples of its label. For this, clients send the list of their labels with their
        update. All rows of an update without a list count.
        """
        return frozenset()

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the next state: by default every entry is its mean over the clients that hold it. Other entries do not change.

        ``updates`` are read one at a time, so memory does not grow with the number of clients.

        Raises:
            AggregationError: no update, a client without samples, a label that is no class, NaN or infinity, or a tensor that is missing
                or of another shape.

        >>> from edgefl.methods.create import create
        >>> method, tier = create("fedavg"), Tier(1.0)
        >>> state = method.init(Architecture("mlp", (4,), 2), (tier,), np.random.default_rng(0))
        >>> places = method.submodel(state, tier, np.random.default_rng(0)).places
        >>> ones = {name: torch.ones(shape) for name, shape in method.upload_shapes(state.architecture, tier).items()}
        >>> fives = {name: 5 * tensor for name, tensor in ones.items()}
        >>> after = method.aggregate(state, [Update(0, tier, ones, places, samples=30), Update(1, tier, fives, places, samples=10)])
        >>> {float(value) for tensor in after.tensors.values() for value in tensor.unique()}
        {2.0}
        """
        by_label = self.label_rows(state.architecture)
        floats = {name: tensor for name, tensor in state.tensors.items() if tensor.is_floating_point()}
        total = WeightedSum(floats)
        for update in self.checked(state, updates):
            weight = float(update.samples) if self.weighs_samples else 1.0
            for name, tensor in update.tensors.items():
                place = update.places[name]
                total.add(place.target, tensor, weight, place.index, update.labels if place.target in by_label else None)
        return state.replace({**state.tensors, **total.mean(floats)})

    @property
    def folds(self) -> bool:
        """Whether the server needs only the sum of each tier's updates, so that they can be added up where clients train.

        By default true if all clients of a tier receive the same sub-model, and the subclass inherits :meth:`aggregate`, :meth:`checked`,
        and :meth:`places` or :meth:`label_rows`.
        """
        kind = type(self)
        inherits = kind.aggregate is Method.aggregate and kind.checked is Method.checked
        same_names = kind.places is Method.places or kind.label_rows is Method.label_rows
        return inherits and same_names and not self.per_client

    @property
    def gaps(self) -> Mapping[Need, str]:
        """Capability → reason: those that the method :attr:`lacks`, and ``tier_sums`` unless it :attr:`folds`."""
        if self.folds:
            return self.lacks
        whose = "clients of one tier receive sub-models of their own, whose tensors do not add up"
        return {**self.lacks, "tier_sums": whose if self.per_client else self.every_update}

    def tier_sum(self, architecture: Architecture, tier: Tier) -> TierSum:
        """Return an empty sum, to which updates of ``tier`` can be added."""
        shapes = self.upload_shapes(architecture, tier)
        return TierSum.of(shapes, self.label_rows(architecture) & shapes.keys(), architecture.classes)

    def finish(self, state: GlobalState, sums: Iterable[tuple[Mapping[str, Place], TierSum]]) -> GlobalState:
        """Return the state that :meth:`aggregate` would return for the same updates, bit for bit.

        ``sums`` has for each tier the places of its tensors, and the sum of its updates, which must not be used afterwards. It is called
        only if the method :attr:`folds`.
        """
        floats = {name: tensor for name, tensor in state.tensors.items() if tensor.is_floating_point()}
        total = WeightedSum(floats)
        for places, of in sums:
            for name, part in of.parts().items():
                rows = of.label_weights if name in of.by_label else None
                total.merge(places[name].target, part, of.weight, places[name].index, rows)
        return state.replace({**state.tensors, **total.mean(floats)})

    def stores(self, architecture: Architecture, tier: Tier) -> bool:
        """Whether a client of ``tier`` stores tensors between rounds."""
        return bool(_stored(architecture, tier, self))

    def rebased(self, update: Update, sent: Tensors, now: Tensors, weight: float) -> Update:
        """Return ``update``, which began from the tensors ``sent``, as if it had begun from the tensors ``now``.

        By default the client's change, times ``weight``, is added to the present tensors: ``now + weight · (received − sent)`` (FedBuff).
        """
        return replace(update, tensors=moved(update.tensors, sent, now, weight))

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple["Method", GlobalState]:
        """Return the method and state with which round ``round_`` (from 1) starts: by default ``self`` and ``state``.

        A method of several phases returns :meth:`with_options`, so that a client or a resumed run can create it again. ``rng`` is the
        round's own: a resumed run calls this again with the same draws.
        """
        return self, state

    def with_options(self, **options: Any) -> Self:
        """Return the method with other values of ``options``, and of the same class."""
        return replace(self, config=self.config.model_copy(update=options))

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> dict[str, Any]:
        """Return JSON values for the round's record, from the state at the start of the round and from the sub-models that were sent.

        By default the energy per band of ranks, if :meth:`energy_bands` has any.
        """
        return energy_figures(state.tiers, self.energy_bands(state))

    def energy_bands(self, state: GlobalState) -> Mapping[str, Sequence[float]]:
        """Return layer → energy ‖W‖²_F of its weight in each band of ranks: one band per tier, smallest tier first.

        A tier's band has the ranks that the next smaller tier lacks. A last band, if there is one, has the ranks that no tier has. By
        default empty: the method truncates no layers.
        """
        return {}

    def client_shapes(self, state: GlobalState) -> Mapping[str, Shape | None]:
        """Return name → shape of the tensors that ``state.clients`` has for each client; None stands for a vector of any length."""
        return {}

    def fits(self, first: GlobalState, stored: GlobalState) -> str:
        """Return why ``stored``, read from a file, cannot be a later state of a run that began with ``first``; "" if it can."""
        model, of_client = shapes_of(first.tensors), self.client_shapes(first)
        if any(shapes_of(tensors) != model for tensors in (stored.tensors, *stored.clusters.values())):
            return "its tensors are of another model"
        for client, tensors in stored.clients.items():
            memory = f"what it remembers of client {client} is of another model"
            shapes = shapes_of(tensors)
            if different := sorted(shapes.keys() ^ of_client.keys()):
                return f"{memory} ({different[0]} is missing or not expected)"
            for name, shape in sorted(shapes.items()):
                if shape != (expected := of_client[name]) and not (expected is None and len(shape) == 1):
                    return f"{memory} ({name} has shape {shape}, expected {expected})"
        return ""

    def trained(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network that ``client`` trains, in evaluation mode; None: no particular client.

        ``personal`` has the tensors that the client stored. Tensors that are neither sent nor stored have their initial values.
        """
        submodel = self.submodel(state, tier, np.random.default_rng(0), client)
        network = submodel.build()
        first = {name: state.tensors[name] for name in network.state_dict().keys() & state.tensors.keys()}
        return loaded(network, {**first, **submodel.tensors, **(personal or {})})

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network to deploy, in evaluation mode: by default :meth:`trained`. :meth:`composed` then multiplies its factors."""
        return self.trained(state, tier, personal, client)

    def composed(self, architecture: Architecture, tier: Tier, network: nn.Module) -> nn.Module:
        """Return a network from :meth:`factored` as a device runs it, for example with multiplied factors: by default unchanged."""
        return network

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the tier's network as a device runs it, in evaluation mode."""
        return self.composed(state.architecture, tier, self.factored(state, tier, personal, client))

    def global_tier(self, state: GlobalState) -> Tier:
        """Return the tier of the server's own network; it may be larger than every client's."""
        return Tier(1.0)

    # The client's half.

    def receive(self, module: nn.Module, received: Tensors, personal: Tensors, batches: tuple[Any, Tensor]) -> None:
        """Load received and stored tensors into ``module``.

        ``batches``: the client's samples (n, …), or name → samples for several inputs, and its labels (n,).
        """
        load(module, {**received, **personal})

    def criterion(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the scalar loss of ``logits`` (batch, classes): by default the mean cross-entropy."""
        return cross_entropy(logits, batch)

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return the scalars that the method adds to the loss, such as regularisers of weights."""
        return ()

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the scalar that a client minimises on one batch: by default :meth:`criterion` plus :meth:`penalties`."""
        return sum(self.penalties(module), self.criterion(module(batch.x), batch))

    def decayed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that the optimizer's weight decay acts on: by default all."""
        return list(module.parameters())

    def step_tiers(self, tier: Tier) -> tuple[Tier, ...]:
        """Return the tiers among which a client of ``tier`` draws one to train in each step, all equally likely."""
        return (tier,)

    def draws(self, tier: Tier) -> tuple[float | None, ...]:
        """Return one :attr:`edgefl.records.Batch.draw` for each kind of step. The n kinds are equally likely.

        Draws in [i/n, (i+1)/n) give a step of kind i. By default all steps are of one kind, without a draw.
        """
        return (None,)

    def evaluated(self, samples: int) -> int:
        """Return how often a client with ``samples`` samples computes one of them in a round without training: by default never."""
        return 0

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that the client sends back: by default those of floating point that are not personal."""
        personal = self.personal(module)
        state = module.state_dict()
        return {name: t.detach() for name, t in state.items() if t.is_floating_point() and name not in personal}

    def keep(self, module: nn.Module) -> dict[str, Tensor]:
        """Return copies of the tensors that the client stores until its next round: by default the personal ones."""
        personal = self.personal(module)
        return {name: tensor.detach().clone() for name, tensor in module.state_dict().items() if name in personal}

    def adapt(self, module: nn.Module, x: Any, y: Tensor) -> nn.Module:
        """Return the deployed network, adapted by the client to its own samples ``x`` (n, …) and labels ``y`` (n,) before use."""
        return module


@once_per_network
def _shapes(architecture: Architecture, tier: Tier, method: Method) -> dict[str, Shape]:
    network = method.skeleton(architecture, tier)
    personal = method.personal(network)
    return {name: shape for name, shape in travelling_shapes(network).items() if name not in personal}


@once_per_network
def _stored(architecture: Architecture, tier: Tier, method: Method) -> frozenset[str]:
    return frozenset(method.keep(method.skeleton(architecture, tier)))
