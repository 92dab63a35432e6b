"""Rules of local objectives: what a client adds, stores and sends, what the server makes of it, and the exported training graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.client.objective import CONTROL, MEMORY, Objective, objective_named
from edgefl.methods.axes import needs
from edgefl.methods.create import create
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Submodel, Tier
from edgefl.rng import generator
from edgefl.server.control_variates import SERVER, Control
from edgefl.testing.parity import measured

STRENGTH, STEPS, LR = 0.3, 3, 0.1
TIERS = Tier(1.0), Tier(0.5)
ARCHITECTURE = Architecture("mlp", (1, 2, 2), 3)
SHAPE: dict[str, tuple[int, ...]] = {"weight": (2, 3)}
TARGET = torch.tensor([[-1.0, 4.0, 0.25], [0.5, -2.0, 3.0]])


def drawn(shapes: dict[str, tuple[int, ...]], prefix: str, seed: int) -> dict[str, Tensor]:
    """Return a normal tensor for each shape, under ``prefix`` and its name."""
    rng = np.random.default_rng(seed)
    return {prefix + name: torch.from_numpy(rng.standard_normal(shape)).float() for name, shape in shapes.items()}


def descended(objective: Objective, memory: dict[str, Tensor], control: dict[str, Tensor]) -> nn.Linear:
    """Return a layer that descends ½‖w − target‖² with the terms of ``objective``."""
    layer = nn.Linear(3, 2, bias=False)
    layer.load_state_dict({"weight": TARGET / 2 + 1})
    objective.attach(layer, SHAPE, memory, control)
    for _ in range(STEPS):
        loss = (layer.weight - TARGET).square().sum() / 2 + objective.term(layer)
        (gradient,) = torch.autograd.grad(loss, [layer.weight])
        with torch.no_grad():
            layer.weight -= LR * gradient
    return layer


def played(name: str) -> tuple[nn.Linear, dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return a trained layer, what the client stored before, and what it sends and stores afterwards."""
    objective = objective_named(name, STRENGTH)
    memory = drawn(SHAPE, MEMORY, 1) if objective.remembers else {}
    control = drawn(SHAPE, CONTROL, 2) if objective.controls else {}
    layer = descended(objective, memory, control)
    return layer, memory, *objective.finish(layer, memory, control, STEPS, LR)


def server_round(name: str, trained: int) -> tuple[GlobalState, list[Submodel], GlobalState, dict[str, Tensor]]:
    """Return a state, its sub-models, the state after a round of the first ``trained`` tiers, smallest first, and what is stored."""
    method, objective = create("heterofl"), objective_named(name, STRENGTH)
    state = method.init(ARCHITECTURE, TIERS, generator(0, "init"))
    submodels = [method.submodel(state, tier, generator(0, "submodel")) for tier in reversed(TIERS)]
    shapes = {target: tuple(tensor.shape) for target, tensor in state.tensors.items()}
    control = Control(objective, drawn(shapes, SERVER, 3) if objective.remembers else {}, 5)
    for submodel in submodels[:trained]:
        trained_shapes = {n: tuple(t.shape) for n, t in submodel.tensors.items()}
        answer = drawn(trained_shapes, CONTROL, 4) if objective.controls else drawn(trained_shapes, "", 4)
        control.add(submodel, submodel.tensors, answer, state)
    return state, submodels, *control.finish(state, state)


def test_the_terms_are_one_finite_number_with_a_gradient(objective: str) -> None:
    """The terms of the loss are finite, and training with them does not diverge on a quadratic."""
    correction, layer = objective_named(objective, STRENGTH), nn.Linear(3, 2, bias=False)
    correction.attach(layer, SHAPE, {}, {})
    term = torch.as_tensor(correction.term(layer))
    assert term.shape == (), f"terms are scalars, got shape {tuple(term.shape)}"
    assert bool(torch.isfinite(term)), f"the terms are {term}"
    assert bool(torch.isfinite(descended(correction, {}, {}).weight).all()), "weights become NaN or infinite"


def test_what_is_attached_neither_travels_nor_trains(objective: str) -> None:
    """What an objective attaches to a network is neither sent nor trained, and nothing if it ``adds`` nothing."""
    correction, layer = objective_named(objective, STRENGTH), nn.Linear(3, 2, bias=False)
    correction.attach(layer, SHAPE, {}, {})
    assert list(layer.state_dict()) == ["weight"], (
        "attached tensors are in the state_dict: register buffers with persistent=False"
    )
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert correction.adds or not list(layer.buffers())


def test_what_is_sent_and_stored_has_the_declared_shapes(objective: str) -> None:
    """What a client sends and stores has the names and shapes that are declared before the round."""
    correction = objective_named(objective, STRENGTH)
    _, _, up, keep = played(objective)
    assert {name: tuple(tensor.shape) for name, tensor in up.items()} == correction.control_shapes(SHAPE)
    first = correction.first_memory(SHAPE)
    assert {name: tensor.shape for name, tensor in keep.items()} == {name: tensor.shape for name, tensor in first.items()}
    for name, tensor in (up | keep).items():
        assert tensor.dtype == torch.float32, f"{name} is {tensor.dtype}, expected float32"
        assert bool(torch.isfinite(tensor).all()), f"{name} has NaN or infinity"


def test_same_inputs_same_bits(objective: str) -> None:
    """The same client gives the same bits, and what it stored before is not changed in place."""
    (one, memory, *ends), (other, _, *others) = played(objective), played(objective)
    assert torch.equal(one.weight, other.weight)
    for mine, again in zip(ends, others, strict=True):
        assert all(torch.equal(mine[name], again[name]) for name in mine)
    untouched = drawn(SHAPE, MEMORY, 1)
    assert all(torch.equal(tensor, untouched[name]) for name, tensor in memory.items())


def test_the_server_stores_tensors_of_the_global_shapes(objective: str) -> None:
    """What the server stores has the shapes of the global tensors, is finite, and is empty unless the objective ``remembers``."""
    state, _, after, stored = server_round(objective, 2)
    assert bool(stored) == objective_named(objective, STRENGTH).remembers
    for name, tensor in stored.items():
        assert tensor.shape == state.tensors[name.removeprefix(SERVER)].shape, f"{name} has shape {tuple(tensor.shape)}"
        assert bool(torch.isfinite(tensor).all()), f"{name} has NaN or infinity"
    assert all(after.tensors[name].shape == tensor.shape for name, tensor in state.tensors.items())


def test_entries_that_nobody_trained_are_not_corrected(objective: str) -> None:
    """Entries of the global state that no client trained keep their value."""
    state, (smallest, _), after, _ = server_round(objective, 1)
    for name, place in smallest.places.items():
        untouched = torch.ones(state.tensors[place.target].shape, dtype=torch.bool)
        untouched[place.index] = False
        assert torch.equal(after.tensors[place.target][untouched], state.tensors[place.target][untouched]), name


def test_its_needs_are_capabilities(objective: str) -> None:
    """Every need is a capability that methods declare."""
    needs("objective", objective)


def test_a_training_step_with_the_objective_in_onnxruntime_is_torchs(objective: str) -> None:
    """A training step with the objective exports to ONNX, where loss and gradients are those of torch."""
    for row in measured(
        create("fedavg"), "fedavg", ARCHITECTURE, TIERS[:1], TIERS[0], objective=objective_named(objective, STRENGTH)
    ):
        assert row.passes, row
