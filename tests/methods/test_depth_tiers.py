"""Tiers of depth: what they hold in training, predicted and measured, and what they compute."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from edgefl.client.loop import metered
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.methods.losses import cross_entropy
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.rng import generator, torch_seeded

TRAINING = Training(epochs=1, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-4)
NETWORKS = {
    "group": Architecture("cnn-digits", (1, 8, 8), 4),
    "static, residual": Architecture("resnet9", (3, 16, 16), 4, "static"),
}
TIERS = (Tier(1.0), Tier(0.5), Tier(0.2))


def batch_for(architecture, samples=8):
    x = torch.randn(samples, *architecture.input_shape)
    return Batch(x, torch.arange(samples) % 4, torch.ones(4, dtype=torch.bool))


def held(method, architecture, tier):
    module = method.network(architecture, tier).train()
    return metered(method, module, loss_of(method, PLAIN), batch_for(architecture), TRAINING)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["depthfl", "last-blocks"])
def test_the_predicted_memory_of_a_step_is_what_it_holds_and_falls_with_the_tier(name, network):
    architecture = NETWORKS[network]
    method = create(name, tiers=tuple(tier.ratio for tier in TIERS))
    costs = [tier_cost(method, architecture, tier, TRAINING) for tier in TIERS]
    for tier, cost in zip(TIERS, costs, strict=True):
        found = held(method, architecture, tier)
        assert found.split.total == cost.training_memory_bytes
        assert (found.gradient_bytes, found.optimizer_bytes) == (cost.gradient_bytes, cost.optimizer_bytes)
        assert found.peak_activation_bytes == cost.peak_activation_bytes_training
    for key in ("training_memory_bytes", "peak_activation_bytes_training"):
        whole, half, least = (getattr(cost, key) for cost in costs)
        assert least < half <= whole
    assert least < 0.6 * whole


def test_half_the_depth_of_resnet18_needs_less_memory_than_half_its_ranks():
    """The figures of docs/fleet.md, in MB at batches of 32."""
    architecture, training = Architecture("resnet18", (3, 32, 32), 10), replace(TRAINING, batch_size=32)
    found = {name: tier_cost(create(name), architecture, Tier(0.5), training) for name in ("fedhm", "last-blocks", "depthfl")}
    assert {name: round(cost.training_memory_bytes / 1e6) for name, cost in found.items()} == {
        "fedhm": 230,
        "last-blocks": 172,
        "depthfl": 149,
    }
    stages = {
        name.split(".")[1] for name in download_shapes(create("depthfl"), architecture, Tier(0.5)) if name.startswith("body.")
    }
    assert stages == {"conv1", "norm1", "layer1", "layer2"}  # the paper's depth 2/4


def test_frozen_blocks_cost_a_forward_pass_only():
    architecture = NETWORKS["group"]
    method = create("last-blocks", tiers=(1.0, 0.5, 0.2))
    whole, _, last = (tier_cost(method, architecture, tier, TRAINING) for tier in TIERS)
    assert last.macs_forward == whole.macs_forward
    assert last.upload_bytes < last.download_bytes == whole.upload_bytes
    by_name = {layer.layer: layer for layer in last.layers}
    for layer in whole.layers:
        frozen = by_name[layer.layer]
        assert (frozen.params, frozen.macs_forward) == (layer.params, layer.macs_forward)
        assert frozen.elementwise_ops == layer.elementwise_ops
        backward = frozen.macs_backward_input + frozen.macs_backward_weight + frozen.elementwise_ops_backward
        if layer.layer in ("conv1", "norm1", "conv2", "norm2"):
            assert backward == frozen.saved_bytes_at_peak == 0
    assert by_name["conv3"].macs_backward_weight > 0 == by_name["conv3"].macs_backward_input  # nothing below it learns
    alone = tier_cost(create("last-blocks", tiers=(0.2,)), architecture, TIERS[2], TRAINING)
    assert alone.download_bytes == alone.upload_bytes == last.upload_bytes
    assert replace(alone, download_bytes=last.download_bytes) == last


class Normalised(nn.Module):
    """Two convolutions, each with torch's BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1, self.drop1 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.conv2, self.norm2, self.drop2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        x = self.drop1(self.norm1(self.conv1(x)).relu())
        x = self.drop2(self.norm2(self.conv2(x)).relu())
        return self.fc(x.mean((2, 3)))


def test_frozen_normalisation_and_dropout_are_in_evaluation_mode():
    architecture = CustomArchitecture(model="own", factory=Normalised, inputs={"": InputSpec((1, 8, 8))})
    method = create("last-blocks", tiers=(0.5,))
    module = method.network(architecture, Tier(0.5)).train()
    norms = {name: module.get_buffer(f"{name}.running_mean") for name in ("norm1", "norm2")}
    torch.nn.init.uniform_(norms["norm1"], -1, 1)
    before = {name: value.clone() for name, value in norms.items()}
    batch = Batch(torch.randn(6, 1, 8, 8), torch.arange(6) % 4, None)
    x = module.norm1.eval()(module.conv1(batch.x)).relu()
    with torch_seeded(generator(0, "drop")):
        loss = method.local_loss(module, batch)
    parts = ("norm1", "drop1", "norm2", "drop2", "")
    assert [module.get_submodule(part).training for part in parts] == [False, False, True, True, True]
    assert torch.equal(module.norm1.running_mean, before["norm1"])
    assert not torch.equal(module.norm2.running_mean, before["norm2"])
    with torch_seeded(generator(0, "drop")):
        logits = module.fc(module.drop2(module.norm2(module.conv2(x)).relu()).mean((2, 3)))
    assert torch.allclose(loss, cross_entropy(logits, batch))
    loss.backward()
    assert {name for name, p in module.named_parameters() if p.grad is not None} == {
        *("conv2.weight", "conv2.bias", "norm2.weight", "norm2.bias", "fc.weight", "fc.bias")
    }
    up = upload_shapes(method, architecture, Tier(0.5))
    assert "norm2.running_mean" in up
    assert "norm1.running_mean" not in up
    assert method.personal(module) == {*("conv1.weight", "conv1.bias", "norm1.weight", "norm1.bias")} | {
        f"norm1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }
