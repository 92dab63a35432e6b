"""Local objectives and their server halves against NumPy, with mixed signs, partial participation and several steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.client.objective import CONTROL, MEMORY, objective_named
from edgefl.config import RunConfig
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.rng import generator
from edgefl.server.control_variates import SERVER, Control

START = np.array([[1.0, -2.0, 0.5]], np.float32)
TARGET = np.array([[-1.0, 4.0, 0.25]], np.float32)


def module_at(weight: np.ndarray) -> nn.Linear:
    layer = nn.Linear(3, 1, bias=False)
    layer.load_state_dict({"weight": torch.from_numpy(weight.copy())})
    return layer


def descend(objective, memory, control, steps, lr):
    """Plain gradient descent on ½‖w − target‖² with the objective's term; returns the module, after ``steps`` steps."""
    module = module_at(START)
    objective.attach(module, dict(module.named_parameters()), memory, control)
    for _ in range(steps):
        loss = (module.weight - torch.from_numpy(TARGET)).square().sum() / 2 + objective.term(module)
        (gradient,) = torch.autograd.grad(loss, [module.weight])
        with torch.no_grad():
            module.weight -= lr * gradient
    return module


def test_prox_pulls_to_the_weights_that_arrived():
    mu, lr, w = 0.3, 0.1, START.astype(np.float64)
    for _ in range(4):
        w = w - lr * ((w - TARGET) + mu * (w - START))
    module = descend(objective_named("prox", mu), {}, {}, 4, lr)
    np.testing.assert_allclose(module.weight.detach().numpy(), w, rtol=1e-5)
    assert objective_named("prox", mu).finish(module, {}, {}, 4, lr) == ({}, {})


def test_dyn_corrects_by_its_memory_and_updates_it():
    alpha, lr, h = 0.2, 0.1, np.array([[0.5, -1.5, 2.0]])
    w = START.astype(np.float64)
    for _ in range(3):
        w = w - lr * ((w - TARGET) - h + alpha * (w - START))
    objective, memory = objective_named("dyn", alpha), {MEMORY + "weight": torch.from_numpy(h).float()}
    module = descend(objective, memory, {}, 3, lr)
    np.testing.assert_allclose(module.weight.detach().numpy(), w, rtol=1e-5)
    up, keep = objective.finish(module, memory, {}, 3, lr)
    assert not up
    np.testing.assert_allclose(keep[MEMORY + "weight"].numpy(), h - alpha * (w - START), rtol=1e-5)


def test_scaffold_corrects_by_the_difference_of_control_variates_and_sends_the_change():
    lr, steps, c, c_k = 0.05, 5, np.array([[1.0, -0.5, 0.0]]), np.array([[-0.25, 0.75, 1.5]])
    w = START.astype(np.float64)
    for _ in range(steps):
        w = w - lr * ((w - TARGET) + c - c_k)
    objective = objective_named("scaffold", 0.0)
    memory, control = {MEMORY + "weight": torch.from_numpy(c_k).float()}, {CONTROL + "weight": torch.from_numpy(c).float()}
    module = descend(objective, memory, control, steps, lr)
    np.testing.assert_allclose(module.weight.detach().numpy(), w, rtol=1e-5)
    up, keep = objective.finish(module, memory, control, steps, lr)
    after = c_k - c + (START - w) / (steps * lr)  # option II
    np.testing.assert_allclose(keep[MEMORY + "weight"].numpy(), after, rtol=1e-4)
    np.testing.assert_allclose(up[CONTROL + "weight"].numpy(), after - c_k, rtol=1e-4)


@pytest.fixture
def narrow_and_wide():
    """Return a HeteroFL state and the sub-models of a narrow and a wide client."""
    method = create("heterofl")
    tiers = (Tier(1.0), Tier(0.5))
    state = method.init(Architecture("mlp", (1, 2, 2), 3), tiers, generator(0, "init"))
    return state, [method.submodel(state, tier, generator(0, "s")) for tier in tiers]


def moved(submodel, rng):
    return {n: t + torch.from_numpy(rng.normal(size=tuple(t.shape))).float() for n, t in submodel.tensors.items()}


def test_dyn_on_the_server_in_nested_coordinates(narrow_and_wide):
    """θ ← mean − h/α with h ← h − α/N Σ(θ_k − θ), entry by entry; N counts clients that were not drawn, too."""
    state, submodels = narrow_and_wide
    alpha, clients, rng = 0.5, 5, np.random.default_rng(1)
    before = {SERVER + n: torch.from_numpy(rng.normal(size=tuple(t.shape))).float() for n, t in state.tensors.items()}
    control = Control(objective_named("dyn", alpha), before, clients)
    answers = [moved(submodel, rng) for submodel in submodels]
    for submodel, answer in zip(submodels, answers, strict=True):
        control.add(submodel, submodel.tensors, answer, state)
    method = create("heterofl")
    mean = state.replace({name: tensor * 0.75 for name, tensor in state.tensors.items()})
    after, kept = control.finish(state, mean)
    name = "hidden.weight"
    total = np.zeros(tuple(state.tensors[name].shape))
    for submodel, answer in zip(submodels, answers, strict=True):
        small = (answer[name] - submodel.tensors[name]).numpy()
        total[: small.shape[0], : small.shape[1]] += small
    h = before[SERVER + name].numpy() - alpha / clients * total
    np.testing.assert_allclose(kept[SERVER + name].numpy(), h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after.tensors[name].numpy(), mean.tensors[name].numpy() - h / alpha, rtol=1e-4, atol=1e-5)
    assert method.title == "HeteroFL"


def test_scaffold_on_the_server_sends_slices_and_adds_changes(narrow_and_wide):
    state, submodels = narrow_and_wide
    clients, rng = 4, np.random.default_rng(2)
    before = {SERVER + n: torch.from_numpy(rng.normal(size=tuple(t.shape))).float() for n, t in state.tensors.items()}
    control = Control(objective_named("scaffold", 0.0), before, clients)
    name = "hidden.weight"
    total = np.zeros(tuple(state.tensors[name].shape))
    for submodel in submodels:
        sent = control.variates(submodel, submodel.tensors)
        rows, columns = submodel.tensors[name].shape
        np.testing.assert_array_equal(sent[CONTROL + name].numpy(), before[SERVER + name].numpy()[:rows, :columns])
        changes = {CONTROL + n: torch.from_numpy(rng.normal(size=tuple(t.shape))).float() for n, t in submodel.tensors.items()}
        total[:rows, :columns] += changes[CONTROL + name].numpy()
        control.add(submodel, submodel.tensors, changes, state)
    after, kept = control.finish(state, state)
    assert after is state
    np.testing.assert_allclose(kept[SERVER + name].numpy(), before[SERVER + name].numpy() + total / clients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"objective": "scaffold"}, "plain SGD steps"),
        ({"objective": "scaffold", "optimizer": "sgd"}, "weight_decay 0, got sgd and 0.0001"),
        ({"objective": "dyn", "tier_assignment": "dynamic"}, "change from round to round"),
        ({"tier_shares": (0.5, 0.5)}, "tier_assignment auto"),
        ({"tier_shares": (0.5, 0.6), "tiers": (1, 0.5), "tier_assignment": "uniform"}, "add up to 1"),
        ({"tier_shares": (1.0,), "tiers": (1, 0.5), "tier_assignment": "uniform"}, "1 shares for 2 tiers"),
        ({"mode": "async", "over_selection": 1.3}, "over_selection: .* async has no rounds"),
    ],
)
def test_combinations_that_make_no_sense_are_refused_with_the_reason(values, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(**values)


@pytest.mark.parametrize(("objective", "method"), [("dyn", "fedhm"), ("scaffold", "fedhm")])
def test_methods_refuse_what_their_coordinates_do_not_allow(objective, method):
    from edgefl.run.prepare import prepare

    config = RunConfig(method=method, objective=objective, optimizer="sgd", weight_decay=0, rounds=1)
    with pytest.raises(ConfigError, match=f"objective: {objective} makes no sense with FedHM: .*decomposition"):
        prepare(config)
