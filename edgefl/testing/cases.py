"""The cases of the contract of methods: a method with one kind of network, and the tests that are its rules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import first_personal
from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.methods.personal import kept, received
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Submodel, Tier, Update
from edgefl.rng import generator

F = TypeVar("F", bound=Callable[..., None])

ARCHITECTURES = {
    "cnn": Architecture("cnn-digits", (1, 8, 8), 4),
    "mlp": Architecture("mlp", (1, 8, 8), 4),
    "static": Architecture("cnn-digits", (1, 8, 8), 4, "static"),
}
"""Kind → network, of images of 8 × 8 pixels and four labels."""
TRAINING = Training(epochs=1, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-4)
"""How clients of the contract train."""


@dataclass(frozen=True)
class ContractRule:
    """A rule in words. One ``of_networks`` does not depend on how the server aggregates, nor on what travels."""

    words: str
    of_networks: bool


RULES: dict[str, ContractRule] = {}
"""Name of a test → its rule."""


def rule(words: str, of_networks: bool = False) -> Callable[[F], F]:
    """Return the decorator of a test that is a rule: :func:`parametrize` runs it for every method and kind of network."""

    def register(test: F) -> F:
        RULES[test.__name__] = ContractRule(words, of_networks)
        return test

    return register


Named = Mapping[str, Method]


def parametrize(
    metafunc: pytest.Metafunc,
    methods: Named,
    aggregations: Named | None = None,
    more: Iterable[tuple[str, Method, str, Architecture]] = (),
    kinds: Sequence[str] = tuple(ARCHITECTURES),
) -> None:
    """Run a test of the contract for every method and kind of network; where the method says that it cannot keep the rule, it must fail.

    ``aggregations`` are methods that differ from one of ``methods`` only in how the server aggregates or in what travels. ``more`` are a
    method's name, the method, a network's name and the network. ``kinds`` are those of :data:`ARCHITECTURES` to check.
    """
    every = {**methods, **(aggregations or {})}
    if "method" in metafunc.fixturenames:
        metafunc.parametrize("method", [pytest.param(method, id=name) for name, method in every.items()])
    if (checked := RULES.get(metafunc.function.__name__)) is None:
        return
    chosen = methods if checked.of_networks else every
    pairs = [(*one, *other) for one, other in itertools.product(chosen.items(), ((kind, ARCHITECTURES[kind]) for kind in kinds))]
    params = []
    for name, method, kind, architecture in [*pairs, *more]:
        case = Case(method, architecture, tuple(Tier(ratio) for ratio in method.default_tiers))
        exceptions = method.contract_exceptions
        reason = exceptions.get(checked.words) or exceptions.get(f"{checked.words} [{kind}]")
        marks = [pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)] if reason else []
        params.append(pytest.param(case, id=f"{name}-{kind}", marks=marks))
    metafunc.parametrize("case", params)


@dataclass(frozen=True)
class Case:
    """A method, one network, and the tiers that it trains."""

    method: Method
    architecture: Architecture
    tiers: tuple[Tier, ...]

    def state(self, seed: int = 0) -> GlobalState:
        """Return the state before the first round."""
        return self.method.init(self.architecture, self.tiers, generator(seed, "init"))

    def submodel(self, state: GlobalState, tier: Tier, client: int | None = None) -> Submodel:
        """Return the sub-model of a client."""
        return self.method.submodel(state, tier, generator(0, "submodel"), client)

    def personal(self, tier: Tier) -> dict[str, Tensor]:
        """Return what a client stores before its first round."""
        return first_personal(self.method, self.architecture, tier, 0)

    def received(self, submodel: Submodel, x: Tensor, y: Tensor) -> torch.nn.Module:
        """Return the client's network as it is before its first step."""
        module = submodel.build()
        received(self.method, module, submodel.tensors, self.personal(submodel.tier), (x, y))
        return module

    def update(self, state: GlobalState, tier: Tier, client: int = 0, noise: float = 0.1, samples: int = 10) -> Update:
        """Return the update of a client whose tensors change by ``noise`` times normal draws."""
        submodel = self.submodel(state, tier, client)
        rng = np.random.default_rng(client + 1)
        sent = self.method.upload(self.received(submodel, *images(9, client)))
        tensors = {
            name: tensor + noise * torch.from_numpy(rng.standard_normal(tuple(tensor.shape))).float()
            for name, tensor in sent.items()
        }
        return Update(client, tier, tensors, submodel.places, samples)


def images(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Four kinds of images: one bright quadrant each, in noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=samples)
    x = 0.3 * rng.standard_normal((samples, 1, 8, 8))
    for image, label in zip(x, y, strict=True):
        image[0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 2
    return torch.from_numpy(x).float(), torch.from_numpy(y)


@dataclass
class Home:
    """A client of the toy problem: its samples and what it keeps."""

    x: Tensor
    y: Tensor
    kept: dict[str, Tensor] | None = None


def trained(case: Case, state: GlobalState, tier: Tier, client: int, home: Home, round_: int = 0) -> Update:
    """Return the update of a client that trains its samples, and store at ``home`` what it keeps."""
    submodel = case.method.submodel(state, tier, generator(0, round_, client, "submodel"), client)
    module = submodel.build()
    received(case.method, module, submodel.tensors, {**case.personal(tier), **(home.kept or {})}, (home.x, home.y))
    present = torch.zeros(4, dtype=torch.bool)
    present[home.y.unique()] = True
    rng, draws = generator(0, round_, client, "train"), generator(0, round_, client, "draw")
    optimizer = optimizer_of(case.method, module, TRAINING)
    loss = loss_of(case.method, PLAIN)
    result = train(LocalTraining(module, loss, home.x, home.y, present, TRAINING, rng, draws), optimizer)
    assert result.peak_activation_bytes > 0
    home.kept = kept(case.method, module)
    tensors = {name: tensor.detach().clone() for name, tensor in case.method.upload(module).items()}
    return Update(client, tier, tensors, submodel.places, len(home.y))


def equal_states(one: GlobalState, other: GlobalState) -> None:
    """Assert that two states have the same tensors, except for rounding."""
    assert one.tensors.keys() == other.tensors.keys()
    for name, tensor in one.tensors.items():
        torch.testing.assert_close(other.tensors[name], tensor, rtol=1e-5, atol=1e-6)
