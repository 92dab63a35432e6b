"""A module that is called with other tensors is as it was afterwards."""

import pytest
import torch
from torch import nn

from edgefl.onnxgrad.stateless import called, carry, restored, settled, unset_buffers
from tests.shared_networks import SHARED, Again, Assigning, Late, samples, tensors_of

NETWORKS = (*SHARED, Assigning, Late)


def unchanged(network: nn.Module, before: dict[str, torch.Tensor]) -> bool:
    after = tensors_of(network)
    return after.keys() == before.keys() and all(after[name] is tensor for name, tensor in before.items())


@pytest.mark.parametrize("build", NETWORKS, ids=lambda build: build.__name__)
def test_a_call_computes_with_the_given_tensors_and_restores_the_module(build):
    network, other = build().eval(), build().eval()
    before, x = tensors_of(network), samples(network, 3)[0]
    given = {name: tensor.detach() for name, tensor in {**dict(other.named_parameters()), **dict(other.named_buffers())}.items()}
    torch.testing.assert_close(called(network, given, (x,)), other(x), rtol=0, atol=0)
    assert unchanged(network, before)


@pytest.mark.parametrize("name", ["body.weight", "again.weight"])
def test_one_name_of_a_tensor_with_two_suffices(name):
    network, other = Again(), Again()
    other.load_state_dict(network.state_dict())
    with torch.no_grad():
        other.body.weight.zero_()
    before, (x, _) = tensors_of(network), samples(network, 3)
    assert torch.equal(called(network, {name: torch.zeros(8, 8)}, (x,)), other(x))
    assert unchanged(network, before)
    with pytest.raises(ValueError, match=r"(body|again).weight is a tensor with several names"):
        called(network, {"body.weight": torch.zeros(8, 8), "again.weight": torch.ones(8, 8)}, (x,))
    with pytest.raises(KeyError, match="Again has no parameter or buffer body.wait"):
        called(network, {"body.wait": torch.zeros(8, 8)}, (x,))
    assert unchanged(network, before)


@pytest.mark.parametrize("build", NETWORKS, ids=lambda build: build.__name__)
def test_a_module_that_raises_is_restored(build):
    network = build()
    before = tensors_of(network)
    given = {name: torch.zeros_like(parameter) for name, parameter in network.named_parameters()}
    with pytest.raises((RuntimeError, IndexError)):
        called(network, given, (torch.full((2, 3), 99),))
    assert unchanged(network, before)


def test_gradients_of_several_are_those_of_each():
    network, (x, y) = Again(), samples(Again(), 3)
    before, leaves = tensors_of(network), {name: parameter.detach() for name, parameter in network.named_parameters()}

    def loss(leaves, x, y):
        return nn.functional.cross_entropy(called(network, dict(leaves), (x.unsqueeze(0),)), y.unsqueeze(0))

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(leaves, x, y)
    assert unchanged(network, before)
    nn.functional.cross_entropy(network(x), y).backward()
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(found[name].mean(0), parameter.grad)


def test_buffers_that_forward_assigns_are_given_back_and_carried():
    network, (x, _) = Assigning(), samples(Assigning(), 3)
    before, mean = tensors_of(network), torch.zeros(8)
    given = {"mean": mean}
    called(network, given, (x,))
    assert unchanged(network, before)
    assert given["mean"] is not mean
    carry({"mean": mean}, given)
    assert torch.equal(mean, 0.1 * x.mean(0))
    with pytest.raises(RuntimeError, match=r"mean has shape \(8,\) after a step, expected \(3,\)"):
        carry({"mean": torch.zeros(3)}, given)
    network(x)
    assert not unchanged(network, before)
    assert settled(network, {"mean": before["mean"]})
    assert unchanged(network, before)
    assert torch.equal(network.mean, mean)
    network.mean = torch.zeros(3)
    assert not settled(network, {"mean": before["mean"]})


def test_a_block_leaves_no_attribute_buffer_or_mode():
    network, (x, _) = nn.Sequential(Late(), nn.Linear(4, 2)), samples(Late(), 3)
    before, attributes = tensors_of(network), dict(vars(network[0]))
    assert len(unset_buffers(network)) == 1

    def change():
        network.eval()(x)
        network[0].last, network[0].head = x, nn.Linear(8, 4)
        network[0].register_buffer("more", x, persistent=False)
        raise KeyError

    with restored(network), pytest.raises(KeyError):
        change()
    assert unchanged(network, before)
    assert vars(network[0]).keys() == attributes.keys()
    assert network[0].training
    assert network[0].offset is None
    assert not network[0]._non_persistent_buffers_set
