"""Devices without figures of energy: every command works, and nothing claims a joule of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command import edgefl
from pages import Page
from small_fleet import WITHOUT_ENERGY, write_device, write_fleet

from edgefl.fleet.load import load_device
from edgefl.testing.rules_of_devices import test_energy_is_known_or_claimed_nowhere as rule_of_energy

SMALL = ("--model=mlp", "--clients=6", "--per-round=3", "--local-epochs=1", "--rounds=2", "--data-share=0.2", "--tiers=1,0.5")
NETWORK = ("mlp", "--input=1x8x8", "--classes=10")
JOULES = re.compile(r"\d(\.\d+)?\s*[µmkMG]?J\b")
UNKNOWN = "unknown, because a device has no figures of energy"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the board ``silent`` without energy, ``metered`` with it, and the fleet of both."""
    folder = tmp_path_factory.mktemp("without-energy")
    write_device(folder, "silent", **WITHOUT_ENERGY)
    write_device(folder, "metered")
    write_fleet(folder, {"silent": 0.5, "metered": 0.5})
    return folder


def run(home: Path, *arguments: str) -> CompletedProcess[str]:
    found = edgefl(*arguments, cwd=home)
    assert found.returncode == 0, found.stderr
    return found


def energies_in(values: Any, key: str = "") -> list[Any]:
    """Return every value under a key of joules."""
    if isinstance(values, dict):
        return [found for name, value in values.items() for found in energies_in(value, str(name))]
    if isinstance(values, list):
        return [found for value in values for found in energies_in(value, key)]
    return [values] if key.endswith(("_j", "_joules")) else []


@pytest.fixture(scope="module")
def trained(home: Path) -> tuple[Path, str]:
    found = run(home, "simulate", "--profile=silent.toml", "--method=heterofl", *SMALL, "--out=trained")
    return home / "trained", found.stdout


def test_a_run_has_no_joules(trained: tuple[Path, str]) -> None:
    folder, output = trained
    assert f"energy: {UNKNOWN}" in " ".join(output.split())
    assert not JOULES.search(output)
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert {*energies_in(summary["tiers"]), summary["energy_j"], summary["end_to_end_j"]} == {None}
    assert summary["useful"]["clients"] == 6
    assert {line["energy_j"] for line in lines} == {client["energy_j"] for line in lines for client in line["clients"]} == {None}


def test_its_page_says_that_energy_is_unknown(trained: tuple[Path, str]) -> None:
    page = Page((trained[0] / "report.html").read_text(encoding="utf-8"))
    assert not JOULES.search(page.text)
    assert UNKNOWN in page.text
    assert "time of devices" in page.text, "the other costs are shown"


def test_costs_have_seconds_and_no_joules(home: Path) -> None:
    both = ("profile", *NETWORK, "--device=silent.toml", "--device=metered.toml")
    silent, metered = json.loads(run(home, *both, "--json").stdout)["rows"]
    assert set(energies_in(silent)) == {None}
    assert silent["round_seconds"] == metered["round_seconds"]
    assert all(value > 0 for value in energies_in(metered))
    assert "energy: not validated" in " ".join(run(home, *both).stdout.split())
    alone = (run(home, *both[:-1]).stdout, Page(run(home, *both[:-1], "--format=html").stdout).text)
    for text in alone:
        assert not JOULES.search(text)
        assert UNKNOWN in " ".join(text.split())


def test_a_dry_run_and_a_what_if_have_no_joules(home: Path) -> None:
    dry = run(home, "simulate", "--dry-run", "--profile=silent.toml", *SMALL, "--out=dry")
    text = Page((home / "dry" / "report.html").read_text(encoding="utf-8")).text
    assert not JOULES.search(dry.stdout + text)
    assert UNKNOWN in text
    policies = run(home, "whatif", "--profile=silent.toml", *SMALL, "--over-selections=1,1.5", "--out=policies.html")
    text = Page((home / "policies.html").read_text(encoding="utf-8")).text
    assert not JOULES.search(policies.stdout + text)
    assert UNKNOWN.partition(",")[0] in text


def test_a_comparison_ranks_by_what_is_known(home: Path) -> None:
    arguments = ("compare", "--methods=heterofl@1,fedavg@0.5", "--profile=silent.toml", *SMALL, "--out=compared")
    found = run(home, *arguments, "--budget-s=3600", "--target-accuracy=1%")
    page = Page((home / "compared" / "compare.html").read_text(encoding="utf-8"))
    summary = json.loads((home / "compared" / "compare.json").read_text())
    assert not JOULES.search(found.stdout + page.text)
    assert UNKNOWN in page.text
    assert {row["energy_j"] for row in summary["methods"]} == {None}
    assert summary["verdict"]["fronts"]["client_j"] == []
    assert summary["verdict"]["fronts"]["client_bytes"] != []


def test_a_mixed_fleet_knows_the_energy_of_its_parts_and_not_of_the_whole(home: Path) -> None:
    run(home, "simulate", "--profile=fleet.toml", "--method=heterofl", *SMALL, "--out=mixed")
    summary = json.loads((home / "mixed" / "summary.json").read_text())
    lines = [json.loads(line) for line in (home / "mixed" / "rounds.jsonl").read_text().splitlines()]
    parts = {row["device"]: row["useful"]["energy_j"] for row in summary["participation"]}
    assert parts["silent"] is None
    assert parts["metered"] > 0
    assert summary["energy_j"] is None
    sessions = [client for line in lines for client in line["clients"]]
    assert {client["device"]: client["energy_j"] is None for client in sessions} == {"silent": True, "metered": False}
    text = Page((home / "mixed" / "report.html").read_text(encoding="utf-8")).text
    assert UNKNOWN in text
    assert JOULES.search(text), "the energy of the metered board is known"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", *NETWORK, "--device=silent.toml", "--joules=5"), "budget energy_j: silent.toml: the energy of device silent"),
        (
            ("compare", "--methods=fedavg@1", "--profile=fleet.toml", *SMALL, "--out=no", "--budget-j=1kJ"),
            "budget j: {home}/fleet.toml: the energy of device silent",
        ),
        (
            ("simulate", "--profile=limited.toml", *SMALL, "--out=no"),
            "{home}/limited.toml: budget.energy_j: the energy of device silent",
        ),
    ],
)
def test_a_limit_of_energy_is_refused(home: Path, arguments: tuple[str, ...], message: str) -> None:
    limited = (home / "fleet.toml").read_text().replace("[budget]\n", "[budget]\nenergy_j = 5.0\n")
    (home / "limited.toml").write_text(limited)
    found = edgefl(*arguments, cwd=home)
    assert found.returncode == 2
    assert f"{message.format(home=home)} is unknown; add power to its file, or leave the energy limit out" in " ".join(
        found.stderr.split()
    )
    assert not (home / "no").exists()


def test_a_plan_and_the_device_s_own_page_work(home: Path) -> None:
    found = run(home, "plan", *NETWORK, "--device=silent.toml", "--seconds=1h")
    assert not JOULES.search(found.stdout)
    shown = run(home, "devices", "silent.toml").stdout
    assert "Its energy is unknown: without power, no joules are claimed." in shown
    assert "unknown" not in run(home, "devices", "metered.toml").stdout


@pytest.mark.parametrize("missing", ["download_nj_per_byte", "upload_nj_per_byte"])
def test_the_radio_is_part_of_the_energy(tmp_path: Path, missing: str) -> None:
    path = str(write_device(tmp_path, "quiet", **{missing: None}))
    assert load_device(path).without_energy == (f"link.{missing}",)
    rule_of_energy(path)
    battery = edgefl("devices", str(write_device(tmp_path, "portable", battery_wh=15, **{missing: None})))
    assert battery.returncode == 2
    assert f"power.battery_wh: what drains the battery is unknown; give link.{missing} too" in " ".join(battery.stderr.split())
