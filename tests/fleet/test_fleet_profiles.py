"""Profiles of fleets: behaviour and states, those that are shipped, and errors that name the key."""

from __future__ import annotations

import pytest
from own_profiles import FLEET

from edgefl.errors import ProfileError, UnknownNameError
from edgefl.fleet.load import load_fleet


@pytest.mark.parametrize(("text", "found"), [("", "got none"), ("class = []\n", r"got \[\]"), ("class = 3\n", "got 3")])
def test_a_fleet_without_classes_is_told_from_a_device(folder, text, found):
    path = folder / "fleet.toml"
    path.write_text(text + FLEET.replace(FLEET[FLEET.index("[[class]]") : FLEET.index("[behaviour]")], ""))
    with pytest.raises(ProfileError, match=r"fleet.toml: class: expected tables \[\[class\]\] with device and share, " + found):
        load_fleet(str(path))


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
            r"behaviour.interrupted: expected a share in \[0, 1\), got -0.1",
        ),
        (
            ("response_sigma = { value = 0.1", "response_sigma = { value = inf"),
            "behaviour.response_sigma.value must be a finite number, got inf",
        ),
        (
            ("response_sigma = { value = 0.1", "response_sigma = { value = 55"),
            "behaviour.response_sigma: expected a sigma of at most 3, got 55",
        ),
        (("response_sigma = {", "response = {"), "behaviour.response: unknown key; did you mean 'response_sigma'"),
        (
            ("over_selection = { value = 1,", "over_selection = { value = 0.5,"),
            "behaviour.over_selection: expected a ratio of at least 1, got 0.5",
        ),
        (("chance = 0.75", "chance = 0.5"), "state: chances must sum to 1, got 0.75"),
        (("chance = 0.75", 'chance = "0.75"'), "state.0.chance must be a number, got '0.75'"),
        (("chance = 0.75", "chances = 0.75"), "state.0.chances: unknown key; did you mean 'chance'"),
        (("memory_share = 0.5", "memory_share = 0"), "state.1.memory_share must be at least 1e-09, got 0"),
        (("speed_share = 0.8", "speed_share = 1e-300"), "state.1.speed_share must be at least 1e-09, got 1e-300"),
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
        ProfileError,
        match=r"class\.0\.budget: another class of 'board' has another budget; give one of them a name of its own, by its key name",
    ):
        load_fleet(str(path))
    path.write_text(FLEET.replace('"laptop"', '"board.toml"').replace("[class.budget]\nupload_bytes = 1000\n", ""))
    assert [c.share for c in load_fleet(str(path)).classes] == [0.25, 0.75]
