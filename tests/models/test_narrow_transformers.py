"""Narrow transformers that tracing finds: heads, masks, positions, and what only training reads."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from narrowing import TOKENS, architecture, first, silenced
from torch import Tensor, nn

from edgefl.rng import torch_seeded


class Split(nn.Module):
    """Heads of x.shape[-1] // heads channels, whose values pass two kernels, a list of channels notes which; a scale with a noted shape."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.splits, self.shape = 4, [8, 24], (1, 32)
        self.embed, self.norm, self.qkv, self.out = nn.Linear(5, 32), nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.kernels = nn.ModuleList(nn.Conv1d(size, size, 3, padding=1, groups=size) for size in self.splits)
        self.scale, self.weigh, self.fc = nn.Parameter(torch.ones(32)), nn.Conv1d(7, 1, 1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.embed(x))
        n, length, channels = x.shape
        with torch.autocast(x.device.type, enabled=False):
            q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        parts = v.transpose(-1, -2).reshape(n, channels, length).split(self.splits, 1)
        v = torch.cat([kernel(part) for kernel, part in zip(self.kernels, parts, strict=True)], 1)
        y = q @ (k.softmax(2).transpose(-1, -2) @ v.reshape(n, self.heads, -1, length).transpose(-1, -2))
        y = self.out(y.transpose(1, 2).reshape(n, length, channels)) * self.scale.view(self.shape)
        return self.fc(self.weigh(x + y)[:, 0].repeat(1, 2))


def test_sizes_in_lists_heads_as_shares_of_a_shape_and_positions_that_are_channels():
    source = architecture(Split, TOKENS)
    with torch_seeded(np.random.default_rng(7)):
        wide, x = source.build(), torch.randn(2, 7, 5)
    narrow = source.channels.narrow(copy.deepcopy(wide), 0.5)
    assert (narrow.splits, narrow.shape, narrow.qkv.weight.shape, narrow.fc.in_features) == ([4, 12], (1, 16), (48, 16), 32)
    wide.norm = narrow.norm = nn.Identity()  # its mean is that of all channels
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, 0.5), x), atol=1e-5)


class Vision(nn.Module):
    """A small transformer of images: attention with heads of x.shape[-1] // heads channels, and perceptrons, in two blocks or one."""

    class Attention(nn.Module):
        def __init__(self, channels: int, heads: int) -> None:
            super().__init__()
            self.heads, self.qkv, self.out = heads, nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

        def forward(self, x: Tensor) -> Tensor:
            n, length, channels = x.shape
            q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, scale=0.4)
            return self.out(y.transpose(1, 2).reshape(n, length, channels))

    def __init__(self, channels: int, heads: int, hidden: int, blocks: int) -> None:
        super().__init__()
        self.patch, self.fc = nn.Conv2d(3, channels, 4, 4), nn.Linear(channels, 3)
        self.attention = nn.ModuleList(self.Attention(channels, heads) for _ in range(blocks))
        self.hidden = nn.ModuleList(
            nn.Sequential(nn.Linear(channels, hidden), nn.GELU(), nn.Linear(hidden, channels)) for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        for attention, hidden in zip(self.attention, self.hidden, strict=True):
            x = x + attention(x)
            x = x + hidden(x)
        return self.fc(x.mean(1))


@pytest.mark.parametrize("width", [0.125, 0.5])
@pytest.mark.parametrize(
    ("channels", "heads", "hidden", "blocks"),
    [
        (32, 4, 64, 2),
        (48, 6, 100, 2),
        (64, 8, 128, 2),
        (32, 4, 64, 1),
        (32, 2, 64, 2),
        (48, 3, 96, 2),
        (64, 4, 128, 2),
        (192, 3, 768, 2),
        (384, 6, 1536, 2),
    ],
)
def test_transformers_are_cut_though_heads_of_one_channel_change_the_order_of_operations(channels, heads, hidden, blocks, width):
    source = architecture(lambda: Vision(channels, heads, hidden, blocks))
    with torch_seeded(np.random.default_rng(10)):
        wide, x = source.build(), torch.randn(2, 3, 16, 16)
    narrow, left = source.channels.narrow(copy.deepcopy(wide), width), int(channels * width)
    shapes = {tuple(layer.weight.shape) for block in narrow.attention for layer in (block.qkv, block.out)}
    assert (narrow.patch.out_channels, shapes) == (left, {(3 * left, left), (left, left)})
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, width), x), atol=1e-5)


class Functional(nn.Module):
    """Two blocks of attention and perceptrons in one module, of functions: ``linear``, or ``einsum``."""

    def __init__(self, einsum: bool) -> None:
        super().__init__()
        self.einsum, self.heads = einsum, 4
        self.embed, self.fc = nn.Linear(5, 32), nn.Linear(32, 3)
        shapes = [(96, 32), (32, 32), (64, 32), (32, 64)] * 2
        self.weights = nn.ParameterList(nn.init.normal_(torch.empty(shape), 0.0, 0.2) for shape in shapes)
        self.biases = nn.ParameterList(nn.init.normal_(torch.empty(len(weight))) for weight in self.weights)

    def forward(self, x: Tensor) -> Tensor:
        x, layers = self.embed(x), list(zip(self.weights, self.biases, strict=True))
        for qkv, out, inner, outer in (layers[:4], layers[4:]):
            n, length, channels = x.shape
            shape = n, length, 3, self.heads, channels // self.heads
            q, k, v = F.linear(x, *qkv).reshape(shape).permute(2, 0, 3, 1, 4)
            if self.einsum:
                y = torch.einsum("nhij,nhjd->nihd", torch.einsum("nhid,nhjd->nhij", q, k).softmax(-1), v).flatten(2)
            else:
                y = F.scaled_dot_product_attention(q, k, v, scale=1.0).transpose(1, 2).reshape(n, length, channels)
            x = x + F.linear(y, *out)
            x = x + F.linear(F.gelu(F.linear(x, *inner)), *outer)
        return self.fc(x.mean(1))


@pytest.mark.parametrize("einsum", [False, True])
@pytest.mark.parametrize("width", [0.125, 0.5])
def test_functions_in_one_module_are_cut_like_layers(einsum, width):
    source = architecture(lambda: Functional(einsum), TOKENS)
    with torch_seeded(np.random.default_rng(13)):
        wide, x = source.build(), torch.randn(2, 7, 5)
    narrow, left = source.channels.narrow(copy.deepcopy(wide), width), int(32 * width)
    assert narrow.weights[0].shape == narrow.weights[4].shape == (3 * left, left)
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, width), x), atol=1e-5)


class Rotary(nn.Module):
    """Queries and keys turned by angles that their number of channels gives; values have as many, by the same attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.size, self.embed, self.fc = 2, 8, nn.Linear(5, 32), nn.Linear(32, 3)
        self.queries, self.keys, self.values = (nn.Linear(32, 16) for _ in range(3))
        self.out = nn.Linear(16, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        layers = self.queries, self.keys, self.values
        q, k, v = (layer(x).view(*x.shape[:2], self.heads, self.size).transpose(1, 2) for layer in layers)
        places, speeds = (torch.arange(0.0, end, step, device=x.device) for end, step in ((x.shape[1], 1), (self.size, 2)))
        angles = torch.outer(places, 10**-speeds).repeat(1, 2)
        halves = (y.chunk(2, -1) for y in (q, k))
        q, k = (y * angles.cos() + torch.cat([-b, a], -1) * angles.sin() for y, (a, b) in zip((q, k), halves, strict=True))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.fc((x + self.out(y.transpose(1, 2).reshape(*x.shape[:2], -1))).mean(1))


def test_an_attribute_that_whole_channels_need_keeps_others_of_its_size_whole_but_no_more():
    source = architecture(Rotary, TOKENS)
    with torch_seeded(np.random.default_rng(12)):
        wide, x = source.build(), torch.randn(2, 7, 5)
    narrow = source.channels.narrow(copy.deepcopy(wide), 0.5)
    assert (narrow.size, narrow.embed.out_features, narrow.values.weight.shape) == (8, 16, (16, 16))
    assert torch.allclose(first(narrow, x), first(silenced(wide, source, 0.5), x), atol=1e-5)


class Causal(nn.Module):
    """Attention that reads its mask without gradients alone, and otherwise the argument ``is_causal``."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.embed, self.encoder = nn.Linear(5, 8), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(7), persistent=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.embed(x), mask=self.mask, is_causal=True))


def test_a_mask_that_the_traced_operations_do_not_read_stays_whole():
    source = architecture(Causal, TOKENS)
    with torch_seeded(np.random.default_rng(11)):
        narrow, x = source.build(0.5).eval(), torch.randn(2, 7, 5)
    assert (narrow.mask.shape, narrow.embed.out_features) == ((7, 7), 4)
    assert "unused" in {group.whole for group in source.channels.groups()}
    assert torch.allclose(first(narrow, x), narrow(x), atol=1e-5)


class Noisy(nn.Module):
    """Experts with noise, and a token in the place of others: both in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gate, self.fc = nn.Linear(5, 16), nn.Linear(16, 4), nn.Linear(16, 3)
        self.token, self.noise = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(16, 4))
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.unused = nn.Linear(16, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        if self.training:
            x = torch.where(torch.rand(x.shape[:2], device=x.device)[..., None] < 0.2, self.token, x)
            x = x + torch.randn(x.shape, device=x.device) * torch.empty_like(x).exponential_()
        x = x.mean(1)
        gates = self.gate(x)
        if self.training:
            gates = gates + torch.randn_like(gates) * F.softplus(x @ self.noise)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return self.fc((gates.softmax(1).unsqueeze(2) * outputs).sum(1))


def test_what_only_training_reads_is_cut_as_training_needs_it_and_what_nothing_reads_stays_whole():
    narrow = architecture(Noisy, TOKENS).build(0.5)
    shapes = {name: tuple(getattr(narrow, name).weight.shape) for name in ("embed", "fc", "unused")}
    assert shapes == {"embed": (8, 5), "fc": (3, 8), "unused": (6, 16)}
    assert (narrow.token.shape, narrow.noise.shape) == ((8,), (8, 4))
    assert narrow.train()(torch.zeros(2, 7, 5)).shape == (2, 3)
