"""Networks that cannot be copied, sent or counted are refused with the remedy, however they are given."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from edgefl import export_network, profile
from edgefl.bundle.manifest_file import read
from edgefl.errors import InputError
from edgefl.methods.create import create
from edgefl.planning.network import architecture_of
from edgefl.records import Tier


def of(*layers):
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(6, 3))


REFUSED = {
    "scripted": (lambda: torch.jit.script(of()), "is a TorchScript module; give the module before torch.jit.script or torch.jit"),
    "traced": (
        lambda: torch.jit.trace(of(), torch.ones(1, 6)),
        "is a TorchScript module; give the module before torch.jit.script",
    ),
    "old weight norm": (
        lambda: of(nn.utils.weight_norm(nn.Linear(6, 6))),
        ": 1 has nn.utils.weight_norm, which cannot be copied; use nn.utils.parametrizations.weight_norm",
    ),
    "double": (lambda: of().double(), ": 1.weight is float64, expected float32; call .float() on the network"),
    "half": (lambda: of(nn.Linear(6, 6).bfloat16()), ": 1.weight is bfloat16, expected float32; call .float() on the network"),
    "double statistics": (lambda: of(nn.BatchNorm1d(6, affine=False).double()), ": 1.running_mean is float64, expected float32"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_a_network_of_which_there_are_no_copies_is_refused_with_the_remedy(name, tmp_path):
    factory, message = REFUSED[name]
    network = factory()
    network(torch.ones(2, 6)) if name == "old weight norm" else None
    calls = {
        "module": lambda: profile(network, (2, 3)),
        "factory": lambda: profile(factory, (2, 3)),
        "export": lambda: export_network(network, torch.randn(2, 2, 3), tmp_path / "bundle"),
    }
    for call in calls.values():
        with pytest.raises(InputError) as refused:
            call()
        assert message in str(refused.value)
        assert "raised" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_layer_of_a_module_is_named():
    with pytest.raises(InputError, match=r"Sequential: 1 is a TorchScript module, which is not traced; give the module before"):
        profile(of(torch.jit.script(nn.Linear(6, 6))), (2, 3))


def test_a_compiled_module_is_taken_as_it_is_written(tmp_path):
    network = torch.compile(of(), backend="eager")
    (row,) = profile(network, (2, 3))
    assert (row.model, row.layers[-3].layer) == ("Sequential", "1")
    folder = export_network(network, torch.randn(2, 2, 3), tmp_path / "bundle", method="heterofl", tiers=(1.0,))
    assert read(folder).model == "Sequential"
    assert read(folder).tiers[0].train.trained == {"1.weight": (3, 6), "1.bias": (3,)}


def test_statistics_over_all_batches_cost_the_same_from_a_module_and_a_factory():
    build = lambda: of(nn.BatchNorm1d(6, momentum=None))  # noqa: E731
    (module,), (factory,) = profile(build(), (2, 3)), profile(build, (2, 3))
    assert module.macs_forward == factory.macs_forward == 6 * 3
    assert module.training_memory_bytes == factory.training_memory_bytes


def test_a_copy_of_a_network_that_knows_its_architecture_copies_no_graphs():
    architecture = architecture_of(of(nn.Linear(6, 6)), (2, 3), 3)
    vars(architecture)["_computed"] = {"graphs": threading.Lock()}  # of which there are no copies
    network = create("fjord").network(architecture, Tier(1.0))
    assert copy.deepcopy(network).nested.architecture is architecture


class Noting(nn.Module):
    def __init__(self):
        super().__init__()
        self.order, self.layer = torch.tensor([2, 0, 1]), nn.Linear(6, 3)

    def forward(self, x):
        self.last = self.layer(x.flatten(1))[:, self.order]
        return self.last


@pytest.mark.parametrize("kind", ["pruned", "noting"])
def test_a_module_with_tensors_of_its_own_besides_parameters_is_copied(kind, tmp_path):
    network = Noting() if kind == "noting" else nn.Sequential(nn.Flatten(), prune.l1_unstructured(nn.Linear(6, 3), "weight", 0.3))
    network(torch.ones(2, 2, 3))
    assert profile(network, (2, 3))[0].macs_forward == 18
    export_network(network, torch.randn(2, 2, 3), tmp_path / "bundle", sign=False)
