"""Where networks can be cut: where a single tensor carries everything to the rest."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.models.custom import CustomArchitecture
from edgefl.models.cuts import shortened
from edgefl.models.input_spec import InputSpec
from edgefl.records import Tier


class Inverted(nn.Module):
    """An inverted residual block: 1×1, depthwise with squeeze-and-excite, 1×1, and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(channels, 2 * channels, 1)
        self.depthwise = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1, groups=2 * channels)
        self.squeeze = nn.Conv2d(2 * channels, 2 * channels, 1)
        self.project = nn.Conv2d(2 * channels, channels, 1)

    def forward(self, x):
        y = F.hardswish(self.depthwise(self.expand(x)))
        return x + self.project(y * torch.sigmoid(self.squeeze(y.mean((2, 3), keepdim=True))))


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.ModuleList([Inverted(8), Inverted(8), Inverted(8)])
        self.scale = nn.Parameter(torch.ones(1, 8))  # used after the last block only
        self.unused = nn.Linear(5, 5)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.scale * x.mean((2, 3)))


class Masked(nn.Module):
    """Tokens with a mask that every layer reads; the second embedding is used on both sides of the first layer if ``skips``."""

    def __init__(self, tied: bool = False, skips: bool = False, reads: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.skips, self.reads = skips, reads
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids):
        mask = (ids > 0).float().unsqueeze(2)
        first = self.embedding(ids)
        x = self.one(first * mask).relu()
        if self.reads and float(x.sum()) > 0:
            x = -x
        x = self.two(x * mask).relu() + (first if self.skips else 0)
        return self.head(x[:, -1])


def custom(factory, **specs):
    return CustomArchitecture(model="own", factory=factory, inputs=specs or {"": InputSpec((3, 16, 16))})


IDS = {"ids": InputSpec((5,), torch.int64)}


def layers(architecture):
    return [cut.layer for cut in architecture.cuts.cuts]


def test_residual_blocks_and_gates_stay_whole():
    architecture = custom(Mobile)
    assert layers(architecture) == ["blocks.0", "blocks.1", "blocks.2"]
    assert (architecture.cuts.blocks, architecture.cuts.outputs) == (4, 4)
    assert {(cut.channels, cut.axis) for cut in architecture.cuts.cuts} == {(8, 1)}
    resnet = Architecture("resnet18", (3, 32, 32), 10)
    blocks = ["layer1", "layer1.1", "layer2", "layer2.1", "layer3", "layer3.1", "layer4", "layer4.1"]
    assert layers(resnet) == blocks
    assert [cut.channels for cut in resnet.cuts.cuts] == [64, 64, 64, 128, 128, 256, 256, 512]


def test_a_mask_may_be_read_on_both_sides_but_neither_features_nor_tied_weights():
    assert layers(custom(Masked, **IDS)) == ["one", "two"]
    assert layers(custom(lambda: Masked(skips=True), **IDS)) == []
    assert layers(custom(lambda: Masked(tied=True), **IDS)) == []
    assert [cut.axis for cut in custom(Masked, **IDS).cuts.cuts] == [2, 2]


def test_a_network_that_reads_values_is_refused_with_the_reason():
    with pytest.raises(
        ConfigError, match=r"cut into blocks: it depends on the values of its input, .*\(at test_cuts.py:\d+: .*\)"
    ):
        _ = custom(lambda: Masked(reads=True), **IDS).cuts


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_shortened_network_computes_the_same_features_and_has_no_later_tensor(depth):
    architecture = custom(Mobile)
    cut = architecture.cuts.cuts[depth]
    whole = architecture.build().eval()
    features = []
    handle = whole.get_submodule(cut.layer).register_forward_pre_hook(lambda module, args: features.append(args[0]))
    x = torch.randn(2, 3, 16, 16)
    whole(x)
    handle.remove()
    names = {name for name in whole.state_dict() if name.startswith(("stem.", *(f"blocks.{i}." for i in range(depth))))}
    body = shortened(architecture.build(), cut)
    assert set(body.state_dict()) == names
    method = create("depthfl", tiers=((depth + 1) / 4,))
    tier = Tier((depth + 1) / 4)
    network = method.network(architecture, tier)
    state = whole.state_dict()
    own = {name: state[name.removeprefix("body.")] for name in network.state_dict() if name.startswith("body.")}
    network.load_state_dict(own, strict=False)
    exit_ = network.exits[str(depth + 1)]
    with torch.no_grad():
        assert torch.equal(network.eval()(x), exit_(F.adaptive_avg_pool2d(features[0], 2).flatten(1)))
    assert {name.removeprefix("body.") for name in own} == names


def test_a_network_of_one_block_trains_as_a_whole_only():
    method, mlp = create("depthfl"), Architecture("mlp", (1, 8, 8), 4)
    with pytest.raises(ConfigError, match="DepthFL cannot cut mlp: .*give one tier"):
        method.check(mlp, (Tier(1.0), Tier(0.5)), 4)
    method.check(mlp, (Tier(1.0),), 4)
    assert set(method.network(mlp, Tier(1.0)).state_dict()) == set(mlp.build().state_dict())
