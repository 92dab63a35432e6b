"""Profiles of devices and links: those that are shipped, a user's own, and errors that name file, key and value."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_profiles import DEVICE, LINK, SESSIONS

from edgefl.errors import ProfileError
from edgefl.fleet.load import load_device, load_fleet, load_link, names


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
        (("value = 0.5, mark", "value = -0.5, mark"), "compute.training_gmacs_per_s: expected a value above 0, got -0.5"),
        (
            ("value = 0.5, mark", "value = 1e-300, mark"),
            "compute.training_gmacs_per_s: expected a value of at least 1e-09, got 1e-300",
        ),
        (("value = 0.5, mark", "value = 1e300, mark"), r"compute.training_gmacs_per_s.value must be at most 1e\+15, got 1e\+300"),
        (('value = 0.5, mark = "measured"', 'value = 1e-9, mark = "guessed"'), "thermal.sustained_share.mark must be 'measured'"),
        (
            ('value = 0.5, mark = "measured"', 'value = 1e-300, mark = "measured"'),
            "thermal.sustained_share: expected a value of at least 1e-09, got 1e-300",
        ),
        (('name = "board"', 'name = ""'), "name must be text of 1 or more characters, got ''"),
        (('title = "A board"', 'title = ""'), "title must be text of 1 or more characters, got ''"),
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


def test_all_problems_of_a_file_are_listed(folder):
    path = folder / "board.toml"
    path.write_text(path.read_text().replace("value = 2,", "value = -2,").replace("value = 400,", "value = -4,"))
    with pytest.raises(ProfileError) as error:
        load_device(str(path))
    assert str(error.value).count("board.toml: ") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("value = 24_000", "value = -1"), "wire.toml: network_nj_per_byte.value must be at least 0, got -1"),
        (("value = 0.3", 'value = "0.3"'), "wire.toml: session_sigma.value must be a number, got '0.3'"),
        (("value = 0.3", "value = 55"), "wire.toml: session_sigma: expected a sigma of at most 3, got 55"),
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
        assert name in ("3g", "5g", "ble", "lorawan", "lte-m", "nb-iot")
    if name.startswith("wifi"):  # sqrt(ln(1 + CV²)) of FLASH's 0.37 down and 0.40 up
        assert 0.3582 <= link.session_spread <= 0.3853


@pytest.mark.parametrize(
    ("name", "key", "ma", "volts", "bits_per_s"),
    [
        ("ble", "download_nj_per_byte", 6.26, 3.0, 0.7e6),
        ("ble", "upload_nj_per_byte", 6.40, 3.0, 0.7e6),
        ("lorawan", "download_nj_per_byte", 12.7, 3.3, 5470),
        ("lorawan", "upload_nj_per_byte", (25.7 + 41.5) / 2, 3.3, 5470),
    ],
)
def test_radio_energy_that_is_derived_follows_from_the_currents_of_its_source(name, key, ma, volts, bits_per_s):
    """Nordic nRF52840 and Microchip SAM R34: milliamperes times volts are milliwatts, over bytes per second."""
    nj = ma * volts / (bits_per_s / 8) * 1e6
    assert getattr(load_link(name), key).value == pytest.approx(nj, rel=3e-3)


def test_shipped_profiles_are_found_beside_the_package():
    from edgefl.util.files import shared

    assert (shared("profiles") / "README.md").is_file()
    assert isinstance(shared("export"), Path)
