"""Tiers that the planner chooses for a fleet in place of a run's own."""

import math

import pytest
import tomlkit

from edgefl import RunConfig, simulate
from edgefl.fleet.budget import shortfalls
from edgefl.fleet.clock import round_timing
from edgefl.methods.create import create
from edgefl.methods.networks import skeleton
from edgefl.planning.sub_models import STEPS
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.run.prepare import prepare

SMALL = {"rounds": 1, "clients": 5, "per_round": 3, "local_epochs": 1, "seed": 2, "tiers": "auto"}
TIGHT = """
name = "tight"
title = "Tight"
[mix]
mark = "assumed"
source = "x"
[budget]
upload_bytes = 120000
round_deadline_ratio = 1.6
"""
DEVICES = "raspberry-pi-4", "raspberry-pi-3b-plus", "jetson-nano"
CLASS = '[[class]]\ndevice = "{}"\nshare = {}\n'


@pytest.fixture
def tight(tmp_path):
    """Return what writes a fleet of some of the devices, each of which is short of something, and returns its file."""

    def written(*devices: str) -> str:
        (path := tmp_path / "tight.toml").write_text(TIGHT + "".join(CLASS.format(of, 1 / len(devices)) for of in devices))
        return str(path)

    return written


@pytest.mark.parametrize("method", ["fedhm", "heterofl", "fjord"])
def test_every_class_of_a_fleet_gets_its_largest_ratio(method, tight):
    """FjORD's step draws a width among the run's, so its cost depends on all tiers."""
    found = prepare(RunConfig.of({**SMALL, "method": method, "profile": tight(*DEVICES)}))
    ratios = found.config.tiers
    assert {device.tier.ratio for device in found.plan.classes if device.tier} == set(ratios)
    assert 1.0 not in ratios
    task = found.clients.task
    for device in found.plan.classes:
        own = device.tier.ratio if device.tier else 0.0
        larger = Tier(round(own + 1 / STEPS, 3))
        kept = {each.tier.ratio for each in found.plan.classes if each.tier and each.tier.ratio != own}
        tiers = tuple(sorted({*kept, larger.ratio}, reverse=True))
        cost = tier_cost(create(method, tiers=tiers), task.architecture, larger, task.training)
        timing = round_timing(device.device, cost, *task.training.amounts(found.clients.shards.largest))
        assert shortfalls(cost, timing, device.budget, device.device.name, larger)


def test_flanc_chooses_widths_whose_channels_have_a_common_divisor(tight):
    """Alone, the devices would take widths of 19 and 32 channels."""
    found = prepare(RunConfig.of({**SMALL, "method": "flanc", "profile": tight("raspberry-pi-4", "jetson-nano")}))
    channels = [found.architecture.build(ratio).get_submodule("conv2").in_channels for ratio in found.config.tiers]
    assert len(channels) == 2
    assert math.gcd(*channels) > 1


def test_splitmix_gives_larger_devices_several_copies_of_the_smallest_tier(tight):
    """Alone, the largest ratio of the Jetson would be one network of width .625."""
    found = prepare(RunConfig.of({**SMALL, "method": "splitmix", "profile": tight("raspberry-pi-3b-plus", "jetson-nano")}))
    largest = next(of for of in found.plan.classes if of.device.name == "jetson-nano")
    assert largest.tier == Tier(1.0)
    assert len([*skeleton(found.method, found.architecture, largest.tier).children()]) == 3


def test_a_run_records_the_tiers_that_it_chose_and_resumes(tmp_path):
    folder = tmp_path / "run"
    config = RunConfig.of({**SMALL, "profile": "mixed"})
    result = simulate(config, folder)
    written = tomlkit.parse((folder / "config.toml").read_text())["tiers"]
    assert written == [row.tier for row in result.tiers]
    assert written
    assert all(isinstance(tier, float) and 0 < tier <= 1 for tier in written)
    model = (folder / "model.safetensors").read_bytes()
    (folder / "summary.json").unlink()
    assert simulate(config, folder, resume=True).tiers == result.tiers
    assert simulate(RunConfig.load(folder / "config.toml", {}), folder, resume=True).tiers == result.tiers
    assert (folder / "model.safetensors").read_bytes() == model


def test_a_method_of_one_size_takes_the_largest_that_every_class_can(tmp_path):
    config = RunConfig.of({**SMALL, "method": "fedavg", "profile": "mixed"})
    assert [row.tier for row in simulate(config, tmp_path / "run").tiers] == [1]


def test_a_chosen_tier_fits_the_run_that_has_it(tmp_path):
    """What Splitmix trains depends on the tiers of the run."""
    limits = 'name = "f"\ntitle = "F"\n[mix]\nmark = "assumed"\nsource = "x"\n[budget]\nupload_bytes = 6e4\n'
    (tmp_path / "f.toml").write_text(limits + '[[class]]\ndevice = "raspberry-pi-4"\nshare = 1.0\n')
    found = prepare(RunConfig.of({**SMALL, "method": "splitmix", "profile": str(tmp_path / "f.toml")}))
    (only,) = found.plan.classes
    assert only.tier == found.tiers[0]
