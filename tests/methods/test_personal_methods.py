"""What stays on clients: FedPer, pFedPara and stand-alone training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.errors import AggregationError, ConfigError
from edgefl.factor.hadamard_layers import HadamardWeight
from edgefl.methods.axes import refused
from edgefl.methods.create import create
from edgefl.methods.networks import global_tier, upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.planning.network import architecture_of
from edgefl.records import Tier, Update
from edgefl.rng import generator

DIGITS = Architecture("cnn-digits", (1, 8, 8), 4)
MLP = Architecture("mlp", (1, 8, 8), 4)


def begin(name, architecture=DIGITS, ratios=None, **options):
    method = create(name, options)
    tiers = tuple(map(Tier, ratios or method.default_tiers))
    return method, method.init(architecture, tiers, generator(0, "init")), tiers


@pytest.mark.parametrize("name", ["fedper", "pfedpara", "standalone"])
@pytest.mark.parametrize("architecture", [DIGITS, MLP], ids=["cnn", "mlp"])
def test_clients_begin_with_what_the_server_deploys_for_nobody(name, architecture):
    method, state, tiers = begin(name, architecture)
    for tier in tiers:
        first = method.first_personal(architecture, tier, generator(0, "init"))
        nobody, client = (method.deploy(state, tier, personal).state_dict() for personal in (None, first))
        assert first
        assert all(torch.equal(nobody[key], client[key]) for key in nobody)


@pytest.mark.parametrize("name", ["fedper", "pfedpara", "standalone"])
def test_what_travels_and_what_stays_share_no_name(name):
    method, state, tiers = begin(name)
    for tier in tiers:
        network = method.network(DIGITS, tier)
        personal, travelling = method.personal(network), set(download_shapes(method, DIGITS, tier))
        assert not personal & travelling
        assert personal | travelling == set(network.state_dict())
        assert set(method.submodel(state, tier, generator(0)).tensors) == travelling
        assert set(method.upload(network)) == travelling
        assert set(method.keep(network)) == personal


def test_fedper_layers_count_from_the_end_and_take_what_lies_between():
    network = DIGITS.build()
    assert create("fedper").personal(network) == {"fc.weight", "fc.bias"}
    between = {"conv3.weight", "norm3.weight", "norm3.bias"}
    assert create("fedper", {"layers": 2}).personal(network) == between | {"fc.weight", "fc.bias"}


def test_fedper_refuses_to_average_nothing():
    message = "4 personal layers leave none to average, cnn-digits has 4: conv1, conv2, conv3, fc; give at most 3"
    with pytest.raises(ConfigError, match=message):
        create("fedper", {"layers": 4}).check(DIGITS, (Tier(1.0),), 3)
    create("fedper", {"layers": 3}).check(DIGITS, (Tier(1.0),), 3)


def test_pfedpara_factorizes_the_classifier_where_there_are_no_convolutions_or_when_asked():
    def factorized(architecture, **options):
        network = create("pfedpara", options).network(architecture, Tier(0.5))
        return [name for name, module in network.named_modules() if isinstance(module, HadamardWeight)]

    wide = Architecture("mlp", (1, 8, 8), 20)
    assert factorized(wide) == ["hidden.weight", "fc.weight"]
    assert factorized(wide, classifier=False) == ["hidden.weight"]
    assert factorized(DIGITS) == ["conv1.weight", "conv2.weight", "conv3.weight"]
    ten = Architecture("cnn-digits", (1, 8, 8), 10)
    assert factorized(ten, classifier=True)[-1] == "fc.weight"


def test_pfedpara_sends_half_of_the_factors():
    shapes = download_shapes(create("pfedpara"), DIGITS, Tier(0.5))
    both = download_shapes(create("fedpara"), DIGITS, Tier(0.5))
    factors = {name for name in both if name[-2:] in ("x1", "y1", "t1")}
    assert factors < set(shapes)
    assert {name: both[name] for name in factors} == {name: shapes[name] for name in factors}
    assert not any(name[-2:] in ("x2", "y2", "t2") for name in shapes)


def test_stand_alone_clients_have_the_width_of_their_tier():
    method, state, tiers = begin("standalone")
    for tier in tiers:
        submodel = method.submodel(state, tier, generator(0))
        assert submodel.tensors == submodel.places == download_shapes(method, DIGITS, tier) == {}
        dense = DIGITS.build(tier.ratio)
        deployed = method.deploy(state, tier)
        assert {n: t.shape for n, t in deployed.state_dict().items()} == {n: t.shape for n, t in dense.state_dict().items()}
    assert global_tier(method, state) == tiers[0]


def test_stand_alone_takes_no_tensors_and_at_least_one_client():
    method, state, tiers = begin("standalone")
    assert method.aggregate(state, [Update(0, tiers[1], {}, {}, 3)]).tensors == state.tensors
    with pytest.raises(AggregationError, match="client 0, tier 0.5: tensors missing or not expected: fc.weight"):
        method.aggregate(state, [Update(0, tiers[1], {"fc.weight": torch.zeros(1)}, {}, 3)])
    with pytest.raises(AggregationError, match="no update arrived"):
        method.aggregate(state, [])


def test_stand_alone_refuses_every_axis_that_needs_something_to_travel():
    reasons = refused(create("standalone").lacks, ("objective", "server_optimizer", "codec", "tier_assignment", "mode"))
    assert set(reasons) == {"prox", "dyn", "scaffold", "avgm", "adam", "yogi", "fp16", "int8", "sparse", "dynamic", "async"}
    assert all(len(reason) > 20 for reason in reasons.values())


@dataclass(frozen=True)
class WithCounters(Architecture):
    """A network with BatchNorm, whose counter of batches is no float and never travels."""

    def build(self, width: float = 1.0) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(512, 4))


@pytest.mark.parametrize("name", ["fedper", "pfedpara"])
def test_counters_stay_in_the_state_and_off_the_wire(name):
    method, state, (tier,) = begin(name, WithCounters("mlp", (1, 8, 8), 4))
    submodel = method.submodel(state, tier, generator(0))
    sent = submodel.tensors
    assert "1.num_batches_tracked" in state.tensors
    assert "1.num_batches_tracked" not in sent
    assert "1.running_mean" in sent
    after = method.aggregate(state, [Update(0, tier, sent, submodel.places, 2)])
    assert all(np.array_equal(after.tensors[n], state.tensors[n]) for n in state.tensors)
    method.deploy(after, tier)


@pytest.mark.parametrize(("model", "layer"), [("cnn-digits", "fc.weight"), ("mlp", "fc.weight.x1")])
def test_pfedpara_leaves_the_whole_classifier_at_home_where_asked(model, layer):
    architecture, method = Architecture(model, (1, 8, 8), 10), create("pfedpara", {"personal_classifier": True})
    network = method.network(architecture, Tier(0.5))
    kept = method.personal(network)
    assert {layer, "fc.bias"} <= kept
    assert not [name for name in download_shapes(method, architecture, Tier(0.5)) if name.startswith("fc.")]
    assert not {layer, "fc.bias"} & create("pfedpara").personal(network)


@pytest.mark.parametrize("name", ["clustered-fl", "pfedpara", "factorized-fl", "factorized-fl-beta"])
def test_classifiers_stay_at_home_where_labels_differ_in_meaning(name):
    def travels(options=None, scenario="alike"):
        method = create(name, options, scenario=scenario)
        shapes = upload_shapes(method, Architecture("cnn-digits", (1, 8, 8), 10), Tier(method.default_tiers[0]))
        return any(key.startswith("fc.") for key in shapes)

    assert travels()
    assert not travels(scenario="permuted")
    assert not travels(scenario="domains")
    assert travels({"personal_classifier": False}, "permuted")
    assert not travels({"personal_classifier": True})


def test_a_classifier_before_a_last_norm_is_personal_too():
    architecture = architecture_of(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4), nn.LayerNorm(4)), (8,), 4)
    method = create("pfedpara", {"personal_classifier": True})
    assert {"2.bias", "2.weight"} <= method.personal(method.network(architecture, Tier(0.5)))
