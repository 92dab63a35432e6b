"""Dropout in training graphs: masks from the seed, the same in onnxruntime and torch, none in the prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.onnxgrad import Stepper, training_step
from edgefl.onnxgrad.dropout import SeededDropout, mask
from edgefl.onnxgrad.exporter import export
from edgefl.onnxgrad.loss import loss_graph
from edgefl.onnxgrad.session import opened, options_for

LR = 0.5


def session_of(model):
    return opened(model.SerializeToString(), options_for(1))


def cross_entropy(network, x, y):
    return nn.functional.cross_entropy(network(x), y)


def of_seed(seed, layer=0, p=0.3, size=40_000):
    return mask(torch.zeros(()), (200, size // 200), p, torch.tensor(float(seed)), layer).flatten()


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2**23])
def test_the_rate_is_the_probability_within_four_deviations(p, seed):
    found = of_seed(seed, p=p)
    dropped = (found == 0).double()
    assert abs(dropped.mean() - p) < 4 * (p * (1 - p) / len(found)) ** 0.5
    assert torch.allclose(found[found != 0], torch.tensor(1 / (1 - p)))
    by_row = dropped.view(200, -1).mean(1)
    assert (by_row - p).abs().max() < 5 * (p * (1 - p) / 200) ** 0.5


@pytest.mark.parametrize(("one", "other"), [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((7, 2), (8, 1)), ((2**23 - 1, 0), (2**23, 0))])
def test_masks_of_other_steps_and_layers_are_independent(one, other):
    first, second = ((of_seed(*key) == 0).double() for key in (one, other))
    for shift in (0, 1, 200):  # also of neighbours
        correlation = torch.corrcoef(torch.stack([first, second.roll(shift)]))[0, 1]
        assert abs(correlation) < 4 / len(first) ** 0.5


def test_entries_of_one_mask_are_independent_of_their_neighbours():
    found = (of_seed(3) == 0).double()
    for shift in (1, 2, 16, 200, 2**14):
        assert abs(torch.corrcoef(torch.stack([found, found.roll(shift)]))[0, 1]) < 4 / len(found) ** 0.5


def test_onnxruntime_and_torch_make_the_same_masks_bit_by_bit():
    class Masked(nn.Module):
        def forward(self, x, seed):
            return mask(x, tuple(x.shape), 0.3, seed[0], 4)

    session = session_of(export(Masked().eval(), {"x": torch.zeros(2, 3, 7), "seed": torch.zeros(2)}, ("y",)))
    for seed, samples in ((0.0, 5), (1.0, 1), (2.0**23, 50)):
        x = torch.zeros(samples, 3, 7)
        (found,) = session.run(None, {"x": x.numpy(), "seed": np.full(samples, seed, np.float32)})
        np.testing.assert_array_equal(found, mask(x, tuple(x.shape), 0.3, torch.tensor(seed), 4).numpy())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.3, batch_first=True)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(self.layer(x.flatten(1, 2)).mean(1))


class Decoder(nn.Module):
    """Attention to earlier steps, with one head of keys and values for two heads of queries."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys, self.fc = nn.Linear(4, 8), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x):
        x = x.flatten(1, 2)
        q, k = (layer(x).unflatten(2, (-1, 4)).transpose(1, 2) for layer in (self.queries, self.keys))
        p = 0.3 if self.training else 0.0
        found = nn.functional.scaled_dot_product_attention(q, k, k, dropout_p=p, is_causal=True, enable_gqa=True)
        return self.fc(found.transpose(1, 2).flatten(2).mean(1))


class Stacked(nn.Module):
    """A recurrent layer of three layers with dropout between them, of which the outputs and the last states count."""

    def __init__(self, kind, **options):
        super().__init__()
        self.layer, self.fc = kind(4, 5, 3, dropout=0.3, batch_first=True, **options), nn.LazyLinear(3)
        self(torch.zeros(2, 2, 3, 4))

    def forward(self, x):
        out, last = self.layer(x.flatten(1, 2))
        states = torch.cat(last, 2) if isinstance(last, tuple) else last
        return self.fc(torch.cat((out[:, -1], states.transpose(0, 1).flatten(1)), 1))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
def test_layers_that_drop_almost_nothing_between_them_are_those_of_torch(kind, both):
    network, x = (
        Stacked(kind, bidirectional=both, bias=not both),
        torch.randn(2, 2, 3, 4, generator=torch.Generator().manual_seed(6)),
    )
    expected = network.eval()(x)
    network.train().layer.dropout = 1e-7
    with SeededDropout(torch.tensor(1.0)):
        torch.testing.assert_close(network(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_that_drops_almost_nothing_is_that_of_torch(causal, grouped):
    heads = 2 if grouped else 6
    draw = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(3, of, 5, 4, generator=draw) for of in (6, heads, heads))
    asked = {"is_causal": causal, "enable_gqa": grouped, "scale": 0.7}
    expected = nn.functional.scaled_dot_product_attention(q, k, v, **asked)
    with SeededDropout(torch.tensor(1.0)):
        found = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=1e-7, **asked)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Dropout(0.2), nn.Conv2d(2, 4, 2), nn.Dropout2d(0.5), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)),
        Attention(),
        Decoder(),
        Stacked(nn.LSTM),
        Stacked(nn.GRU, bidirectional=True),
    ],
    ids=["maps", "attention", "decoder", "lstm", "gru"],
)
def test_steps_are_those_of_torch_with_the_same_masks(network):
    names = {f"p.{n}": p for n, p in network.named_parameters()}
    graphs = training_step(network, cross_entropy, {"x": torch.zeros(2, 2, 3, 4), "y": torch.tensor([0, 2])})
    stepper = Stepper(graphs, {**{n: p.detach().numpy() for n, p in names.items()}, "seed": np.array(7, np.float32)}, LR)
    assert "seed" in stepper.inputs[0]
    optimizer = torch.optim.SGD(network.train().parameters(), LR)
    rng, y = np.random.default_rng(0), np.array([0, 2, 1, 1, 0])
    for seed in (7.0, 8.0, 9.0):
        x = rng.standard_normal((5, 2, 3, 4)).astype(np.float32)
        with SeededDropout(torch.tensor(seed)):
            loss = cross_entropy(network, torch.from_numpy(x), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert stepper.step(x, y) == pytest.approx(loss.item(), rel=1e-5)
        for name, parameter in names.items():
            np.testing.assert_allclose(stepper.tensors()[name], parameter.detach(), atol=1e-5)


def test_a_seed_gives_the_same_steps_and_the_prediction_drops_nothing():
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    batch = {"x": torch.zeros(2, 2, 3), "y": torch.tensor([0, 2])}
    graphs = training_step(network, cross_entropy, batch, parts=True)
    tensors = {f"p.{n}": p.detach().numpy() for n, p in network.named_parameters()}
    x, y = np.ones((7, 2, 3), np.float32), np.arange(7) % 3
    losses = [
        [stepper.step(x, y, part=3 if parts else None) for _ in range(3)]
        for parts in (False, True)
        for seed in (3, 3, 4)
        for stepper in [Stepper(graphs, {**tensors, "seed": np.array(seed, np.float32)}, 0.0, parts=parts)]
    ]
    assert losses[0] == losses[1] != losses[2]
    assert losses[3] == losses[4] != losses[5]
    assert len(set(losses[0])) == 3
    predict = loss_graph(network, [cross_entropy], batch).part(["logits"])
    assert "seed" not in [value.name for value in predict.graph.input]
    (found,) = session_of(predict).run(None, {"x": x, **tensors})
    np.testing.assert_allclose(found, network.eval()(torch.from_numpy(x)).detach(), atol=1e-6)


@pytest.mark.parametrize("layer", [nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)])
def test_alpha_dropout_leaves_mean_and_variance_as_they_are(layer):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((40, 50, 20)))
    with SeededDropout(torch.tensor(3.0)):
        found = layer(x)
    assert found.mean().item() == pytest.approx(0, abs=0.05)
    assert found.var().item() == pytest.approx(1, abs=0.06)
    count = 20 if isinstance(layer, nn.FeatureAlphaDropout) else 1
    lowest = -1.7580993408473766  # the limit of SELU, then scaled and shifted
    dropped = (found - lowest * 0.7 / (0.7 * (1 + 0.3 * lowest**2)) ** 0.5).abs() < 1e-5
    assert dropped.double().mean().item() == pytest.approx(0.3, abs=0.03)
    assert bool((dropped.sum(2) % count == 0).all())
    network = nn.Sequential(nn.Linear(6, 4), layer, nn.Flatten(), nn.Linear(8, 3))
    batch = {"x": torch.zeros(3, 2, 6), "y": torch.tensor([0, 2, 1])}
    assert training_step(network, cross_entropy, batch).steps  # which compares it with torch
