"""The fleet: profiles and their errors, population, budgets and the simulated clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import ProfileError, UnknownNameError
from edgefl.fleet.budget import Budget, budget_of, shortfalls, use
from edgefl.fleet.clock import energy_j, inference_s, round_timing
from edgefl.fleet.load import device_names, fleet_names, link_names, load_device, load_fleet, load_link
from edgefl.fleet.population import Population
from edgefl.fleet.profile import FleetBudget
from edgefl.records import Cost, Tier

DEVICE = """
name = "board"
title = "A board"
reference_hardware = "one"
link = "wifi-phone"
[memory]
total_bytes = { value = 1_000_000, mark = "vendor", source = "its data sheet, 2026" }
training_bytes = { value = 800_000, mark = "measured", source = "measured on it, 2026" }
[compute]
inference_gmacs_per_s = { value = 2, mark = "measured", source = "measured on it, 2026" }
inference_single_thread_gmacs_per_s = { value = 1, mark = "measured", source = "measured on it, 2026" }
training_gmacs_per_s = { value = 0.5, mark = "assumed", source = "nobody publishes it" }
[power]
idle_w = { value = 0.25, mark = "measured", source = "measured on it, 2026" }
load_w = { value = 3, mark = "measured", source = "measured on it, 2026" }
energy_pj_per_mac = { value = 400, mark = "derived", source = "load over the rate" }
[thermal]
burst_s = { value = 10, mark = "measured", source = "measured on it, 2026" }
sustained_share = { value = 0.5, mark = "measured", source = "measured on it, 2026" }
"""
LINK = """
name = "wire"
title = "A wire"
download_mbps = { value = 8, mark = "measured", source = "measured on it, 2026" }
upload_mbps = { value = 4, mark = "measured", source = "measured on it, 2026" }
rtt_ms = { value = 50, mark = "measured", source = "measured on it, 2026" }
download_nj_per_byte = { value = 100, mark = "measured", source = "measured on it, 2026" }
upload_nj_per_byte = { value = 300, mark = "measured", source = "measured on it, 2026" }
spread_sigma = { value = 0.5, mark = "measured", source = "measured on it, 2026" }
"""
FLEET = """
name = "mine"
title = "Mine"
[mix]
mark = "assumed"
source = "made for a test"
[budget]
round_deadline_s = 60
[[class]]
device = "board.toml"
share = 0.25
[class.budget]
upload_bytes = 1000
[[class]]
device = "laptop"
share = 0.75
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "board.toml").write_text(DEVICE.replace('"wifi-phone"', '"wire.toml"'))
    (tmp_path / "wire.toml").write_text(LINK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path


def cost(**changes) -> Cost:
    values = {
        "batch_size": 10, "micro_batch": 10, "params": 100, "macs_forward": 1_000_000, "macs_backward_input": 900_000,
        "macs_backward_weight": 1_100_000, "macs_compose": 500_000,
        "elementwise_ops": 10, "elementwise_ops_backward": 10, "elementwise_ops_step": 100,
        "peak_activation_bytes_inference": 1000, "peak_activation_bytes_training": 5000, "parameter_bytes": 400, "buffer_bytes": 0,
        "gradient_bytes": 400, "optimizer_bytes": 400, "training_memory_bytes": 6200, "download_bytes": 100_000, "upload_bytes": 50_000,
    }  # fmt: skip
    return Cost(**(values | changes))


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_every_device_has_a_mark_and_a_source(name):
    device = load_device(name)
    assert device.name == name
    assert all(len(figure.source) >= 20 for figure in device.figures().values())
    assert device.memory.training_bytes.value <= device.memory.total_bytes.value
    assert any(key.startswith("link.") for key in device.figures())


def test_the_profiles_that_are_promised_are_there():
    assert set(device_names()) == {
        "flagship-phone", "mid-range-phone", "low-end-phone", "tablet", "laptop", "raspberry-pi-zero-2w", "raspberry-pi-3b-plus",
        "raspberry-pi-4", "raspberry-pi-5", "jetson-nano", "jetson-orin-nano", "watch", "smart-home-hub", "micro-controller",
        "browser-tab",
    }  # fmt: skip
    assert set(fleet_names()) == {"phone", "phone-flash-2020", "home", "lab", "mixed"}
    assert [load_link(name).name for name in link_names()] == link_names()
    assert [c.share for c in load_fleet("phone").classes] == [0.15, 0.5, 0.35]
    assert [c.share for c in load_fleet("phone-flash-2020").classes] == [0.004, 0.464, 0.532]


def test_assumed_figures_say_so():
    assert "compute.training_gmacs_per_s" in load_device("flagship-phone").assumed
    assert "compute.training_gmacs_per_s" not in load_device("jetson-nano").assumed  # measured: dusty-nv/jetson-inference
    assert "link.rtt_ms" in load_device("flagship-phone").assumed


def test_a_users_own_files_work_by_path(folder, monkeypatch):
    fleet = load_fleet(str(folder / "fleet.toml"))
    assert [c.device.name for c in fleet.classes] == ["board", "laptop"]
    assert fleet.classes[0].device.link.name == "wire"
    alone = load_fleet(str(folder / "board.toml"))
    assert [(c.device.name, c.share) for c in alone.classes] == [("board", 1.0)]
    assert alone.budget.round_deadline_ratio is None
    monkeypatch.chdir(folder)
    assert load_fleet("fleet.toml") == fleet


def test_a_link_may_stand_inside_the_device(folder):
    inline = "[link]\n" + LINK
    (folder / "board.toml").write_text(DEVICE.replace('link = "wifi-phone"\n', "") + inline)
    assert load_device(str(folder / "board.toml")).link.rtt_s == 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("value = 0.5, mark", "value = -0.5, mark"), "compute.training_gmacs_per_s.value: expected greater than or equal to 0, got -0.5"),
        (("value = 0.5, mark", "value = 0, mark"), "compute.training_gmacs_per_s: expected a value above 0, got 0"),
        (("value = 0.5, mark", "value = nan, mark"), r"compute.training_gmacs_per_s.value: .*nan"),
        (("value = 0.5, mark", "value = inf, mark"), "compute.training_gmacs_per_s.value: expected a finite number, got inf"),
        (("value = 0.5, mark", 'value = "fast", mark'), "compute.training_gmacs_per_s.value: expected a valid number"),
        (("value = 0.5, mark", 'value = "0.5", mark'), "compute.training_gmacs_per_s.value: expected a valid number, got '0.5'"),
        (("value = 0.5, mark", "value = true, mark"), "compute.training_gmacs_per_s.value: expected a valid number, got True"),
        (('mark = "assumed"', 'mark = "guessed"'), "compute.training_gmacs_per_s.mark: expected 'measured', 'vendor', 'derived'"),
        ((', source = "nobody publishes it"', ""), "compute.training_gmacs_per_s.source: missing"),
        (("idle_w = { value = 0.25", "idle = { value = 0.25"), "power.idle: unknown key; did you mean 'idle_w'"),
        (("idle_w = { value = 0.25", "idle = { value = 0.25"), "power.idle_w: missing"),
        (
            ('{ value = 3, mark = "measured", source = "measured on it, 2026" }', "3"),
            r"power.load_w: expected \{ value = …, mark = .*got 3",
        ),
        (("[memory]", "[memory"), r"board.toml, line 6: not valid TOML"),
        (('"wire.toml"', '"wifi-fone"'), "unknown link 'wifi-fone'; did you mean 'wifi-phone'"),
        (('value = 0.5, mark = "measured"', 'value = 1.5, mark = "measured"'), r"thermal.sustained_share: expected a share in \(0, 1\]"),
    ],
)  # fmt: skip
def test_a_wrong_profile_names_file_key_value_and_expectation(folder, change, message):
    path = folder / "board.toml"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises((ProfileError, UnknownNameError), match=message):
        load_device(str(path))


def test_all_problems_of_a_file_are_listed(folder):
    path = folder / "board.toml"
    path.write_text(path.read_text().replace("value = 2,", "value = -2,").replace("value = 400,", "value = -4,"))
    with pytest.raises(ProfileError) as error:
        load_device(str(path))
    assert str(error.value).count("board.toml: ") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("share = 0.25", "share = 0.5"), "shares must sum to 1, got 1.25"),
        (('"laptop"', '"labtop"'), "class.1.device: unknown device 'labtop'; did you mean 'laptop'"),
        (("round_deadline_s = 60", "round_deadline_s = 60\nround_deadline_ratio = 2"), "got both"),
        (("round_deadline_s = 60", "deadline = 60"), "budget.deadline: unknown key; did you mean 'round_deadline_s'"),
        (("round_deadline_s = 60", "energy_j = 0"), "budget.energy_j: expected greater than 0, got 0"),
    ],
)
def test_a_wrong_fleet_names_the_key(folder, change, message):
    path = folder / "fleet.toml"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ProfileError, match=message):
        load_fleet(str(path))


def test_missing_files_and_names():
    with pytest.raises(ProfileError, match="nowhere/x.toml: no such file"):
        load_fleet("nowhere/x.toml")
    with pytest.raises(UnknownNameError, match="unknown profile 'phones'; did you mean 'phone'"):
        load_fleet("phones")


@given(st.integers(1, 500), st.sampled_from(["phone", "phone-flash-2020", "home", "mixed"]))
def test_class_counts_follow_the_shares(clients, name):
    fleet = load_fleet(name)
    counts = Population(fleet, clients, 0).class_counts()
    assert sum(counts) == clients
    if clients >= len(counts):
        assert min(counts) >= 1
    for count, c in zip(counts, fleet.classes, strict=True):
        assert abs(count - c.share * clients) <= len(counts)


def test_the_seed_decides_who_is_which():
    fleet = load_fleet("phone")
    one, again, other = (Population(fleet, 20, seed) for seed in (1, 1, 2))
    classes = [[p.class_of(i) for i in range(20)] for p in (one, again, other)]
    assert classes[0] == classes[1] != classes[2]
    assert [classes[0].count(i) for i in range(3)] == [3, 10, 7]
    assert one.device(0).name == fleet.classes[classes[0][0]].device.name


def test_assignment_policies():
    population = Population(load_fleet("phone"), 20, 0)
    tiers = (Tier(1.0), Tier(0.5), Tier(0.25))
    fits = [tiers, tiers[1:], ()]
    for client in range(20):
        able = fits[population.class_of(client)]
        drawn = {p: [population.assign(p, fits, client, r) for r in range(1, 30)] for p in ("auto", "uniform", "dynamic")}
        assert set(drawn["auto"]) == {able[0] if able else None}
        assert len(set(drawn["uniform"])) == 1
        assert set(drawn["dynamic"]) == (set(able) or {None})


def test_a_round_costs_what_the_formulas_say(folder):
    """By hand: 40 samples in 4 steps are 40·3 M + 4·0.5 M = 122 M MACs, at 0.5 G/s 0.244 s."""
    board = load_device(str(folder / "board.toml"))
    timing = round_timing(board, cost(), samples=40, passes=4)
    assert timing.download_s == pytest.approx(0.05 + 100_000 / 1e6)
    assert timing.upload_s == pytest.approx(0.05 + 50_000 / 0.5e6)
    assert timing.train_s == pytest.approx(0.244)
    assert timing.total_s == pytest.approx(0.544)
    assert timing.compute_j == pytest.approx(122e6 * 400e-12 + 0.25 * 0.544)
    assert timing.radio_j == pytest.approx(100_000 * 100e-9 + 50_000 * 300e-9)


def test_work_beyond_the_burst_is_throttled(folder):
    """3,000 M MACs per pass · 2 = 6 G at 0.5 G/s would take 12 s: 10 at the full rate, the other 2 at half of it."""
    board = load_device(str(folder / "board.toml"))
    slow = cost(macs_forward=1_000_000, macs_backward_input=1_000_000, macs_backward_weight=1_000_000, macs_compose=0)
    assert round_timing(board, slow, samples=2000, passes=1).train_s == pytest.approx(10 + 2 / 0.5)
    assert inference_s(board, 4_000_000) == pytest.approx(0.002)
    assert energy_j(board, 4_000_000, 0.002) == pytest.approx(0.0016 + 0.0005)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_work_never_takes_less_time(samples, more):
    device = load_device("low-end-phone")
    less, greater = (round_timing(device, cost(), s, 1) for s in (samples, samples + more))
    assert less.total_s <= greater.total_s
    assert less.total_j <= greater.total_j


def test_each_budget_is_checked_at_its_exact_limit(folder):
    board = load_device(str(folder / "board.toml"))
    timing = round_timing(board, cost(), 40, 4)
    exact = Budget(6200, timing.total_s, 100_000, 50_000, timing.total_j)
    assert shortfalls(cost(), timing, exact, "board", Tier(0.5)) == ()
    tight = {"memory_bytes": 6199, "deadline_s": 0.5, "download_bytes": 99_999, "upload_bytes": 49_999, "energy_j": 0.1}
    for name, have in tight.items():
        (short,) = shortfalls(cost(), timing, Budget(**(vars(exact) | {name: have})), "board", Tier(0.5))
        assert (short.budget, short.have, short.need > have) == (name, have, True)
        assert f"board cannot take tier 0.5: {name} needs" in str(short)
    assert use(cost(), timing, Budget(12_400)) == {"memory_bytes": (6200, 12_400)}


def test_uncounted_operations_meet_no_budget(folder):
    timing = round_timing(load_device(str(folder / "board.toml")), cost(), 1, 1)
    (short,) = shortfalls(cost(uncounted_ops=("aten.odd",)), timing, Budget(1e9), "board", Tier(1.0))
    assert short.budget == "uncounted_ops"


def test_a_class_has_its_own_limits_and_the_fleets_elsewhere(folder):
    fleet = load_fleet(str(folder / "fleet.toml"))
    board, laptop = (budget_of(c, fleet.budget, 2.0) for c in fleet.classes)
    assert (board.deadline_s, board.upload_bytes, board.memory_bytes) == (60, 1000, 800_000)
    assert (laptop.deadline_s, laptop.upload_bytes) == (60, None)
    relative = FleetBudget(round_deadline_ratio=1.5)
    assert budget_of(fleet.classes[1], relative, 2.0).deadline_s == 3.0


def test_shipped_profiles_are_found_beside_the_package():
    from edgefl.files import shared

    assert (shared("profiles") / "README.md").is_file()
    assert isinstance(shared("export"), Path)
