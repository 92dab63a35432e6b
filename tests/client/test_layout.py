"""The order in which images lie while they are trained on: by what the network takes, and only the last bits depend on it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgefl.client.fast.layout import in_layout, lay_out, layout_of
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Batch, Tier

LAST = torch.channels_last


class Viewing(nn.Module):
    """What a user may write: it fails where channels lie last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).view(len(x), -1)


@pytest.mark.parametrize(
    ("module", "sample", "expected"),
    [
        (nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8), LAST),
        (Viewing(), torch.zeros(1, 3, 8, 8), torch.contiguous_format),
        (nn.Linear(8, 4), torch.zeros(1, 8), torch.contiguous_format),
        (nn.Embedding(9, 4), torch.zeros(1, 5, dtype=torch.int64), torch.contiguous_format),
        (nn.Conv2d(3, 4, 3), torch.zeros(0, 3, 8, 8), torch.contiguous_format),
        (nn.Conv2d(3, 4, 3, device="meta"), torch.zeros(1, 3, 8, 8, device="meta"), torch.contiguous_format),
    ],
)
def test_channels_lie_last_where_the_network_takes_images_in_that_order(module, sample, expected):
    assert layout_of(module, sample) is expected


def test_who_is_asked_stays_as_it_is():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).train()
    module[1].eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    layout_of(module, torch.randn(1, 3, 8, 8))
    assert [part.training for part in module.modules()] == [True, True, False, True]
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_laid_out_weights_stay_the_same_parameters():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    weights = list(module.parameters())
    values = [weight.detach().clone() for weight in weights]
    lay_out(module, LAST)
    assert [id(weight) for weight in module.parameters()] == [id(weight) for weight in weights]
    assert all(map(torch.equal, weights, values))
    # By these strides a convolution chooses its kernel, though with one channel both orders are the same bytes.
    assert weights[0].stride() == (9, 1, 3, 1)


@pytest.mark.parametrize(("model", "shape"), [("cnn-digits", (1, 8, 8)), ("resnet18", (3, 32, 32)), ("deit-tiny", (3, 32, 32))])
@pytest.mark.parametrize("name", ["fedavg", "fedhm", "fedpara"])
def test_a_step_s_gradients_are_the_same_in_either_order(name, model, shape):
    method, generator = create(name), torch.Generator().manual_seed(3)
    network = method.network(Architecture(model, shape, 10), Tier(method.default_tiers[-1])).double().train()
    x = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    batch = Batch(x, torch.tensor([1, 0, 9, 4]), torch.ones(10, dtype=torch.bool))
    loss, found = loss_of(method, PLAIN), []
    for layout in (torch.contiguous_format, layout_of(network, x[:1])):
        lay_out(network, layout)
        with torch.random.fork_rng():
            value = in_layout(loss, layout)(network, batch)
        found.append([value.detach(), *torch.autograd.grad(value, list(network.parameters()))])
    assert layout is LAST
    largest = max(float(gradient.abs().max()) for gradient in found[0])
    for plain, last in zip(*found, strict=True):
        torch.testing.assert_close(last, plain, rtol=1e-6, atol=1e-12 * largest)
