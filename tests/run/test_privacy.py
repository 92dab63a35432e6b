"""Privacy of whole runs: what they promise, what is refused, and the same bits by any engine and after a resume."""

import json
from types import SimpleNamespace

import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after
from torch import nn

from edgefl import RunConfig, simulate
from edgefl.client.stage import AtClient, Leaving
from edgefl.contrib.privacy.accountant import epsilon
from edgefl.contrib.privacy.central import CentralNoise
from edgefl.contrib.privacy.guarantee import Sampling
from edgefl.contrib.privacy.noised import Noised
from edgefl.errors import ConfigError
from edgefl.run.feature import check_devices
from edgefl.run.prepare import prepare
from edgefl.run.whatif import whatif

SMALL = {
    "rounds": 2,
    "clients": 8,
    "per_round": 4,
    "local_epochs": 1,
    "model": "mlp",
    "partition": "index:20",
    "conditions": "ideal",
}
LEVELS = {
    "central": {"method": "fedhm", "clip_norm": 0.5, "noise_multiplier": 0.8},
    "local": {"method": "heterofl", "privacy_clip": 0.5, "noise_multiplier": 0.8, "codec": "int8"},
    "example": {"method": "heterofl", "privacy_clip": 0.5, "noise_multiplier": 0.8},
}


def config_of(level, **changes):
    return RunConfig(**{**SMALL, "privacy": level, **LEVELS[level], **changes})


@pytest.mark.parametrize("level", LEVELS)
def test_two_workers_and_a_resumed_run_have_the_same_bits(level, tmp_path):
    whole = simulate(config_of(level), tmp_path / "whole")
    stopped_after(config_of(level, engine="pool", workers=2), tmp_path / "pool", 2)
    stopped_after(config_of(level), stopped_after(config_of(level), tmp_path / "resumed", 1), 2, resume=True)
    for other in ("pool", "resumed"):
        assert lines_of(tmp_path / other) == lines_of(tmp_path / "whole")
        assert checkpoint_of(tmp_path / other, 2).name == checkpoint_of(tmp_path / "whole", 2).name
    spent = json.loads((whole.folder / "summary.json").read_text(encoding="utf-8"))["privacy"]
    assert spent["level"] == level
    assert "ε = " in (whole.folder / "report.html").read_text(encoding="utf-8")
    if level == "local":
        assert (spent["clip"], spent["drawn"]) == (0.5, None)
    assert lines_of(tmp_path / "whole")[-1]["observed"]["epsilon"]["so far"] == spent["epsilon"]


def test_noise_that_is_worked_out_meets_its_target_and_is_recorded():
    run = prepare(config_of("central", noise_multiplier=None, target_epsilon=5.0))
    assert run.features[0].sampling == Sampling(8, 4)
    z = run.config.noise_multiplier
    assert epsilon(z, 2, 1e-5, Sampling(8, 4)) <= 5.0 < epsilon(z * 0.99, 2, 1e-5, Sampling(8, 4))
    assert prepare(run.config).config == run.config  # as a resumed run reads it


def test_a_random_choice_counts_only_where_nothing_else_decides():
    assert prepare(config_of("central")).features[0].sampling == Sampling(8, 4)
    for changes in ({"conditions": "fleet"}, {"over_selection": 2.0}):
        spending = prepare(config_of("central", **changes)).features[0]
        assert spending.sampling is None
        assert "over-selection" in spending.unsampled
    assert prepare(config_of("local")).features[0].sampling is None


def test_epochs_of_dp_sgd_are_releases():
    run = prepare(config_of("example", local_epochs=3))
    assert run.features[0].epsilon(2) == pytest.approx(epsilon(0.8, 6, 1e-5), abs=1e-4)
    training = run.clients.task.training
    assert (training.sample_clip, training.noise_multiplier) == (0.5, 0.8)


def test_clients_have_equal_weights_and_keep_their_labels(tmp_path):
    run = prepare(config_of("central", method="heterofl"))
    (noise,) = (stage for stage in run.chain.stages if isinstance(stage, CentralNoise))
    assert sum(noise.central.clients.values()) == 4
    assert run.chain.counts(3, 50, SimpleNamespace(claims=())) == 1
    (own,) = (stage for stage in run.clients.task.stages if isinstance(stage, Noised))
    left = own.leave(Leaving({}, {}, labels=(1, 2)), AtClient(0, 1, 3))
    assert left.labels is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"privacy": "central", "noise_multiplier": 1.0},
            "noise without clipping protects nobody, because changes may be of any length",
        ),
        ({"privacy": "local", "noise_multiplier": 1.0}, "because changes may be of any length; give privacy_clip"),
        ({"privacy": "example", "noise_multiplier": 1.0}, "because gradients may be of any length; give privacy_clip"),
        ({"privacy": "central", "clip_norm": 1.0}, "central needs noise; give noise_multiplier or target_epsilon"),
        ({"target_epsilon": 8.0}, "target_epsilon: there is no noise with privacy none"),
        ({**LEVELS["central"], "privacy": "central", "privacy_clip": 1.0}, "privacy_clip: with privacy central the server clips"),
        ({**LEVELS["central"], "privacy": "central", "mode": "async"}, "async has no rounds; give mode sync, or privacy local"),
        ({**LEVELS["central"], "privacy": "central", "defence": "median"}, "defence: median compares clients"),
        (
            {**LEVELS["central"], "privacy": "central", "secure_aggregation": "secagg", "method": "fedavg"},
            "secure_aggregation: privacy central adds noise to plain sums only",
        ),
        ({**LEVELS["local"], "privacy": "local", "clip_norm": 1.0}, "clip_norm: with privacy local the noise of an update"),
        (
            {**LEVELS["example"], "privacy": "example", "runtime": "onnx"},
            "runtime: privacy example needs the gradient of every sample",
        ),
        (
            {**LEVELS["example"], "privacy": "example", "on_shortfall": ("recompute", "tier")},
            "on_shortfall: recompute makes segments",
        ),
        ({**LEVELS["example"], "privacy": "example", "engine": "group"}, "trains them sample by sample; use pool"),
        ({"delta": 1.0}, "delta must be below 1"),
        ({"delta": 0.0}, "delta must be above 0"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        RunConfig(**changes)


@pytest.mark.parametrize(
    ("level", "changes", "text"),
    [
        ("central", {"method": "prism"}, "privacy: central makes no sense with PriSM: clients of a tier train other kernels"),
        ("central", {"method": "fedfomo"}, "central makes no sense with FedFOMO"),
        (
            "example",
            {"method": "per-fedavg"},
            "example makes no sense with Per-FedAvg .first order.: its loss adapts the weights",
        ),
        (
            "example",
            {"model": "resnet9", "norm": "static"},
            "BatchNorm mixes the samples of a batch.*; give norm group, layer or none",
        ),
        ("local", {"model": "resnet9", "norm": "static"}, "does not cover the statistics of samples that BatchNorm collects"),
        ("central", {"noise_multiplier": 1e-200}, "noise_multiplier: got 1e-200, expected at least 1e-06"),
        ("local", {"target_epsilon": 0.1}, "noise_multiplier: 0.8 spends ε = .* over target_epsilon 0.1; give one of them"),
    ],
)
def test_what_a_method_or_network_cannot_promise_is_refused(level, changes, text):
    with pytest.raises(ConfigError, match=text):
        prepare(config_of(level, **changes))


class Measuring(nn.Module):
    """It measures the mean and the variance of each channel."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.norm, self.fc = nn.InstanceNorm2d(1, track_running_stats=True), nn.Linear(64, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.norm(x).flatten(1))


def test_noise_would_make_a_variance_negative():
    with pytest.raises(ConfigError, match="local does not cover the statistics of samples that InstanceNorm2d collects"):
        prepare(config_of("local", method="fedavg", tiers=(1.0,), model=Measuring(10)))


def test_a_large_delta_is_worth_a_warning():
    def warnings(**changes):
        run = prepare(config_of("local", **changes))
        return run.features[0].warnings(run.config, run.clients.shards.largest)

    assert warnings() == []
    (told,) = warnings(delta=0.2)
    assert told == "delta: 0.2 is no less than 1 / 8, the number of clients; give a smaller δ"


def test_real_devices_are_refused():
    check_devices(RunConfig(), "fed-round")
    with pytest.raises(ConfigError, match="local is simulated only: fed-round trains on devices that add no noise"):
        check_devices(config_of("local"), "fed-round")


@pytest.mark.parametrize("level", LEVELS)
def test_a_bundle_states_that_its_graphs_train_without_noise(level, tmp_path, called):
    private = config_of(level, rounds=1, tiers=(1.0, 0.5))
    simulate(private, tmp_path / "private")
    simulate(RunConfig(**{**SMALL, "rounds": 1, "tiers": (1.0, 0.5), "method": private.method}), tmp_path / "plain")
    ours, theirs = (
        json.loads((tmp_path / run / "bundle" / "manifest.json").read_text(encoding="utf-8"))["tiers"]
        for run in ("private", "plain")
    )
    why = f"the run has privacy {level}, and devices train without its clipping and noise"
    for tier, plain in zip(ours, theirs, strict=True):
        keys = set(tier["costs"]) - {"upload_bytes"}  # of a codec
        assert {key: tier["costs"][key] for key in keys} == {key: plain["costs"][key] for key in keys}
        assert tier["train"]["predicted_memory_bytes"] == plain["train"]["predicted_memory_bytes"]
        assert (tier["train"]["no_update"], tier["train"]["upload"]) == (why, {})
        assert plain["train"]["no_update"] == ""
    status, out, _ = called("verify", str(tmp_path / "private"))
    assert status == 0
    assert f"devices send no updates: {why}\n" in out
    assert "devices send no updates" not in called("verify", str(tmp_path / "plain"))[1]


def test_policies_are_compared_by_their_noise():
    config = config_of("local", noise_multiplier=None, target_epsilon=1.0)
    rows = whatif(config, target_epsilons=(8.0, 2.0)).rows
    assert [row.label for row in rows] == ["ε 8", "ε 2"]
    assert [row.epsilon for row in rows] == pytest.approx([8.0, 2.0], abs=2e-3)
    assert rows[0].noise_multiplier < rows[1].noise_multiplier
    assert rows[0].round_s == rows[1].round_s
    assert whatif(config_of("local", rounds=1)).rows[0].noise_multiplier == 0.8
