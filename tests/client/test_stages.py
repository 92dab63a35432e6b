"""A stage from outside: sparse updates with error feedback, in one class of a plug-in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig, simulate
from edgefl.client.stage import AtClient, Leaving
from edgefl.contrib.flower.setups import check_run
from edgefl.errors import ConfigError
from edgefl.registry import stages
from edgefl.run.feature import no_updates
from edgefl.run.prepare import prepare

TOP_K = '''
"""top-k: clients send the largest entries of their change, and the rest in later rounds (error feedback, Stich et al. 2018)."""

from dataclasses import dataclass, replace

import torch

from edgefl.extend import AtClient, Leaving, Stage, stage


@stage("top-k", needs=("received_weights", "uploads", "fixed_coordinates"))
@dataclass(frozen=True)
class TopK(Stage):
    """Of every tensor, this share of the entries changes in a round."""

    share: float = 0.1

    def first_memory(self, shapes):
        return {name: torch.zeros(shape) for name, shape in shapes.items()}

    def leave(self, leaving: Leaving, at: AtClient) -> Leaving:
        tensors, left = dict(leaving.tensors), {}
        for name, before in leaving.memory.items():
            change = tensors[name] - leaving.received[name] + before
            count = max(1, int(self.share * change.numel()))
            chosen = change.abs() >= change.abs().flatten().topk(count).values[-1]
            tensors[name], left[name] = leaving.received[name] + change * chosen, change * ~chosen
        return replace(leaving, tensors=tensors, memory=left)
'''

SMALL: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "method": "fedavg", "tiers": (1.0,), "clients": 4, "per_round": 3, "rounds": 2,
    "local_epochs": 1, "conditions": "ideal", "bundle": False, "eval_samples": 100,
}  # fmt: skip


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Iterator[Path]:
    file = tmp_path_factory.mktemp("plugin") / "top_k.py"
    file.write_text(TOP_K)
    yield file
    for known in (stages._plugged, stages._loaded, stages._facts):
        known.pop("top-k", None)


def config_of(own: Path, text: str = "top-k(share=0.05)", **keys: Any) -> RunConfig:
    return RunConfig.of({**SMALL, "plugins": [str(own)], "stages": [text], **keys})


def test_a_plug_in_is_one_file_of_thirty_lines():
    assert len([line for line in TOP_K.strip().splitlines() if line.strip()]) <= 30


def test_error_feedback_sends_later_what_it_left_out(own):
    config_of(own)
    stage = stages.load("top-k").of({"share": 0.5})
    sent, trained = {"w": torch.tensor([1.0, 1.0])}, {"w": torch.tensor([4.0, 3.0])}
    first = stage.leave(Leaving(trained, sent, memory=stage.first_memory({"w": (2,)})), AtClient(0, 1, 3))
    assert first.tensors["w"].tolist() == [4.0, 1.0]
    assert first.memory["w"].tolist() == [0.0, 2.0]
    again = stage.leave(Leaving({"w": torch.tensor([2.0, 1.0])}, sent, memory=first.memory), AtClient(0, 2, 3))
    assert again.tensors["w"].tolist() == [1.0, 3.0]


def test_two_workers_and_a_resumed_run_have_the_same_bits(own, tmp_path):
    whole = stopped_after(config_of(own), tmp_path / "whole", 2)
    stopped_after(config_of(own, engine="pool", workers=2), tmp_path / "pool", 2)
    stopped_after(config_of(own), stopped_after(config_of(own), tmp_path / "resumed", 1), 2, resume=True)
    for other in ("pool", "resumed"):
        assert lines_of(tmp_path / other) == lines_of(whole)
        assert checkpoint_of(tmp_path / other, 2).name == checkpoint_of(whole, 2).name
    plain = stopped_after(RunConfig.of(SMALL), tmp_path / "plain", 2)
    assert checkpoint_of(plain, 2).name != checkpoint_of(whole, 2).name


def test_a_run_names_the_class_itself_and_works_with_other_stages(own, tmp_path):
    config = config_of(own, f"{own}:TopK(share=0.5)", codec="int8", clip_norm=0.5, objective="prox", server_optimizer="avgm")
    assert config.stages == ("top-k(share=0.5)",)
    assert [stage.name for stage in prepare(config).chain.at_clients] == ["top-k", "clip", "coded"]
    simulate(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("top-l", {}, "unknown stage 'top-l'; did you mean 'top-k'?"),
        ("top-k(", {}, "expected a name with options, such as top-k(share=0.1)"),
        ("coded", {}, "coded follows from other keys, such as codec and clip_norm"),
        ("top-k(shares=1)", {}, "stages: top-k: shares: unknown key; did you mean 'share'?"),
        ("top-k(share='x')", {}, "stages: top-k: share"),
        (
            "top-k",
            {"method": "splitmix", "tiers": (1.0, 0.5)},
            "stages: top-k makes no sense with Split-Mix: a client trains other base",
        ),
        ("top-k", {"method": "heterofl", "tiers": (1.0, 0.5), "tier_assignment": "dynamic"}, "stores tensors on clients"),
        (
            "top-k",
            {"secure_aggregation": "secagg:masks=costed"},
            "shows the server sums only, and stages: top-k reads every update",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_what_a_stage_needs(own, text, keys, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        prepare(config_of(own, text, **keys))


def test_devices_do_not_run_it(own):
    assert no_updates(config_of(own)) == "the run has the stages top-k(share=0.05), and devices train without them"
    with pytest.raises(ConfigError, match="stages: top-k.* is simulated only: devices train without it"):
        check_run(prepare(config_of(own)))
