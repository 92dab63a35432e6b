"""``edgefl calibrate`` writes a profile that other commands take, or says what is wrong before it measures."""

from __future__ import annotations

import json

import pytest
from command import edgefl

from edgefl.errors import ConfigError, StorageError, UnknownNameError
from edgefl.fleet.load import load_device
from edgefl.util.files import shared


def test_calibrate_writes_a_profile_that_other_commands_take(quick, tmp_path):
    out = tmp_path / "my-board.toml"
    done = edgefl("calibrate", "--out", str(out), "--link", "wifi-pi5", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["profile"]["name"] == "my-board"
    assert load_device(str(out)).link.name == "wifi-pi5"
    shown = edgefl("devices", str(out))
    assert "real training steps" in shown.stdout or "forward, backward and update" in shown.stdout
    assert edgefl("profile", "mlp", "--device", str(out)).returncode == 0


def test_a_link_of_ones_own_is_written_into_the_profile(quick, tmp_path):
    text = (shared("profiles") / "links" / "wifi-pi4.toml").read_text(encoding="utf-8").replace("wifi-pi4", "my-wire")
    (tmp_path / "wire.toml").write_text(text, encoding="utf-8")
    done = edgefl("calibrate", "--out", str(tmp_path / "o" / "x.toml"), "--link", str(tmp_path / "wire.toml"))
    assert done.returncode == 0, done.stderr
    assert load_device(str(tmp_path / "o" / "x.toml")).link.name == "my-wire"


@pytest.mark.parametrize("named", ["my-wire", "wifi-pi5"])
def test_the_link_of_like_may_be_a_table_of_its_file(named, tmp_path):
    device, link = ((shared("profiles") / kind).read_text("utf-8") for kind in ("devices/raspberry-pi-5.toml", "links/3g.toml"))
    table = "[link]\n" + link.replace('name = "3g"', f'name = "{named}"')
    (tmp_path / "like.toml").write_text(device.replace('link = "wifi-pi5"\n', "") + "\n" + table, "utf-8")
    (tmp_path / "steps.csv").write_text("network,batch,seconds\nmlp,8,0.01\n")
    given = "--from", str(tmp_path / "steps.csv"), "--like", str(tmp_path / "like.toml"), "--out", str(tmp_path / "x.toml")
    assert edgefl("calibrate", *given).returncode == 0
    assert load_device(str(tmp_path / "x.toml")).link == load_device(str(tmp_path / "like.toml")).link


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf", "x"])
def test_seconds_are_above_0(seconds, tmp_path):
    done = edgefl("calibrate", "--out", str(tmp_path / "x.toml"), "--seconds", seconds)
    assert done.returncode == 2
    assert "--seconds" in done.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_said_before_anything_is_measured(monkeypatch, tmp_path):
    from edgefl.contrib.calibrate import calibrate as calibrating

    def never(*_):
        raise AssertionError("measured")

    monkeypatch.setattr(calibrating, "measure", never)
    out = tmp_path / "x.toml"
    with pytest.raises(UnknownNameError, match="unknown link 'wifi-pi9'; did you mean 'wifi-pi"):
        calibrating.calibrate(out, link="wifi-pi9")
    with pytest.raises(UnknownNameError, match="unknown device 'lap'"):
        calibrating.calibrate(out, like="lap")
    with pytest.raises(ConfigError, match="name: got 'my board', expected letters"):
        calibrating.calibrate(out, name="my board")
    with pytest.raises(StorageError, match="it is a folder"):
        calibrating.calibrate(tmp_path, name="x")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        calibrating.calibrate(tmp_path / "file" / "x.toml")
    assert edgefl("calibrate", "--out", str(tmp_path)).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interruption_leaves_nothing(monkeypatch, tmp_path):
    from edgefl.contrib.calibrate import calibrate as calibrating

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrating, "measure", interrupt)
    with pytest.raises(KeyboardInterrupt):
        calibrating.calibrate(tmp_path / "x.toml")
    assert not list(tmp_path.iterdir())
