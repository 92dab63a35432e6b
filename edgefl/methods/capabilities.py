"""Capabilities of some methods, which a method has by deriving from them; and what all methods do instead.

Capabilities of personal tensors and of terms of the loss are in :mod:`edgefl.methods.personal` and :mod:`edgefl.methods.penalties`.
"""

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from torch import nn

from edgefl.methods.averaging import averaged
from edgefl.methods.base import Method
from edgefl.methods.personal import trained_network
from edgefl.methods.ranks import energy_figures
from edgefl.methods.state import GlobalState, Shape, Tensors, shapes_of
from edgefl.methods.updates import moved
from edgefl.models.base import Architecture
from edgefl.records import Observed, Submodel, Tier, Update


class Phased(Method, abc.ABC):
    """The method changes over rounds."""

    @abc.abstractmethod
    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        """Return the method and state with which round ``round_`` (from 1) starts.

        Another phase is :meth:`with_options`, so that a client or a resumed run can create it again. ``rng`` is the round's own: a resumed
        run calls this again with the same draws.
        """

    def with_options(self, **options: Any) -> Self:
        """Return the method with other values of ``options``, and of the same class."""
        return replace(self, config=self.config.model_copy(update=options))


def advanced(method: Method, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
    """Return the method and state with which round ``round_`` (from 1) starts."""
    return method.advance(state, round_, rng) if isinstance(method, Phased) else (method, state)


class Draws(Method, abc.ABC):
    """A client draws in every step what it trains."""

    @abc.abstractmethod
    def draws(self, tier: Tier) -> tuple[float | None, ...]:
        """Return one :attr:`edgefl.records.Batch.draw` for each kind of step. The n kinds are equally likely.

        Draws in [i/n, (i+1)/n) give a step of kind i.
        """

    def step_tiers(self, tier: Tier) -> tuple[Tier, ...]:
        """Return the tiers among which a client of ``tier`` draws one to train in each step, all equally likely."""
        return (tier,)


def draws(method: Method, tier: Tier) -> tuple[float | None, ...]:
    """Return one :attr:`edgefl.records.Batch.draw` for each kind of step: (None,) if all steps are of one kind, without a draw."""
    return method.draws(tier) if isinstance(method, Draws) else (None,)


class Figures(Method):
    """The record of a round has figures of the method."""

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> Observed:
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


class ByLabel(Method, abc.ABC):
    """Some tensors have a row for each label, which is averaged over the clients that have samples of its label.

    For this, clients send the list of their labels with their update. All rows of an update without a list count.
    """

    @abc.abstractmethod
    def label_rows(self, architecture: Architecture) -> frozenset[str]:
        """Return the names of the state's tensors that have a row for each label."""

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the next state: every entry is its mean over the clients that hold it and, in a row of a label, have samples of it."""
        return averaged(self, state, updates, self.label_rows(state.architecture))


def label_rows(method: Method, architecture: Architecture) -> frozenset[str]:
    """Return the names of the state's tensors that have a row for each label: those of :class:`ByLabel`."""
    return method.label_rows(architecture) if isinstance(method, ByLabel) else frozenset()


class Factorizes(Method, abc.ABC):
    """Rules choose the layers that are factorized."""

    @abc.abstractmethod
    def dense_reasons(self, network: nn.Module) -> Mapping[str, str]:
        """Return name → why the method does not factorize this layer of the dense ``network``; "" if it may."""


class Composes(Method):
    """A device runs the products of factors that it may also run as factors."""

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network of :meth:`deploy` with its factors not multiplied out: by default the one that a client trains."""
        return trained_network(self, state, tier, personal, client)


def factored(
    method: Method, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None
) -> nn.Module:
    """Return the network of :meth:`Method.deploy`, with its factors not multiplied out if it :class:`Composes`."""
    network = method.factored if isinstance(method, Composes) else method.deploy
    return network(state, tier, personal, client)


class Rebases(Method, abc.ABC):
    """In mode async, an update is moved to the present model by a rule of the method's own."""

    @abc.abstractmethod
    def rebased(self, update: Update, sent: Tensors, now: Tensors, weight: float) -> Update:
        """Return ``update``, which began from the tensors ``sent``, as if it had begun from the tensors ``now``, times ``weight``."""


def rebased(method: Method, update: Update, sent: Tensors, now: Tensors, weight: float) -> Update:
    """Return ``update``, which began from the tensors ``sent``, as if it had begun from the tensors ``now``.

    The client's change, times ``weight``, is added to the present tensors: ``now + weight · (received − sent)`` (FedBuff), unless the
    method :class:`Rebases`.
    """
    if isinstance(method, Rebases):
        return method.rebased(update, sent, now, weight)
    return replace(update, tensors=moved(update.tensors, sent, now, weight))


@dataclass(frozen=True)
class Distilled:
    """The result of a server that :class:`Distils`, and its computations.

    Attributes:
        state: the next state.
        evaluated: tier → how many samples its networks computed, without a gradient.
        trained: tier → how many samples its network was trained on, each as often as it was.
    """

    state: GlobalState
    evaluated: Mapping[Tier, int]
    trained: Mapping[Tier, int]


class Distils(Method, abc.ABC):
    """After it has aggregated, the server trains on public samples: no client has them, and nobody reads their labels."""

    @property
    @abc.abstractmethod
    def public_share(self) -> float:
        """The share of the training samples that are public, in (0, 1)."""

    @abc.abstractmethod
    def distilled(self, state: GlobalState, updates: Sequence[Update], x: Any, rng: np.random.Generator) -> Distilled:
        """Return the next state, given the aggregate ``state`` of ``updates`` and the public samples ``x``, (n, …) or name → (n, …).

        ``rng`` is the round's own: a round that is computed again has the same draws.
        """


def learning(method: Method) -> tuple[bool, bool]:
    """Return whether tiers learn from updates of larger ones, and whether the server :class:`Distils`, so that all learn from all."""
    return method.trains_smaller, isinstance(method, Distils)


class Remembers(Method, abc.ABC):
    """The server has a memory of its clients (:attr:`GlobalState.clients`)."""

    @abc.abstractmethod
    def client_shapes(self, state: GlobalState) -> Mapping[str, Shape | None]:
        """Return name → shape of the tensors that ``state.clients`` has for each client; None stands for a vector of any length."""

    def misfit(self, stored: GlobalState) -> str:
        """Return why ``stored``, read from a file and of these shapes, is no state of the method: by default it always is one, ""."""
        return ""


def misfit(method: Method, first: GlobalState, stored: GlobalState) -> str:
    """Return why ``stored``, read from a file, cannot be a later state of a run that began with ``first``; "" if it can."""
    model = shapes_of(first.tensors)
    expected = method.client_shapes(first) if isinstance(method, Remembers) else {}
    if any(shapes_of(tensors) != model for tensors in (stored.tensors, *stored.clusters.values())):
        return "its tensors are of another model"
    for client, tensors in stored.clients.items():
        memory = f"what it remembers of client {client} is of another model"
        shapes = shapes_of(tensors)
        if different := sorted(shapes.keys() ^ expected.keys()):
            return f"{memory} ({different[0]} is missing or not expected)"
        for name, shape in sorted(shapes.items()):
            if shape != (wanted := expected[name]) and not (wanted is None and len(shape) == 1):
                return f"{memory} ({name} has shape {shape}, expected {wanted})"
    return method.misfit(stored) if isinstance(method, Remembers) else ""
