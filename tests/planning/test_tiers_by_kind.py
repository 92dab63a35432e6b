"""Which tier a Raspberry Pi 4 gets: by one rate of MACs, and by the costs of each kind of work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
from torch import nn

from edgefl.fleet.load import load_device
from edgefl.fleet.population import Population
from edgefl.fleet.profile import Fleet, FleetBudget, FleetClass
from edgefl.fleet.time_model import train_s
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.server.assignment import Workload

RATIOS = (1.0, 0.5, 0.25)
SAMPLES = 64
SHAPE, CLASSES = (3, 32, 32), 10


@dataclass(frozen=True)
class Convolutions(Architecture):
    """3×3 convolutions only."""

    def build(self, width: float = 1.0) -> nn.Module:
        widths = (3, *(round(width * channels) for channels in (32, 64, 64)))
        layers = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()) for a, b in pairwise(widths)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


@dataclass(frozen=True)
class Separable(Architecture):
    """Depthwise 3×3 and 1×1 convolutions, as in MobileNet; fewer MACs than :class:`Convolutions`."""

    def build(self, width: float = 1.0) -> nn.Module:
        def layer(a: int, b: int, size: int, stride: int = 1, groups: int = 1) -> nn.Module:
            return nn.Sequential(nn.Conv2d(a, b, size, stride, size // 2, groups=groups), nn.BatchNorm2d(b), nn.ReLU())

        widths = [round(width * channels) for channels in (16, 32, 64, 64, 64)]
        layers = [layer(3, widths[0], 3, stride=2)]
        for (a, b), stride in zip(pairwise(widths), (1, 2, 1, 1), strict=True):
            layers += [layer(a, a, 3, stride, groups=a), layer(a, b, 1)]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES))


@cache
def costs_of(kind):
    method, training = create("heterofl"), training_for(16, None, "sgd")
    return {Tier(ratio): tier_cost(method, kind("cnn-digits", SHAPE, CLASSES), Tier(ratio), training) for ratio in RATIOS}


def one_rate(device):
    return device.model_copy(update={"compute": device.compute.model_copy(update={"training_step": None})})


def tier_of(kind, device, deadline_s):
    """Return the ratio that ``device`` gets, and the budgets that refuse the larger ones."""
    values = {"name": "board", "title": "A board", "mix": {"mark": "assumed", "source": "made for a test"}}
    only = FleetClass(device=device, share=1.0)
    fleet = Fleet.model_validate(values | {"budget": FleetBudget(round_deadline_s=deadline_s), "class": (only,)})
    costs = costs_of(kind)
    workload = Workload(training_for(16, None, "sgd"), SAMPLES, SAMPLES)
    planned = make_plan(Population(fleet, 10, 0), PlanCosts(costs, costs[Tier(1.0)]), workload).classes[0]
    return planned.tier and planned.tier.ratio, [short.budget for short in planned.refusals]


@pytest.fixture(scope="module")
def pi():
    return load_device("raspberry-pi-4")


def test_a_depthwise_network_gets_a_smaller_tier_than_its_macs_suggest(pi):
    assert costs_of(Separable)[Tier(1.0)].macs_forward < costs_of(Convolutions)[Tier(1.0)].macs_forward
    assert tier_of(Separable, one_rate(pi), 0.35) == (1.0, [])
    assert tier_of(Separable, pi, 0.35) == (0.5, ["deadline_s"])


def test_a_network_of_plain_convolutions_keeps_its_tier(pi):
    assert tier_of(Convolutions, one_rate(pi), 0.35) == (1.0, [])
    assert tier_of(Convolutions, pi, 0.35) == (1.0, [])


def test_half_of_the_width_does_not_take_a_quarter_of_the_time(pi):
    """One rate promises the square of the width; normalization and operations do not shrink like that."""

    def ratio(device):
        full, half = (costs_of(Separable)[Tier(ratio)] for ratio in (1.0, 0.5))
        return train_s(device.compute, full, SAMPLES, 4, 4) / train_s(device.compute, half, SAMPLES, 4, 4)

    assert ratio(one_rate(pi)) > 3
    assert 1.5 < ratio(pi) < 2
