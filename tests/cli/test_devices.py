"""``edgefl devices --template``, and all errors of a device file at once. Takes a second."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from edgefl.errors import ProfileError
from edgefl.fleet.load import load_device, load_fleet
from edgefl.fleet.profile import DeviceProfile

WRONG = """
name = 3
link = "wifi"
[memory]
total_bytes = 4
[compute]
training_gmacs_per_s = { value = -1, mark = "guess", source = "" }
[compute.training_step]
like = "raspberry"
[power]
idle_w = { value = 1, mark = "assumed", source = "x" }
idel = 3
"""
SAID = [
    "link: unknown link 'wifi'", "compute.training_step.like: unknown device 'raspberry'", "name must be text, got 3", "title: missing",
    "memory.total_bytes: expected", "memory.training_bytes: missing", "compute.inference_gmacs_per_s: missing",
    "compute.training_gmacs_per_s.mark must be", "compute.training_gmacs_per_s.value must be at least 0", "power.load_w: missing",
    "power.idel: unknown key; did you mean 'idle_w'?",
]  # fmt: skip


def test_the_template_is_a_complete_device_that_a_fleet_can_be_made_of(called: Any) -> None:
    code, output, _ = called("devices", "--template", "my-board.toml")
    assert code == 0
    assert output.startswith("my-board.toml: written")
    device = load_device("./my-board.toml")
    assert device.name == "my-board"
    assert set(device.assumed) >= {key for key in device.figures() if not key.startswith("link.")}
    assert load_fleet("./my-board.toml").classes[0].device == device
    code, output, _ = called("devices", "my-board.toml", "--json")
    assert (code, json.loads(output)["name"]) == (0, "my-board")
    before = Path("my-board.toml").read_bytes()
    code, _, errors = called("devices", "--template", "my-board.toml")
    assert (code, Path("my-board.toml").read_bytes()) == (2, before)
    assert "my-board.toml: exists; give the name of a new file" in errors


def test_what_the_template_has_as_comments_is_right_too(called: Any) -> None:
    called("devices", "--template", "my-board.toml")
    text = Path("my-board.toml").read_text()
    optional = ("# [", "# memory_", "# battery_", "# like", "# speed", "# error", "# burst_s", "# sustained_")
    whole = "\n".join(line.removeprefix("# ") if line.startswith(optional) else line for line in text.splitlines())
    Path("whole.toml").write_text(whole)
    device = load_device("./whole.toml")
    assert device.thermal is not None
    assert device.compute.training_step is not None
    keys = {key for key, field in DeviceProfile.model_fields.items() if field.is_required()}
    assert keys <= tomllib.loads(text).keys()


@pytest.mark.parametrize("name", ["board", "board.json"])
def test_a_template_is_a_toml_file(name: str, called: Any) -> None:
    code, _, errors = called("devices", "--template", name)
    assert code == 2
    assert "ends in .toml" in errors


def test_all_errors_of_a_device_are_said_at_once_and_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(WRONG)
    with pytest.raises(ProfileError) as raised:
        load_device(str(path))
    lines = str(raised.value).splitlines()
    assert [said for said in SAID if not any(line.startswith(f"{path}: {said}") for line in lines)] == []
    assert len(set(lines)) == len(lines)
    assert not any(".source" in line and "idle_w" in line for line in lines), "a source of one letter is one"


def test_all_errors_of_a_fleet_are_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    classes = '[[class]]\ndevice = "nobody"\nshare = 2\n[[class]]\ndevice = "nothing"\nshare = 0.5\n'
    path.write_text(f'name = "f"\n[mix]\nmark = "assumed"\nsource = "x"\n{classes}')
    with pytest.raises(ProfileError) as raised:
        load_fleet(str(path))
    text = str(raised.value)
    for said in (
        "class.0.device: unknown device 'nobody'",
        "class.1.device: unknown device 'nothing'",
        "title: missing",
        "class.0.share",
    ):
        assert said in text


def test_a_fleet_is_shown_with_the_limits_of_its_classes(tmp_path: Path, called: Any) -> None:
    path = tmp_path / "boards.toml"
    head = 'name = "boards"\ntitle = "Boards"\n[mix]\nmark = "assumed"\nsource = "x"\n[budget]\nround_deadline_s = 20.0\n'
    classes = (
        '[[class]]\ndevice = "laptop"\nshare = 0.5\n[[class]]\ndevice = "watch"\nshare = 0.5\nbudget = { upload_bytes = 1e5 }\n'
    )
    path.write_text(head + classes)
    assert "\nround_deadline_s = 20\nwatch: upload_bytes = 100 kB\n" in called("devices", str(path))[1]
    shown = json.loads(called("devices", str(path), "--json")[1])
    assert [c["budget"] for c in shown["classes"]] == [{}, {"upload_bytes": 1e5}]
