"""Tiers that the planner chooses for a fleet in place of a run's own."""

from functools import cache

import pytest
import tomlkit

from edgefl import RunConfig, simulate
from edgefl.fleet.budget import shortfalls
from edgefl.fleet.clock import round_timing
from edgefl.fleet.load import load_fleet
from edgefl.fleet.population import Population
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.largest_ratio import STEPS
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.run.auto_tiers import auto_tiers
from edgefl.run.prepare import prepare
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.server.assignment import Workload

SMALL = {"rounds": 1, "clients": 5, "per_round": 3, "local_epochs": 1, "seed": 2, "tiers": "auto"}


@pytest.mark.parametrize("method", ["fedhm", "heterofl"])
def test_every_class_of_a_fleet_gets_its_largest_ratio(method):
    fleet = load_fleet("mixed")
    chosen, training = create(method), training_for(32, None, "momentum")
    architecture = Architecture("cnn-digits", (1, 8, 8), 10)
    trace = cache(lambda ratio: tier_cost(chosen, architecture, Tier(ratio), training))
    tight = fleet.budget.model_copy(update={"round_deadline_ratio": 1.5, "upload_bytes": 150_000.0})
    fleet = fleet.model_copy(update={"budget": tight})
    ratios = auto_tiers(chosen, architecture, fleet, trace, training, 100)
    assert 1.0 not in ratios
    costs = {Tier(ratio): trace(ratio) for ratio in ratios}
    plan_of_run = make_plan(Population(fleet, 10, 0), PlanCosts(costs, trace(1.0)), Workload(training, 100, 100))
    taken = {device.tier.ratio for device in plan_of_run.classes if device.tier}
    assert taken == set(ratios)
    for device in plan_of_run.classes:
        above = (device.tier.ratio if device.tier else 0) + 1 / STEPS
        cost = trace(round(above, 3))
        timing = round_timing(device.device, cost, *training.amounts(100))
        assert shortfalls(cost, timing, device.budget, device.device.name, Tier(above))


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
