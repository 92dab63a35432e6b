"""PriSM on recurrent layers: kernels for every gate, a small hidden state, and a plain network to deploy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from descent import descended
from prism_networks import TEXT, first_state, loaded
from torch import nn

from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.rng import generator

TRAINING = Training(epochs=1, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-4)


def test_a_recurrent_layer_has_its_own_kernels_for_every_gate():
    method, state = create("prism"), first_state(create("prism"), TEXT, 0.5)
    sent = method.submodel(state, Tier(0.5), generator(0), 0)
    module = loaded(sent)
    assert module(torch.zeros(2, 7, dtype=torch.int64)).shape == (2, 3)
    # 10 hidden units and 6 inputs: 6 kernels of a gate's first matrix and 10 of the others, half of each; the first 5 units of every gate.
    for name, inputs, count in (("weight_ih_l0", 3, 3), ("weight_hh_l0", 5, 5), ("weight_ih_l1", 5, 5)):
        for gate in range(4):
            assert sent.tensors[f"lstm.{name}.{gate}.u"].shape == (5, count)
            assert sent.tensors[f"lstm.{name}.{gate}.v"].shape == (count, inputs)
    drawn = {tuple(sent.places[f"lstm.weight_hh_l0.{gate}.u"].index[0].flatten().tolist()) for gate in range(4)}
    assert len(drawn) > 1
    units = [g * 10 + i for g in range(4) for i in range(5)]
    assert torch.equal(sent.tensors["lstm.bias_ih_l0"], state.tensors["lstm.bias_ih_l0"][units])


def test_a_recurrent_tier_runs_on_its_own_small_hidden_state_and_learns():
    method = create("prism")
    costs = [tier_cost(method, TEXT, Tier(keep), TRAINING) for keep in (0.8, 0.4, 0.2)]
    for larger, smaller in pairwise(costs):
        assert larger.macs_forward > smaller.macs_forward
        assert larger.peak_activation_bytes_training > smaller.peak_activation_bytes_training
        assert larger.params > smaller.params
    assert not any(cost.uncounted_ops for cost in costs)
    state = first_state(method, TEXT, 0.5)
    module = loaded(method.submodel(state, Tier(0.5), generator(0), 0)).train()
    x, y = torch.arange(84).view(12, 7) % 11, torch.arange(12) % 3
    losses = descended(method, module, Batch(x, y), lr=0.5, steps=60)
    assert losses[-1] < 0.2 * losses[0]
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parameters())


def test_a_recurrent_tier_deploys_as_the_plain_network_of_its_width():
    method = create("prism")
    state = first_state(method, TEXT, 0.4)
    network = method.deploy(state, Tier(0.4))
    assert type(network.lstm) is nn.LSTM
    assert network.lstm.hidden_size == 4
    weight = state.tensors["lstm.weight_hh_l0"]
    for gate in range(4):
        u, s, vh = np.linalg.svd(weight[10 * gate : 10 * gate + 10].double().numpy())
        expected = ((u[:, :4] * s[:4]) @ vh[:4])[:4, :4]
        found = network.lstm.weight_hh_l0[4 * gate : 4 * gate + 4].detach().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)
