"""Attention of a sample that is padding only: torch returns 0, and no gradient becomes NaN."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.onnxgrad import Stepper, export, training_step

PLAIN = torch.sin(1.7 * torch.arange(24.0)).reshape(2, 3, 4) * 0.9
PADDED = PLAIN.clone()
PADDED[0, :, 0] = 2.0
MIXED = PLAIN.clone()
MIXED[0, :2, 0] = 2.0


def padding(x: Tensor) -> Tensor:
    """Return which steps are padding: a step that begins with a value above 1."""
    return x[:, :, 0] > 1.0


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x, src_key_padding_mask=padding(x))
        return found


class Attention(nn.Module):
    """Attention with a mask of one kind: bool or numbers, one for all queries or one for each, with or without heads."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.layer(x).chunk(3, -1)
        mask = ~padding(x)[:, None, :]
        if self.kind == "queries":
            mask = (~padding(x))[:, :, None].expand(-1, -1, x.shape[1])
        if self.kind == "numbers":
            mask = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
        if self.kind == "heads":
            query, key, value = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in (query, key, value))
            mask = mask[:, None]
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Multihead(nn.Module):
    """torch's own layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x, x, x, key_padding_mask=padding(x), need_weights=False)[0]
        return found


NETWORKS = {"layer": Layer, "multihead": Multihead} | {
    kind: lambda kind=kind: Attention(kind) for kind in ("keys", "queries", "numbers", "heads")
}


def square(net: nn.Module, x: Tensor) -> Tensor:
    found: Tensor = net(x).square().mean()
    return found


@pytest.mark.parametrize("name", NETWORKS)
def test_a_step_is_that_of_torch(name: str) -> None:
    torch.manual_seed(1)  # noqa: TID251 - the first weights of layers
    net = NETWORKS[name]()
    before = {f"p.{name}": parameter.detach().numpy().copy() for name, parameter in net.named_parameters()}
    graphs = training_step(net, square, {"x": PLAIN})
    for batch in (PADDED, MIXED):
        stepper = Stepper(graphs, before, lr=0.5)
        loss = stepper.step(batch.numpy())
        net.zero_grad()
        expected = square(net, batch)
        expected.backward()
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        for name, parameter in net.named_parameters():
            after = (parameter - 0.5 * parameter.grad).detach().numpy()
            np.testing.assert_allclose(stepper.tensors()[f"p.{name}"], after, rtol=1e-4, atol=1e-6, err_msg=name)


def test_weights_stay_finite_with_dropout() -> None:
    net = Layer(dropout=0.1)
    before = {f"p.{name}": parameter.detach().numpy().copy() for name, parameter in net.named_parameters()}
    stepper = Stepper(training_step(net, square, {"x": PLAIN}), before, lr=0.5)
    assert math.isfinite(stepper.step(PADDED.numpy()))
    assert all(np.isfinite(value).all() for value in stepper.tensors().values())


@pytest.mark.parametrize("name", ["multihead", "keys", "numbers"])
def test_inference_gives_nothing_to_padding(name: str) -> None:
    net = NETWORKS[name]().eval()
    graph = export(net, {"x": PLAIN})
    (found,) = onnxruntime.InferenceSession(graph.SerializeToString()).run(None, {"x": PADDED.numpy()})
    np.testing.assert_allclose(found, net(PADDED).detach().numpy(), rtol=1e-5, atol=1e-6)
