"""The fleet: profiles and their errors, population, budgets and the simulated clock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import ProfileError, UnknownNameError
from edgefl.fleet.budget import Budget, budget_of, shortfalls, use
from edgefl.fleet.clock import energy_j, inference_s, round_timing
from edgefl.fleet.load import load_device, load_fleet, load_link, names
from edgefl.fleet.population import Population
from edgefl.fleet.profile import FleetBudget
from edgefl.records import BUDGETS, Cost, Tier

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
[behaviour]
eligible_share = { value = 0.25, mark = "measured", source = "measured on them, 2026" }
day_night_ratio = { value = 3, mark = "measured", source = "measured on them, 2026" }
peak_hour = { value = 23.5, mark = "measured", source = "measured on them, 2026" }
drop_out = { value = 0.05, mark = "measured", source = "measured on them, 2026" }
interrupted = { value = 0, mark = "measured", source = "measured on them, 2026" }
response_sigma = { value = 0.1, mark = "assumed", source = "nobody publishes it" }
over_selection = { value = 1, mark = "vendor", source = "its data sheet, 2026" }
[[state]]
name = "free"
chance = 0.75
memory_share = 1
speed_share = 1
mark = "assumed"
source = "made for a test"
[[state]]
name = "busy"
chance = 0.25
memory_share = 0.5
speed_share = 0.8
mark = "measured"
source = "measured on them, 2026"
"""


SESSIONS = """session_sigma = { value = 0.3, mark = "measured", source = "measured on it, 2026" }
network_nj_per_byte = { value = 24_000, mark = "derived", source = "all-in less the radio" }
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


def test_the_profiles_that_are_promised_are_there():
    assert set(names("devices")) == {
        "flagship-phone", "mid-range-phone", "low-end-phone", "tablet", "laptop", "raspberry-pi-zero-2w", "raspberry-pi-3b-plus",
        "raspberry-pi-4", "raspberry-pi-5", "jetson-nano", "jetson-orin-nano", "watch", "smart-home-hub", "micro-controller",
        "browser-tab",
    }  # fmt: skip
    assert set(names("fleets")) == {"phone", "phone-flash-2020", "home", "lab", "mixed"}
    assert [load_link(name).name for name in names("links")] == names("links")
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
        (
            ("value = 0.5, mark", "value = -0.5, mark"),
            "compute.training_gmacs_per_s.value must be at least 0, got -0.5",
        ),
        (("value = 0.5, mark", "value = 0, mark"), "compute.training_gmacs_per_s: expected a value above 0, got 0"),
        (("value = 0.5, mark", "value = nan, mark"), r"compute.training_gmacs_per_s.value must be .*nan"),
        (("value = 0.5, mark", "value = inf, mark"), "compute.training_gmacs_per_s.value must be a finite number, got inf"),
        (("value = 0.5, mark", 'value = "fast", mark'), "compute.training_gmacs_per_s.value must be a number"),
        (("value = 0.5, mark", 'value = "0.5", mark'), "compute.training_gmacs_per_s.value must be a number, got '0.5'"),
        (("value = 0.5, mark", "value = true, mark"), "compute.training_gmacs_per_s.value must be a number, got True"),
        (('mark = "assumed"', 'mark = "guessed"'), "compute.training_gmacs_per_s.mark must be 'measured', 'vendor', 'derived'"),
        ((', source = "nobody publishes it"', ""), "compute.training_gmacs_per_s.source: missing"),
        (("idle_w = { value = 0.25", "idle = { value = 0.25"), "power.idle: unknown key; did you mean 'idle_w'"),
        (("idle_w = { value = 0.25", "idle = { value = 0.25"), "power.idle_w: missing"),
        (
            ('{ value = 3, mark = "measured", source = "measured on it, 2026" }', "3"),
            r"power.load_w: expected \{ value = …, mark = .*got 3",
        ),
        (
            ("training_gmacs_per_s = {", "training = {"),
            "compute.training: unknown key; did you mean 'training_gmacs_per_s' or 'training_step'\\? The key of a figure ends",
        ),
        (("training_gmacs_per_s = {", "training = {"), r"compute.training_gmacs_per_s: missing; expected \{ value = …"),
        (
            ("training_gmacs_per_s = {", "inference = 5\ntraining_gmacs_per_s = {"),
            "compute.inference: unknown key; did you mean 'inference_gmacs_per_s' or 'inference_single_thread_gmacs_per_s'.*got 5",
        ),
        (("[power]", "[powers]"), "board.toml: powers: unknown key; did you mean 'power'?"),
        (("[memory]", "[memories]"), "board.toml: memory: missing; expected a table with total_bytes, training_bytes"),
        (('title = "A board"\n', ""), "board.toml: title: missing; expected a value"),
        (("[memory]", "[memory"), r"board.toml, line 6: not valid TOML"),
        (('"wire.toml"', '"wifi-fone"'), "board.toml: link: unknown link 'wifi-fone'; did you mean 'wifi-phone'"),
        (
            ('"wire.toml"', '"fire.toml"'),
            "board.toml: link: expected the name or the path of a link.* got 'fire.toml'.*fire.toml: no such file",
        ),
        (('"wire.toml"', "5"), "board.toml: link: expected the name or the path of a link, or a table with a link's keys, got 5"),
        (("value = 1_000_000, mark", "value = 999, mark"), r"memory: training_bytes: expected at most total_bytes \(999\), got "),
        (("idle_w = { value = 0.25", "idle_w = { value = 5"), r"power: idle_w: expected at most load_w \(3\), got 5"),
        (
            ('value = 0.5, mark = "measured"', 'value = 1.5, mark = "measured"'),
            r"thermal.sustained_share: expected a share in \(0, 1\]",
        ),
    ],
)  # fmt: skip
def test_a_wrong_profile_names_file_key_value_and_expectation(folder, change, message):
    path = folder / "board.toml"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ProfileError, match=message) as error:
        load_device(str(path))
    assert str(path) in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(("text", "found"), [("", "got none"), ("class = []\n", r"got \[\]"), ("class = 3\n", "got 3")])
def test_a_fleet_without_classes_is_told_from_a_device(folder, text, found):
    path = folder / "fleet.toml"
    path.write_text(text + FLEET.replace(FLEET[FLEET.index("[[class]]") : FLEET.index("[behaviour]")], ""))
    with pytest.raises(ProfileError, match=r"fleet.toml: class: expected tables \[\[class\]\] with device and share, " + found):
        load_fleet(str(path))


def test_a_wrong_entry_of_a_list_is_its_only_problem(folder):
    path = folder / "fleet.toml"
    path.write_text(FLEET.replace("upload_bytes = 1000", "upload_bytes = -1.0"))
    with pytest.raises(ProfileError) as error:
        load_fleet(str(path))
    assert str(error.value) == f"{path}: class.0.budget.upload_bytes must be above 0, got -1"


def test_two_classes_of_one_device_have_one_budget(folder):
    path = folder / "fleet.toml"
    path.write_text(FLEET.replace('"laptop"', '"board.toml"'))
    with pytest.raises(
        ProfileError, match=r"class\.0\.budget: another class of 'board' has another budget; give one of them a copy"
    ):
        load_fleet(str(path))
    path.write_text(FLEET.replace('"laptop"', '"board.toml"').replace("[class.budget]\nupload_bytes = 1000\n", ""))
    assert [c.share for c in load_fleet(str(path)).classes] == [0.25, 0.75]


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
        (("round_deadline_s = 60", "energy_j = 0"), "budget.energy_j must be above 0, got 0"),
        (("round_deadline_s = 60", "energy_j = nan"), "budget.energy_j must be .*nan"),
        (("round_deadline_s = 60", "energy_j = -inf"), "budget.energy_j must be .*got -inf"),
        (("round_deadline_s = 60", 'round_deadline_s = "60"'), "budget.round_deadline_s must be a number, got '60'"),
        (
            ("round_deadline_s = 60", "round_deadline = 60"),
            "budget.round_deadline: unknown key; did you mean 'round_deadline_s' or 'round_d",
        ),
        (("share = 0.25\n[", "share = -0.25\n["), "class.0.share must be above 0, got -0.25"),
        (("share = 0.25\n[", "share = inf\n["), "class.0.share must be .*, got inf"),
        (("share = 0.25\n[", 'share = "0.25"\n['), "class.0.share must be a number, got '0.25'"),
        (("share = 0.25\n[", "["), "class.0.share: missing; expected a value"),
        (('device = "laptop"\n', ""), "class.1.device: missing; expected the name or the path of a device"),
        (('device = "laptop"', "device = 7"), "class.1.device: expected the name or the path of a device, got 7"),
        (
            ('"board.toml"', '"bird.toml"'),
            "class.0.device: expected the name or the path of a device, got 'bird.toml': .*bird.toml: no such file",
        ),
        (("[[class]]", "[[klass]]"), r"fleet.toml: class: expected tables \[\[class\]\] with device and share, got \{"),
        (
            ("eligible_share = { value = 0.25", "eligible_share = { value = 0"),
            r"behaviour.eligible_share: expected a share in \(0, 1\], got 0",
        ),
        (
            ("eligible_share = { value = 0.25", "eligible_share = { value = 0.7"),
            "behaviour: eligible_share and day_night_ratio: expected at most all devices at the peak, .*got 1.05",
        ),
        (
            ("day_night_ratio = { value = 3", "day_night_ratio = { value = 0.9"),
            "behaviour.day_night_ratio: expected a ratio of at least 1, got 0.9",
        ),
        (("peak_hour = { value = 23.5", "peak_hour = { value = 24"), r"behaviour.peak_hour: expected an hour in \[0, 24\), got 24"),
        (("drop_out = { value = 0.05", "drop_out = { value = 1"), r"behaviour.drop_out: expected a share in \[0, 1\), got 1"),
        (("drop_out = { value = 0.05", "drop_out = { value = nan"), "behaviour.drop_out.value must be .*nan"),
        (
            ("drop_out = { value = 0.05", 'drop_out = { value = "0.05"'),
            "behaviour.drop_out.value must be a number, got '0.05'",
        ),
        (
            ("interrupted = { value = 0", "interrupted = { value = 0.95"),
            "behaviour: drop_out and interrupted: .*sum to less than 1, got 1",
        ),
        (
            ("interrupted = { value = 0", "interrupted = { value = -0.1"),
            "behaviour.interrupted.value must be at least 0, got -0.1",
        ),
        (
            ("response_sigma = { value = 0.1", "response_sigma = { value = inf"),
            "behaviour.response_sigma.value must be a finite number, got inf",
        ),
        (("response_sigma = {", "response = {"), "behaviour.response: unknown key; did you mean 'response_sigma'"),
        (
            ("over_selection = { value = 1,", "over_selection = { value = 0.5,"),
            "behaviour.over_selection: expected a ratio of at least 1, got 0.5",
        ),
        (("chance = 0.75", "chance = 0.5"), "state: chances must sum to 1, got 0.75"),
        (("chance = 0.75", 'chance = "0.75"'), "state.0.chance must be a number, got '0.75'"),
        (("chance = 0.75", "chances = 0.75"), "state.0.chances: unknown key; did you mean 'chance'"),
        (("memory_share = 0.5", "memory_share = 0"), "state.1.memory_share must be above 0, got 0"),
        (("speed_share = 0.8", "speed_share = 1.2"), "state.1.speed_share must be at most 1, got 1.2"),
        (("speed_share = 0.8\n", ""), "state.1.speed_share: missing; expected a value"),
        (('name = "busy"', 'name = "free"'), "state: expected names that differ, got 'free' more than once"),
    ],
)  # fmt: skip
def test_a_wrong_fleet_names_the_key(folder, change, message):
    path = folder / "fleet.toml"
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ProfileError, match=message) as error:
        load_fleet(str(path))
    assert str(path) in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("value = 24_000", "value = -1"), "wire.toml: network_nj_per_byte.value must be at least 0, got -1"),
        (("value = 0.3", 'value = "0.3"'), "wire.toml: session_sigma.value must be a number, got '0.3'"),
        (("network_nj_per_byte", "network"), "wire.toml: network: unknown key; did you mean 'network_nj_per_byte'"),
        (
            ("download_mbps", "download"),
            "wire.toml: download: unknown key; did you mean 'download_mbps' or 'download_nj_per_byte'",
        ),
        (("rtt_ms = {", "rtt_s = {"), "wire.toml: rtt_s: unknown key; did you mean 'rtt_ms'"),
    ],
)
def test_a_wrong_link_names_the_key(folder, change, message):
    path = folder / "wire.toml"
    text = path.read_text() + SESSIONS
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(ProfileError, match=message):
        load_device(str(folder / "board.toml"))


def test_a_link_tells_the_device_s_energy_from_the_network_s(folder):
    plain = load_link(str(folder / "wire.toml"))
    assert (plain.session_sigma, plain.session_spread, plain.network_nj_per_byte, plain.network_j_per_byte) == (
        None,
        0.0,
        None,
        0.0,
    )
    (folder / "wire.toml").write_text(LINK + SESSIONS)
    link = load_link(str(folder / "wire.toml"))
    assert link.session_spread == 0.3
    assert link.network_j_per_byte == pytest.approx(24e-6)
    assert (link.download_nj_per_byte, link.upload_nj_per_byte) == (plain.download_nj_per_byte, plain.upload_nj_per_byte)
    assert {"link.session_sigma", "link.network_nj_per_byte"} <= set(load_device(str(folder / "board.toml")).figures())


@pytest.mark.parametrize("name", names("links"))
def test_what_a_byte_costs_from_the_device_to_the_data_centre_is_what_fedpara_says(name):
    """FedPara (ICLR 2022), figure 3g, after Yan et al. (2019): 24,532 to 24,842 nJ/byte, both ways alike, the device's radio included."""
    link = load_link(name)
    radio = (link.download_nj_per_byte.value + link.upload_nj_per_byte.value) / 2
    if link.network_nj_per_byte.mark == "derived":
        assert 24_532 <= link.network_nj_per_byte.value + radio <= 24_842
    else:
        assert name in ("3g", "5g", "ble", "lorawan")
    if name.startswith("wifi"):  # sqrt(ln(1 + CV²)) of FLASH's 0.37 down and 0.40 up
        assert 0.3582 <= link.session_spread <= 0.3853


def test_behaviour_and_states_of_a_fleet(folder):
    fleet = load_fleet(str(folder / "fleet.toml"))
    assert fleet.behaviour.drop_out.value == 0.05
    assert fleet.behaviour.eligible_peak == pytest.approx(0.25 * 1.5)  # 1 + (3 − 1) / (3 + 1)
    assert [(s.name, s.chance, s.memory_share, s.speed_share) for s in fleet.states] == [
        ("free", 0.75, 1, 1),
        ("busy", 0.25, 0.5, 0.8),
    ]
    assert fleet.assumed == ("mix", "state.free", "behaviour.response_sigma")
    text = FLEET[: FLEET.index("[behaviour]")]
    (folder / "fleet.toml").write_text(text)
    plain = load_fleet(str(folder / "fleet.toml"))
    assert (plain.behaviour, plain.states, plain.assumed) == (None, (), ("mix",))
    alone = load_fleet(str(folder / "board.toml"))
    assert (alone.behaviour, alone.states) == (None, ())


@pytest.mark.parametrize("name", ["phone", "phone-flash-2020", "home", "mixed"])
def test_shipped_fleets_behave_as_published(name):
    behaviour = load_fleet(name).behaviour
    assert behaviour.drop_out.value + behaviour.interrupted.value == pytest.approx(0.08)  # Bonawitz et al. 2019: 6 to 10 %
    assert behaviour.interrupted.value == pytest.approx(29_771 / (1_116_401 + 327_478 + 29_771), abs=0.001)  # its table 1
    assert (behaviour.day_night_ratio.value, behaviour.over_selection.value, behaviour.peak_hour.value) == (4, 1.3, 3)
    assert 0.18 / 3 < behaviour.response_sigma.value < 0.6
    assert behaviour.eligible_share.mark == "assumed"
    assert load_fleet("lab").behaviour is None


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
    classes = [[int(p.classes(np.array([i]))[0]) for i in range(20)] for p in (one, again, other)]
    assert classes[0] == classes[1] != classes[2]
    assert [classes[0].count(i) for i in range(3)] == [3, 10, 7]


def test_assignment_policies():
    population = Population(load_fleet("phone"), 20, 0)
    clients = np.arange(20)
    options = np.array([3, 2, 0])[population.classes(clients)]  # tiers that fit a client's class, the largest first
    drawn = {
        p: np.array([population.tiers(p, options, clients, r) for r in range(1, 30)]) for p in ("auto", "uniform", "dynamic")
    }
    for client, able in enumerate(options):
        assert set(drawn["auto"][:, client]) == {0 if able else -1}
        assert len(set(drawn["uniform"][:, client])) == 1
        assert set(drawn["uniform"][:, client]) <= (set(range(able)) or {-1})
        assert set(drawn["dynamic"][:, client]) == (set(range(able)) or {-1})


def test_a_round_costs_what_the_formulas_say(folder):
    """By hand: 40 samples in 4 steps are 40·3 M + 4·0.5 M = 122 M MACs, at 0.5 G/s 0.244 s."""
    board = load_device(str(folder / "board.toml"))
    timing = round_timing(board, cost(), samples=40, passes=4, updates=4)
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
    assert round_timing(board, slow, samples=2000, passes=1, updates=1).train_s == pytest.approx(10 + 2 / 0.5)
    assert inference_s(board, cost(macs_forward=4_000_000)) == pytest.approx(0.002)
    assert energy_j(board, 4_000_000, 0.002) == pytest.approx(0.0016 + 0.0005)


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_work_never_takes_less_time(samples, more):
    device = load_device("low-end-phone")
    less, greater = (round_timing(device, cost(), s, 1, 1) for s in (samples, samples + more))
    assert less.total_s <= greater.total_s
    assert less.total_j <= greater.total_j


def test_each_budget_is_checked_at_its_exact_limit(folder):
    board = load_device(str(folder / "board.toml"))
    timing = round_timing(board, cost(), 40, 4, 4)
    exact = Budget(6200, timing.total_s, 100_000, 50_000, timing.total_j)
    assert shortfalls(cost(), timing, exact, "board", Tier(0.5)) == ()
    tight = {"memory_bytes": 6199, "deadline_s": 0.5, "download_bytes": 99_999, "upload_bytes": 49_999, "energy_j": 0.1}
    for name, have in tight.items():
        (short,) = shortfalls(cost(), timing, Budget(**(vars(exact) | {name: have})), "board", Tier(0.5))
        assert (short.budget, short.have, short.need > have) == (name, have, True)
        assert f"board cannot take tier 0.5: {BUDGETS[name]} needs" in str(short)
    assert use(cost(), timing, Budget(12_400)) == {"memory_bytes": (6200, 12_400)}


def test_uncounted_operations_meet_no_budget(folder):
    timing = round_timing(load_device(str(folder / "board.toml")), cost(), 1, 1, 1)
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
    from edgefl.util.files import shared

    assert (shared("profiles") / "README.md").is_file()
    assert isinstance(shared("export"), Path)
