"""What a method decides, what a capability adds, and what happens to a method that was written for earlier names."""

import ast
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch

from edgefl import extend
from edgefl.extend import FedAvg, Method, Phased
from edgefl.methods import base
from edgefl.methods.capabilities import advanced
from edgefl.methods.create import create
from edgefl.methods.moved import HOOKS, MOVED
from edgefl.methods.options import MethodConfig
from edgefl.methods.tier_sum import folds, gaps
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.registry import methods
from edgefl.rng import generator
from edgefl.testing.cases import Case, images

CNN, TIERS = Architecture("cnn-digits", (1, 8, 8), 4), (Tier(1.0), Tier(0.5))


def test_the_contract_is_a_page():
    source = Path(base.__file__).read_text(encoding="utf-8")
    (kind,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    assert len([node for node in kind.body if isinstance(node, ast.FunctionDef)]) <= 12
    assert len(source.splitlines()) <= 150


class Shortest(Method):
    title = "Shortest"


def test_the_shortest_method_is_its_title():
    case = Case(Shortest(MethodConfig()), CNN, TIERS)
    state = case.state()
    after = case.method.aggregate(state, [case.update(state, tier, client) for client, tier in enumerate(TIERS)])
    assert case.method.deploy(after, TIERS[1])(images(3, 0)[0]).shape == (3, 4)
    assert folds(case.method)
    assert advanced(case.method, after, 2, generator(0)) == (case.method, after)


@pytest.mark.parametrize("name", methods.names())
def test_methods_of_the_package_state_their_facts(name):
    kind = methods.load(name)
    assert kind.paper != Method.paper
    assert kind.tier_meaning != Method.tier_meaning
    assert kind.travels != Method.travels or name == "origdrop" or name == "heterofl"


@pytest.mark.parametrize("name", HOOKS)
def test_a_function_of_a_capability_asks_for_it(name):
    capability = getattr(extend, HOOKS[name])
    assert name in vars(capability)
    with pytest.raises(TypeError, match=f"Old defines {name}, which belongs to edgefl.extend.{HOOKS[name]}: derive from it, too"):
        type("Old", (FedAvg,), {name: lambda self: None})
    assert type("New", (capability, FedAvg), {name: lambda self: None})


@pytest.mark.parametrize("name", MOVED)
def test_a_function_that_methods_no_longer_have_is_refused_with_its_place(name):
    with pytest.raises(TypeError, match=f"Old defines {name}, which methods no longer have; its place is now ") as error:
        type("Old", (FedAvg,), {name: lambda self: None})
    assert str(error.value).endswith(MOVED[name])
    with pytest.raises(AttributeError, match=f"'FedAvg' object has no attribute '{name}'; its place is now "):
        getattr(create("fedavg"), name)


@pytest.mark.parametrize("place", MOVED.values())
def test_places_of_moved_functions_exist(place):
    for word in place.replace("(", " ").split():
        module, _, name = word.rpartition(".")
        if module.startswith("edgefl.methods"):
            assert callable(getattr(importlib.import_module(module), name))


def test_an_unknown_attribute_has_no_hint():
    with pytest.raises(AttributeError, match=r"'FedAvg' object has no attribute 'personal'; edgefl.extend.Personal has it"):
        _ = create("fedavg").personal
    with pytest.raises(AttributeError, match=r"'FedAvg' object has no attribute 'stranger'$"):
        _ = create("fedavg").stranger
    assert not hasattr(create("fedavg"), "draws")


def test_a_capability_without_its_function_is_incomplete():
    kind = type("Phases", (Phased, FedAvg), {})
    with pytest.raises(TypeError, match="advance"):
        kind(MethodConfig())


def test_a_rule_of_its_own_is_no_sum():
    own = type("Own", (FedAvg,), {"aggregate": lambda self, state, updates: state})(MethodConfig())
    assert not folds(own)
    assert gaps(own)["tier_sums"] == Method.every_update
    assert folds(create("heterofl"))
    assert not folds(create("splitmix"))


def test_origdrop_begins_with_the_slices_that_heterofl_sends(monkeypatch):
    """Also of a network whose narrow tensors are not the leading entries, as where channels are concatenated."""

    def last(self, name, width, within=1.0):
        # The entries of the narrow network are the last ones, so that they differ from leading slices.
        narrow, wide = (dict(self.skeleton(of).state_dict())[name].shape for of in (width, within))
        return tuple(torch.arange(w - n, w) for n, w in zip(narrow, wide, strict=True))

    monkeypatch.setattr(Architecture, "entries", last)
    first = {name: create(name).init(CNN, TIERS[1:], generator(0, "init")) for name in ("heterofl", "origdrop")}
    sent = create("heterofl").submodel(first["heterofl"], TIERS[1], np.random.default_rng(0)).tensors
    assert all(torch.equal(first["origdrop"].tensors[name], tensor) for name, tensor in sent.items())
