"""The forms of a forward graph: factors kept, multiplied out, or layer by layer whichever is cheaper; and weights beside the graph."""

import functools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from exported import forward_graph
from torch import nn

from edgefl.bundle.form_choice import FormCost, LayerForms, Room, choice_for, choose, layer_forms, room_for
from edgefl.bundle.forms import form_files, formed
from edgefl.errors import ConfigError, EdgeflError
from edgefl.factor.compose import composed_network, composes, factorized_layers, plain_layer
from edgefl.factor.hadamard_layers import ComposedLinear, HadamardWeight, ProductWeight, composed
from edgefl.factor.kernels import KernelConv, kernel_layer
from edgefl.factor.layers import LowRankConv, LowRankLinear
from edgefl.factor.rank1 import RankOneConv
from edgefl.factor.tucker import TuckerConv
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.graphs import check, split
from edgefl.onnxgrad.predict import predict
from edgefl.records import Tier
from edgefl.records.work import KINDS, Work
from edgefl.rng import generator

form_graph = functools.partial(forward_graph, fold=False)

CNN = Architecture("cnn-digits", (1, 8, 8), 10)
MLP = Architecture("mlp", (1, 8, 8), 10)
WIDE_STEM = Architecture("cnn-flanc", (1, 8, 8), 10)
TEXT = Architecture("lstm-shakespeare", (6,), 90)
FACTORIZING = {
    "factorized-fl": 1.0, "factorized-fl-beta": 1.0, "fedhm": 0.5, "fedpara": 0.4, "flanc": 0.5, "lowrank": 0.25, "orthdrop": 0.4,
    "pfedpara": 0.5, "prism": 0.4,
}  # fmt: skip


def filled(module: nn.Module, seed: int = 0) -> nn.Module:
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.from_numpy(rng.normal(0, 0.2, tuple(tensor.shape))))
    return module.eval()


@functools.cache
def network_of(method: str, architecture: Architecture = CNN) -> nn.Module:
    return filled(create(method).network(architecture, Tier(FACTORIZING[method])))


def samples(architecture: Architecture, count: int = 3) -> torch.Tensor:
    rng = np.random.default_rng(5)
    if architecture.vocabulary:
        return torch.from_numpy(rng.integers(architecture.vocabulary, size=(count, *architecture.input_shape)))
    return torch.from_numpy(rng.standard_normal((count, *architecture.input_shape)).astype(np.float32))


def outputs(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return module(x).numpy()


# Multiplying factors out.


@pytest.mark.parametrize(
    ("method", "architecture"),
    [(m, a) for m in FACTORIZING for a in (CNN, MLP, TEXT) if (m, a) != ("fedhm", TEXT)],  # which has nothing for FedHM
    ids=lambda value: getattr(value, "model", value),
)
def test_a_composed_network_is_plain_and_computes_the_same(method, architecture):
    network, x = network_of(method, architecture), samples(architecture)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    plain = composed_network(network)
    assert factorized_layers(network)
    assert not factorized_layers(plain)
    assert [(n, p.shape) for n, p in plain.named_parameters()] == [
        (n, p.shape)
        for n, p in architecture.build(
            Tier(FACTORIZING[method]).ratio if method in ("flanc", "prism") else 1.0
        ).named_parameters()
    ]
    assert np.abs(outputs(plain, x) - outputs(network, x)).max() <= 1e-4
    assert not any(part.training for part in plain.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


LAYERS = {
    "low rank, stride, dilation": (lambda: LowRankConv(nn.Conv2d(4, 6, (3, 5), (2, 1), (1, 4), (1, 2)), 3), (4, 9, 9)),
    "low rank, 1x1, stride": (lambda: LowRankConv(nn.Conv2d(4, 6, 1, 2), 3), (4, 9, 8)),
    "low rank, one column, stride": (lambda: LowRankConv(nn.Conv2d(4, 6, (3, 1), 2, (1, 0)), 3), (4, 9, 8)),
    "low rank, volumes, 1x1x1, stride": (lambda: LowRankConv(nn.Conv3d(4, 6, 1, 2), 3), (4, 5, 4, 3)),
    "low rank, same": (lambda: LowRankConv(nn.Conv2d(4, 6, (3, 4), padding="same", dilation=2), 3), (4, 9, 9)),
    "low rank, circular": (lambda: LowRankConv(nn.Conv2d(4, 6, 3, 2, (2, 1), padding_mode="circular"), 3), (4, 9, 9)),
    "tucker, circular": (lambda: TuckerConv(nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), 3), (4, 9, 9)),
    "rank one, reflected": (lambda: RankOneConv(nn.Conv2d(4, 6, 3, 2, 1, padding_mode="reflect")), (4, 9, 9)),
    "kernels, reflected": (lambda: KernelConv(nn.Conv2d(4, 6, 3, 2, 1, padding_mode="reflect"), 3), (4, 9, 9)),
    "tucker, stride": (lambda: TuckerConv(nn.Conv2d(4, 6, 3, 2, 1, bias=False), 3), (4, 9, 9)),
    "rank one, groups": (lambda: RankOneConv(nn.Conv2d(4, 6, 3, groups=2)), (4, 9, 9)),
    "low rank over signals": (lambda: LowRankConv(nn.Conv1d(4, 6, 5, 2, 4, 2), 3), (4, 19)),
    "kernels over signals, reflected": (lambda: KernelConv(nn.Conv1d(4, 6, 3, 2, 1, padding_mode="reflect"), 3), (4, 9)),
    "tucker over signals": (lambda: TuckerConv(nn.Conv1d(4, 6, 3, 2, 1, 2, bias=False), 3), (4, 9)),
    "rank one over signals": (lambda: RankOneConv(nn.Conv1d(4, 6, 3, groups=2)), (4, 9)),
    "low rank over volumes": (lambda: LowRankConv(nn.Conv3d(4, 6, (3, 1, 2), (2, 1, 2), (1, 0, 1)), 3), (4, 5, 2, 5)),
    "kernels over volumes": (lambda: KernelConv(nn.Conv3d(4, 6, (3, 1, 2), (2, 1, 2), (1, 0, 1)), 3), (4, 5, 2, 5)),
    "tucker over volumes": (lambda: TuckerConv(nn.Conv3d(4, 6, 2, 1, 1, bias=False), 3), (4, 3, 2, 3)),
    "rank one over volumes": (lambda: RankOneConv(nn.Conv3d(4, 6, 2, groups=2)), (4, 3, 2, 3)),
    "a product over signals": (lambda: composed(nn.Conv1d(4, 6, 3, 2, 1), {"weight": HadamardWeight((6, 4, 3), 2)}), (4, 9)),
    "gru, two ways": (
        lambda: composed(nn.GRU(4, 3, bidirectional=True, batch_first=True), {"weight_hh_l0_reverse": ProductWeight((9, 3), 2)}),
        (5, 4),
    ),
    "relu cells": (
        lambda: kernel_layer(nn.RNN(4, 3, 2, nonlinearity="relu", bias=False), {"weight_ih_l1": (2,), "weight_hh_l0": (1,)}), (5, 4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_keeps_its_stride_padding_groups_and_directions(name):
    make, shape = LAYERS[name]
    layer = filled(make(), 3)
    plain = plain_layer(layer)
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32))
    with torch.no_grad():
        parts = [y[0] if isinstance(y, tuple) else y for y in (layer(x), plain(x))]
    torch.testing.assert_close(parts[1], parts[0], rtol=0, atol=1e-5)
    assert type(plain).__module__.startswith("torch.nn")


def test_only_the_chosen_layers_are_multiplied_out_and_hooks_stay():
    network = filled(nn.Sequential(LowRankLinear(nn.Linear(6, 4), 2), LowRankLinear(nn.Linear(4, 3), 1)))
    network[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    plain = composed_network(network, lambda name, layer: name == "1")
    assert [type(layer) for layer in plain] == [LowRankLinear, nn.Linear]
    x = torch.ones(2, 6)
    torch.testing.assert_close(plain(x), network(x))


def test_a_kind_is_registered_once_and_an_unknown_one_is_refused():
    with pytest.raises(ConfigError, match="LowRankLinear: a function that composes it is registered already"):
        composes(LowRankLinear)(lambda layer: nn.Identity())
    with pytest.raises(ConfigError, match="Linear is not a factorized layer that can be composed; known: Composed, ComposedConv"):
        plain_layer(nn.Linear(2, 2))


# The graphs.


@functools.cache
def factored_graph(method: str, architecture: Architecture = CNN) -> bytes:
    return form_graph(
        network_of(method, architecture), architecture.input_shape, "int64" if architecture.vocabulary else "float32"
    )


@pytest.mark.parametrize(
    ("method", "architecture", "structure_bytes"),  # nodes and names: what a network of no size would take
    [
        ("fedpara", CNN, 12_000), ("pfedpara", MLP, 4_000), ("flanc", MLP, 4_000), ("factorized-fl", MLP, 4_000),
        ("fedpara", TEXT, 15_000), ("prism", TEXT, 15_000), ("flanc", WIDE_STEM, 4_000),
    ],
    ids=lambda value: str(getattr(value, "model", value)),
)  # fmt: skip
def test_a_factored_graph_holds_the_factors_and_computes_what_torch_does(method, architecture, structure_bytes):
    network, graph = network_of(method, architecture), factored_graph(method, architecture)
    model = onnx.load_model_from_string(graph)
    for count in (1, 3):
        x = samples(architecture, count)
        assert np.abs(predict(graph, x.numpy(), batch_size=count) - outputs(network, x)).max() <= 1e-4
    assert len(graph) <= sum(4 * parameter.numel() for parameter in network.parameters()) + structure_bytes
    stored = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    own = {f"{n}.{k}" for n, layer in factorized_layers(network).items() for k, _ in layer.named_parameters()}
    assert own <= stored.keys()
    assert all(stored[name] == tuple(network.get_parameter(name).shape) for name in own)
    assert b".py" not in graph
    assert [value.name for value in model.graph.input] == ["x"]


@pytest.mark.parametrize(
    ("architecture", "dense_share"), [(CNN, 0.5), (TEXT, 0.52)], ids=lambda value: getattr(value, "model", value)
)
def test_where_factors_dominate_the_file_is_at_most_a_fifth_larger_than_they_are(architecture, dense_share):
    size = len(factored_graph("fedpara", architecture))
    assert size <= 1.2 * sum(4 * parameter.numel() for parameter in network_of("fedpara", architecture).parameters())
    assert size <= dense_share * sum(4 * parameter.numel() for parameter in architecture.build().parameters())


def test_reshapes_of_samples_have_constant_targets():
    model = onnx.load_model_from_string(factored_graph("fedpara"))
    constants = {tensor.name for tensor in model.graph.initializer}
    assert all(node.input[1] in constants for node in model.graph.node if node.op_type == "Reshape")


def test_flanc_s_own_network_is_deployed_plain():
    """Its weights are multiplied once: two convolutions follow the stem, without any product of matrices."""
    method, tiers = create("flanc"), (Tier(1.0), Tier(0.5))
    network = method.deploy(method.init(WIDE_STEM, tiers, generator(0, "init")), tiers[1])
    model = onnx.load_model_from_string(forward_graph(network, WIDE_STEM.input_shape))
    kinds = [node.op_type for node in model.graph.node]
    assert (kinds.count("Conv"), kinds.count("Gemm"), kinds.count("MatMul")) == (3, 1, 0)
    weights = {tuple(tensor.dims) for tensor in model.graph.initializer}
    assert {(64, 1, 3, 3), (64, 64, 3, 3), (10, 64 * 4)} <= weights


def test_the_same_network_gives_the_same_bytes():
    assert form_graph(network_of("flanc", MLP), MLP.input_shape) == factored_graph("flanc", MLP)


def test_a_network_without_factors_gets_the_graph_that_it_always_had():
    network = MLP.build().eval()
    assert form_graph(network, MLP.input_shape) == forward_graph(network, MLP.input_shape)


def test_a_form_has_a_name_and_says_which_layers_it_multiplies_out():
    network = network_of("fedhm")
    assert formed(network, "factored", {"conv2"}).module is network
    assert formed(network, "factored").composed_layers == ()
    assert formed(network, "composed").composed_layers == ("conv2", "conv3")
    auto = formed(network, "auto", {"conv3"})
    assert auto.composed_layers == ("conv3",)
    assert (type(auto.module.conv2), type(auto.module.conv3)) == (LowRankConv, nn.Conv2d)
    with pytest.raises(ConfigError, match=r"form: got 'dense', expected one of factored, composed, auto"):
        formed(network, "dense")
    with pytest.raises(ConfigError, match="'fc' is no factorized layer of this network; it has conv2, conv3"):
        formed(network, "auto", {"fc"})


def test_a_network_in_training_mode_is_refused():
    with pytest.raises(EdgeflError, match="ConvNet is in training mode; a network is exported for evaluation"):
        form_graph(create("fedpara").network(CNN, Tier(0.4)).train(), CNN.input_shape)


# The choice.


def test_costs_of_a_layer_in_both_forms_by_hand():
    # Two products of 10·2 and 2·8 MACs, against 10·8; and X₁Y₁ᵀ and X₂Y₂ᵀ of rank 3 for the 4 × 8 weight before its 32 MACs.
    weight = HadamardWeight((4, 8), 3)
    network = nn.Sequential(LowRankLinear(nn.Linear(10, 8), 2), ComposedLinear(nn.Linear(8, 4), weight)).eval()
    low_rank, hadamard = layer_forms(network, torch.zeros(1, 10))
    assert (low_rank.factored.weight_bytes, low_rank.composed.weight_bytes) == (4 * (36 + 8), 4 * (80 + 8))
    # Bytes of a product: x, weight, result; the bias of the second one too. Operations: each product.
    assert low_rank.factored.work == Work(product_macs=36, product_bytes=4 * (10 + 20 + 2) + 4 * (2 + 16 + 8 + 8), operations=2)
    assert low_rank.composed.work == Work(product_macs=80, product_bytes=4 * (10 + 80 + 8 + 8), operations=1)
    assert (hadamard.factored.work.macs, hadamard.composed.work.macs) == (2 * 3 * 4 * 8 + 32, 32)
    assert (low_rank.at_run_time, hadamard.at_run_time) == (False, True)
    chosen = choose([low_rank, hadamard])
    assert chosen.composed == {"1"}
    assert chosen.reasons == {"0": "in factors: 36 MACs, composed 80", "1": "composed: 32 MACs, in factors 224"}


@pytest.mark.parametrize(("rank", "factored", "which"), [(2, 1536, frozenset()), (7, 5376, {"0"})])
def test_a_convolution_with_a_stride_is_composed_from_the_rank_on_at_which_its_factors_cost_more(rank, factored, which):
    # k×1 from 4 to r channels halves the rows of 8 × 8 only: 32 positions of 4·3·r; 1×k to 8 channels: 16 of 3·r·8. Dense: 16 of 36·8.
    network = nn.Sequential(LowRankConv(nn.Conv2d(4, 8, 3, 2, 1, bias=False), rank)).eval()
    (layer,) = layer_forms(network, torch.zeros(1, 4, 8, 8))
    assert (layer.factored.work.macs, layer.composed.work.macs) == (factored, 4608)
    assert choice_for(network, torch.zeros(1, 4, 8, 8)).composed == which


def forms(name: str, factored: int, composed_macs: int, more_bytes: int, at_run_time: bool = False) -> LayerForms:
    works = Work(convolution_macs=factored, operations=2), Work(convolution_macs=composed_macs, operations=1)
    return LayerForms(name, FormCost(works[0], 100), FormCost(works[1], 100 + more_bytes), at_run_time)


def test_budgets_go_to_the_largest_saving_per_byte():
    layers = [
        forms("a", 300, 200, 100),
        forms("b", 400, 200, 40),
        forms("c", 250, 200, 30),
        forms("d", 500, 200, 900, at_run_time=True),
    ]
    assert choose(layers).composed == {"a", "b", "c", "d"}
    chosen = choose(layers, room=Room(memory_bytes=75))
    assert chosen.composed == {"b", "c", "d"}
    assert chosen.reasons["a"] == "in factors: it takes 100 bytes more memory, 5 are left"
    assert choose(layers, room=Room(file_bytes=75)).composed == {"b", "c"}
    assert list(chosen.reasons) == ["a", "b", "c", "d"]


def test_where_the_budget_is_passed_already_a_smaller_form_is_taken_whatever_it_costs():
    slower = forms("a", 200, 300, -50)
    assert choose([slower]).composed == frozenset()
    assert choose([slower], room=Room(memory_bytes=-10)).reasons == {
        "a": "composed: the budget is passed, and it is smaller so; 300 MACs, in factors 200"
    }
    assert choose([forms("a", 300, 200, 50)], room=Room(memory_bytes=-10)).composed == frozenset()


def test_a_devices_rates_count_what_a_layer_takes_however_small_it_is():
    slow = tuple({"convolution_macs": 1e-9, "operations": 1e-6}.get(kind, 0.0) for kind in KINDS)
    layer = forms("a", 1000, 1500, 10)  # 1 + 2 · 1 µs in two layers, 1.5 + 1 µs in one
    assert choose([layer], slow).reasons == {"a": "composed: 2.5 µs, in factors 3.0"}
    assert choose([layer]).composed == frozenset()


def test_room_is_what_weights_and_activations_leave():
    network = nn.Sequential(LowRankLinear(nn.Linear(10, 8, bias=False), 2)).eval()
    x = torch.zeros(1, 10)
    layers = layer_forms(network, x)
    # Weights of 4·36 bytes; in factors the input of 4·10, and what each factor gives, in onnxruntime's blocks of 256 bytes.
    assert room_for(network, x, layers, 1000, 500) == Room(1000 - 144 - (40 + 2 * 256), 500 - 144)
    assert choice_for(network, x, memory_bytes=1000).composed == frozenset()


# Graphs that are stored without their weights.


@pytest.mark.usefixtures("recalling")
@pytest.mark.parametrize("name", sorted(FACTORIZING))
def test_a_stored_graph_takes_the_weights_of_another_network(name, monkeypatch):
    spec, facts = InputSpec(CNN.input_shape), {"method": name}
    first = next(iter(form_files(composed_network(network_of(name)), spec, facts=facts).values()))
    other = composed_network(filled(create(name).network(CNN, Tier(FACTORIZING[name])), seed=1))
    made = next(iter(form_files(other, spec, facts={"method": name, "made": "anew"}).values()))
    monkeypatch.setattr("edgefl.bundle.forms._flat", None)  # not called again
    stored = next(iter(form_files(other, spec, facts=facts).values()))
    assert stored == made != first
    x = samples(CNN)
    with torch.no_grad():
        np.testing.assert_allclose(predict(stored, x.numpy(), batch_size=3), other(x).numpy(), atol=1e-4)


# Weights beside the graph.


def test_above_the_limit_weights_lie_beside_the_graph_which_runs_from_its_folder(tmp_path):
    files = form_files(network_of("pfedpara", MLP), InputSpec(MLP.input_shape), path="0.5/forward.onnx", limit_bytes=20_000)
    assert files.keys() == {"0.5/forward.onnx", "0.5/forward.onnx.data"}
    (tmp_path / "0.5").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert len(files["0.5/forward.onnx"]) < 8_000
    model = onnx.load(tmp_path / "0.5/forward.onnx", load_external_data=False)
    about = [{entry.key: entry.value for entry in tensor.external_data} for tensor in model.graph.initializer]
    outside = [(int(entry["offset"]), int(entry["length"]), entry["location"]) for entry in about if entry]
    assert outside
    assert {location for *_, location in outside} == {"forward.onnx.data"}
    assert all(offset % 4096 == 0 and length >= 1024 for offset, length, _ in outside)
    assert max(offset + length for offset, length, _ in outside) == len(files["0.5/forward.onnx.data"])
    x = samples(MLP).numpy()
    found = predict(tmp_path / "0.5/forward.onnx", x, batch_size=3)
    assert np.abs(found - predict(factored_graph("pfedpara", MLP), x, batch_size=3)).max() == 0
    onnx.checker.check_model(tmp_path / "0.5/forward.onnx", full_check=True)


def test_up_to_the_limit_nothing_is_moved():
    graph = factored_graph("fedpara")
    model = onnx.load_model_from_string(graph)
    assert split(model, "a", len(graph)) == {}
    assert model.SerializeToString(deterministic=True) == graph
    assert split(model, "a", len(graph) - 1).keys() == {"a.data"}
    moved = onnx.load_model_from_string(model.SerializeToString(deterministic=True))
    check(moved)
    del moved.graph.node[0]
    with pytest.raises(onnx.checker.ValidationError):
        check(moved)


def test_onnxruntime_multiplies_factors_out_while_it_loads(tmp_path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    ort.InferenceSession(factored_graph("fedpara"), options)
    assert "MatMul" not in {node.op_type for node in onnx.load(tmp_path / "loaded.onnx").graph.node}
