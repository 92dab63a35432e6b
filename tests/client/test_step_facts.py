"""Costs and graphs that are recalled are those that are computed, and whatever decides them is among the facts."""

from dataclasses import dataclass, replace

import pytest
import torch

from edgefl.bundle import tier_graphs as graphs_room
from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.objective import Objective, objective_named
from edgefl.client.objectives import PLAIN
from edgefl.client.step_facts import step_facts
from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.methods.fedhm import FedHM
from edgefl.models.base import Architecture
from edgefl.models.custom import CustomArchitecture
from edgefl.onnxgrad.roles import StepRule
from edgefl.planning import tier_costs as costs_room
from edgefl.planning.practice import Practice
from edgefl.records import Tier
from edgefl.registry import methods

DIGITS = Architecture("cnn-digits", (1, 8, 8), 10)
USUAL = DIGITS, create("fedhm"), Tier(0.5), PLAIN, CROSS_ENTROPY
OTHERS = {
    "network": (0, Architecture("mlp", (1, 8, 8), 10)),
    "shape": (0, Architecture("cnn-digits", (1, 16, 16), 10)),
    "classes": (0, Architecture("cnn-digits", (1, 8, 8), 11)),
    "normalisation": (0, replace(DIGITS, norm="group")),
    "method": (1, create("heterofl")),
    "option": (1, create("fedhm", {"frobenius_decay": False})),
    "tier": (2, Tier(0.25)),
    "objective": (3, objective_named("prox", 0.1)),
    "strength": (3, objective_named("prox", 0.2)),
    "criterion": (4, Criterion(measure="macro-f1")),
}


class Own(FedHM):
    title = "own"


@dataclass(frozen=True)
class OwnObjective(Objective):
    strength: float = 0.0


def test_each_fact_makes_another_key():
    found = [step_facts(*USUAL), step_facts(*USUAL, rule="other")]
    for place, value in OTHERS.values():
        given = list(USUAL)
        given[place] = value
        found.append(step_facts(*given))
    assert None not in found
    assert len({repr(facts) for facts in found}) == len(OTHERS) + 2


def test_numbers_of_another_type_make_another_key():
    before = step_facts(*USUAL)
    torch.set_default_dtype(torch.float64)
    try:
        assert step_facts(*USUAL) != before
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, CustomArchitecture.of("torch.nn:Flatten", (1, 8, 8), 64)),
        (1, Own(create("fedhm").config)),
        (3, OwnObjective()),
        (4, Criterion(spec="torch.nn.functional:l1_loss")),
    ],
)
def test_what_other_code_decides_is_not_stored(place, value):
    given = list(USUAL)
    given[place] = value
    assert step_facts(*given) is None


@pytest.mark.usefixtures("recalling")
@pytest.mark.parametrize("name", methods.names())
def test_recalled_costs_are_those_that_were_computed(name, monkeypatch):
    method = create(name)
    practice = Practice(method, DIGITS, Training(1, 16, micro_batch=8))
    tier = Tier(0.5 if len(method.default_tiers) > 1 else 1.0)
    made = costs_room._recalled.__wrapped__(DIGITS, practice, tier, "int8")
    monkeypatch.setattr(costs_room, "_traced", None)  # not called again
    assert costs_room._recalled.__wrapped__(DIGITS, practice, tier, "int8") == made


@pytest.mark.usefixtures("recalling")
@pytest.mark.parametrize(("name", "parts"), [("fedhm", False), ("fjord", False), ("heterofl", True)])
def test_recalled_graphs_are_those_that_were_made(name, parts, monkeypatch):
    asked = create(name), Tier(0.5), StepRule("adam", 1e-4), objective_named("prox", 0.1), CROSS_ENTROPY
    made = graphs_room._recalled.__wrapped__(DIGITS, asked, parts)
    monkeypatch.setattr(graphs_room, "_made", None)
    assert graphs_room._recalled.__wrapped__(DIGITS, asked, parts) == made
