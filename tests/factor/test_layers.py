"""Every kind of layer, in closed form: multiply-accumulates per sample, forward, to inputs and to weights, and parameters.

The right sides are written out by hand from the layer's definition. A layer under test has one in front of it, so that the gradient of
its own input is needed.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from edgefl import profile
from edgefl.cost.workspace import lstm_kept_bytes

TOKENS, WORDS, CLASSES = 12, 50, 5
IDS = {"ids": f"int64:{TOKENS}"}
SUMMED = {
    "params": "params",
    "parameter_bytes": "parameter_bytes",
    "macs_forward": "macs_forward",
    "macs_backward_input": "macs_backward_input",
    "macs_backward_weight": "macs_backward_weight",
    "macs_compose": "macs_compose",
    "elementwise_ops": "elementwise_ops",
    "elementwise_ops_backward": "elementwise_ops_backward",
    "elementwise_ops_step": "elementwise_ops_step",
    "saved_bytes_at_peak": "peak_saved_bytes",
    "temporary_bytes_at_peak": "peak_temporary_bytes",
}


def row_of(network, inputs, **options):
    """Return the one row of a network, whose layers must sum to its totals and whose split to its peak."""
    (row,) = profile(network, inputs, **options)
    for column, total in SUMMED.items():
        assert sum(getattr(layer, column) for layer in row.layers) == getattr(row, total), column
    held = (
        "parameter_bytes",
        "buffer_bytes",
        "optimizer_bytes",
        "peak_gradient_bytes",
        "peak_saved_bytes",
        "peak_temporary_bytes",
    )
    assert sum(getattr(row, part) for part in held) == row.training_memory_bytes
    return row


def macs(row):
    return row.macs_forward, row.macs_backward_input, row.macs_backward_weight


# Kind, its class by dimensions, a sample's shape behind the stem, options, positions of one side, and weights that meet each of them.
# A convolution is counted from its output, a transposed one from its input.
CONVOLUTIONS = {
    "1-D dilated groups": (nn.Conv1d, (11,), {"dilation": 2, "groups": 2}, 11 - 4, 6 * (4 // 2) * 3),
    "2-D dilated groups": (nn.Conv2d, (9, 8), {"dilation": 2, "groups": 2}, 5 * 4, 6 * (4 // 2) * 9),
    "3-D dilated groups": (nn.Conv3d, (5, 6, 7), {"dilation": 2, "groups": 2}, 1 * 2 * 3, 6 * (4 // 2) * 27),
    "2-D strided, padded": (nn.Conv2d, (9, 8), {"stride": (2, 3), "padding": 1}, 5 * 3, 6 * 4 * 9),
    "2-D circular": (nn.Conv2d, (9, 8), {"padding": 1, "padding_mode": "circular"}, 9 * 8, 6 * 4 * 9),
    "3-D reflected": (nn.Conv3d, (4, 5, 6), {"padding": 1, "padding_mode": "reflect"}, 4 * 5 * 6, 6 * 4 * 27),
    "1-D transposed groups": (nn.ConvTranspose1d, (11,), {"stride": 2, "groups": 2}, 11, 4 * (6 // 2) * 3),
    "2-D transposed dilated": (nn.ConvTranspose2d, (9, 8), {"dilation": 2}, 9 * 8, 4 * 6 * 9),
    "3-D transposed groups": (nn.ConvTranspose3d, (5, 6, 7), {"stride": 2, "groups": 2}, 5 * 6 * 7, 4 * (6 // 2) * 27),
}


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_convolution_in_any_dimension(kind, batch_size):
    layer, sides, options, positions, weights = CONVOLUTIONS[kind]
    stem = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[len(sides) - 1]
    network = nn.Sequential(stem(2, 4, 1, bias=False), layer(4, 6, 3, **options))
    row = row_of(network, (2, *sides), batch_size=batch_size)
    front = math.prod(sides) * 2 * 4
    assert macs(row) == (front + positions * weights, positions * weights, front + positions * weights)
    assert row.params == 2 * 4 + weights + 6
    assert row.macs_compose == 0
    assert row.uncounted_ops == ()


class Recurrent(nn.Module):
    """An embedding of 8 numbers, a recurrent layer of 16 units, and a classifier of its last output."""

    def __init__(self, kind, **options):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.cells = kind(8, 16, batch_first=True, **options)
        self.head = nn.Linear(16 * (2 if options.get("bidirectional") else 1), CLASSES)

    def forward(self, ids):
        return self.head(self.cells(self.embedding(ids))[0][:, -1])


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_a_recurrent_layer(kind, gates):
    steps, head = TOKENS * gates * 16 * (8 + 16), 16 * CLASSES
    # Nobody needs the gradient of the first hidden state; the LSTM's kernel, which is one for all steps, computes it all the same.
    unneeded = 0 if kind is nn.LSTM else gates * 16 * 16
    for batch_size in (1, 3):
        row = row_of(lambda: Recurrent(kind), IDS, batch_size=batch_size)
        assert macs(row) == (steps + head, steps + head - unneeded, steps + head)
    assert row.params == WORDS * 8 + gates * 16 * (8 + 16 + 2) + head + CLASSES


def test_a_frozen_recurrent_layer_has_no_gradient_of_its_weights():
    network = Recurrent(nn.LSTM)
    network.cells.requires_grad_(False)
    steps, head = TOKENS * 4 * 16 * (8 + 16), 16 * CLASSES
    assert macs(row_of(network, IDS)) == (steps + head, steps + head, head)


def test_a_second_recurrent_layer_reads_both_directions_of_the_first():
    row = row_of(lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), IDS)
    assert row.macs_forward == TOKENS * 2 * 4 * 16 * ((8 + 16) + (32 + 16)) + 32 * CLASSES


class Attention(nn.Module):
    """Attention of four heads over 16 numbers a position, and a classifier of the mean."""

    def __init__(self, need_weights):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, CLASSES)
        self.need_weights = need_weights

    def forward(self, x):
        return self.head(self.attention(x, x, x, need_weights=self.need_weights)[0].mean(1))


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_by_itself(need_weights):
    row = row_of(Attention(need_weights), (7, 16))
    project, mix, out, head = 7 * 16 * 48, 2 * 7 * 7 * 16, 7 * 16 * 16, 16 * CLASSES
    # The first projection's input is the sample: its gradient is not needed. Each product of the mixing has two.
    assert macs(row) == (project + mix + out + head, 2 * mix + out + head, project + out + head)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(16, CLASSES)

    def forward(self, ids):
        return self.head(self.encoder(self.embedding(ids)).mean(1))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_transformer_encoder(batch_size):
    row = row_of(Encoder, IDS, batch_size=batch_size)
    weights = TOKENS * (16 * 48 + 16 * 16 + 2 * 16 * 32)
    mix, head = 2 * TOKENS * TOKENS * 16, 16 * CLASSES
    assert macs(row) == (2 * (weights + mix) + head, 2 * (weights + 2 * mix) + head, 2 * weights + head)


def test_a_tied_embedding_is_one_parameter_and_two_layers():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.mid, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(8, WORDS, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids):
            return self.head(self.mid(self.embedding(ids)))

    row = row_of(Tied, IDS)
    assert row.params == WORDS * 8 + 8 * 8 + 8
    assert row.macs_forward == TOKENS * (8 * 8 + 8 * WORDS)
    assert row.gradient_bytes == 4 * row.params


def test_branches_and_frozen_layers_cost_only_the_gradients_that_are_needed():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.left, self.right = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 3)
            self.left.requires_grad_(False)

        def forward(self, x):
            h = torch.relu(self.stem(x))
            return self.left(h) + self.right(h)

    row = row_of(Branches, (6,))
    assert macs(row) == (48 + 24 + 24, 24 + 24, 48 + 24)
    assert row.gradient_bytes == 4 * (48 + 8 + 24 + 3)
    assert row.params == 48 + 8 + 2 * (24 + 3)


def test_einsum_counts_the_products_that_it_becomes():
    class Einsum(nn.Module):
        def __init__(self):
            super().__init__()
            self.front, self.weight = nn.Linear(6, 6, bias=False), nn.Parameter(torch.zeros(6, 7, 8))

        def forward(self, x):
            return torch.einsum("bti,ijk->btjk", self.front(x), self.weight)

    front, product = 5 * 6 * 6, 5 * 6 * 7 * 8
    assert macs(row_of(Einsum, (5, 6))) == (front + product, product, front + product)


def test_a_parametrized_weight_is_work_per_step_and_no_macs():
    def plain():
        return nn.Sequential(nn.Conv2d(2, 4, 1, bias=False), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 36, 3))

    def normed():
        network = plain()
        nn.utils.parametrizations.weight_norm(network[1])
        return network

    bare, row = row_of(plain, (2, 8, 8)), row_of(normed, (2, 8, 8))
    assert row.uncounted_ops == ()
    assert macs(row) == macs(bare)
    assert row.params == bare.params + 6  # one length per filter
    # The weight is made once and its gradient taken apart once; the update goes through six lengths more.
    assert row.elementwise_ops_step - bare.elementwise_ops_step >= 2 * 6 * 4 * 9


def test_checkpointing_computes_again_and_keeps_less():
    class Network(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.front, self.head, self.again = nn.Linear(8, 64), nn.Linear(64, 3), again
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(2))

        def forward(self, x):
            x = self.front(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
            return self.head(x)

    kept, again = (row_of(lambda a=a: Network(a), (8,), batch_size=512) for a in (False, True))
    product = 64 * 256
    assert again.macs_forward == kept.macs_forward == 8 * 64 + 2 * 2 * product + 64 * 3
    # Only what the backward pass reads is made again: of each block the first product's result, not the second's.
    assert sum(macs(again)[1:]) == sum(macs(kept)[1:]) + 2 * product
    # At the peak one block's 256 values a sample are alive, and not both blocks'.
    assert again.peak_saved_bytes <= kept.peak_saved_bytes - 512 * 2 * 256 * 4
    assert again.training_memory_bytes < kept.training_memory_bytes


@pytest.mark.parametrize("batch_size", [1, 4])
def test_batch_norm_with_running_statistics_at_any_batch(batch_size):
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    row = row_of(network, (3, 8, 8), batch_size=batch_size)
    assert row.macs_forward == 36 * 8 * 27 + 32
    assert row.buffer_bytes == 4 * (8 + 8) + 8  # mean, variance, and a counter of int64


# What works value by value or moves values, by layers of torch.nn.functional whose operations have names of their own.
WITHOUT_MACS = {
    "nearest 3-D": ((2, 4, 4, 4), lambda x: F.interpolate(x, scale_factor=2)),
    "linear 1-D": ((2, 8), lambda x: F.interpolate(x, scale_factor=2, mode="linear")),
    "trilinear": ((2, 4, 4, 4), lambda x: F.interpolate(x, scale_factor=2, mode="trilinear")),
    "replicate 1-D": ((2, 8), lambda x: F.pad(x, (1, 1), mode="replicate")),
    "adaptive max 3-D": ((2, 4, 4, 4), lambda x: F.adaptive_max_pool3d(x, 2)),
    "grid 3-D": ((2, 4, 4, 4), lambda x: F.grid_sample(x, x.new_zeros(len(x), 2, 2, 2, 3), align_corners=False)),
    "log sigmoid": ((2, 8), F.logsigmoid),
    "shrink": ((2, 8), lambda x: F.softshrink(F.hardshrink(x))),
    "gumbel": ((2, 8), F.gumbel_softmax),
    "median": ((2, 8), lambda x: x.median(2)[0]),
}


@pytest.mark.parametrize("kind", WITHOUT_MACS)
def test_a_layer_without_products_counts_no_macs_and_is_in_a_table(kind):
    shape, apply = WITHOUT_MACS[kind]

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return apply(x * self.scale)

    row = row_of(Network, shape, batch_size=4)
    assert row.uncounted_ops == ()
    assert row.macs_train_step == 0
    assert row.elementwise_ops >= math.prod(shape)


def test_an_embedding_bag_looks_up():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.head = nn.EmbeddingBag(WORDS, 8), nn.Linear(8, 3)

        def forward(self, ids):
            return self.head(self.bag(ids))

    row = row_of(Bag, IDS)
    assert row.uncounted_ops == ()
    assert macs(row) == (24, 24, 24)


@pytest.mark.parametrize(
    ("steps", "samples", "inputs", "hidden"), [(12, 8, 8, 16), (7, 5, 3, 11), (20, 9, 100, 17), (10, 6, 8, 256), (1, 1, 1, 1)]
)
def test_the_workspace_of_an_lstm_is_what_its_kernel_asks_for(steps, samples, inputs, hidden):
    x = torch.zeros(steps, samples, inputs)
    weights = [torch.zeros(4 * hidden, *more) for more in ((inputs,), (hidden,), (), ())]
    states = [torch.zeros(samples, hidden)] * 2
    kernel = torch.ops.aten.mkldnn_rnn_layer
    workspace = kernel(x, *weights, *states, False, [], 2, hidden, 1, True, False, False, True)[3]
    assert lstm_kept_bytes(steps, samples, inputs, hidden) == workspace.numel()
