"""The costs of any network: inputs, outputs, batches, optimizers, and a method on it."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from command import told
from own_modules import COUNTS, IDS, NETWORKS, Transformer, Words, conv, mobile
from torch import nn

from edgefl import profile


def test_a_network_is_found_by_its_import_path(here):
    found = {name: profile(f"own_networks:{name}", (4,))[0].params for name in ("factory", "Net", "instance", "rates")}
    assert found == {"factory": 15, "Net": 15, "instance": 35, "rates": 20 + 15}


def test_several_inputs_are_shapes_texts_or_examples():
    ids, x = torch.ones(3, 9, dtype=torch.int64), torch.zeros(3, 6)
    shapes = profile(Words, {"ids": "int64:9", "x": (6,)}, batch_size=3)
    assert shapes[0].macs_forward == 30
    for inputs in (["ids=int64:9", "x=6"], {"ids": ids, "x": x}):
        assert profile(Words, inputs, batch_size=3) == shapes
    # The batch of examples is the default one, and their order that of the arguments.
    assert profile(Words(), [ids, x]) == profile(Words(), (ids, x)) == shapes


@dataclasses.dataclass
class Scores:
    scores: torch.Tensor
    others: object


OUTPUTS = {
    "tuple": lambda a, b: (a, b),
    "dict": lambda a, b: {"a": a, "b": b},
    "nested": lambda a, b: [a, {"more": (b, None, 3)}],
    "dataclass": Scores,
    "dataclass within": lambda a, b: Scores(a, [Scores(b, None)]),
}


class Outputs(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.a, self.b, self.form = nn.Linear(4, 5), nn.Linear(4, 6), form

    def forward(self, x):
        return self.form(self.a(x), self.b(x))


@pytest.mark.parametrize("form", OUTPUTS)
def test_outputs_of_any_form_are_trained_and_held(form):
    (row,) = profile(Outputs(OUTPUTS[form]), (4,), batch_size=8)
    assert row.macs_forward == row.macs_backward_weight == 4 * 5 + 4 * 6
    # Nothing of an inference goes before its end: the sample, and both outputs in onnxruntime's blocks of 256 bytes.
    assert row.peak_activation_bytes_inference == 8 * 4 * 4 + 2 * 256


def test_of_an_output_that_names_them_the_logits_are_trained_as_in_a_run():
    (row,) = profile(Outputs(lambda a, b: {"b": b, "logits": a}), (4,), batch_size=8)
    assert (row.macs_forward, row.macs_backward_weight) == (4 * 5 + 4 * 6, 4 * 5)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 2, 3)])
def test_outputs_of_more_dimensions_are_one_row_a_sample(shape):
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, int(np.prod(shape)))

        def forward(self, x):
            return self.layer(x).reshape(-1, *shape)

    assert profile(Wide, (4,))[0].macs_backward == 4 * int(np.prod(shape))


@pytest.mark.parametrize("name", NETWORKS)
def test_counts_per_sample_do_not_depend_on_the_batch(name):
    rows = [profile(*NETWORKS[name], batch_size=size)[0] for size in (1, 2, 7)]
    assert len({tuple(getattr(row, key) for key in COUNTS) for row in rows}) == 1
    for row in rows:
        assert row.macs_train_step == row.batch_size * (row.macs_forward + row.macs_backward)


def test_micro_batches_take_less_memory_and_compose_once_a_pass():
    options = {"method": "fedhm", "tiers": (0.5,)}
    full, parts, part = (
        profile(conv, "3x16x16", **options, **sizes)[0]
        for sizes in ({"batch_size": 18}, {"batch_size": 18, "micro_batch": 4}, {"batch_size": 4})
    )
    assert part.training_memory_bytes < parts.training_memory_bytes < full.training_memory_bytes
    per_sample = full.macs_forward + full.macs_backward
    assert full.macs_compose > 0
    assert full.macs_train_step == 18 * per_sample + full.macs_compose
    assert parts.macs_train_step == 18 * per_sample + 5 * full.macs_compose


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_an_optimizer_holds_whole_copies_of_the_parameters(optimizer, copies):
    (row,) = profile(mobile, "3x32x32", batch_size=2, optimizer=optimizer)
    assert row.optimizer_bytes == copies * row.parameter_bytes


def test_widths_of_a_network_of_ones_own(here):
    status, out, _ = told("profile", "own_networks:Image", "--input", "3x16x16", "--method", "heterofl", "--tiers", "1,0.5")
    assert status == 0
    # 3·8·9 + 8 + 8·16·9 + 16 + 16·5 + 5 = 1,477 and, with half of the channels, 3·4·9 + 4 + 4·8·9 + 8 + 8·5 + 5 = 453.
    assert [line.split()[1] for line in out.splitlines() if line.split()[:1] in (["1"], ["0.5"])][:2] == ["1.48", "453"]


def test_fedhm_factorizes_a_small_convolutional_network():
    full, half = profile(conv, "3x16x16", method="fedhm", tiers=(1, 0.5))
    assert full.params == 3 * 8 * 9 + 8 + 8 * 16 * 9 + 16 + 16 * 16 * 9 + 16 + 16 * 5 + 5
    # The stem and the head stay. Rank 8: 3x1 weights from the inputs to 8 channels, 1x3 weights from those to 16.
    assert full.params - half.params == (8 * 16 * 9 - 8 * 3 * (8 + 16)) + (16 * 16 * 9 - 8 * 3 * (16 + 16))
    assert half.macs_train_step < full.macs_train_step


def test_fedhm_factorizes_the_four_layers_of_attention():
    full, quarter = profile(Transformer, IDS, method="fedhm", tiers=(1, 0.25))
    # Rank 8 of 32 units is more than half of 16; the rank is taken of the rows: 4 of 16 both ways. The head stays.
    assert full.params - quarter.params == 2 * (16 * 32 - 4 * (16 + 32)) + 4 * (16 * 16 - 4 * (16 + 16))
    small, dense = ({layer.layer: layer.macs_forward for layer in row.layers} for row in (quarter, full))
    assert small["attention"] == dense["attention"] > 0  # products of queries, keys and values
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        parts = [macs for layer, macs in small.items() if layer.startswith(f"attention.{name}.")]
        assert sum(parts) == dense[f"attention.{name}"] // 2 > 0
    assert all(a.download_bytes > 0 for a in itertools.chain(full.tensors, quarter.tensors))
