"""Budgets, options and weights that the planner refuses, each with its reason."""

import pytest
import safetensors.torch
from planned_networks import DEVICE
from spoilt_weights import SPOILT, spoilt
from torch import nn

from edgefl.errors import InputError, WireError
from edgefl.fleet.budget import Budget
from edgefl.planning.plan import plan

BAD_BUDGETS = [
    ({"macs_forward": 0}, None, "budget macs_forward: got 0, expected a finite number above 0"),
    ({"upload_bytes": -3}, None, "budget upload_bytes: got -3, expected a finite number above 0"),
    ({"memory_bytes": float("nan")}, None, "budget memory_bytes: got nan, expected a finite number above 0"),
    ({"energy_j": float("inf")}, DEVICE, "budget energy_j: got inf, expected a finite number above 0"),
    ({"deadline_s": 3}, None, "budget deadline_s: seconds and joules are a device's; give one"),
    ({}, None, "budget: give a device or at least one limit"),
    ({"macs_forward": 10}, "raspberry-pi-44", "unknown device 'raspberry-pi-44'; did you mean 'raspberry-pi-4'"),
]


@pytest.mark.parametrize(("limits", "device", "message"), BAD_BUDGETS)
def test_budgets_that_are_none_are_refused(limits, device, message):
    with pytest.raises(InputError, match=message):
        plan("cnn-digits", (1, 8, 8), budget=Budget(**limits), device=device)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples: expected at least 1, got 0"),
        ({"codec": "int4"}, "unknown codec 'int4'; did you mean 'int8'"),
        ({"allocate": "spectrum"}, "unknown allocation 'spectrum'; did you mean 'spectral'"),
        ({"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ({"method": "fedhn"}, "unknown method 'fedhn'; did you mean 'fedhm'"),
    ],
)
def test_options_that_are_none_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        plan("cnn-digits", (1, 8, 8), budget=Budget(macs_forward=1e6), **options)


@pytest.mark.parametrize("kind", SPOILT)
def test_weights_that_are_not_the_networks_are_refused(kind, tmp_path):
    path = tmp_path / "w.safetensors"
    if kind != "missing":
        path.write_bytes(spoilt(kind))
    with pytest.raises(WireError, match=SPOILT[kind]):
        plan("cnn-digits", (1, 8, 8), budget=Budget(macs_forward=1e6), allocate="spectral", weights=path)


def test_weights_may_carry_counters_and_be_given_as_tensors(tmp_path):
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 3))
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(network.state_dict(), path)
    options = {"budget": Budget(macs_forward=1_300), "allocate": "spectral"}
    from_file = plan(network, (1, 6, 6), weights=path, **options)
    assert from_file == plan(network, (1, 6, 6), weights=network.state_dict(), **options)
    with pytest.raises(WireError, match="weights: tensors missing or not expected: 0.bias, 0.weight, "):
        plan(network, (1, 6, 6), weights={}, **options)
