"""The reference networks: printed sizes, and narrow networks inside wide ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgefl.errors import ConfigError
from edgefl.factor.width import cut, leading, nested, stacked_in
from edgefl.methods.create import create
from edgefl.models.base import Architecture, small_models, stem_and_classifier
from edgefl.models.deit import Attention
from edgefl.planning.network import architecture_of
from edgefl.records import Tier, Update
from edgefl.registry import models
from edgefl.rng import generator, torch_seeded


def reference(name: str, classes: int = 10) -> Architecture:
    return Architecture(name, models.facts(name)["usual_input"], classes)


def parameters(name: str, classes: int, width: float = 1.0) -> int:
    return sum(p.numel() for p in reference(name, classes).build(width).parameters())


# Model → classes, parameters that a paper prints, and where.
PRINTED = [
    ("resnet9", 10, 2.57e6, "Factorized-FL, section C.1"),
    ("vgg16", 10, 15.25e6, "FedPara, Table 5"),
    ("resnet18", 10, 11.17e6, "FedHM, Table 2"),
    ("resnet34", 100, 21.33e6, "FedHM, Table 3"),
    ("cnn-fashion", 10, 285e3, "FLANC, Table 1"),
    ("cnn-flanc", 10, 285e3, "FLANC, Table 1"),
]


@pytest.mark.parametrize(("name", "classes", "printed", "source"), PRINTED)
def test_sizes_that_papers_print(name, classes, printed, source):
    assert parameters(name, classes) == pytest.approx(printed, rel=0.008), source


def test_sizes_by_hand():
    # Two LSTM layers: 4 gates of (inputs + units) weights and two biases each; an embedding of 8; a classifier.
    lstm = 80 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 80 * 257
    assert parameters("lstm-shakespeare", 80) == lstm == 819_920
    assert parameters("lstm-imdb", 2) == 1001 * 64 + 4 * 256 * (64 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 2 * 257
    assert parameters("cnn-femnist", 10) == 64 * 26 + 64 * (64 * 9 + 1) + 10 * (64 * 25 + 1)
    block = 2 * 2 * 192 + 4 * (192 * 192 + 192) + (192 * 768 + 768) + (768 * 192 + 192)
    assert parameters("deit-tiny", 10) == 192 * 49 + 192 + 65 * 192 + 12 * block + 2 * 192 + 193 * 10
    assert parameters("cnn-flanc", 10) == 64 * 10 + 128 * 64 * 9 + 128 * 128 * 9 + 10 * (128 * 49 + 1)
    assert parameters("cnn-flanc", 10, 0.25) == 64 * 10 + 32 * 64 * 9 + 32 * 32 * 9 + 10 * (32 * 49 + 1)
    vgg = [64, 128, 256, 256, 512, 512, 512, 512]
    convolutions = sum(n * (9 * m + 2) for m, n in zip([3, *vgg], vgg, strict=False))
    assert parameters("vgg11", 10) == convolutions + 513 * 10


@pytest.mark.parametrize(
    "name", ["lstm-shakespeare", "rnn-shakespeare", "deit-tiny", "resnet9", "vgg11", "cnn-femnist", "cnn-flanc"]
)
def test_a_narrow_network_computes_what_its_units_compute_in_the_wide_one(name):
    """With every other weight zero, the wide network's outputs are those of the narrow one inside it.

    LayerNorm divides by the number of channels, so the transformer is compared block by block, without it.
    """
    architecture = reference(name, 7)
    wide, narrow = architecture.build().double().eval(), architecture.build(0.5).double().eval()
    for network in (wide, narrow):
        for module in list(network.modules()):
            for child, layer in list(module.named_children()):
                if "Norm" in type(layer).__name__:
                    setattr(module, child, torch.nn.Identity())
    shapes = {n: tuple(t.shape) for n, t in narrow.state_dict().items()}
    places = nested(shapes, {n: tuple(t.shape) for n, t in wide.state_dict().items()}, stacked_in(wide))
    weights = {n: torch.randn(t.shape, dtype=torch.float64) * 0.1 for n, t in narrow.state_dict().items()}
    whole = {n: torch.zeros_like(t) for n, t in wide.state_dict().items()}
    for n, place in places.items():
        whole[n][place.index] = weights[n]
    assert all(torch.equal(small, weights[n]) for n, small in cut(whole, places).items())
    if name == "deit-tiny":
        # The scale of attention is that of the head's width.
        for n in whole:
            if ".query." in n:
                whole[n] *= 2**0.5
    wide.load_state_dict(whole)
    narrow.load_state_dict(weights)
    x = torch.randint(80, (3, 5)) if architecture.vocabulary else torch.randn(3, *architecture.input_shape, dtype=torch.float64)
    with torch.no_grad():
        expected = narrow(x)
        # The transformer's values grow from block to block without normalisation, and with them what rounding leaves where they cancel.
        slack = 1e-7 * float(expected.abs().max()) if name == "deit-tiny" else 1e-9
        torch.testing.assert_close(wide(x), expected, rtol=1e-9, atol=slack)


@pytest.mark.parametrize("name", small_models())
def test_the_classifier_is_the_last_layer(name):
    network = reference(name).skeleton()
    assert stem_and_classifier(network)[1] == "fc"
    recurrent = name.startswith(("lstm", "rnn"))
    assert (stem_and_classifier(network)[0] is None) == (recurrent or name == "mlp")


@pytest.mark.parametrize(
    ("name", "shape", "norm", "message"),
    [
        ("lstm-shakespeare", (1, 8, 8), None, "takes a sequence of token ids"),
        ("lstm-shakespeare", (80,), "group", "no feature maps to normalise"),
        ("deit-tiny", (3, 30, 32), None, "patches of 4x4, got 30x32"),
        ("deit-tiny", (3, 32, 32), "group", "normalises by layer"),
        ("vgg16", (3, 28, 28), None, "sides of at least 32, got 3x28x28"),
    ],
)
def test_inputs_that_a_network_does_not_take(name, shape, norm, message):
    with pytest.raises(ConfigError, match=message):
        Architecture(name, shape, 10, norm).build()


def test_heterofl_slices_every_gate_of_an_lstm_and_averages_it_back():
    architecture, tiers = Architecture("lstm-shakespeare", (5,), 80), (Tier(1.0), Tier(0.5))
    method = create("heterofl")
    state = method.init(architecture, tiers, np.random.default_rng(0))
    submodel = method.submodel(state, tiers[1], np.random.default_rng(0))
    name, wide = "rnn.weight_hh_l1", 256
    by_gate = state.tensors[name].view(4, wide, wide)
    assert torch.equal(submodel.tensors[name], by_gate[:, :128, :128].reshape(512, 128))
    assert torch.equal(submodel.tensors["rnn.bias_ih_l0"], state.tensors["rnn.bias_ih_l0"].view(4, wide)[:, :128].flatten())
    moved = {n: t + 1 for n, t in submodel.tensors.items()}
    after = method.aggregate(state, [Update(0, tiers[1], moved, submodel.places, 3)]).tensors[name].view(4, wide, wide)
    torch.testing.assert_close(after[:, :128, :128], by_gate[:, :128, :128] + 1)
    assert torch.equal(after[:, 128:], by_gate[:, 128:])
    assert torch.equal(after[:, :, 128:], by_gate[:, :, 128:])


@pytest.mark.parametrize(("kind", "gates"), [(torch.nn.LSTM, 4), (torch.nn.GRU, 3)])
def test_stacked_tensors_are_the_gates(kind, gates):
    found = stacked_in(torch.nn.Sequential(kind(3, 4, 2, bidirectional=True), torch.nn.Linear(8, 2)))
    assert set(found.values()) == {gates}
    assert len(found) == 2 * 2 * 4
    assert "0.weight_hh_l1_reverse" in found


def test_a_single_block_has_no_gates():
    assert stacked_in(torch.nn.RNN(3, 4)) == {}
    assert leading("w", (4, 3), (4, 5), blocks=2).index == (slice(0, 4), slice(0, 3))


def test_leading_channels_of_attention_are_the_leading_ones_of_every_head():
    """Heads keep their number: with the other weights zero, attention of 4 of 8 channels a head computes the same channels."""
    wide, narrow = Attention(24, 3).double(), Attention(12, 3).double()
    with torch.no_grad():
        for name, parameter in wide.named_parameters():
            small = narrow.get_parameter(name)
            parameter.zero_()
            parameter[leading(name, tuple(small.shape)).index] = small * (2**0.5 if "query" in name else 1)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    padded = torch.cat([x, torch.randn(2, 5, 12, dtype=torch.float64)], 2)
    torch.testing.assert_close(wide(padded)[..., :12], narrow(x))
    # The channels of head 0 are 0, 3, 6, …: only they change with its queries.
    with torch.no_grad():
        narrow.project.weight.copy_(torch.eye(12))
        before = narrow(x)
        narrow.query.weight[::3] += 1
        changed = (narrow(x) - before).abs().amax((0, 1)) > 0
    assert changed.tolist() == [True, False, False] * 4


def test_the_stem_of_flanc_s_network_has_every_channel_at_every_width():
    architecture = Architecture("cnn-flanc", (3, 12, 20), 10, "group")
    for width, hidden in ((1.0, 128), (0.3, 39), (0.1, 13)):
        network = architecture.build(width)
        assert (network.conv1.out_channels, network.conv2.out_channels) == (64, hidden)
        assert (network.conv1.bias is None, network.conv2.bias, network.conv3.bias) == (False, None, None)
        assert network.fc.in_features == hidden * 3 * 5


def test_flanc_s_network_has_no_activation_after_the_stem():
    """Without it, the two first convolutions are one linear map: f(x) + f(−x) = 2·f(0) in front of the first ReLU."""
    network = Architecture("cnn-flanc", (1, 8, 8), 4).build()
    seen = []
    network.conv2.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for images in (x, -x, torch.zeros_like(x)):
        network(images)
    torch.testing.assert_close(seen[0] + seen[1], 2 * seen[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("gpt2-small", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200),
        ("bert-small", 28_763_648 + 2 * 513),
    ],
)  # fmt: skip
def test_language_models_have_the_published_sizes(name, params):
    """GPT-2: the tables of Hugging Face's checkpoints; BERT-small: google/bert_uncased_L-4_H-512_A-8, with its pooler."""
    network = architecture_of(name).skeleton()
    assert sum(p.numel() for p in network.parameters()) == params


def test_a_decoder_predicts_a_token_from_those_before_it():
    architecture = architecture_of("gpt2-small", (6,))
    with torch_seeded(generator(0, "decoder")):
        network = architecture.build(1 / 64).eval()
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        rows, changed = network(ids), network(torch.cat([ids[:, :4], ids[:, 4:] + 7], 1))
    assert rows.shape == (12, 50257)
    per_token, other = rows.view(2, 6, -1), changed.view(2, 6, -1)
    torch.testing.assert_close(other[:, :4], per_token[:, :4])
    assert not torch.allclose(other[:, 4], per_token[:, 4])
    with pytest.raises(ConfigError, match="at most 1024 tokens"):
        architecture_of("gpt2-small", (1025,)).skeleton()
