"""Bad input of ``edgefl profile`` and of the function: one line each, with the remedy."""

import json

import pytest
import torch
from command import told
from own_modules import OWN, Words
from torch import nn
from torch.utils.checkpoint import checkpoint

from edgefl import profile
from edgefl.errors import ConfigError, InputError

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
    (
        "classifier --input 3x20",
        "the factory needs num_classes, which is not known; give the number of classes, such as --classes 10",
    ),
    ("classifier --input 20 --classes 3", "the factory needs in_channels, which is not known; give in_channels a default"),
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


def test_a_factory_gets_the_channels_and_classes_that_it_names(here):
    status, out, _ = told("profile", "own_networks:classifier", "--input", "3x20", "--classes", "7", "--format", "json")
    assert (status, json.loads(out)["rows"][0]["params"]) == (0, 3 * 4 * 3 + 4 + 4 * 7 + 7)


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line(arguments, message, here):
    network, *options = arguments.split()
    status, out, error = told("profile", f"own_networks:{network}", *options)
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
def test_a_path_that_leads_nowhere_is_one_line(path, message, here):
    status, out, error = told("profile", path, "--input", "4")
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
def test_a_size_below_one_is_wrong_usage(flag, value, message, here):
    status, out, error = told("profile", "own_networks:Net", "--input", "4", flag, value)
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
