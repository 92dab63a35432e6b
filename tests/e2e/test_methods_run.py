"""Every method of the registry: a run through all rooms, and one that is stopped after its first round and goes on to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pages import Page
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig, simulate, verify
from edgefl.methods.base import create
from edgefl.registry import methods
from edgefl.server.checkpoint import of_file

SMALL = {
    "profile": "phone", "rounds": 2, "clients": 6, "per_round": 3, "local_epochs": 1, "data_share": 0.25, "model": "mlp", "eval_every": 2,
    "seed": 1,
}  # fmt: skip


# It downloads other clients' models, which over a phone's link misses so small a run's deadline.
OTHERWISE: dict[str, dict[str, object]] = {"fedfomo": {"profile": "lab"}}


def config_of(name: str) -> RunConfig:
    return RunConfig.of({**SMALL, **OTHERWISE.get(name, {}), "method": name})


@pytest.mark.parametrize("name", methods.names())
def test_a_stopped_run_goes_on_to_the_same_bits_and_comes_to_its_end(name: str, tmp_path: Path) -> None:
    config = config_of(name)
    # Both rounds without a stop; the bundle and the report are made once, by the run that goes on.
    whole = stopped_after(config, tmp_path / "whole", 2)
    result = simulate(config, stopped_after(config, tmp_path / "stopped", 1), resume=True)

    lines = lines_of(result.folder)
    assert lines == lines_of(whole)
    last = checkpoint_of(whole, 2)
    kept, model = of_file(last), of_file(result.folder / "model.safetensors")
    assert (kept.round, kept.clock_s, kept.options, kept.clients) == (model.round, model.clock_s, model.options, model.clients)
    parts, others = kept.model.parts(), model.model.parts()
    assert parts.keys() == others.keys()
    for part, tensors in parts.items():
        assert tensors.keys() == others[part].keys()
        assert all(torch.equal(tensor, others[part][key]) for key, tensor in tensors.items())

    outcomes = [client["status"] for line in lines for client in line["clients"]]
    assert "trained" in outcomes
    assert "diverged" not in outcomes
    assert 0 <= result.global_accuracy <= 1
    assert result.summary["accuracy_of"] == ("clients" if create(name).personalised else "global")
    verified, labels = verify(result.folder / "bundle"), [f"{row.tier:g}" for row in result.tiers]
    assert list(verified.max_abs_errors) == list(verified.max_loss_errors) == labels
    assert name in Page((result.folder / "report.html").read_text(encoding="utf-8")).headings[0][1]


AXES: dict[str, dict[str, Any]] = {
    "what FedDyn remembers": {"method": "fedavg", "objective": "dyn"},
    "control variates": {
        "method": "heterofl",
        "objective": "scaffold",
        "optimizer": "sgd",
        "weight_decay": 0,
        "tiers": (1.0, 0.5),
    },
    "server momentum": {"method": "fedhm", "server_optimizer": "avgm", "tiers": (1.0, 0.5)},
    "server Yogi": {"method": "heterofl", "server_optimizer": "yogi", "tiers": (1.0, 0.5)},
    "ranks planned anew": {"method": "fedhm", "tiers": (1.0, 0.5), "method_options": {"allocate": "spectral", "plan_every": 2}},
    "a phase after the warm-up": {"method": "pufferfish", "method_options": {"warmup_rounds": 1}},
    "permuted labels and a falling rate": {"method": "pfedpara", "permute_labels": True, "lr_schedule": "cosine"},
    "sampled widths": {"method": "fjord", "tier_assignment": "dynamic", "tiers": (1.0, 0.5), "tier_shares": (0.3, 0.7)},
}


@pytest.mark.parametrize("what", AXES)
def test_a_run_stopped_in_any_state_goes_on_to_the_same_bits(what: str, tmp_path: Path) -> None:
    values = {**SMALL, "rounds": 3, "profile": "lab", "model": "cnn-digits", "data_share": 0.1, "eval_every": 3, **AXES[what]}
    config = RunConfig.of(values)
    whole = stopped_after(config, tmp_path / "whole", 3)
    last = checkpoint_of(whole, 3)
    for stop in (1, 2):
        folder = stopped_after(config, tmp_path / f"stopped-{stop}", stop)
        stopped_after(config, folder, 3, resume=True)
        assert lines_of(folder) == lines_of(whole)
        again = checkpoint_of(folder, 3)
        # The file's name ends in its content's hash: memory of clients and server included, to the last bit.
        assert again.name == last.name
    kept = of_file(last)
    assert bool(kept.clients) == (values["method"] == "pfedpara" or values.get("objective") in ("dyn", "scaffold"))
    assert bool(kept.memory) == ("objective" in values or "server_optimizer" in values)
