"""Aggregation of each method against NumPy, with mixed signs, unequal samples and several tiers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgefl.client.parts import first_personal
from edgefl.errors import ConfigError, UnknownNameError
from edgefl.methods.create import create
from edgefl.methods.losses import masked_cross_entropy
from edgefl.methods.networks import global_tier
from edgefl.methods.penalties import decayed
from edgefl.methods.personal import received
from edgefl.methods.ranks import hybrid_ranks
from edgefl.models.base import Architecture
from edgefl.records import Batch, Tier, Update
from edgefl.registry import methods
from edgefl.rng import generator

ARCHITECTURE = Architecture("cnn-digits", (1, 8, 8), 4)


def updates_of(method, state, tiers, samples):
    updates = []
    for client, (tier, count) in enumerate(zip(tiers, samples, strict=True)):
        submodel = method.submodel(state, tier, generator(0, "s"))
        rng = np.random.default_rng(client)
        noisy = {n: torch.from_numpy(rng.normal(size=tuple(t.shape))).float() for n, t in submodel.tensors.items()}
        updates.append(Update(client, tier, noisy, submodel.places, count))
    return updates


def start(name, ratios, **options):
    method = create(name, options)
    tiers = tuple(map(Tier, ratios))
    return method, method.init(ARCHITECTURE, tiers, generator(0, "init")), tiers


def test_fedavg_weights_by_samples():
    method, state, (tier,) = start("fedavg", [1.0])
    updates = updates_of(method, state, [tier] * 3, [1, 5, 2])
    after = method.aggregate(state, updates)
    for name in state.tensors:
        stacked = np.stack([u.tensors[name].numpy().astype(np.float64) for u in updates])
        expected = np.average(stacked, axis=0, weights=[1, 5, 2])
        np.testing.assert_allclose(after.tensors[name].numpy(), expected, rtol=1e-6, atol=1e-7)


def test_heterofl_averages_each_entry_over_the_clients_that_hold_it():
    method, state, tiers = start("heterofl", [1.0, 0.5, 0.25])
    # No full-tier client: the entries outside width .5 keep their value.
    updates = updates_of(method, state, [tiers[1], tiers[2], tiers[2]], [1, 50, 2])
    after = method.aggregate(state, updates)
    for name, before in state.tensors.items():
        total, count = np.zeros(tuple(before.shape)), np.zeros(tuple(before.shape))
        for update in updates:
            corner = tuple(slice(0, size) for size in update.tensors[name].shape)
            total[corner] += update.tensors[name].numpy()
            count[corner] += 1
        expected = np.where(count > 0, total / np.maximum(count, 1), before.numpy())
        np.testing.assert_allclose(after.tensors[name].numpy(), expected, rtol=1e-6, atol=1e-6)
        assert count.max() == 3


def test_heterofl_averages_rows_of_the_classifier_over_the_clients_with_the_label():
    """Labels 0 to 3; nobody has label 3. The second client has half of the classifier's inputs, the third does not tell its labels."""
    method, state, tiers = start("heterofl", [1.0, 0.5])
    first, second, third = updates_of(method, state, [tiers[0], tiers[1], tiers[0]], [1, 50, 2])
    first, second = replace(first, labels=(0, 2)), replace(second, labels=(1, 2))

    def row(update: Update, label: int, kind: str = "weight") -> np.ndarray:
        return update.tensors[f"fc.{kind}"][label].numpy().astype(np.float64)

    after = method.aggregate(state, [first, second])
    weight, bias, before = (
        after.tensors["fc.weight"].numpy(),
        after.tensors["fc.bias"].numpy(),
        state.tensors["fc.weight"].numpy(),
    )
    narrow = len(row(second, 1))
    np.testing.assert_allclose(weight[0], row(first, 0), rtol=1e-6)
    np.testing.assert_allclose(weight[1, :narrow], row(second, 1), rtol=1e-6)
    np.testing.assert_array_equal(weight[1, narrow:], before[1, narrow:])
    np.testing.assert_allclose(weight[2, :narrow], (row(first, 2)[:narrow] + row(second, 2)) / 2, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(weight[2, narrow:], row(first, 2)[narrow:], rtol=1e-6)
    np.testing.assert_array_equal(weight[3], before[3])
    biases = row(first, 0, "bias"), row(second, 1, "bias"), (row(first, 2, "bias") + row(second, 2, "bias")) / 2
    np.testing.assert_allclose(bias, [*biases, state.tensors["fc.bias"][3].item()], rtol=1e-5, atol=1e-6)
    assert weight.min() < 0 < weight.max()

    # All other tensors are averaged as before. Unknown labels count as all of them.
    all_rows = create("heterofl", {"label_rows": False})
    plain = all_rows.aggregate(state, [first, second])
    different = {name for name in state.tensors if not torch.equal(plain.tensors[name], after.tensors[name])}
    assert different == {"fc.weight", "fc.bias"}
    np.testing.assert_allclose(method.aggregate(state, [first, third]).tensors["fc.bias"][3], row(third, 3, "bias"), rtol=1e-6)
    every = [replace(update, labels=(0, 1, 2, 3)) for update in (first, second, third)]
    same, bits = method.aggregate(state, every), all_rows.aggregate(state, every)
    assert all(torch.equal(same.tensors[name], bits.tensors[name]) for name in state.tensors)


@pytest.mark.parametrize(("options", "tau"), [({}, math.inf), ({"dynamic_tiers": True}, 5.0), ({"temperature": 0.5}, 0.5)])
def test_fedhm_multiplies_back_and_weights_with_softmax_of_the_ratio(options, tau):
    """Eq. 1 and 2; τ = 5 for dynamic tiers, ∞ for fixed ones; sample counts do not enter."""
    method, state, tiers = start("fedhm", [1.0, 0.5, 0.25], **options)
    updates = updates_of(method, state, tiers, [1, 50, 2])
    after = method.aggregate(state, updates)
    alpha = np.exp(np.array([1.0, 0.5, 0.25]) / tau)
    alpha /= alpha.sum()
    for name, before in state.tensors.items():
        full = [np.asarray(dense(update.tensors, name), np.float64) for update in updates]
        expected = sum(a * w for a, w in zip(alpha, full, strict=True))
        np.testing.assert_allclose(after.tensors[name].numpy(), expected, rtol=1e-4, atol=1e-5)
        assert expected.shape == tuple(before.shape)


def dense(tensors, name):
    """Sum over the rank, written with loops of einsum over the two small kernels rather than through unrolled matrices."""
    if name in tensors:
        return tensors[name].numpy()
    layer = name.removesuffix(".weight")
    u, v = tensors[f"{layer}.u.weight"].numpy(), tensors[f"{layer}.v.weight"].numpy()
    return np.einsum("rmi,nrj->nmij", u[..., 0], v[:, :, 0, :])


def test_fedhm_sends_the_best_approximation_of_every_layer():
    method, state, tiers = start("fedhm", [1.0, 0.5, 0.25])
    for tier in tiers[1:]:
        tensors = method.submodel(state, tier, generator(0)).tensors
        for layer, rank in hybrid_ranks(ARCHITECTURE.build(), tier.ratio).items():
            weight = state.tensors[f"{layer}.weight"].double().numpy()
            n, m, k1, k2 = weight.shape
            values = np.linalg.svd(weight.transpose(1, 2, 0, 3).reshape(m * k1, n * k2), compute_uv=False)
            error = np.linalg.norm(dense(tensors, f"{layer}.weight") - weight)
            assert rank == math.floor(tier.ratio * n)
            assert error == pytest.approx(np.sqrt((values[rank:] ** 2).sum()), rel=1e-4)


def test_one_decomposition_per_layer_serves_every_tier_and_client(monkeypatch):
    import edgefl.methods.fedhm as module

    calls = []
    real = module.truncated
    monkeypatch.setattr(module, "truncated", lambda matrix, ranks, start: calls.append(ranks) or real(matrix, ranks, start))
    method, state, tiers = start("fedhm", [1.0, 0.5, 0.25])
    for tier in (*tiers, *tiers):
        method.submodel(state, tier, generator(0))
    assert calls == [[16, 32], [16, 32]]


def test_fedhm_loss_adds_frobenius_decay_of_the_products():
    method, state, tiers = start("fedhm", [0.5], frobenius_decay=0.3)
    module = method.deploy(state, tiers[0])
    batch = Batch(torch.zeros(2, 1, 8, 8), torch.tensor([1, 2]))
    penalty = sum(float((dense(module.state_dict(), f"{layer}.weight") ** 2).sum()) for layer in ("conv2", "conv3"))
    plain = torch.nn.functional.cross_entropy(module(batch.x), batch.y)
    assert method.local_loss(module, batch).item() == pytest.approx(plain.item() + 0.15 * penalty, rel=1e-5)
    those = {name for name, p in module.named_parameters() if any(p is q for q in decayed(method, module))}
    assert not any(".u." in name or name.endswith("v.weight") for name in those)
    assert "conv1.weight" in those


def test_masked_cross_entropy_zeroes_the_logits_of_absent_labels():
    logits = torch.tensor([[2.0, -1.0, 5.0]])
    batch = Batch(torch.zeros(1), torch.tensor([0]), torch.tensor([True, True, False]))
    expected = -2.0 + math.log(math.exp(2.0) + math.exp(-1.0) + 1.0)
    assert masked_cross_entropy(logits, batch).item() == pytest.approx(expected)


def test_heterofl_scales_while_training_and_the_deployed_network_computes_the_same():
    method, state, tiers = start("heterofl", [1.0, 0.5])
    submodel = method.submodel(state, tiers[1], generator(0))
    module = submodel.build()
    module.load_state_dict(submodel.tensors)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 1, 8, 8))).float()
    with torch.no_grad():
        torch.testing.assert_close(method.deploy(state, tiers[1])(x), module.eval()(x), rtol=1e-4, atol=1e-5)
        plain = ARCHITECTURE.build(0.5)
        plain.load_state_dict(submodel.tensors)
        assert torch.allclose(module.conv1(x), plain.conv1(x) / 0.5)


def test_heterofl_does_not_scale_a_stem_that_has_all_channels():
    method, tiers = create("heterofl"), (Tier(1.0), Tier(0.25))
    state = method.init(Architecture("cnn-flanc", (1, 8, 8), 4), tiers, generator(0, "init"))
    network = method.deploy(state, tiers[1]).state_dict()
    torch.testing.assert_close(network["conv1.weight"], state.tensors["conv1.weight"])
    torch.testing.assert_close(network["conv2.weight"], state.tensors["conv2.weight"][:32] / 0.25)
    torch.testing.assert_close(network["conv3.weight"], state.tensors["conv3.weight"][:32, :32] / 0.25)
    torch.testing.assert_close(network["fc.weight"], state.tensors["fc.weight"][:, : 32 * 4])


@pytest.mark.parametrize("name", methods.names())
def test_every_method_trains_a_network_whose_stem_has_all_channels(name):
    method, architecture = create(name), Architecture("cnn-flanc", (1, 8, 8), 4)
    tiers = tuple(map(Tier, method.default_tiers))
    method.check(architecture, tiers, 4)
    state = method.init(architecture, tiers, generator(0, "init"))
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 1, 8, 8))).float()
    y = torch.arange(6) % 4
    for tier in tiers:
        submodel = method.submodel(state, tier, generator(0, "s"), 0)
        module = submodel.build()
        received(method, module, submodel.tensors, first_personal(method, architecture, tier, 0), (x, y))
        method.local_loss(module, Batch(x, y, torch.ones(4, dtype=torch.bool), 0.0)).backward()
        stems = {parameter.shape[0] for n, parameter in module.named_parameters() if n.endswith("conv1.weight")}
        assert stems <= {64}
        with torch.no_grad():
            assert method.deploy(state, tier, None, 0)(x).shape == (6, 4)


def test_fedavg_at_half_width_is_a_narrow_network():
    method, state, (tier,) = start("fedavg", [0.5])
    assert state.tensors["conv1.weight"].shape == (16, 1, 3, 3)
    assert global_tier(method, state) == tier


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("fedhx", {}, UnknownNameError, "unknown method 'fedhx'; did you mean 'fedhm'"),
        (
            "fedhm",
            {"temprature": 1},
            ConfigError,
            "method_options.temprature: fedhm has no such option; did you mean 'temperature'",
        ),
        ("fedhm", {"temperature": 0.09}, ConfigError, "method_options.temperature must be at least 0.1, got 0.09"),
        ("fedhm", {"frobenius_decay": float("nan")}, ConfigError, "method_options.frobenius_decay"),
        ("fedavg", {"x": 1}, ConfigError, "fedavg has no such option; known: none"),
    ],
)
def test_wrong_options_are_named(name, options, error, message):
    with pytest.raises(error, match=message):
        create(name, options)


def test_a_network_without_a_layer_to_factorize_is_refused():
    with pytest.raises(ConfigError, match="no layer can be factorized"):
        hybrid_ranks(torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4, 2)), 0.5)
    decoder = torch.nn.Sequential(
        *(torch.nn.ConvTranspose2d(4, 4, 3) for _ in range(2)), torch.nn.GRU(4, 4), torch.nn.Linear(4, 2)
    )
    counts = "1 classifier, 2 ConvTranspose2d without a low-rank form, 1 recurrent without a low-rank form"
    with pytest.raises(ConfigError, match=rf"no layer can be factorized \({counts}\)"):
        hybrid_ranks(decoder, 0.5)


@pytest.mark.parametrize("name", ["heterofl", "fedhm"])
def test_labels_that_a_client_has_none_of_are_masked_unless_told_otherwise(name):
    present = torch.tensor([True, False, True, False])
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 1, 8, 8))).float()
    batch = Batch(x, torch.tensor([0, 2, 2, 0, 0, 2]), present)
    masked, plain = create(name), create(name, {"mask_labels": False})
    network = ARCHITECTURE.build()
    logits = network(x)
    assert masked.local_loss(network, batch) == masked_cross_entropy(logits, batch)
    assert plain.local_loss(network, batch) == torch.nn.functional.cross_entropy(logits, batch.y)
