"""What a network of one's own costs: any network and input, memory as a real step has it, ONNX files, and bad input in one line."""

import csv
import dataclasses
import io
import itertools
import json
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

from edgefl import profile
from edgefl.cli.main import main
from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.training import Training
from edgefl.errors import ConfigError, InputError
from edgefl.methods.create import create
from edgefl.onnxgrad.graphs import free_batch
from edgefl.onnxgrad.to_torch import load_onnx, module_of
from edgefl.planning.network import architecture_of
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier

CLASSES = 5
IDS = "int64:12"

OWN = """
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(4, width)
    def forward(self, x):
        return self.layer(x)

instance = Net(7)
number = 3

def factory():
    return Net()

def rates():
    return nn.Sequential(nn.Linear(4, 4), *(nn.Dropout(rate.item()) for rate in torch.linspace(0, 0.4, 3)), nn.Linear(4, 3))

def wants_a_width(width):
    return Net(width)

def raises():
    raise ValueError("no weights here\\nand a second line")

def no_module():
    return 3

class Flow(Net):
    def forward(self, x):
        return self.layer(x if x.sum() > 0 else -x)

class NoParameters(nn.Module):
    def forward(self, x):
        return torch.relu(x)

class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)

class Detached(Net):
    def forward(self, x):
        return self.layer(x).detach()

class Labels(Net):
    def forward(self, x):
        return self.layer(x).argmax(1, keepdim=True)

class Exotic(Net):
    def forward(self, x):
        return torch.linalg.matrix_exp(self.layer(x)[:, :, None] * torch.ones(3)).sum(1)

class Plain(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)
    def forward(self, x):
        return self.head(self.embedding(x).mean(1))

class Image(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(16, 5)
    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a module of networks of one's own."""
    (tmp_path / "own_networks.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("def f(:\n")
    (tmp_path / "own_exits.py").write_text("import sys\nsys.exit('usage: own_exits DATA')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("own_networks", "own_broken", "own_exits"):
        sys.modules.pop(name, None)


@pytest.fixture
def cli(monkeypatch, capsys):
    """The command line: arguments to (exit status, output, errors)."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["edgefl", "profile", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return stopped.value.code, captured.out, captured.err

    return run


# Any network.


def test_a_network_is_found_by_its_import_path(here):
    found = {name: profile(f"own_networks:{name}", (4,))[0].params for name in ("factory", "Net", "instance", "rates")}
    assert found == {"factory": 15, "Net": 15, "instance": 35, "rates": 20 + 15}


class Words(nn.Module):
    """Two inputs: identities of words, and numbers."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(30, 4), nn.Linear(4 + 6, 3)

    def forward(self, ids, x):
        return self.head(torch.cat([self.embedding(ids).mean(1), x], 1))


def test_several_inputs_are_shapes_texts_or_examples():
    ids, x = torch.ones(3, 9, dtype=torch.int64), torch.zeros(3, 6)
    shapes = profile(Words, {"ids": "int64:9", "x": (6,)}, batch_size=3)
    assert shapes[0].macs_forward == 30
    for inputs in (["ids=int64:9", "x=6"], {"ids": ids, "x": x}):
        assert profile(Words, inputs, batch_size=3) == shapes
    # The batch of examples is the default one, and their order that of the arguments.
    assert profile(Words(), [ids, x]) == profile(Words(), (ids, x)) == shapes


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    others: object


OUTPUTS = {
    "tuple": lambda a, b: (a, b),
    "dict": lambda a, b: {"a": a, "b": b},
    "nested": lambda a, b: [a, {"more": (b, None, 3)}],
    "dataclass": Output,
    "dataclass within": lambda a, b: Output(a, [Output(b, None)]),
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


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 2, 3)])
def test_outputs_of_more_dimensions_are_one_row_a_sample(shape):
    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, int(np.prod(shape)))

        def forward(self, x):
            return self.layer(x).reshape(-1, *shape)

    assert profile(Wide, (4,))[0].macs_backward == 4 * int(np.prod(shape))


class Inverted(nn.Module):
    """An inverted residual block: wider, depthwise, narrower."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        wide, self.skips = 4 * inputs, stride == 1 and inputs == outputs
        depthwise = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False)
        self.body = nn.Sequential(
            nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            depthwise, nn.BatchNorm2d(wide), nn.ReLU6(inplace=True),
            nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x):
        return x + self.body(x) if self.skips else self.body(x)


def mobile():
    stem = (nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
    blocks = (Inverted(8, 8, 1), Inverted(8, 16, 2), Inverted(16, 16, 1))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(16, CLASSES))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(50, 8), nn.LSTM(8, 16, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, ids):
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.attention = nn.Embedding(50, 16), nn.MultiheadAttention(16, 4, batch_first=True)
        self.wide, self.narrow, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, CLASSES)

    def forward(self, ids):
        x = self.embedding(ids)
        x = x + self.attention(x, x, x)[0]
        return self.head((x + self.narrow(torch.relu(self.wide(x)))).mean(1))


NETWORKS = {"mobile": (mobile, "3x32x32"), "lstm": (LSTM, IDS), "transformer": (Transformer, IDS)}
COUNTS = ("macs_forward", "macs_backward_input", "macs_backward_weight", "macs_compose", "params")


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


# Memory of a real step.


def real_step(build, inputs, batch_size, micro_batch=None, optimizer="momentum"):
    """Train one real step under the meter; return the prediction and what was held."""
    architecture, method = architecture_of(build, inputs), create("fedavg")
    training = Training(1, batch_size, 0.05, 0.9, 1e-4, optimizer, micro_batch)
    network, rng = architecture.build(), np.random.default_rng(0)
    (spec,) = architecture.inputs.values()
    x = torch.from_numpy(rng.standard_normal((batch_size, *spec.shape))).float()
    x, y = x.abs().to(spec.dtype), torch.from_numpy(rng.integers(CLASSES, size=batch_size))
    stepper = optimizer_of(method, network, training)
    held = train(LocalTraining(network, lambda m, b: method.local_loss(m, b), x, y, torch.ones(1) > 0, training, rng), stepper)
    return tier_cost(method, architecture, Tier(1.0), training), held


@pytest.mark.parametrize("micro_batch", [None, 4, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("name", NETWORKS)
def test_predicted_memory_is_what_a_real_step_holds(name, optimizer, micro_batch):
    predicted, held = real_step(*NETWORKS[name], 8, micro_batch, optimizer)
    assert predicted.peak_activation_bytes_training == held.peak_activation_bytes
    # Of an LSTM's two biases, whose gradient is the same, a real step copies the second.
    slack = 4 * 4 * 16 if name == "lstm" else 0
    assert 0 <= held.memory_bytes - predicted.training_memory_bytes <= slack


def test_predicted_memory_is_what_another_tracker_sees():
    """An independent witness: torch's own tracker of modules, parameters, gradients, optimizer state and activations."""
    network, x = mobile(), torch.zeros(8, 3, 32, 32)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, foreach=False)
    tracker = MemTracker()
    tracker.track_external(network, optimizer, x)
    with tracker:
        for step in range(2):  # the state of the optimizer is there from the second step on
            if step:
                tracker.reset_mod_stats()
            nn.functional.cross_entropy(network(x), torch.zeros(8, dtype=torch.int64)).backward()
            optimizer.step()
            optimizer.zero_grad()
    seen = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    (row,) = profile(mobile, "3x32x32", batch_size=8)
    assert row.training_memory_bytes == pytest.approx(seen, rel=0.02)


# ONNX files.


def exported(build, examples, path, free):
    """Export a network as its owner would, with weights that differ from layer to layer."""
    network = build().eval()
    shapes = tuple({0: torch.export.Dim("batch")} for _ in examples) if free else None
    torch.onnx.export(network, examples, path, dynamo=True, verbose=False, dynamic_shapes=shapes)
    return path


def conv():
    body = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3))
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


EXPORTED = {
    "conv": (conv, (torch.zeros(2, 3, 16, 16),), "3x16x16"),
    "two inputs": (Words, (torch.zeros(2, 9, dtype=torch.int64), torch.zeros(2, 6)), ["ids=int64:9", "x=6"]),
}


@pytest.mark.filterwarnings("ignore")  # the exporter warns about its own calls
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("kind", EXPORTED)
def test_an_exported_network_costs_what_the_module_costs(kind, free, tmp_path):
    build, examples, inputs = EXPORTED[kind]
    path = exported(build, examples, tmp_path / "network.onnx", free)
    (own,) = profile(build, inputs, batch_size=8)
    (row,) = profile(path, batch_size=8)
    assert {key: getattr(row, key) for key in COUNTS} == {key: getattr(own, key) for key in COUNTS}
    assert row.training_memory_bytes == pytest.approx(own.training_memory_bytes, rel=0.1)
    assert row.uncounted_ops == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "batch"), [("lstm", 1), ("lstm", 2), ("transformer", 2)])
def test_a_network_exported_for_one_batch_is_the_same_at_another(name, batch, tmp_path):
    """Where the batch is not the first dimension, or is merged with heads or positions, too."""
    build, inputs = NETWORKS[name]
    network = build().eval()
    path = exported(lambda: network, (torch.zeros(batch, 12, dtype=torch.int64),), tmp_path / "network.onnx", free=False)
    ids = torch.from_numpy(np.random.default_rng(1).integers(50, size=(5, 12)))
    module, _ = module_of(free_batch(load_onnx(path)))
    with torch.no_grad():
        assert torch.allclose(module(ids), network(ids), atol=1e-5)
    rows = [profile(path, batch_size=size)[0] for size in (2, 8)]
    assert [row.macs_forward for row in rows] == [profile(build, inputs)[0].macs_forward] * 2


def onnx_model(shape, operator="Relu", opset=20, **attributes):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    weight = onnx.numpy_helper.from_array(np.linspace(-1, 1, 4, dtype=np.float32), "w")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"], name="scale"),
        helper.make_node(operator, ["h"], ["y"], name="last", **attributes),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def test_a_free_dimension_needs_its_size(tmp_path, cli):
    path = tmp_path / "free.onnx"
    onnx.save(onnx_model(["n", "time", 4]), path)
    status, _, error = cli(path)
    assert (status, error.count("\n")) == (2, 1)
    assert "input x is timex4 a sample; give its sizes, --input x=Nx4" in error
    assert cli(path, "--input", "x=7x5")[2].strip().endswith("input x is timex4 a sample, got 7x5")
    assert cli(path, "--input", "y=7x4")[2].strip().endswith("input 'y' is not in the file; it has x")
    status, out, _ = cli(path, "--input", "x=7x4", "--format", "json")
    assert (status, json.loads(out)["rows"][0]["params"]) == (0, 4)


def test_a_graph_that_computes_with_its_batch_says_so(tmp_path):
    path = tmp_path / "fixed.onnx"
    model = onnx_model([2, 4], "Reshape")
    model.graph.node[1].input.append("s")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 2, 2]), "s"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2, 2]))
    # Of an addition of numbers for two samples nothing can be made for three.
    model.graph.node.append(helper.make_node("Add", ["y", "b"], ["z"], name="two"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 2, 2), np.float32), "b"))
    model.graph.output[0].name = "z"
    onnx.save(model, path)
    with pytest.raises(ConfigError, match="exported for a batch of 2 and computes with that number; export it with a free batch"):
        profile(path)


def bad_files():
    good = onnx_model(["n", 4]).SerializeToString()
    yield "truncated.onnx", good[: len(good) // 2], "not a valid ONNX model"
    yield "random.onnx", np.random.default_rng(0).bytes(300), "not a valid ONNX model"
    yield "empty.onnx", b"", "names no operator set of ai.onnx"
    yield "future.onnx", onnx_model(["n", 4], opset=999).SerializeToString(), "operator set 999, expected 13 to"
    yield "unknown.onnx", onnx_model(["n", 4], "Rleu").SerializeToString(), "no rule for operator 'Rleu'; did you mean 'Relu'?"
    yield "missing.onnx", None, "no such file"


@pytest.mark.parametrize("name", ["truncated", "random", "empty", "future", "unknown", "missing"])
def test_a_bad_onnx_file_is_one_line(name, tmp_path, cli):
    file, content, message = next(bad for bad in bad_files() if bad[0] == f"{name}.onnx")
    if content is not None:
        (tmp_path / file).write_bytes(content)
    status, out, error = cli(tmp_path / file)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert f"{tmp_path / file}: " in error
    assert message in error


# Bad input: one line each, exit status 2.

FLOWS = next(number for number, line in enumerate(OWN.splitlines(), start=1) if "x.sum() > 0" in line)
BAD = [
    ("instance --input 5", "does not take input 5: a and b must have same reduction dim, but got [32, 5] X [4, 7]"),
    ("Words --input 6", "but got torch.float32 instead"),
    ("Words --input 6", "; give token ids as --input int64:6"),
    ("Image --input 4x8x8", "expected input[32, 4, 8, 8] to have 3 channels, but got 4 channels instead (at own_networks.py:"),
    ("Image --input 8", "Expected 3D (unbatched) or 4D (batched) input to conv2d, but got input of size: [32, 8]"),
    ("Net --input y=4", "Net.forward has no argument 'y'; it takes x"),
    ("Net --input x=4 --input x=4", "'x=4' needs a name of its own among several inputs"),
    ("Net --input 4 --input 3", "'4' needs a name of its own among several inputs"),
    ("Net", "Net needs the shape of a sample, such as --input 3x32x32"),
    ("factry --input 4", "own_networks has no 'factry'; did you mean 'factory'?"),
    (
        "number --input 4",
        "own_networks:number is int, expected a factory of a network: a function or class that returns a torch.nn.Module",
    ),
    ("raises --input 4", "the factory raised ValueError: no weights here"),
    ("no_module --input 4", "the factory returned int, expected a torch.nn.Module"),
    ("wants_a_width --input 4", "the factory raised TypeError: wants_a_width() missing 1 required positional argument: 'width'"),
    ("Flow --input 4", "aten._local_scalar_dense.default depends on the values of its input"),
    ("Flow --input 4", f"(at own_networks.py:{FLOWS}: return self.layer(x if x.sum() > 0 else -x))"),
    ("NoParameters --input 4", "NoParameters has no parameter to train"),
    ("Frozen --input 4", "Frozen has no parameter to train: its network has none, or all are frozen"),
    ("Detached --input 4", "Detached returns values that depend on no parameter: there is nothing to train"),
    ("Labels --input 4", "Labels returns no tensor of floating-point numbers with a row per sample"),
    ("Net --input 0x3", "'0x3' has a size below 1"),
    ("Net --input axb", "'axb' is not of the form [NAME=][DTYPE:]SHAPE, such as 3x32x32 or ids=int64:80"),
    ("Net --input=-4", "'-4' is not of the form [NAME=][DTYPE:]SHAPE"),
    ("Net --input float33:4", "unknown type 'float33'; did you mean 'float32'?"),
    ("Net --input 4 --tiers nan --method fedhm", "tiers: a tier lies in (0, 1], got nan"),
    ("Net --input 4 --tiers 1,0.5", "a network as it is has one size; choose a method, such as --method fedhm"),
    ("Net --input 4 --method fedhn", "unknown method 'fedhn'; did you mean 'fedhm'?"),
    ("Net --input 4 --device raspberry", "unknown device 'raspberry'"),
    ("Net --input 4 --profile fone", "unknown profile 'fone'; did you mean 'phone'?"),
    ("Net --input 4 --codec int9", "unknown codec 'int9'; did you mean 'int8'?"),
    ("Net --input 4 --norm group", "own_networks:Net has its own normalisation; leave the key out"),
    ("Plain --input 4 --method heterofl", "Plain: no channel of this network can be cut"),
    ("Net --input 4 --method fedhm", "no layer can be factorized"),
]


def test_widths_of_a_network_of_ones_own(here, cli):
    status, out, _ = cli("own_networks:Image", "--input", "3x16x16", "--method", "heterofl", "--tiers", "1,0.5")
    assert status == 0
    # 3·8·9 + 8 + 8·16·9 + 16 + 16·5 + 5 = 1,477 and, with half of the channels, 3·4·9 + 4 + 4·8·9 + 8 + 8·5 + 5 = 453.
    assert [line.split()[1] for line in out.splitlines() if line.split()[:1] in (["1"], ["0.5"])][:2] == ["1.48", "453"]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line(arguments, message, here, cli):
    network, *options = arguments.split()
    status, out, error = cli(f"own_networks:{network}", *options)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("Error: ")
    assert message in error


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("own_nothing:factory", "no module named 'own_nothing' here or among the installed packages"),
        ("own_networks.inner:factory", "no module named 'own_networks.inner'"),
        ("own_broken:f", "importing own_broken raised SyntaxError: invalid syntax"),
        ("own_exits:f", "importing own_exits raised SystemExit: usage: own_exits DATA"),
        ("own_networks:", "'own_networks:' is not of the form package.module:NAME"),
        (":factory", "':factory' is not of the form package.module:NAME"),
        ("resnet188", "unknown model 'resnet188'; did you mean 'resnet18'?"),
    ],
)
def test_a_path_that_leads_nowhere_is_one_line(path, message, here, cli):
    status, out, error = cli(path, "--input", "4")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert message in error


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--batch-size", 0, "batch_size must be at least 1, got 0"),
        ("--batch-size", -3, "batch_size must be at least 1, got -3"),
        ("--micro-batch", 0, "micro_batch must be at least 1, got 0"),
        ("--samples", 0, "samples must be at least 1, got 0"),
        ("--local-epochs", -1, "local_epochs must be at least 1, got -1"),
    ],
)
def test_a_size_below_one_is_wrong_usage(flag, value, message, here, cli):
    status, out, error = cli("own_networks:Net", "--input", "4", flag, value)
    assert (status, out) == (2, "")
    assert error.strip().endswith(message)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ((4,), {"batch_size": 0}, "batch_size: expected at least 1, got 0"),
        ((4,), {"micro_batch": 0}, "micro_batch: expected at least 1, got 0"),
        ((4,), {"samples": -1}, "samples: expected at least 1, got -1"),
        ((4,), {"optimizer": "lion"}, "unknown optimizer 'lion'"),
        ((4, 0), {}, "(4, 0) has a size below 1"),
        (torch.zeros(0, 4), {}, "batch_size: expected at least 1, got 0"),
        (torch.zeros(2, 0), {}, "(0,) has a size below 1"),
        (torch.zeros(()), {}, "an example tensor has no dimension"),
        (4.5, {}, "got float, expected a sample's shape such as (3, 32, 32), or an example tensor"),
        ({"input": 4}, {}, "got int, expected a sample's shape"),
        ([torch.zeros(2, 4), torch.zeros(3, 4)], {}, "example tensors have batches of 2, 3; expected one size"),
    ],
)
def test_bad_input_of_the_function_is_told(inputs, options, message):
    with pytest.raises(InputError) as refused:
        profile(nn.Linear(4, 2), inputs, **options)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.block, self.head = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(checkpoint(self.block, self.front(x).tanh(), use_reentrant=False))


def test_checkpointing_is_refused_by_a_method_that_computes_with_other_weights():
    with pytest.raises(
        ConfigError, match=r"Again uses gradient checkpointing \(torch.utils.checkpoint\), which cannot find the wei"
    ):
        profile(Again, (6,), method="per-fedavg")


def test_sparse_embeddings_are_refused_with_the_remedy():
    network = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(ConfigError, match=r"gradients of nn.Embedding with sparse=True are not supported; give sparse=False"):
        profile(network, "int64:5")


def test_examples_without_names_are_told_by_their_shape():
    with pytest.raises(ConfigError, match="a tensor of 3x9 needs a name of its own"):
        profile(lambda: Words(), [torch.zeros(3, 9, dtype=torch.int64), torch.zeros(3, 6)])


# Formats, and operations in no table.


@pytest.mark.parametrize("format_", ["table", "json", "csv", "markdown", "html"])
def test_an_operation_in_no_table_is_named_and_fits_nowhere(format_, here, cli):
    devices = ("--device", "laptop", "--profile", "home")
    status, out, _ = cli("own_networks:Exotic", "--input", "4", *devices, "--format", format_)
    assert status == 0
    assert "aten.linalg_matrix_exp" in out
    if format_ == "json":
        rows = json.loads(out)["rows"]
        assert len(rows) > 1
        assert {row["fits"] for row in rows} == {False}
        assert {row["limiting_budget"] for row in rows} == {"uncounted_ops"}
    if format_ == "csv":
        assert {row["fits"] for row in csv.DictReader(io.StringIO(out))} == {"false"}


def test_a_network_that_is_counted_fits_a_laptop(here):
    assert profile("own_networks:Net", (4,), device="laptop")[0].fits is True


def test_formats_hold_the_same_numbers_and_layers_have_rows(here, cli):
    macs = 64 * 9 * (3 * 8 + 8 * 16) + 16 * 5  # two convolutions over 8×8 positions, and the head
    network = ("own_networks:Image", "--input", "3x8x8", "--batch-size", "2")
    rows = json.loads(cli(*network, "--format", "json")[1])["rows"]
    assert [row["macs_forward"] for row in rows] == [macs]
    assert [row["macs_forward"] for row in csv.DictReader(io.StringIO(cli(*network, "--format", "csv")[1]))] == [str(macs)]
    heads, _, values = (line.strip("| ").split(" | ") for line in cli(*network, "--format", "markdown")[1].splitlines())
    assert values[heads.index("macs_forward")] == str(macs)
    assert "87.6 k" in cli(*network)[1]
    layers = json.loads(cli(*network, "--layers", "--format", "json")[1])["layers"]
    assert {layer["layer"]: layer["macs_forward"] for layer in layers if layer["macs_forward"]} == {
        "body.0": 64 * 9 * 3 * 8,
        "body.2": 64 * 9 * 8 * 16,
        "head": 16 * 5,
    }
    assert "body.2" in cli(*network, "--layers")[1]


@pytest.mark.parametrize(("format_", "start"), [("table", ""), ("json", "{"), ("csv", "tier,"), ("html", "<!doctype html>")])
def test_out_writes_the_file(format_, start, here, cli):
    status, out, error = cli("own_networks:Net", "--input", "4", "--format", format_, "--out", "costs")
    assert (status, out, error) == (0, "", "written: costs\n")
    text = (here / "costs").read_text()
    assert text.lower().startswith(start)
    assert "own_networks:Net" in text


# A method on a network of one's own.


def test_fedhm_factorizes_a_small_convolutional_network():
    full, half = profile(conv, "3x16x16", method="fedhm", tiers=(1, 0.5))
    assert full.params == 3 * 8 * 9 + 8 + 8 * 16 * 9 + 16 + 16 * 16 * 9 + 16 + 16 * 5 + 5
    # The stem and the head stay. Rank 8: 3x1 weights from the inputs to 8 channels, 1x3 weights from those to 16.
    assert full.params - half.params == (8 * 16 * 9 - 8 * 3 * (8 + 16)) + (16 * 16 * 9 - 8 * 3 * (16 + 16))
    assert half.macs_train_step < full.macs_train_step


def test_fedhm_leaves_attention_as_it_is():
    full, quarter = profile(Transformer, IDS, method="fedhm", tiers=(1, 0.25))
    # Rank 8 of 32 units is more than half of 16; the rank is taken of the rows: 4 of 16 both ways. Head and attention stay.
    assert full.params - quarter.params == 2 * (16 * 32 - 4 * (16 + 32))
    attention = {layer.layer: layer.macs_forward for layer in quarter.layers}
    dense = {layer.layer: layer.macs_forward for layer in full.layers}
    assert attention["attention"] == dense["attention"] > 0
    assert all(a.download_bytes > 0 for a in itertools.chain(full.tensors, quarter.tensors))
