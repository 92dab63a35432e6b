"""Rules of training and deployment: clients learn, and exported graphs compute what torch computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch

from edgefl.bundle.tier_graphs import same_network
from edgefl.bundle.write import TierFiles, build_tier
from edgefl.client.evaluate import accuracy, with_statistics
from edgefl.data.split import Split
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Phased, advanced
from edgefl.methods.personal import adapted
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.macs import count_macs
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.rng import generator
from edgefl.testing.cases import ARCHITECTURES, TRAINING, Case, Home, images, rule, trained
from edgefl.testing.parity import measured

WARM_UP, ROUNDS = 3, 7
"""Rounds of the longest warm-up of a method of this package, and rounds in which the toy problem is solved."""


@rule("a toy problem reaches its optimum")
def test_a_toy_problem_reaches_its_optimum(case: Case) -> None:
    method, state = case.method, case.state()
    homes = [Home(*images(60, client)) for client in range(3)]
    tiers = (case.tiers * 3)[:3]
    x, y = images(200, 99)
    asked, queried = Split(x.numpy(), y.numpy()), [Split(home.x.numpy(), home.y.numpy()) for home in homes]
    for round_ in range(1, ROUNDS + 1):
        method, state = advanced(method, state, round_, generator(0, round_, "advance"))
        current = replace(case, method=method)
        state = method.aggregate(state, [trained(current, state, tier, c, homes[c], round_) for c, tier in enumerate(tiers)])
        if round_ <= WARM_UP:
            continue
        reached = {}
        for client, (tier, home) in enumerate(zip(tiers, homes, strict=True)):
            module = with_statistics(method.deploy(state, tier, home.kept or None, client), queried, 8)
            reached[client] = accuracy(adapted(method, module, home.x, home.y), asked, 64)
        if min(reached.values()) >= 0.99:
            return
    assert min(reached.values()) >= 0.99, reached


@rule("a subclass stays its class")
def test_a_subclass_stays_its_class(case: Case) -> None:
    """Also in its next phase; the same generator leads to the same phase."""
    kind: type[Method] = type("Subclass", (type(case.method),), {})
    method, state = kind(case.method.config), case.state()
    homes = [Home(*images(12, client)) for client in range(len(case.tiers))]
    phases = WARM_UP + 1 if issubclass(kind, Phased) else 1
    for round_ in range(1, phases + 1):
        again, _ = advanced(method, state, round_, generator(0, round_, "advance"))
        method, state = advanced(method, state, round_, generator(0, round_, "advance"))
        assert type(method) is kind, f"advance returned a {type(method).__name__} in round {round_}"
        assert method == again
        current = replace(case, method=method)
        state = method.aggregate(state, [trained(current, state, tier, c, homes[c], round_) for c, tier in enumerate(case.tiers)])


@rule("one sample and a partial batch of one train")
@pytest.mark.parametrize("samples", [1, 9])
def test_one_sample_and_a_partial_batch_of_one_train(case: Case, samples: int) -> None:
    state = case.state()
    for tier in case.tiers:
        update = trained(case, state, tier, 0, Home(*images(samples, 5)))
        assert all(bool(torch.isfinite(t).all()) for t in update.tensors.values())


_EXPORTED: dict[tuple[Architecture, str], list[tuple[torch.nn.Module, TierFiles]]] = {}


def exported(case: Case, tier: Tier) -> tuple[torch.nn.Module, TierFiles]:
    """Return the deployed network of a first state and its files. An export takes a second, and several methods deploy one network."""
    module = case.method.deploy(case.state(), tier)
    networks = _EXPORTED.setdefault((case.architecture, str(module)), [])
    for other, files in networks:
        if same_network(other, module):
            return module, files
    networks.append((module, build_tier(module, InputSpec((1, 8, 8)), "net", np.random.default_rng(0))))
    return networks[-1]


@rule("ONNX equals torch", of_networks=True)
def test_onnx_equals_torch(case: Case) -> None:
    for tier in case.tiers:
        assert exported(case, tier)[1].parity_max_abs_error <= 1e-4


@rule("a training step in onnxruntime is torch's", of_networks=True)
def test_a_training_step_in_onnxruntime_is_torchs(case: Case) -> None:
    """Loss and every gradient against torch in float64; of networks but the first, the smallest tier stands for all."""
    tiers = case.tiers if case.architecture is ARCHITECTURES["cnn"] else case.tiers[-1:]
    for tier in tiers:
        for row in measured(case.method, type(case.method).__name__, case.architecture, case.tiers, tier):
            assert row.passes, row


@rule("a deployed network has the size and the MACs of its row of costs", of_networks=True)
def test_a_deployed_network_has_the_size_and_the_macs_of_its_row_of_costs(case: Case) -> None:
    for tier in case.tiers:
        module, files = exported(case, tier)
        cost = tier_cost(case.method, case.architecture, tier, TRAINING)
        tensors = [*module.parameters(), *module.buffers()]
        assert sum(p.numel() for p in module.parameters()) == cost.params_inference
        assert sum(t.numel() * t.element_size() for t in tensors) == cost.weights_bytes_inference
        counted = count_macs(onnx.load_model_from_string(files.contents["net/forward.onnx"]), 3)
        assert counted.uncounted_ops == ()
        assert counted.total == 3 * cost.macs_inference
