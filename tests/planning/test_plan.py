"""Plans: the largest sub-model within a budget, from Python, from the command line, and in place of a run's tiers."""

import itertools
import json
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import tomlkit
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgefl import RunConfig, profile, simulate
from edgefl.cli.main import main
from edgefl.errors import BudgetError, ConfigError, InputError, UnknownNameError, WireError
from edgefl.fleet.budget import Budget, shortfalls
from edgefl.fleet.clock import round_timing
from edgefl.fleet.load import load_device, load_fleet
from edgefl.fleet.population import Population
from edgefl.methods.create import create
from edgefl.methods.ranks import hybrid_ranks, rank_candidates, ranked
from edgefl.models.base import Architecture
from edgefl.planning.largest_ratio import STEPS
from edgefl.planning.network import architecture_of
from edgefl.planning.plan import plan
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import network_cost, tier_cost
from edgefl.records import Tier
from edgefl.rng import torch_seeded
from edgefl.run.auto_tiers import auto_tiers
from edgefl.server.assign import PlanCosts, make_plan
from edgefl.server.assignment import Workload
from edgefl.util.units import need_have, parse_amount
from edgefl.wire.payload import payload_bytes

SAMPLES, BATCH = 50, 4
DEVICE = "raspberry-pi-4"
NEEDS = ("memory_bytes", "macs_forward", "macs_train_step", "upload_bytes", "download_bytes", "deadline_s", "energy_j")


def convolutional(*channels: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    for one, more in itertools.pairwise((1, *channels)):
        layers += [nn.Conv2d(one, more, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 3)), (1, 6, 6)


def linear(*widths: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    for one, more in itertools.pairwise(widths):
        layers += [nn.Linear(one, more), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3)), (widths[0],)


def filled(network: nn.Module, seed: int, kind: str = "random") -> nn.Module:
    rng = np.random.default_rng(seed)
    candidates = rank_candidates(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape))).float())
        for number, layer in enumerate(candidates.values()):
            if kind == "zero":
                layer.weight.zero_()
            elif kind == "low rank":
                flat = layer.weight.flatten(1)
                layer.weight.copy_((flat[:, :1] @ flat[:1]).reshape(layer.weight.shape))
            elif kind == "dominant" and number == 0:
                layer.weight.mul_(1000)
    return network


@st.composite
def networks(draw):
    """Two or three small layers in front of a classifier, as a module, with weights of one kind."""
    make = draw(st.sampled_from([convolutional, linear]))
    widths = draw(st.lists(st.integers(2, 12), min_size=2, max_size=2 if make is convolutional else 3))
    network, shape = make(*widths)
    return filled(network, draw(st.integers(0, 99)), draw(st.sampled_from(["random", "low rank", "zero", "dominant"]))), shape


def needs_of(cost) -> dict[str, float]:
    steps = -(-SAMPLES // BATCH)
    timing = round_timing(load_device(DEVICE), cost, SAMPLES, steps, steps)
    return {
        "memory_bytes": cost.training_memory_bytes,
        "macs_forward": cost.macs_forward,
        "macs_train_step": cost.macs_train_step,
        "upload_bytes": cost.upload_bytes,
        "download_bytes": cost.download_bytes,
        "deadline_s": timing.total_s,
        "energy_j": timing.total_j,
    }


def traced(network: nn.Module, shape: tuple[int, ...], ranks: dict[str, int], codec: str = "fp32"):
    """The cost of a network with these ranks, from a trace of its own."""
    architecture = architecture_of(network, shape)
    sizes = {name: tuple(t.shape) for name, t in ranked(architecture.build(), dict(ranks)).state_dict().items()}
    payloads = (payload_bytes(sizes), payload_bytes(sizes, codec))
    build = lambda: ranked(architecture.build(), dict(ranks))  # noqa: E731
    return network_cost(build, architecture, create("fedhm"), training_for(BATCH, None, "momentum"), payloads)


def kept(network: nn.Module, ranks: dict[str, int]) -> tuple[float, float]:
    """Energy that ranks keep and all of it, from NumPy's own singular values of the unrolled weights."""
    some = whole = 0.0
    for name, layer in rank_candidates(network).items():
        w = layer.weight.detach().double().numpy()
        if w.ndim == 4:
            n, m, k1, k2 = w.shape
            w = w.transpose(1, 2, 0, 3).reshape(m * k1, n * k2)
        squares = np.linalg.svd(w, compute_uv=False) ** 2
        whole += squares.sum()
        some += squares[: ranks.get(name, len(squares))].sum()
    return some, whole


@settings(max_examples=8)
@given(
    networks(), st.sets(st.sampled_from(NEEDS), min_size=1, max_size=3), st.floats(0.0, 1.1), st.sampled_from(["fp32", "int8"])
)
def test_no_budget_is_exceeded_and_the_spectral_plan_keeps_at_least_as_much(built, names, share, codec):
    network, shape = built
    smallest = needs_of(traced(network, shape, hybrid_ranks(network, 1 / STEPS), codec))
    largest = needs_of(traced(network, shape, {}, codec))
    # Beside a factorized network the whole one can need less memory.
    limits = {name: smallest[name] + share * max(0, largest[name] - smallest[name]) for name in names}
    options = {"batch_size": BATCH, "samples": SAMPLES, "codec": codec, "weights": network.state_dict()}
    found = plan(network, shape, device=DEVICE, budget=Budget(**limits), allocate="spectral", **options)
    for planned in found:
        needs = needs_of(traced(network, shape, planned.ranks, codec))
        assert all(needs[name] <= limit for name, limit in limits.items())
        assert {name: need for name, (need, _) in planned.uses.items()} == {name: needs[name] for name in planned.uses}
        assert planned.uses.keys() == names | {"memory_bytes"}
        some, whole = kept(network, planned.ranks)
        assert planned.energy_share == pytest.approx(some / whole if whole else 1.0, abs=1e-6)
    uniform, spectral = found
    assert (uniform.kind, spectral.kind) == ("uniform", "spectral")
    assert spectral.energy_share >= uniform.energy_share
    assert spectral.gap >= 0


@settings(max_examples=5)
@given(networks(), st.sampled_from(["macs_forward", "memory_bytes", "upload_bytes"]), st.floats(0.1, 0.9))
def test_the_next_ratio_above_does_not_fit(built, name, share):
    network, shape = built
    smallest, largest = (needs_of(traced(network, shape, hybrid_ranks(network, ratio)))[name] for ratio in (1 / STEPS, 1.0))
    limit = smallest + share * (largest - smallest)
    (found,) = plan(network, shape, budget=Budget(**{name: limit}), batch_size=BATCH)
    assert needs_of(traced(network, shape, hybrid_ranks(network, found.ratio)))[name] <= limit
    if found.ratio < 1:
        above = round(found.ratio * STEPS + 1) / STEPS
        assert needs_of(traced(network, shape, hybrid_ranks(network, above)))[name] > limit


def test_a_larger_ratio_that_takes_fewer_macs_is_found():
    """Factors of a layer with a stride work at more positions than the dense layer, which takes over where factors would be larger."""
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Conv2d(4, 16, 3, stride=2), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(32, 3)
    )
    shape = (2, 11, 11)
    macs = {ratio: traced(network, shape, hybrid_ranks(network, ratio)).macs_forward for ratio in (0.667, 0.833, 0.834)}
    assert macs[0.667] < macs[0.834] < macs[0.833]
    for limit, ratio in ((macs[0.834], 0.874), (macs[0.834] - 1, 0.749)):
        assert plan(network, shape, budget=Budget(macs_forward=limit), batch_size=BATCH)[0].ratio == ratio


@cache
def every_plan(make: Callable[..., Any], *widths: int) -> tuple[nn.Module, tuple[int, ...], list[tuple[float, dict[str, float]]]]:
    """A network, its input, and the share of the energy and the needs of each plan of it, from a trace of its own."""
    network, shape = make(*widths)
    filled(network, 5)
    whole, options = kept(network, {})[1], []
    for layer in rank_candidates(network).values():
        out, into, *sides = layer.weight.shape
        rows, columns = into * (sides[0] if sides else 1), out * (sides[1] if sides else 1)
        options.append([*range(1, -(-rows * columns // (rows + columns))), None])
    plans = [
        {layer: rank for layer, rank in zip(rank_candidates(network), picks, strict=True) if rank}
        for picks in itertools.product(*options)
    ]
    assert len(plans) >= 9
    return network, shape, [(kept(network, one)[0] / whole, needs_of(traced(network, shape, one))) for one in plans]


@pytest.mark.parametrize("name", ["macs_forward", "macs_train_step", "upload_bytes"])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_no_plan_of_all_keeps_more_than_the_bound(name, share):
    """Not of memory: which moment is the peak depends on the plan, and the bound does not know it."""
    network, shape, plans = every_plan(linear, 6, 7, 5)
    costs = [needs[name] for _, needs in plans]
    limit = min(costs) + share * (max(costs) - min(costs))
    best = max(energy for energy, needs in plans if needs[name] <= limit)
    found = plan(
        network, shape, budget=Budget(**{name: limit}), allocate="spectral", weights=network.state_dict(), batch_size=BATCH
    )[-1]
    assert found.energy_share <= best + 1e-9
    assert found.energy_share + found.gap >= best - 1e-9


@pytest.mark.parametrize("widths", [(convolutional, 12, 4), (linear, 6, 30, 6)])
def test_a_budget_of_memory_is_used(widths):
    network, shape, plans = every_plan(*widths)
    needs = sorted(needs["memory_bytes"] for _, needs in plans)
    for limit in needs[len(needs) // 4 :: len(needs) // 3]:
        best = max(energy for energy, needs in plans if needs["memory_bytes"] <= limit)
        budget = Budget(memory_bytes=limit)
        found = plan(network, shape, budget=budget, allocate="spectral", weights=network.state_dict(), batch_size=BATCH)[-1]
        assert found.cost.training_memory_bytes <= limit
        assert 0.97 * best <= found.energy_share <= best + 1e-6


def test_the_whole_network_is_the_plan_of_a_budget_that_it_fills_to_the_byte():
    network, shape = linear(9, 8, 7)
    whole = needs_of(traced(network, shape, {}))
    for name in ("memory_bytes", "macs_forward", "upload_bytes"):
        (exact,) = plan(network, shape, budget=Budget(**{name: whole[name]}), batch_size=BATCH)
        assert exact.ratio == 1.0
        (less,) = plan(network, shape, budget=Budget(**{name: whole[name] - 1}), batch_size=BATCH)
        assert less.ratio < 1.0
        assert less.uses[name][0] <= whole[name] - 1


def test_the_smallest_plan_is_rank_1_everywhere_and_one_mac_less_fits_nothing():
    network, shape = linear(8, 8, 8)
    filled(network, 1)
    smallest = needs_of(traced(network, shape, hybrid_ranks(network, 1 / STEPS)))["macs_forward"]
    assert smallest == (8 + 8) + (8 + 8) + 8 * 3
    with pytest.raises(BudgetError, match=rf"forward MACs: needs {smallest}, has {smallest - 1} \(too little\)"):
        plan(network, shape, budget=Budget(macs_forward=smallest - 1), allocate="spectral")
    (uniform, spectral) = plan(network, shape, budget=Budget(macs_forward=smallest), allocate="spectral")
    assert uniform.ranks == spectral.ranks == {"0": 1, "2": 1}


def test_the_same_plan_every_time_and_from_a_factory_as_from_a_module():
    network, shape = convolutional(6, 8)
    options = {"budget": Budget(macs_forward=9_000), "allocate": "spectral", "weights": network.state_dict()}
    first = [planned.to_dict() for planned in plan(network, shape, **options)]
    assert [planned.to_dict() for planned in plan(network, shape, **options)] == first
    assert [planned.to_dict() for planned in plan(lambda: convolutional(6, 8)[0], shape, **options)] == first


def test_heterofl_is_planned_by_its_widths():
    (found,) = plan("cnn-digits", (1, 8, 8), budget=Budget(upload_bytes=100_000), method="heterofl")
    architecture, training = Architecture("cnn-digits", (1, 8, 8), 10), training_for(32, None, "momentum")
    cost, above = (
        tier_cost(create("heterofl"), architecture, Tier(ratio), training) for ratio in (found.ratio, found.ratio + 1 / STEPS)
    )
    assert found.cost == cost
    assert cost.upload_bytes <= 100_000 < above.upload_bytes
    assert (found.ranks, found.energy_share, found.gap) == ({}, None, None)
    with pytest.raises(ConfigError, match="allocate: spectral gives every layer a rank, which heterofl does not have; use fedhm"):
        plan("cnn-digits", (1, 8, 8), budget=Budget(upload_bytes=100_000), method="heterofl", allocate="spectral")


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


def tensors_of(model: str = "cnn-digits") -> dict[str, torch.Tensor]:
    return {name: t.contiguous() for name, t in Architecture(model, (1, 8, 8), 10).build().state_dict().items()}


def spoilt(kind: str) -> bytes:
    tensors = tensors_of("mlp" if kind == "another network" else "cnn-digits")
    if kind == "nan":
        next(iter(tensors.values())).view(-1)[3] = float("nan")
    if kind == "another shape":
        tensors["fc.weight"] = torch.zeros(10, 7)
    content = safetensors.torch.save(tensors)
    return content[: len(content) // 2] if kind == "truncated" else content


SPOILT = {
    "missing": r"cannot be read \(No such file or directory\)",
    "truncated": "not a valid safetensors file",
    "another network": "tensors missing or not expected: ",
    "another shape": r"fc.weight has shape \(10, 7\), expected \(10, 1024\)",
    "nan": "holds NaN or infinity, expected finite values",
}


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


@pytest.fixture
def edgefl(monkeypatch, capsys):
    """Runs the command line in this process: status, and what it wrote to both streams."""

    def run(*args: str, network: tuple[str, ...] = ("cnn-digits", "--input", "1x8x8")):
        monkeypatch.setattr(sys, "argv", ["edgefl", "plan", *network, *args])
        with pytest.raises(SystemExit) as stopped:
            main()
        return (stopped.value.code, *capsys.readouterr())

    return run


def test_json_has_everything_that_rebuilds_the_network(edgefl):
    status, out, err = edgefl("--macs", "800k", "--upload", "400kB", "--allocate", "spectral", "--json")
    assert (status, err) == (0, "")
    plans = json.loads(out)
    assert [p["allocate"] for p in plans] == ["uniform", "spectral"]
    for planned in plans:
        network = ranked(Architecture("cnn-digits", (1, 8, 8), 10).build(), planned["ranks"])
        assert sum(p.numel() for p in network.parameters()) == planned["params"]
        assert payload_bytes({name: tuple(t.shape) for name, t in network.state_dict().items()}) == planned["upload_bytes"]
        by_name = {row["budget"]: row for row in planned["budgets"]}
        assert by_name["macs_forward"] == {
            "budget": "macs_forward",
            "need": planned["macs_forward"],
            "have": 800_000,
            "share": planned["macs_forward"] / 800_000,
        }
        assert planned["macs_forward"] <= 800_000
        assert planned["upload_bytes"] <= 400_000


def test_the_table_has_both_plans_and_a_rank_for_every_layer(edgefl):
    status, out, _ = edgefl("--macs", "800k", "--allocate", "spectral")
    assert status == 0
    lines = out.splitlines()
    assert any(line.split()[:1] == ["uniform"] and "of 800 k" in line for line in lines)
    assert any(line.split()[:3] == ["spectral", "per", "layer"] for line in lines)
    layers = rank_candidates(Architecture("cnn-digits", (1, 8, 8), 10).build())
    assert all(any(line.split()[:1] == [layer] for line in lines) for layer in layers)


def test_nothing_that_fits_is_status_3_with_the_smallest_need(edgefl):
    row = profile("cnn-digits", (1, 8, 8), method="fedhm", tiers=(1 / STEPS,))[0]
    status, out, err = edgefl("--macs", "1k", "--upload", "1MB")
    assert (status, out) == (3, "")
    assert "no size of cnn-digits with fedhm fits; the smallest, ratio 0.001, needs" in err
    assert f"  forward MACs: {need_have('macs_forward', row.macs_forward, 1000)} (too little)\n" in err
    assert f"  upload: {need_have('upload_bytes', row.upload_bytes, 1e6)}\n" in err
    assert ", has 1 k (too little)" in err
    assert ", has 1 MB\n" in err
    assert "e+0" not in err
    assert "give larger budgets, a smaller batch or micro-batch, recomputation, or a smaller network" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "budget: give a device or at least one limit, such as --memory 64MB"),
        (("--seconds", "30"), "budget deadline_s: seconds and joules are a device's; give one, such as --device raspberry-pi-4"),
        (("--macs", "1M", "--device", "abacus"), "unknown device 'abacus'"),
        (("--macs", "1M", "--method", "heterofl", "--allocate", "spectral"), "use fedhm"),
        (("--macs", "1M", "--codec", "zip"), "unknown codec 'zip'"),
    ],
)
def test_wrong_input_is_status_2_and_one_line(edgefl, args, message):
    status, out, err = edgefl(*args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("amount", ["0", "-3", "nan", "inf", "1e999", "64XB", "1.2.3M", ""])
@pytest.mark.parametrize("flag", ["--memory", "--joules"])
def test_amounts_that_are_none_are_refused_with_an_example(edgefl, flag, amount):
    status, out, err = edgefl(flag, amount)
    assert (status, out) == (2, "")
    expected = {
        "--memory": "a number of bytes above 0, such as 100MB or 64KiB",
        "--joules": "an energy above 0, such as 30 (joules) or 1kJ",
    }
    assert f"Invalid value for '{flag}': {amount!r} is not {expected[flag]}" in err


@pytest.mark.parametrize(
    ("flag", "amount", "why"),
    [
        ("--macs", "100MB", "'100MB' is in bytes, expected a number of MACs above 0, such as 100M or 1.5G"),
        ("--memory", "64MACs", "'64MACs' is in MACs, expected a number of bytes"),
        ("--memory", "10min", "'10min' is a time, expected a number of bytes"),
        ("--joules", "50%", "'50%' is a share, expected an energy"),
        ("--seconds", "3kJ", "'3kJ' is in joules, expected a time"),
    ],
)
def test_an_amount_in_another_unit_is_refused_with_the_reason(edgefl, flag, amount, why):
    status, out, err = edgefl(flag, amount)
    assert (status, out) == (2, "")
    assert f"Invalid value for '{flag}': {why}" in err


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1kB", "B", 1e3),
        ("1KB", "B", 1e3),
        ("1kiB", "B", 1024),
        ("1KiB", "B", 1024),
        ("2Mi", "B", 2**21),
        ("3MAC", "MAC", 3),
        ("3 MMACs", "MAC", 3e6),
        ("1.5e3 J", "J", 1500),
        ("250ms", "s", 0.25),
    ],
)
def test_prefixes_are_read_in_either_case_of_k(text, unit, value):
    assert parse_amount(text, unit) == value


@pytest.mark.parametrize("kind", SPOILT)
def test_the_command_says_the_same_of_weights_in_one_line(edgefl, kind, tmp_path):
    path = tmp_path / "w.safetensors"
    if kind != "missing":
        path.write_bytes(spoilt(kind))
    status, _, err = edgefl("--macs", "1M", "--allocate", "spectral", "--weights", str(path))
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(f"Error: {path}: ")


# Tiers chosen by the planner.

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


def test_relative_errors_spare_layers_with_small_weights():
    """Two equal layers, one with weights a hundred times smaller: absolutely its error is nothing, relatively as much as the other's."""

    def net():
        return nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 4))

    with torch_seeded(np.random.default_rng(0)):
        tensors = {name: tensor.detach().clone() for name, tensor in net().state_dict().items()}
    tensors["1.weight"] *= 0.01
    kept = {}
    for error in ("absolute", "relative"):
        plans = plan(net, (3, 8, 8), budget=Budget(macs_forward=40_000), allocate="spectral", weights=tensors, error=error)
        kept[error] = plans[-1].ranks.get("1", 99)
    assert kept["absolute"] == 1
    assert kept["relative"] > 1
    with pytest.raises(UnknownNameError, match="unknown error 'squared'"):
        plan(net, (3, 8, 8), budget=Budget(macs_forward=1e6), error="squared")


def test_counters_of_batches_are_sent_by_no_plan():
    """BatchNorm's integer counter stays where it is, whether one ratio or a rank per layer made the sub-model."""

    def net():
        layers = (nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 16, 3))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 4))

    for planned in plan(net, (3, 8, 8), budget=Budget(macs_forward=60_000), allocate="spectral"):
        tensors = ranked(net(), dict(planned.ranks)).state_dict()
        sent = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name != "1.num_batches_tracked"}
        assert planned.cost.upload_bytes == payload_bytes(sent)


def test_the_runtime_decides_the_memory_that_is_planned(edgefl):
    row = profile("cnn-digits", (1, 8, 8), method="fedhm", tiers=(1 / STEPS,), runtime="onnx")[0]
    need = row.training_memory_bytes
    status, _, err = edgefl("--memory", str(need - 1), "--runtime", "onnx")
    assert status == 3
    assert "  memory: needs " in err
    code, _, err = edgefl("--memory", "64MB", "--runtime", "onnx", "--allocate", "spectral")
    assert code == 2
    assert "allocate: spectral predicts the memory of torch; give runtime torch, or allocate uniform" in err
