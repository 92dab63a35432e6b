"""The contract of a method: a frozen record of options with pure functions. The server's and the client's half are in one file."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, get_type_hints

import numpy as np
import pydantic
import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError, nearest
from edgefl.factor.width import cut
from edgefl.methods.averaging import WeightedSum, checked
from edgefl.methods.axes import Need
from edgefl.methods.state import GlobalState, Shape, Tensors, copied, shapes_of
from edgefl.models.base import Architecture, Unfilled, load
from edgefl.records import Batch, Place, Submodel, Tier, Update
from edgefl.registry import methods
from edgefl.rng import torch_seeded
from edgefl.util.validation import explain

Options = Mapping[str, Any]


class MethodConfig(pydantic.BaseModel):
    """Options of a method; each method's own class adds its keys. An unknown key is an error."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True)


@dataclass(frozen=True)
class Method(abc.ABC):
    """A federated method for clients of several capacities.

    Attributes:
        title, paper: its name in reports, and its source.
        tier_meaning: what a tier's ratio is.
        travels, stays: one line each on what is sent and on what never leaves the client.
        default_tiers: tiers of a run that names none. A method that exists at one size has one.
        per_client: whether clients of one tier receive different sub-models.
        personalised: whether every client ends up with its own model, which is then evaluated.
        weighs_samples: whether :meth:`aggregate` weighs clients by their samples, instead of alike.
        truncates: whether layers are truncated decompositions of dense ones, so that a plan may choose another rank for each.
        lacks: capability that a choice on another axis may need (:mod:`edgefl.methods.axes`) → why this method lacks it.
        contract_exceptions: rule of the contract suite → why it cannot hold for this method.
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
    truncates: ClassVar[bool] = False
    lacks: ClassVar[Mapping[Need, str]] = {}
    contract_exceptions: ClassVar[Mapping[str, str]] = {}

    @classmethod
    @cache
    def config_class(cls) -> type[MethodConfig]:
        """Return the class of the method's options: the one that it annotates ``config`` with."""
        return get_type_hints(cls)["config"]

    # Shapes and first values.

    @abc.abstractmethod
    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the client's network with arbitrary weights, on torch's current device (``meta`` for shapes only)."""

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network that a device runs, with arbitrary weights: by default the one that clients train."""
        return self.network(architecture, tier)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError`, naming layer and numbers, if this method cannot train this network at these tiers."""
        for tier in tiers:
            self.shapes(architecture, tier)

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names in ``network``'s state_dict that stay on the client."""
        return frozenset()

    def shapes(self, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
        """Return name → shape of what travels to a client of ``tier``; payloads are checked against it."""
        with torch.device("meta"), Unfilled():
            network = self.network(architecture, tier)
        personal = self.personal(network)
        return {name: shape for name, shape in travelling_shapes(network).items() if name not in personal}

    def upload_shapes(self, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
        """Return name → shape of what a client of ``tier`` sends back."""
        return self.shapes(architecture, tier)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the first state: the dense network's initial weights."""
        with torch_seeded(rng):
            network = architecture.build()
        return GlobalState(architecture, tiers, copied(network))

    def first_personal(self, architecture: Architecture, tier: Tier, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return what a client stores before it first trains; with :meth:`init`'s ``rng``, that is of the server's first network."""
        with torch.device("meta"), Unfilled():
            if not (names := self.personal(self.network(architecture, tier))):
                return {}
        with torch_seeded(rng):
            network = self.network(architecture, tier)
        return {name: tensor for name, tensor in copied(network).items() if name in names}

    # The server's half.

    def places(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None) -> Mapping[str, Place]:
        """Return where the tensors of a client's sub-model lie in ``state``: by default, each is a leading slice."""
        return state.slices(tier, self.shapes)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return what ``client`` of ``tier`` receives (None: no client in particular): by default copies of :meth:`places`."""
        places = self.places(state, tier, rng, client)
        return Submodel(tier, cut(state.tensors, places), partial(self.network, state.architecture, tier), places)

    def checked(self, state: GlobalState, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield ``updates`` once each is checked against what its tier sends."""
        shapes = {tier: self.upload_shapes(state.architecture, tier) for tier in state.tiers}
        return checked(updates, lambda update: shapes[update.tier])

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the next state: by default every entry's mean over the clients that hold it. Entries that no client holds stay.

        ``updates`` is consumed one at a time, so memory does not grow with the number of clients.

        Raises:
            AggregationError: no update, a client without samples, a value that is not finite, or a tensor of another shape.
        """
        floats = {name: tensor for name, tensor in state.tensors.items() if tensor.is_floating_point()}
        total = WeightedSum(floats)
        for update in self.checked(state, updates):
            weight = float(update.samples) if self.weighs_samples else 1.0
            for name, tensor in update.tensors.items():
                total.add(update.places[name].target, tensor, weight, update.places[name].index)
        return state.replace({**state.tensors, **total.mean(floats)})

    def advance(self, state: GlobalState, round_: int) -> tuple[Method, GlobalState]:
        """Return the method and state with which round ``round_`` starts; they differ from these if a new phase begins.

        Only its config distinguishes the returned method, so that a client or a resumed run can create it again.
        """
        return self, state

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> dict[str, Any]:
        """Return JSON values for the round's record, about the state that the round began with and about what was sent."""
        return {}

    def client_shapes(self, state: GlobalState) -> Mapping[str, Shape | None]:
        """Return name → shape of what a state like ``state`` remembers of a client; None stands for a vector of any length."""
        return {}

    def fits(self, first: GlobalState, stored: GlobalState) -> str:
        """Return why ``stored`` cannot be a state that began as ``first``, or nothing."""
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
        """Return the tier's network as ``client``, who stores ``personal``, trains it, in evaluation mode; None: no client."""
        submodel = self.submodel(state, tier, np.random.default_rng(0), client)
        module = submodel.build()
        module.load_state_dict({**submodel.tensors, **(personal or {})})
        return module.eval()

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network that a device runs, before :meth:`composed` multiplies its factors."""
        return self.trained(state, tier, personal, client)

    def composed(self, architecture: Architecture, tier: Tier, network: nn.Module) -> nn.Module:
        """Return ``network``, which is :meth:`factored`, with its factors multiplied where that is how a device runs it."""
        return network

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the tier's network as a device runs it, in evaluation mode."""
        return self.composed(state.architecture, tier, self.factored(state, tier, personal, client))

    def global_tier(self, state: GlobalState) -> Tier:
        """Return the size of the network that the server holds, which no client may train."""
        return Tier(1.0)

    # The client's half.

    def receive(self, module: nn.Module, received: Tensors, personal: Tensors, batches: tuple[Tensor, Tensor]) -> None:
        """Load received and stored tensors into ``module``. ``batches`` are the client's samples (n, …) and labels (n,)."""
        load(module, {**received, **personal})

    def criterion(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the loss of ``logits`` (batch, classes)."""
        return cross_entropy(logits, batch)

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return the scalars of the weights that the method adds to the loss."""
        return ()

    def local_loss(self, module: nn.Module, batch: Batch) -> Tensor:
        """Return the scalar that a client minimises on one batch."""
        return sum(self.penalties(module), self.criterion(module(batch.x), batch))

    def decayed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that plain weight decay acts on."""
        return list(module.parameters())

    def step_tiers(self, tier: Tier) -> tuple[Tier, ...]:
        """Return the tiers of which a client of ``tier`` trains one in each step; all are equally likely."""
        return (tier,)

    def draws(self, tier: Tier) -> tuple[float | None, ...]:
        """Return a :attr:`edgefl.records.Batch.draw` for each of n equally likely kinds of steps; kind i has [i/n, (i+1)/n)."""
        return (None,)

    def evaluated(self, samples: int) -> int:
        """Return how many samples go through a forward pass only, in a round of a client with ``samples`` samples."""
        return 0

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        """Return what the client sends back."""
        personal = self.personal(module)
        state = module.state_dict()
        return {name: t.detach() for name, t in state.items() if t.is_floating_point() and name not in personal}

    def keep(self, module: nn.Module) -> dict[str, Tensor]:
        """Return what the client stores until its next round."""
        personal = self.personal(module)
        return {name: tensor.detach().clone() for name, tensor in module.state_dict().items() if name in personal}

    def adapt(self, module: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
        """Return the deployed network as a client adapts it to its own samples ``x``, ``y`` before it uses it."""
        return module


def create(
    name: str, options: Mapping[str, Any] | None = None, *, dynamic_tiers: bool = False, tiers: tuple[float, ...] | None = None
) -> Method:
    """Return the method ``name`` with ``options``, which its own config class checks.

    ``dynamic_tiers`` says whether clients change tier between rounds; ``tiers`` are the run's (None: the method's own).

    Raises:
        UnknownNameError: no such method.
        ConfigError: an option's name or value is wrong.

    >>> create("fedhm", {"frobenius_decay": 0.001}).config.frobenius_decay
    0.001
    """
    method: type[Method] = methods.load(name)
    options = dict(options or {})
    config_class = method.config_class()
    fields = config_class.model_fields
    for key in options:
        if key not in fields:
            hint = f"{nearest(key, fields)} known: {', '.join(fields) or 'none'}"
            raise ConfigError(f"method_options.{key}: {name} has no such option;{hint}")
    if "dynamic_tiers" in fields:
        options.setdefault("dynamic_tiers", dynamic_tiers)
    if "tiers" in fields:
        options.setdefault("tiers", tiers or method.default_tiers)
    try:
        return method(config_class(**options))
    except pydantic.ValidationError as error:
        raise ConfigError(f"method_options.{explain(error.errors()[0])}") from None


def travelling_shapes(network: nn.Module) -> dict[str, Shape]:
    """Return name → shape of the tensors of ``network`` that travel: all except counters, such as BatchNorm's."""
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if tensor.is_floating_point()}


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of a batch, for ``logits`` (batch, classes)."""
    return nn.functional.cross_entropy(logits, batch.y)


def masked_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Return cross-entropy with the logits of labels that the client has none of set to zero (HeteroFL, section 4)."""
    if batch.present is None:
        return cross_entropy(logits, batch)
    return cross_entropy(torch.where(batch.present, logits, logits.new_zeros(())), batch)


def check_tiers(name: str, ratios: tuple[float, ...]) -> None:
    """Raise :class:`ConfigError` if the method exists at one size and several tiers were given."""
    method: type[Method] = methods.load(name)
    if len(method.default_tiers) == 1 and len(ratios) > 1:
        raise ConfigError(f"tiers: {name} trains one size only, got {len(ratios)} tiers; give one, such as --tiers 1")
