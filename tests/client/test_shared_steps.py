"""Clients train networks with tensors of several names, or with buffers that forward assigns, as a plain loop of torch does."""

import copy

import pytest
import torch
import torch.nn.functional as F

from edgefl.client.fast.capture import Inputs, gradient_of
from edgefl.client.fast.gradients import MANY, Captures
from edgefl.client.fast.grouping import gradients_of
from edgefl.client.per_sample import per_sample
from edgefl.factor.gradient import called_with
from edgefl.models.base import named_tensors
from edgefl.records import Batch
from tests.shared_networks import SHARED, Again, Assigning, parametrized, samples, tensors_of

NETWORKS = (*SHARED, Assigning)
STEPS = MANY + 5


def loss(module, batch):
    return F.cross_entropy(module(batch.x), batch.y)


def batches(network):
    return [samples(network, 6, seed) for seed in range(STEPS)]


def ids(build):
    return build.__name__


@pytest.mark.parametrize("build", NETWORKS, ids=ids)
def test_captured_steps_are_those_of_a_plain_loop(build):
    network = build().train()
    expected = copy.deepcopy(network)
    plain = torch.optim.SGD(expected.parameters(), lr=0.1)
    for x, y in batches(network):
        plain.zero_grad()
        F.cross_entropy(expected(x), y).backward()
        plain.step()
    captures, parameters = Captures(), dict(network.named_parameters())
    gradient = captures.gradient("kind", network, loss, parameters)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for x, y in batches(network):
        gradient(Batch(x, y, None, None), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert captures._captured
    found = tensors_of(network)
    for name, tensor in tensors_of(expected).items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("build", NETWORKS, ids=ids)
def test_no_way_to_compute_gradients_leaves_a_tensor_behind(build):
    network = build().train()
    before, names, (x, y) = tensors_of(network), [n for n, _ in network.named_parameters()], samples(network, 6)
    batch = Batch(x, y, torch.ones(4, dtype=torch.bool), None)
    inputs = Inputs({name: tensor.detach().clone() for name, tensor in named_tensors(network).items()}, batch)
    gradient_of(network, loss, names)(inputs)
    called_with(network, {name: torch.zeros_like(parameter) for name, parameter in network.named_parameters()}, x)
    counts = any(tensor.dtype == torch.int64 for tensor in before.values())
    if not counts and build is not parametrized:  # torch has no rule for several of either
        gradients_of(network, loss, names)(inputs.like(torch.stack([part, part]) for part in inputs.flat()))
    if build is not Assigning and len(before) == len(dict(network.named_parameters(remove_duplicate=False))):
        per_sample(loss, 1.0)(network, batch).backward()
    after = tensors_of(network)
    assert after.keys() == before.keys()
    assert all(after[name] is tensor for name, tensor in before.items())


def test_a_clipped_sample_moves_a_shared_layer_as_torch_does():
    network, (x, y) = Again(), samples(Again(), 1)
    per_sample(loss, 1e9)(network, Batch(x, y, None, None)).backward()
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    network.zero_grad()
    F.cross_entropy(network(x), y).backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)
