"""Narrow networks that tracing finds: the same as those written by hand, and right where none was."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from narrowing import IMAGE, TOKENS, architecture, first, silenced
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.width import nested, stacked_in
from edgefl.methods.state import shapes_of
from edgefl.models.base import Architecture, named_tensors, small_models
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.models.narrow import Channels
from edgefl.registry import models
from edgefl.rng import torch_seeded


# What a user brings: the reference networks, as if they had not been written for several widths. cnn-flanc's stem has one width only.
@pytest.mark.parametrize("name", [n for n in small_models() if n not in ("resnet34", "vgg16", "cnn-flanc")])
def test_traced_channels_are_those_of_the_networks_written_for_every_width(name):
    facts = models.facts(name)
    shape = (6,) if facts.get("vocabulary") else facts["usual_input"]
    own = Architecture(name, shape, facts.get("usual_classes", 10))
    traced = architecture(own.build, {"": InputSpec(shape, torch.int64 if facts.get("vocabulary") else torch.float32)})
    assert shapes_of(named_tensors(traced.skeleton(0.5))) == shapes_of(named_tensors(own.skeleton(0.5)))


class Mobile(nn.Module):
    """Depthwise convolutions, squeeze-and-excite, hard-swish, a subclass of BatchNorm, residual sums, a concatenation."""

    class Norm(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.hardswish(super().forward(x))

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norm = self.Norm(8)
        self.expand, self.norm1 = nn.Conv2d(8, 24, 1, bias=False), self.Norm(24)
        self.depth, self.norm2 = nn.Conv2d(24, 24, 3, 1, 1, groups=24, bias=False), self.Norm(24)
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.project, self.norm3 = nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x))
        y = self.norm2(self.depth(self.norm1(self.expand(x))))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = x + self.norm3(self.project(y))
        return self.fc(torch.cat([x, y], 1).mean((2, 3)))


def test_a_mobile_network_is_cut_where_its_channels_belong_together():
    narrow = architecture(Mobile).skeleton(0.5)
    shapes = {name: tuple(p.shape) for name, p in narrow.named_parameters() if name.endswith("weight")}
    assert shapes == {
        "stem.weight": (4, 3, 3, 3), "norm.weight": (4,), "expand.weight": (12, 4, 1, 1), "norm1.weight": (12,),
        "depth.weight": (12, 1, 3, 3), "norm2.weight": (12,), "squeeze.weight": (3, 12, 1, 1), "excite.weight": (12, 3, 1, 1),
        "project.weight": (4, 12, 1, 1), "norm3.weight": (4,), "fc.weight": (10, 8),
    }  # fmt: skip
    assert narrow.depth.groups == 12


def test_concatenated_channels_are_not_the_leading_ones():
    entries = architecture(Mobile).entries("fc.weight", 0.5)
    assert entries[1].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize("width", [0.25, 0.5, 0.7])
def test_the_narrow_network_computes_what_the_wide_one_does_with_all_else_silenced(width):
    source = architecture(Mobile)
    with torch_seeded(np.random.default_rng(3)):
        wide, x = source.build(), torch.randn(4, 3, 16, 16)
    narrow = source.channels.narrow(copy.deepcopy(wide), width)
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, width), x), atol=1e-5)


class Heads(nn.Module):
    """Attention that notes its sizes itself, and splits query, key and value from one product."""

    def __init__(self, noted: bool = True) -> None:
        super().__init__()
        self.heads, self.head_dim, self.noted = 4, 6, noted
        self.embed, self.qkv, self.out, self.fc = nn.Linear(5, 24), nn.Linear(24, 72), nn.Linear(24, 24), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        size = self.head_dim if self.noted else 6
        q, k, v = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, self.heads, size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, scale=0.4)
        return self.fc((x + self.out(y.transpose(1, 2).reshape(x.shape))).mean(1))


def test_heads_keep_their_number_and_get_fewer_channels():
    source = architecture(Heads, TOKENS)
    narrow = source.skeleton(0.5)
    assert (narrow.heads, narrow.head_dim, narrow.qkv.out_features, narrow.embed.out_features) == (4, 3, 36, 12)
    assert source.entries("qkv.weight", 0.5)[0][:6].tolist() == [0, 1, 2, 6, 7, 8]


def test_attention_of_the_wide_network_with_all_else_silenced():
    source = architecture(Heads, TOKENS)
    with torch_seeded(np.random.default_rng(4)):
        wide = source.build()
        x = torch.randn(2, 7, 5)
    assert torch.allclose(
        first(source.channels.narrow(copy.deepcopy(wide), 0.5), x), first(silenced(wide, source, 0.5), x), atol=1e-5
    )


def test_a_size_that_is_written_into_the_code_keeps_its_channels_whole():
    source = architecture(lambda: Heads(noted=False), TOKENS)
    with pytest.raises(
        ConfigError, match="mine: no channel of this network can be cut: view in the network, .*; choose a method that factorizes"
    ):
        source.build(0.5)


@pytest.mark.parametrize("multiplier", [1, 2, 3])
@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_depthwise_convolutions_have_a_group_for_each_input(kind, multiplier):
    outputs = 8 * multiplier
    layers = nn.Conv2d(3, 8, 3), kind(8, outputs, 3, groups=8), nn.Conv2d(outputs, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    narrow = CustomArchitecture.of(nn.Sequential(*layers, nn.Linear(6, 4)), IMAGE).build(0.5)
    depthwise = narrow[1]
    assert (depthwise.in_channels, depthwise.out_channels, depthwise.groups) == (4, 4 * multiplier, 4)
    assert depthwise.weight.shape[:2] == ((4 * multiplier, 1) if kind is nn.Conv2d else (4, multiplier))
    assert narrow(torch.zeros(2, 3, 16, 16)).shape == (2, 4)


class Shuffled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 3, groups=2)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        return self.fc(self.b(x).mean((2, 3)))


def test_grouped_convolutions_and_shuffled_channels():
    source = architecture(Shuffled)
    with torch_seeded(np.random.default_rng(5)):
        wide, x = source.build(), torch.randn(2, 3, 16, 16)
    narrow = source.channels.narrow(copy.deepcopy(wide), 0.5)
    assert narrow.b.weight.shape == (6, 4, 3, 3)  # of 2 x 3 shuffled channels in each group, 2 x 2
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, 0.5), x), atol=1e-5)


class Unknown(nn.Module):
    """The middle of three layers feeds an operation that mixes channels, for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        return self.fc(F.relu(self.c(torch.fft.fft(x).real)))


def test_channels_that_an_unknown_operation_touches_stay_whole():
    narrow = architecture(Unknown, {"": InputSpec((4,))}).skeleton(0.5)
    assert (narrow.a.out_features, narrow.b.out_features, narrow.c.in_features, narrow.c.out_features) == (4, 8, 8, 4)


def test_tied_weights_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 8)
            self.out = nn.Linear(8, 11, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.hidden(self.embed(x))).mean(1))

    narrow = architecture(Tied, {"": InputSpec((5,), torch.int64)}).build(0.5)
    assert narrow.out.weight is narrow.embed.weight
    assert narrow.embed.weight.shape == (11, 4)


def test_gates_of_recurrent_layers_are_cut_one_by_one():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.fc = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.lstm(x)[0][:, -1])

    source = architecture(Recurrent, {"": InputSpec((6, 3))})
    wide, narrow = source.skeleton(), source.skeleton(0.5)
    by_hand = nested(shapes_of(narrow.state_dict()), shapes_of(wide.state_dict()), stacked_in(wide))
    rows = by_hand["lstm.weight_hh_l0"].index[0]
    assert source.entries("lstm.weight_hh_l0", 0.5)[0].tolist() == rows.tolist() == [0, 1, 4, 5, 8, 9, 12, 13]
    assert narrow.lstm.hidden_size == 2


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("kind", ["lstm", "lstm-projected", "gru", "rnn"])
def test_recurrent_layers_of_the_wide_network_with_all_else_silenced(kind):
    """Two layers, both directions; a recurrent layer is one operation of the trace, however long its sequence."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, options = nn.Linear(3, 6), {"num_layers": 2, "bidirectional": True, "batch_first": kind != "gru"}
            layer = {"gru": nn.GRU, "rnn": nn.RNN}.get(kind, nn.LSTM)
            self.rnn = layer(6, 8, **options, **({"proj_size": 4} if "-" in kind else {}))
            self.fc = nn.Linear(8 if "-" in kind else 16, 2)

        def forward(self, x: Tensor) -> Tensor:
            y, last = self.rnn(torch.tanh(self.embed(x)))
            return self.fc(y[:, -1] if isinstance(last, tuple) else torch.cat([last[2], last[3]], 1))

    source = architecture(Net, {"": InputSpec((30, 3))})
    assert len(source.channels._calls) < 40
    with torch_seeded(np.random.default_rng(6)):
        wide, x = source.build(), torch.randn(2, 30, 3)
    narrow = source.channels.narrow(copy.deepcopy(wide), 0.5)
    assert narrow.rnn.hidden_size == 4
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, 0.5), x), atol=1e-5)


def test_every_second_channel_is_half_of_the_channels():
    class Paired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.fc = nn.Linear(4, 8), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            return self.fc(x[:, 0::2].sin() + x[:, 1::2].cos())

    source = architecture(Paired, {"": InputSpec((4,))})
    assert source.entries("a.weight", 0.5)[0].tolist() == [0, 1, 2, 3]
    assert source.skeleton(0.5).fc.in_features == 2


class Fixed(nn.Module):
    """Its second layer reshapes to sizes in its code, from channels that nothing else connects with them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.c(self.b(self.a(x)).view(-1, 2, 4).flatten(1)))


def test_a_size_in_the_code_leaves_other_layers_free_and_inspect_says_which_operation_needs_it():
    source = architecture(Fixed, {"": InputSpec((4,))})
    narrow = source.skeleton(0.5)
    assert (narrow.a.out_features, narrow.b.out_features, narrow.c.out_features) == (4, 8, 3)
    assert {group.whole for group in source.channels.groups()} == {
        "",
        "input",
        "output",
        "share of a share",
        "view in the network",
    }


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if x.sum() > 0 else self.fc(-x)


def test_a_network_that_reads_values_is_refused_with_operation_and_line():
    problem = (
        r"mine: its channels cannot be traced: .*depends on the values of its input.* \(at test_narrow.py:\d+: .*x.sum\(\) > 0"
    )
    with pytest.raises(ConfigError, match=problem):
        architecture(Reads, {"": InputSpec((4,))}).build(0.5)


def test_nothing_to_cut_is_an_error():
    with pytest.raises(ConfigError, match="no channel of this network can be cut"):
        Channels(lambda: nn.Linear(4, 2).to("meta"), lambda network: network(torch.empty(2, 4, device="meta")))
