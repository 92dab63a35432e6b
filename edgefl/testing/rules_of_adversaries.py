"""Rules of adversaries: what they send, train on and claim, and that honest clients are left alone."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.data.digits import digits
from edgefl.data.split import Split
from edgefl.errors import ConfigError
from edgefl.methods.axes import needs
from edgefl.records import Outcome
from edgefl.registry import adversaries, conducts
from edgefl.rng import generator
from edgefl.testing.rules_of_engines import TASK, jobs_of
from edgefl.util.compute import one_thread

if TYPE_CHECKING:
    from edgefl.contrib.attacks.adversary import Adversaries, Adversary

SHARE = 0.25


def attackers(adversary: str) -> Adversaries:
    """Return three adversaries among twelve clients."""
    made: Adversaries = conducts.load("adversaries").of(f"{adversary}:{SHARE}", TASK.clients, TASK.seed)
    return made


def attacking(adversary: str) -> Clients:
    """Return twelve clients of which three are adversaries."""
    return Clients(replace(TASK, conduct=attackers(adversary)), digits())


def usual(adversary: str) -> Adversary:
    """Return the adversary with its default options."""
    loaded: Adversary = adversaries.load(adversary).of({})
    return loaded


def tensors(seed: int) -> dict[str, Tensor]:
    """Return normal tensors: a weight, a bias, one without entries, and a count."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"weight": (3, 4), "bias": (3,), "none": (0, 2)}
    drawn = {name: torch.from_numpy(rng.standard_normal(shape)).float() for name, shape in shapes.items()}
    return drawn | {"batches": torch.tensor(seed)}


def outcomes(clients: Clients, jobs: list[Job]) -> list[Outcome]:
    """Return what becomes of each job."""
    with one_thread():
        return [clients.run(job) for job in jobs]


def test_every_option_has_a_default_and_an_unknown_one_is_refused(adversary: str) -> None:
    """Every option has a default, and an unknown option is a ConfigError."""
    usual(adversary)
    with pytest.raises(ConfigError, match="unknown_option: unknown key"):
        adversaries.load(adversary).of({"unknown_option": 1})
    assert "unknown_option" not in {field.name for field in fields(adversaries.load(adversary))}


def test_an_upload_has_the_names_shapes_and_types_of_an_honest_one(adversary: str) -> None:
    """What is sent has the names, shapes and types of an honest update and finite values; integers are not changed."""
    start, trained = tensors(1), tensors(2)
    sent = usual(adversary).upload(start, trained, generator(0, "rule"))
    assert [(name, t.shape, t.dtype) for name, t in sent.items()] == [(name, t.shape, t.dtype) for name, t in trained.items()]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in sent.values())
    assert torch.equal(sent["batches"], trained["batches"])


def test_an_upload_is_computed_without_changing_what_was_received_or_trained(adversary: str) -> None:
    """Neither what was received nor what was trained is changed in place, and the same generator gives the same bits."""
    start, trained = tensors(1), tensors(2)
    one, other = (usual(adversary).upload(start, trained, generator(0, "rule")) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    for now, before in ((start, tensors(1)), (trained, tensors(2))):
        assert all(torch.equal(now[name], before[name]) for name in before)


def test_poisoned_samples_are_as_many_of_the_same_shape(adversary: str) -> None:
    """Poisoned samples have the number, shape and types of the own ones, labels of the data set, and the same bits again."""
    data = digits()
    one, other = (usual(adversary).poisoned(data.train.taken(slice(40)), data.classes, generator(0, "rule")) for _ in range(2))
    assert (one.x.shape, len(one)) == ((40, 1, 8, 8), 40)
    assert one.x.dtype == np.float32
    assert one.y.dtype == np.int64
    assert np.isfinite(one.x).all()
    assert 0 <= one.y.min() <= one.y.max() < data.classes
    assert np.array_equal(one.x, other.x)
    assert np.array_equal(one.y, other.y)


def test_a_claim_is_at_least_one_sample(adversary: str) -> None:
    """A client claims a whole number of samples, at least one, and its own number unless the adversary ``claims``."""
    claims = [usual(adversary).claimed(samples) for samples in (1, 29, 10**6)]
    assert all(type(claim) is int and claim >= 1 for claim in claims), claims
    assert usual(adversary).claims or claims == [1, 29, 10**6]


def test_its_goal_is_what_a_network_could_answer(adversary: str) -> None:
    """The goal, if there is one, has held-out samples of the data set's shape with labels that it has, none of them the true one."""
    data = digits()
    goal = usual(adversary).goal(data.test, data.classes)
    if goal is not None:
        assert isinstance(goal, Split)
        assert 1 <= len(goal.x) == len(goal.y) <= len(data.test)
        assert goal.x.shape[1:] == data.input_shape
        assert 0 <= goal.y.min() <= goal.y.max() < data.classes


def test_honest_clients_are_left_alone(adversary: str) -> None:
    """Outcomes of honest clients have the bits of a run without an attack, and every adversary still answers."""
    clients, jobs = attacking(adversary), jobs_of(12)
    bad = attackers(adversary).listed
    assert len(bad) == 3
    for job, outcome, honest in zip(jobs, outcomes(clients, jobs), outcomes(Clients(TASK, digits()), jobs), strict=True):
        assert outcome.status == "trained"
        assert job.client in bad or outcome == honest, f"client {job.client} is honest and sends something else"


def test_any_job_of_an_adversary_can_run_again_to_the_same_bits(adversary: str) -> None:
    """An adversary's job has the same bits in another process and in another order."""
    jobs = jobs_of(12)
    once, again = outcomes(attacking(adversary), jobs), outcomes(attacking(adversary), jobs[::-1])
    assert once == again[::-1]


def test_what_an_adversary_needs_are_capabilities(adversary: str) -> None:
    """Every need is a capability that methods or data sets have."""
    needs("adversary", adversary)
