"""Rounds of PriSM in which clients hand their momentum on, against prism_by_hand.py; and what a client holds and sends."""

from __future__ import annotations

from functools import partial

import numpy as np
import prism_by_hand as hand
import pytest
import torch
from small_conv import ARCHITECTURE, assert_tensors
from small_conv_by_hand import data
from test_prism_round import TIERS, Scripted

from edgefl.client.fast.gradients import Captures
from edgefl.client.fast.grouping import train_together
from edgefl.client.loop import LocalTraining, metered, optimizer_of
from edgefl.client.optimizer import FusedOptimizer
from edgefl.client.training import Training
from edgefl.errors import EdgeflError
from edgefl.methods.create import create
from edgefl.methods.momenta import momenta_of, momentum_name
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import received
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier, Update

METHOD = create("prism", {"frobenius_decay": hand.DECAY, "handed_momentum": True})
FRESH = create("prism", {"frobenius_decay": hand.DECAY})
WIDE = create("prism", {"handed_momentum": True, "outputs": 0.5})
TRAINING = Training(epochs=1, batch_size=8, lr=hand.LR, momentum=hand.MOMENTUM, weight_decay=0.0)
KERNELS = {"u": (4, 4, 1, 1), "v": (4, 4, 2, 2)}


def tensors_of(weights, momenta):
    """The server's tensors that hold the derivation's."""
    found = {momentum_name(name): momenta[name] for name in hand.REST}
    found[momentum_name("conv2.weight.u")] = np.stack([momenta[f"u{i}"] for i in range(4)], 1).reshape(KERNELS["u"])
    found[momentum_name("conv2.weight.v")] = np.stack([momenta[f"v{i}"] for i in range(4)])
    return {**weights, **found}


def first():
    state = METHOD.init(ARCHITECTURE, TIERS, np.random.default_rng(0))
    tensors = tensors_of(hand.start(), hand.first_momenta())
    assert {n: tuple(t.shape) for n, t in state.tensors.items()} == {n: t.shape for n, t in tensors.items()}
    assert not any(state.tensors[name].any() for name in tensors if name.startswith("momenta."))
    return state.replace({name: torch.from_numpy(tensor).float() for name, tensor in tensors.items()})


def fused(module):
    return FusedOptimizer(TRAINING, dict(module.named_parameters()), (), momenta=momenta_of(module))


def trained(state, number, name, make):
    keep, samples, begin = hand.CLIENTS[name]
    tier = Tier(keep)
    submodel = METHOD.submodel(state, tier, Scripted(hand.DRAWS[name]), number)
    module = submodel.build().train()
    x, y = data(samples, begin)
    batch = Batch(torch.from_numpy(x).float(), torch.from_numpy(y))
    received(METHOD, module, submodel.tensors, {}, (batch.x, batch.y))
    optimizer = make(module)
    for _ in range(2):
        optimizer.zero_grad()
        METHOD.local_loss(module, batch).backward()
        optimizer.step()
    return Update(number, tier, METHOD.upload(module), submodel.places, samples)


def signs_of(state):
    """The vectors that the state's decomposition chose, of the two that each kernel has."""
    u, _ = hand.kernels({name: tensor.double().numpy() for name, tensor in state.tensors.items()})
    drawn = METHOD.submodel(state, Tier(1.0), Scripted(()), 0).tensors["conv2.u.weight"].flatten(1).numpy()
    return {i: float(np.sign(drawn[:, i] @ u[i])) for i in range(4)}


@pytest.mark.parametrize("make", [fused, partial(optimizer_of, METHOD, training=TRAINING)], ids=["fused", "torch"])
@pytest.mark.parametrize("clients", ["AB", "A", "B"])
def test_a_round_that_hands_momentum_on(clients, make):
    state = first()
    updates = [trained(state, number, name, make) for number, name in enumerate(clients)]
    before = hand.start(), hand.first_momenta()
    expected = hand.round_with_momentum(*before, clients, signs_of(state))
    assert_tensors(METHOD.aggregate(state, updates).tensors, tensors_of(*expected))
    kernels = {i for name in clients for i in hand.DRAWS[name]}
    moved = {*(f"{side}{i}" for side in "uv" for i in kernels), *hand.REST}
    assert {name for name in before[1] if not np.allclose(expected[1][name], before[1][name], atol=1e-3)} == moved


@pytest.mark.parametrize("keep", [1.0, 0.5, 0.25])
def test_momentum_doubles_what_travels_and_adds_nothing_to_what_a_step_holds(keep):
    tier = Tier(keep)
    for handed in (METHOD, WIDE):
        fresh = create("prism", {**handed.config.model_dump(), "handed_momentum": False})
        sent, plain = (upload_shapes(of, ARCHITECTURE, tier) for of in (handed, fresh))
        assert sent == {**plain, **{momentum_name(name): shape for name, shape in plain.items()}}
        new, old = (tier_cost(of, ARCHITECTURE, tier, TRAINING) for of in (handed, fresh))
        assert new.upload_bytes > 1.9 * old.upload_bytes
        for key in (
            "parameter_bytes",
            "buffer_bytes",
            "optimizer_bytes",
            "training_memory_bytes",
            "macs_forward",
            "params_inference",
        ):
            assert getattr(new, key) == getattr(old, key), key
        batch = Batch(ARCHITECTURE.samples(8), torch.zeros(8, dtype=torch.int64))
        module = handed.network(ARCHITECTURE, tier)
        held = metered(handed, module, handed.local_loss, batch, TRAINING).split
        assert (held.parameters, held.optimizer, held.total) == (
            old.parameter_bytes,
            old.optimizer_bytes,
            old.training_memory_bytes,
        )


@pytest.mark.parametrize("method", [METHOD, WIDE], ids=["text", "code"])
def test_a_device_runs_the_network_without_momenta(method):
    state = method.init(ARCHITECTURE, TIERS, np.random.default_rng(0))
    for tier in (Tier(1.0), *TIERS):
        for network in (method.deploy(state, tier), method.factored(state, tier), method.device_network(ARCHITECTURE, tier)):
            assert not momenta_of(network)


def test_clients_that_train_together_hand_on_what_each_would_alone():
    state, tier = first(), Tier(0.5)
    submodel = METHOD.submodel(state, tier, Scripted((0, 2)), 0)
    locals_, alone = [], []
    for begin in (0.4, 2.0):
        module = submodel.build().train()
        x, y = data(16, begin)
        received(METHOD, module, submodel.tensors, {}, (None, None))
        local = LocalTraining(
            module, METHOD.local_loss, torch.from_numpy(x).float(), torch.from_numpy(y), None, TRAINING, np.random.default_rng(3)
        )
        locals_.append(local)
        optimizer = fused(module)
        for positions in LocalTraining(**{**vars(local), "rng": np.random.default_rng(3)}).epoch():
            METHOD.local_loss(module, Batch(*local.at(positions))).backward()
            optimizer.step()
            optimizer.zero_grad()
        alone.append(module.state_dict())
    stack = {name: torch.stack([submodel.tensors[name]] * 2).clone() for name in submodel.tensors}
    train_together(locals_, stack, frozenset(), Captures())
    for name, tensors in stack.items():
        for row, of in zip(tensors, alone, strict=True):
            torch.testing.assert_close(row, of[name], rtol=1e-4, atol=1e-5)


def test_there_are_no_training_graphs():
    from edgefl.bundle.tier_graphs import rule_of, tier_graphs
    from edgefl.client.objectives import PLAIN

    with pytest.raises(EdgeflError, match="PriSM has no training graphs: handed_momentum hands the momentum"):
        tier_graphs(METHOD, ARCHITECTURE, Tier(0.5), rule_of(TRAINING), PLAIN)
