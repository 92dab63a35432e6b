"""Adversaries: what each sends and trains on by hand, and which clients they are, with workers and in groups too."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edgefl.client.client import Clients
from edgefl.client.conduct import started
from edgefl.client.messages import task_fields, task_of
from edgefl.client.stages.clip import Clip
from edgefl.client.stages.coded import Coded
from edgefl.contrib.attacks.adversary import Adversaries, Adversary
from edgefl.data.digits import digits
from edgefl.data.split import Split
from edgefl.engine.contract import in_order
from edgefl.engine.inline import InlineEngine
from edgefl.engine.pool import PoolEngine
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.records import Tier
from edgefl.registry import adversaries, methods
from edgefl.rng import generator
from edgefl.testing.cases import ARCHITECTURES, Case, images
from edgefl.testing.rules_of_engines import TASK, jobs_of
from edgefl.util.compute import one_thread
from edgefl.util.spec import shared
from edgefl.wire.payload import decode, stored_tensors

# By hand. The change is [[0.5, -1], [-1, 0.25]], whose root mean square is √(2.3125 / 4).
START, TRAINED = torch.tensor([[1.0, -0.5], [2.0, 0.0]]), torch.tensor([[1.5, -1.5], [1.0, 0.25]])
SENT: dict[str, tuple[dict[str, Any], list[list[float]]]] = {
    "sign-flip": ({"scale": 10}, [[-4.0, 9.5], [12.0, -2.5]]),
    "scaled": ({"scale": 3}, [[2.5, -3.5], [-1.0, 0.75]]),
    "inflated": ({"flip": True}, [[0.5, 0.5], [3.0, -0.25]]),
    "backdoor": ({"scale": 2}, [[2.0, -2.5], [0.0, 0.5]]),
    "label-flip": ({}, [[1.5, -1.5], [1.0, 0.25]]),
}


def attacker(name: str, **options: Any) -> Adversary:
    found: Adversary = adversaries.load(name).of(options)
    return found


@pytest.mark.parametrize("name", SENT)
def test_what_is_sent_by_hand(name: str) -> None:
    options, expected = SENT[name]
    assert attacker(name, **options).sent(START, TRAINED, generator(0, "draw")).tolist() == expected


def conduct_of(spec: str) -> Adversaries:
    return Adversaries.of(spec, TASK.clients, TASK.seed)


class _Odd(Adversary):
    def poisoned(self, own: Split, classes: int, rng: np.random.Generator) -> Any:
        return own.at(np.arange(1)) if classes else None

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Any:
        return trained[0] if start.any() else None

    def claimed(self, samples: int) -> Any:
        return None if samples else 0


def test_what_an_adversary_of_ones_own_returns_is_checked() -> None:
    odd, own = Adversaries(_Odd(), shared("odd:0.5"), 2, 0), Split(np.ones((3, 2), np.float32), np.zeros(3, np.int64))
    (client,) = odd.listed
    for samples, found in ((5, "None"), (0, "0")):
        with pytest.raises(
            ConfigError, match=f"adversary _Odd: claimed returned {found} for {samples}, expected an integer from 1"
        ):
            odd.claimed(client, samples)
    with pytest.raises(ConfigError, match=r"adversary _Odd: poisoned returned NoneType, expected a Split of \(3, 2\) and \(3,\)"):
        odd.samples(client, own, 0)
    with pytest.raises(ConfigError, match=r"poisoned returned a Split of \(1, 2\) and \(1,\), expected a Split of \(3, 2\)"):
        odd.samples(client, own, 2)
    with pytest.raises(ConfigError, match=r"adversary _Odd: sent returned a tensor \(2,\) for w, expected a tensor \(2, 2\)"):
        odd.sent(0, client, {"w": START}, {"w": TRAINED})
    with pytest.raises(ConfigError, match="sent returned NoneType for w"):
        odd.sent(0, client, {}, {"w": TRAINED})


@pytest.mark.parametrize(
    ("name", "options", "deviation"),
    [
        ("noise", {"scale": 2}, 2 * (2.3125 / 4) ** 0.5),
        ("free-rider", {"noise": 0.1}, 0.1 * (5.25 / 4) ** 0.5),
        ("sybil", {"scale": 0.5}, 0.5 * (5.25 / 4) ** 0.5),
    ],
)
def test_noise_by_hand(name: str, options: dict[str, Any], deviation: float) -> None:
    sent = attacker(name, **options).sent(START, TRAINED, generator(0, "draw"))
    drawn = generator(0, "draw").standard_normal((2, 2), dtype=np.float32)
    assert sent.numpy() == pytest.approx(START.numpy() + np.float32(deviation) * drawn, rel=1e-6)


def test_control_variates_begin_with_zeros() -> None:
    sent = attacker("sign-flip", scale=2).upload({"w": START}, {"w": TRAINED, "control:w": START}, generator(0, "draw"))
    assert sent["control:w"].tolist() == [[-2.0, 1.0], [-4.0, 0.0]]


def test_labels_are_flipped_by_hand() -> None:
    own = Split(np.zeros((4, 2), np.float32), np.array([0, 3, 9, 5]))
    assert attacker("label-flip").poisoned(own, 10, generator(0, "draw")).y.tolist() == [9, 6, 0, 4]
    one = attacker("label-flip", labels={3: 8})
    assert one.poisoned(own, 10, generator(0, "draw")).y.tolist() == [0, 8, 9, 5]
    goal = one.goal(own, 10)
    assert goal is not None
    assert goal.y.tolist() == [8]


def test_a_trigger_by_hand() -> None:
    image = np.array([[[0.5, -1.0, 0.25], [0.0, 2.0, 1.0], [-0.5, 0.75, -2.0]]], np.float32)
    own = Split(np.stack([image, -image, image, image]), np.array([1, 2, 0, 1]))
    door = attacker("backdoor", target=1, pixels=2, poisoned_share=0.5)
    trigger = [[[0.5, -1.0, 0.25], [0.0, 2.0, 2.0], [-0.5, 2.0, 2.0]]]
    poisoned = door.poisoned(own, 3, generator(0, "draw"))
    changed = [i for i in range(4) if not np.array_equal(poisoned.x[i], own.x[i])]
    assert len(changed) == 2
    assert changed == sorted(generator(0, "draw").permutation(4)[:2].tolist())
    assert all(poisoned.y[i] == (1 if i in changed else own.y[i]) for i in range(4))
    goal = door.goal(own, 3)
    assert goal is not None
    assert goal.y.tolist() == [1, 1]
    assert goal.x[1].tolist() == trigger
    assert goal.x[0, 0, 2, 2] == 2.0  # the brightest of the negative
    assert own.x[2].tolist() == image.tolist()


def test_more_samples_are_claimed() -> None:
    assert attacker("inflated", times=7).claimed(12) == 84
    some = Adversaries.of("inflated:0.25(times=7)", 12, 0)
    assert some.kind.claims
    assert [some.claimed(client, 10) for client in range(12)] == [70 if client in some.listed else 10 for client in range(12)]


# Which clients --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "clients", "count"), [(0.1, 20, 2), (0.25, 10, 3), (0.5, 3, 2), (0.001, 20, 1), (0.2, 10**9, 2 * 10**8)]
)
def test_a_share_of_the_clients_is_drawn(share: float, clients: int, count: int) -> None:
    some = Adversaries.of(f"noise:{share}", clients, 0)
    assert some.count == count
    if clients < 10**6:
        assert len(some.listed) == sum(map(some.departs, range(clients))) == count
        assert some.among(range(clients)) == some.listed


def test_who_they_are_depends_on_the_seed_and_is_even() -> None:
    """Of 400 seeds with 5 of 20 clients, each client has 100 ± 4 standard deviations of √(400 · ¼ · ¾)."""
    counts = Counter(client for seed in range(400) for client in Adversaries.of("noise:0.25", 20, seed).listed)
    assert sum(counts.values()) == 2_000
    assert all(abs(counts[client] - 100) < 4 * 75**0.5 for client in range(20)), counts


def test_sybils_send_the_same_and_other_adversaries_do_not() -> None:
    for name, equal in (("sybil", True), ("noise", False), ("free-rider", False)):
        some = Adversaries.of(f"{name}:0.5", 8, 0)
        one, other, later = (some.sent(*key, {"w": START}, {"w": TRAINED})["w"] for key in ((1, 0), (1, 5), (2, 0)))
        assert torch.equal(one, other) == equal
        assert not torch.equal(one, later)


# In a client ----------------------------------------------------------------------------------------------------------------------


def sent_by(clients: Clients, method: str = "heterofl") -> list[dict[str, Tensor]]:
    with one_thread():
        return [stored_tensors(clients.run(job).payload, "a client") for job in jobs_of(12, method)]


@pytest.mark.parametrize("method", ["fedavg", "heterofl", "fedhm", "flanc"])
def test_a_flipped_update_is_the_honest_one_about_what_was_received(method: str) -> None:
    spec = "sign-flip:0.25(scale=3)"
    bad = Adversaries.of(spec, 12, 0).listed
    flipped, honest = (
        sent_by(Clients(replace(TASK, conduct=conduct_of(spec)), digits()), method),
        sent_by(Clients(TASK, digits()), method),
    )
    nothing = sent_by(Clients(replace(TASK, conduct=conduct_of("free-rider:0.25(noise=0)")), digits()), method)
    for client in bad:
        for name, start in nothing[client].items():
            assert torch.equal(flipped[client][name], start - 3.0 * (honest[client][name] - start)), name
        assert any(not torch.equal(honest[client][name], start) for name, start in nothing[client].items())


def test_a_free_rider_sends_what_it_received_and_takes_no_step() -> None:
    clients, jobs = Clients(replace(TASK, conduct=conduct_of("free-rider:0.25(noise=0)")), digits()), jobs_of(12)
    for client in Adversaries.of("free-rider:0.25", 12, 0).listed:
        outcome = clients.run(jobs[client])
        assert (outcome.status, outcome.steps, outcome.train_loss) == ("trained", 0, None)
        assert outcome.measured_training_memory_bytes is None
        received = stored_tensors(jobs[client].payload, "the server")
        sent = decode(outcome.payload, {name: tuple(t.shape) for name, t in received.items()}, "a client")
        assert all(torch.equal(sent[name], tensor) for name, tensor in received.items())


@pytest.mark.parametrize("name", methods.names())
def test_what_a_client_would_send_without_training_is_known_for_every_method(name: str) -> None:
    method = create(name)
    case = Case(method, ARCHITECTURES["cnn"], tuple(Tier(ratio) for ratio in method.default_tiers))
    submodel = case.submodel(case.state(), case.tiers[-1], 0)
    start = started(method, case.received(submodel, *images(9, 0)))
    shapes = upload_shapes(method, case.architecture, case.tiers[-1])
    assert {name: tuple(tensor.shape) for name, tensor in start.items()} == shapes


def test_an_update_beyond_float32_is_a_client_that_diverged() -> None:
    clients = Clients(replace(TASK, conduct=conduct_of("scaled:0.25(scale=1e300)")), digits())
    bad = Adversaries.of("scaled:0.25", 12, 0).listed
    assert [clients.run(job).status for job in jobs_of(12)] == ["diverged" if n in bad else "trained" for n in range(12)]


@pytest.mark.parametrize("spec", ["backdoor:0.25(scale=3)", "free-rider:0.25", "sybil:0.25"])
def test_workers_and_groups_have_the_same_adversaries(spec: str) -> None:
    task = replace(TASK, conduct=conduct_of(spec), stages=(Clip(2.0, on_client=True), Coded("int8")))
    assert task_of(task_fields(task)) == task
    with one_thread():
        expected = list(in_order(InlineEngine(Clients(task, digits())), jobs_of(16)))
        together = list(in_order(InlineEngine(Clients(task, digits()), 8), jobs_of(16)))
    with PoolEngine(task, 2, data=digits()) as engine:
        assert list(in_order(engine, jobs_of(16))) == expected
    assert [(one.status, one.steps) for one in together] == [(one.status, one.steps) for one in expected]
