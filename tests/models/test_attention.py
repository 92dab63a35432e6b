"""Torch's attention with linear layers of its own: the same function, the same names when it is given back."""

import copy

import numpy as np
import pytest
import safetensors.torch
import torch
from narrowing import architecture
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.parametrizations import weight_norm

from edgefl.methods.create import create
from edgefl.models.attention import OpenAttention, closed, opened
from edgefl.models.input_spec import InputSpec
from edgefl.models.weights import opened_tensors
from edgefl.records import Tier
from edgefl.rng import torch_seeded
from edgefl.run.network import with_weights

KINDS = {
    "plain": {},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False, "batch_first": True},
    "other keys": {"kdim": 6, "vdim": 10, "batch_first": True},
    "a learned key": {"add_bias_kv": True},
    "a key of zeros": {"add_zero_attn": True, "batch_first": True},
    "both keys": {"add_bias_kv": True, "add_zero_attn": True},
}
LATER = torch.ones(4, 5, dtype=torch.bool).triu(1)
PADDED = torch.arange(5) >= torch.tensor([[5], [3], [4]])
ASKED = {
    "weights of all heads": {"average_attn_weights": False},
    "mean weights": {},
    "no weights": {"need_weights": False},
    "a mask": {"attn_mask": LATER, "need_weights": False},
    "a mask of numbers": {"attn_mask": torch.linspace(-2, 2, 20).reshape(4, 5)},
    "a mask for each head": {"attn_mask": torch.linspace(-2, 2, 120).reshape(6, 4, 5)},
    "padding": {"key_padding_mask": PADDED},
    "padding of numbers and a mask": {"key_padding_mask": PADDED * -1e4, "attn_mask": LATER * -1e4, "need_weights": False},
    "padding and a mask": {"key_padding_mask": PADDED, "attn_mask": LATER},
    "causal": {"attn_mask": torch.ones(4, 5, dtype=torch.bool).triu(1), "is_causal": True, "need_weights": False},
    "causal and padding": {"key_padding_mask": PADDED, "attn_mask": LATER, "is_causal": True, "need_weights": False},
}


def attention(kind: str) -> tuple[nn.MultiheadAttention, tuple[Tensor, Tensor, Tensor]]:
    """Attention of 8 channels and 2 heads with drawn weights, and 4 queries, 5 keys and values of 3 samples."""
    with torch_seeded(np.random.default_rng(1)):
        plain = nn.MultiheadAttention(8, 2, **KINDS[kind])
        for parameter in plain.parameters():  # torch's biases are 0
            nn.init.normal_(parameter)
        inputs = torch.randn(3, 4, 8), torch.randn(3, 5, plain.kdim), torch.randn(3, 5, plain.vdim)
    return plain, inputs if plain.batch_first else tuple(x.transpose(0, 1) for x in inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", ASKED)
def test_it_computes_what_torchs_class_computes(kind, asked):
    plain, inputs = attention(kind)
    other = OpenAttention(copy.deepcopy(plain))
    (found, weights), (expected, expected_weights) = (layer(*inputs, **ASKED[asked]) for layer in (other, plain))
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-5)
    assert (weights is None) == (expected_weights is None)
    assert weights is None or torch.allclose(weights, expected_weights, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_without_a_batch_is_computed_too(kind):
    plain, inputs = attention(kind)
    single = [x[0] if plain.batch_first else x[:, 0] for x in inputs]
    masks = {"key_padding_mask": PADDED[1], "attn_mask": LATER}
    for found, expected in zip(OpenAttention(copy.deepcopy(plain))(*single, **masks), plain(*single, **masks), strict=True):
        assert found.shape == expected.shape
        assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_its_gradients_are_those_of_torchs_class(kind):
    plain, inputs = attention(kind)
    other = opened(nn.ModuleList([copy.deepcopy(plain)]))[0]
    for layer in (plain, other):
        layer(*inputs)[0].square().sum().backward()
    wanted = opened_tensors({name: tensor.grad for name, tensor in plain.named_parameters()}, dict(other.named_parameters()))
    assert wanted.keys() == dict(other.named_parameters()).keys()
    for name, tensor in other.named_parameters():
        assert torch.allclose(tensor.grad, wanted[name], rtol=1e-4, atol=1e-4)


def test_weights_are_dropped_in_training_only():
    plain, inputs = attention("plain")
    other = OpenAttention(copy.deepcopy(plain))
    other.dropout = 0.5
    for asked in ({}, {"need_weights": False}):
        with torch_seeded(np.random.default_rng(2)):
            first, second = (other.train()(*inputs, **asked)[0] for _ in range(2))
        assert not torch.equal(first, second)
        assert torch.allclose(other.eval()(*inputs, **asked)[0], plain.eval()(*inputs, **asked)[0], atol=1e-5)


def test_a_causal_mask_must_be_given():
    plain, inputs = attention("plain")
    with pytest.raises(RuntimeError, match="give attn_mask too"):
        OpenAttention(plain)(*inputs, is_causal=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_given_back_is_torchs_class_with_its_names_and_values(kind):
    plain, inputs = attention(kind)
    own = nn.Sequential(nn.Linear(2, 2), plain)
    there = opened(copy.deepcopy(own))
    assert type(there[1]) is OpenAttention
    back = closed(there, own)
    assert type(back[1]) is nn.MultiheadAttention
    assert list(back.state_dict()) == list(own.state_dict())
    assert all(torch.equal(tensor, own.state_dict()[name]) for name, tensor in back.state_dict().items())
    assert torch.equal(back[1](*inputs)[0], plain(*inputs)[0])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # torch's own encoder makes one
def test_a_transformer_computes_the_same_with_and_without_padding():
    with torch_seeded(np.random.default_rng(3)):
        own = nn.Transformer(8, 2, 2, 2, 16, batch_first=True).eval()
        x, y = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    there = opened(copy.deepcopy(own))
    assert sum(type(module) is OpenAttention for module in there.modules()) == 6
    for asked in ({}, {"src_key_padding_mask": PADDED, "memory_key_padding_mask": PADDED, "tgt_mask": LATER[:, :4]}):
        with torch.no_grad():  # torch's fused kernels run in the plain one
            assert torch.allclose(there(x, y, **asked), own(x, y, **asked), atol=1e-5)
    back = closed(there, own)
    assert back.encoder.use_nested_tensor == own.encoder.use_nested_tensor
    assert list(back.state_dict()) == list(own.state_dict())


class Language(nn.Module):
    """Torch's encoder and decoder under causal masks, without a word about what the masks are."""

    def __init__(self):
        super().__init__()
        options = {"dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **options), 1)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, **options), 1)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.decoder(self.encoder(x, mask, None, None), x, mask)


@pytest.mark.parametrize("training", [True, False])
def test_a_mask_is_not_compared_with_a_causal_one(training):
    with torch_seeded(np.random.default_rng(2)):
        plain, x = Language().train(training), torch.randn(3, 5, 8)
    network = opened(copy.deepcopy(plain))
    torch.testing.assert_close(network(x), plain(x))
    assert not torch.allclose(network(x)[:, 0], plain.decoder(plain.encoder(x), x)[:, 0])  # without a mask
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert network(mode.from_tensor(x)).shape == x.shape


def test_the_network_that_is_given_back_finds_causal_masks_as_torch_does():
    network = architecture(Language, {"": InputSpec((5, 8))})
    assert not any(module._forward_pre_hooks for module in network.bare(network.build()).modules())


class Own(nn.MultiheadAttention):
    """A subclass."""


def _with_hook() -> nn.Module:
    layer = nn.MultiheadAttention(8, 2)
    layer.register_forward_hook(lambda module, args, output: None)
    return nn.Sequential(layer)


def _tied() -> nn.Module:
    first, second = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2)
    second.in_proj_weight = first.in_proj_weight
    return nn.Sequential(first, second)


@pytest.mark.parametrize(
    "network",
    [
        lambda: nn.Sequential(Own(8, 2)),
        _with_hook,
        _tied,
        lambda: nn.Sequential(weight_norm(nn.MultiheadAttention(8, 2), "in_proj_weight")),
    ],
    ids=["subclass", "hook", "tied", "parametrized"],
)
def test_what_is_more_than_torchs_class_stays(network):
    assert not any(type(module) is OpenAttention for module in opened(network()).modules())


def test_one_layer_under_two_names_stays_one():
    layer = nn.MultiheadAttention(8, 2)
    pair = nn.ModuleDict({"a": layer, "b": layer})
    assert type(opened(pair)["a"]) is nn.MultiheadAttention  # its weights have two names


def test_frozen_weights_stay_frozen():
    layer = nn.MultiheadAttention(8, 2)
    layer.in_proj_weight.requires_grad_(False)
    there = opened(nn.Sequential(layer))[0]
    trained = {name for name, parameter in there.named_parameters() if parameter.requires_grad}
    assert trained == {"q_proj.bias", "k_proj.bias", "v_proj.bias", "out_proj.weight", "out_proj.bias"}


class Reader(nn.Module):
    """A network of a user, with attention between an embedding of steps and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, 24), nn.Linear(24, 3)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 2, 48, batch_first=True), 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


PROJECTED = [f"encoder.layers.0.self_attn.{name}_proj" for name in ("q", "k", "v", "out")]


@pytest.mark.parametrize("method", ["fedhm", "prism", "orthdrop", "fedpara", "lowrank", "pufferfish", "flanc", "factorized-fl"])
def test_methods_factorize_its_layers(method):
    source, chosen = architecture(Reader, {"": InputSpec((7, 5))}), create(method)
    chosen = chosen.after_warmup() if method == "pufferfish" else chosen
    network = chosen.network(source, Tier(0.25)).eval()
    assert all(type(network.get_submodule(name)).__module__.startswith("edgefl.") for name in PROJECTED)
    assert network(torch.zeros(2, 7, 5)).shape == (2, 3)


@pytest.mark.parametrize("method", ["flora", "hetlora", "flexlora"])
def test_adapters_are_at_queries_and_values(method):
    network = create(method).network(architecture(Reader, {"": InputSpec((7, 5))}), Tier(0.25))
    adapted = {name.partition(".adapter.")[0] for name, _ in network.named_parameters() if ".adapter." in name}
    assert adapted == {PROJECTED[0], PROJECTED[2]}  # LoRA, section 4.2


def test_weights_with_torchs_names_are_read_and_given_back(tmp_path):
    with torch_seeded(np.random.default_rng(4)):
        own, x = Reader().eval(), torch.randn(2, 7, 5)
    safetensors.torch.save_file(own.state_dict(), tmp_path / "own.safetensors")
    source = with_weights(architecture(Reader, {"": InputSpec((7, 5))}), str(tmp_path / "own.safetensors"), False)
    network = source.build().eval()
    with torch.no_grad():
        assert torch.allclose(network(x), own(x), atol=1e-5)
    back = source.bare(network).state_dict()
    assert back.keys() == own.state_dict().keys()
    assert all(torch.equal(tensor, own.state_dict()[name]) for name, tensor in back.items())


def test_a_narrow_network_keeps_its_layers_where_torch_has_no_such_attention():
    source = architecture(Reader, {"": InputSpec((7, 5))})
    assert type(source.bare(source.build(0.5)).encoder.layers[0].self_attn) is nn.MultiheadAttention  # 2 heads of 6 channels
    assert type(source.bare(source.build(0.3)).encoder.layers[0].self_attn) is nn.MultiheadAttention  # 2 of 4, of 8
    assert type(source.bare(source.build(0.2)).encoder.layers[0].self_attn) is OpenAttention  # 2 of 3, of 5
