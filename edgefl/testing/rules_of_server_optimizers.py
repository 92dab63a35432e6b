"""Rules of server optimizers: what a step does with the aggregate of a round."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from edgefl.methods.axes import needs
from edgefl.server.optimizer import SLOT, optimizer_named

START, DELTA = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([0.5, -1.0, 0.25])
ROUNDS = 600


def after(name: str, *deltas: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the weights and the slots after rounds whose aggregates differ by ``deltas`` from the weights."""
    optimizer, tensors, slots = optimizer_named(name), {"w": START.clone()}, dict[str, Tensor]()
    for delta in deltas:
        tensors, slots = optimizer.step(tensors, {"w": tensors["w"] + delta}, slots)
    return tensors["w"], slots


def test_the_usual_rate_is_positive(server_optimizer: str) -> None:
    """``usual_lr`` is finite and more than 0, and every need is a capability that methods declare."""
    assert 0 < optimizer_named(server_optimizer).lr < math.inf
    needs("server_optimizer", server_optimizer)


def test_a_round_without_change_leaves_the_weights(server_optimizer: str) -> None:
    """If the first aggregate equals the weights, they stay."""
    assert torch.equal(after(server_optimizer, torch.zeros(3))[0], START)


def test_the_first_step_goes_the_way_of_the_clients(server_optimizer: str) -> None:
    """The first step goes in the direction of the aggregate, not away from it."""
    step = after(server_optimizer, DELTA)[0] - START
    assert float(step @ DELTA) > 0, f"the clients moved by {DELTA.tolist()}, the server by {step.tolist()}"


def test_slots_have_the_shape_of_the_weights(server_optimizer: str) -> None:
    """There is one finite slot per name in ``slots``, of the weights' shape and type."""
    weights, slots = after(server_optimizer, DELTA, -DELTA, 3 * DELTA)
    names = [f"{SLOT}{slot}/w" for slot in optimizer_named(server_optimizer).slots]
    assert list(slots) == names
    for name, tensor in {"w": weights, **slots}.items():
        assert (tensor.shape, tensor.dtype) == (START.shape, START.dtype), f"{name} is {tensor.dtype} {tuple(tensor.shape)}"
        assert bool(torch.isfinite(tensor).all()), f"{name} has NaN or infinity"


def test_same_rounds_same_bits(server_optimizer: str) -> None:
    """The same rounds give the same bits, and no input is changed in place."""
    (one, slots), (other, others) = (after(server_optimizer, DELTA, -2 * DELTA) for _ in range(2))
    assert torch.equal(one, other)
    assert all(torch.equal(slots[name], others[name]) for name in slots)
    old, new, before = {"w": START.clone()}, {"w": START + DELTA}, {name: tensor.clone() for name, tensor in slots.items()}
    optimizer_named(server_optimizer).step(old, new, slots)
    assert torch.equal(old["w"], START)
    assert torch.equal(new["w"], START + DELTA)
    assert all(torch.equal(slots[name], tensor) for name, tensor in before.items())


def test_counters_and_new_tensors_are_those_of_the_aggregate(server_optimizer: str) -> None:
    """Integer tensors, new tensors and tensors of a new shape are taken from the aggregate."""
    old = {"count": torch.tensor(3), "w": torch.zeros(2)}
    aggregated = {"count": torch.tensor(4), "w": torch.ones(3), "new": torch.ones(1)}
    tensors, _ = optimizer_named(server_optimizer).step(old, aggregated, {})
    assert all(torch.equal(tensors[name], tensor) for name, tensor in aggregated.items())


def test_a_quadratic_reaches_its_minimum(server_optimizer: str) -> None:
    """Clients that move half of the way to an optimum bring the server there, at the usual rate."""
    optimizer, tensors, slots = optimizer_named(server_optimizer), {"w": torch.zeros(3)}, dict[str, Tensor]()
    for _ in range(ROUNDS):
        tensors, slots = optimizer.step(tensors, {"w": (tensors["w"] + START) / 2}, slots)
    left = float((tensors["w"] - START).norm())
    assert left < 0.1 * float(START.norm()), (
        f"after {ROUNDS} rounds the distance is {left:.3g}, at first {float(START.norm()):.3g}"
    )
