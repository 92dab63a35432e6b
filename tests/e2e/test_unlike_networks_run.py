"""Two unlike networks under one budget: trained, exported, compared with a baseline, stopped and continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import edgefl
from edgefl import RunConfig, simulate
from edgefl.bundle.manifest_file import read
from edgefl.run.finished import finished as opened
from tests.command import edgefl as called
from tests.command import flags_of
from tests.runs import lines_of, model_of, stopped_after

SMALL = """
from torch import nn

def net(num_classes=10):
    return nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(64, num_classes))
"""
KEYS: dict[str, Any] = {
    "rounds": 2, "clients": 4, "per_round": 4, "local_epochs": 1, "data_share": 0.5, "conditions": "ideal", "tier_assignment": "uniform",
}  # fmt: skip
STEPS, BATCH = 5, 32


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unlike")
    (folder / "mobile.py").write_text(SMALL, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def compared(home: Path) -> Path:
    """The folder of a comparison on the command line."""
    networks = ("--tier", "1=cnn-digits", "--tier", "0.25=mobile.py:net")
    options = (f"--method-option=feddf.server_steps={STEPS}", f"--method-option=feddf.server_batch={BATCH}")
    done = called(
        "compare", "--methods", "feddf,standalone,fedavg@0.25", *networks, *options, *flags_of(KEYS), "--out", "c", cwd=home
    )
    assert done.returncode == 0, done.stderr
    assert "method feddf, " in done.stdout
    return home / "c"


def config_of(home: Path) -> RunConfig:
    options = {"server_steps": STEPS, "server_batch": BATCH}
    return RunConfig(method="feddf", method_options=options, tier={"1": "cnn-digits", "0.25": f"{home}/mobile.py:net"}, **KEYS)


def costs_of(folder: Path) -> dict[float, dict[str, int]]:
    """Return the costs of each tier, as the bundle has them."""
    return {float(tier.tier): {"params": tier.params, **tier.costs} for tier in read(folder / "bundle").tiers}


def test_every_method_trains_the_networks_of_its_tiers(compared: Path) -> None:
    rows = json.loads((compared / "compare.json").read_text(encoding="utf-8"))["methods"]
    assert {row["label"]: row["tiers"] for row in rows} == {"feddf": [1, 0.25], "standalone": [1, 0.25], "fedavg@0.25": [0.25]}
    for row in rows:
        folder = compared / row["label"] / "seed-0"
        assert {client["tier"] for line in lines_of(folder) for client in line["clients"]} == {*row["tiers"]}
        verified, manifest = edgefl.verify(folder / "bundle"), read(folder / "bundle")
        assert list(verified.max_abs_errors) == list(verified.max_loss_errors) == [f"{tier:g}" for tier in row["tiers"]]
        assert manifest.model == "1=cnn-digits, 0.25=mobile.py:net"
        assert all(tier.train is not None for tier in manifest.tiers)
        # Four filters of 3×3 and their biases; ten classes of 64 values each.
        assert costs_of(folder)[0.25]["params"] == 40 + 650


def test_sessions_send_what_their_own_network_weighs(compared: Path) -> None:
    folder = compared / "feddf" / "seed-0"
    tiers = costs_of(folder)
    for client in (client for line in lines_of(folder) for client in line["clients"]):
        cost = tiers[client["tier"]]
        assert (client["download_bytes"], client["upload_bytes"]) == (cost["download_bytes"], cost["upload_bytes"])


def test_rounds_say_what_the_server_computed(compared: Path) -> None:
    folder = compared / "feddf" / "seed-0"
    tiers = costs_of(folder)
    students = STEPS * BATCH * sum(cost["macs_forward"] + cost["macs_backward"] for cost in tiers.values())
    public = 142  # a tenth of each class, fewer samples than five batches of 32
    for line in lines_of(folder):
        teachers = [tiers[client["tier"]]["macs_forward"] for client in line["clients"] if client["status"] == "trained"]
        assert line["observed"]["distillation"] == {"teachers": len(teachers), "macs": students + public * sum(teachers)}
    assert "distillation" not in lines_of(compared / "standalone" / "seed-0")[0].get("observed", {})


def test_a_finished_run_returns_the_network_of_each_tier(compared: Path) -> None:
    with opened(compared / "feddf" / "seed-0") as trained:
        small = edgefl.load_run(compared / "feddf" / "seed-0").network(tier=0.25)
        assert type(small) is nn.Sequential
        stored = trained.state.model.tensors["0.25/0.weight"]
        assert stored.shape == (4, 1, 3, 3)
        assert torch.equal(small.get_parameter("0.weight"), stored)


def test_a_stopped_run_goes_on_to_the_same_bits(compared: Path, home: Path, tmp_path: Path) -> None:
    folder = stopped_after(config_of(home), tmp_path / "run", 1)
    simulate(config_of(home), folder, resume=True)
    whole = compared / "feddf" / "seed-0"
    assert lines_of(folder) == lines_of(whole)
    assert model_of(folder) == model_of(whole)
