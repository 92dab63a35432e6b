"""What kernels allocate for themselves: the rules against the record of torch's allocator, a layer at a time."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from edgefl.cost.memory import LivenessMeter, held_by

LAST = torch.channels_last
BLOCKS_OF_16 = pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="blocks have other sizes here")


class First(nn.Module):
    """The output sequence of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Pairs(nn.Module):
    """A bilinear layer of two layers' outputs."""

    def __init__(self):
        super().__init__()
        self.x, self.z, self.layer = nn.Linear(40, 24), nn.Linear(40, 20), nn.Bilinear(24, 20, 8)

    def forward(self, x):
        return self.layer(self.x(x), self.z(x))


def images(*shape, order=torch.contiguous_format):
    return torch.randn(shape).to(memory_format=order)


ON_ANY = {
    "batch norm": (nn.BatchNorm2d(16), images(4, 16, 8, 8)),
    "batch norm, channels last": (nn.BatchNorm2d(16), images(4, 16, 8, 8, order=LAST)),
    "layer norm of a transposed value": (nn.LayerNorm(64), torch.randn(8, 64, 50).transpose(1, 2)),
    "group norm": (nn.GroupNorm(4, 16), images(8, 16, 8, 8)),
    "bilinear": (Pairs(), torch.randn(64, 40)),
    "one small sample": (nn.Conv2d(32, 32, 3, padding=1), images(1, 32, 16, 16)),
    "few 1x1": (nn.Conv2d(24, 40, 1), images(4, 24, 16, 16)),
}
WITH_BLOCKS = {
    "3x3": (nn.Conv2d(24, 40, 3, padding=1), images(4, 24, 16, 16)),
    "few channels": (nn.Conv2d(8, 24, 3, padding=1), images(4, 8, 16, 16)),
    "strided": (nn.Conv2d(64, 128, 3, 2, 1), images(8, 64, 16, 16)),
    "1x1": (nn.Conv2d(24, 40, 1), images(16, 24, 16, 16)),
    "grouped": (nn.Conv2d(32, 64, 3, padding=1, groups=4), images(4, 32, 16, 16)),
    "odd groups": (nn.Conv2d(24, 24, 3, padding=1, groups=4), images(4, 24, 16, 16)),
    "depthwise": (nn.Conv2d(24, 24, 3, padding=1, groups=24), images(4, 24, 16, 16)),
    "depthwise 5x5": (nn.Conv2d(24, 24, 5, padding=2, groups=24), images(4, 24, 16, 16)),
    "depthwise 7x7, channels last": (nn.Conv2d(32, 32, 7, padding=3, groups=32), images(4, 32, 16, 16, order=LAST)),
    "channels last": (nn.Conv2d(24, 40, 3, padding=1), images(4, 24, 16, 16, order=LAST)),
    "patches": (nn.Conv2d(3, 64, 16, 16), images(4, 3, 64, 64)),
    "1-D": (nn.Conv1d(32, 64, 5, padding=2), torch.randn(4, 32, 128)),
    "3-D": (nn.Conv3d(8, 16, 3, padding=1), torch.randn(4, 8, 8, 8, 8)),
    "transposed": (nn.ConvTranspose2d(32, 16, 4, 2, 1), images(4, 32, 16, 16)),
    "grouped transposed": (nn.ConvTranspose2d(32, 32, 3, 2, 1, groups=4, bias=False), images(4, 32, 16, 16)),
    "LSTM": (First(nn.LSTM(12, 64, batch_first=True)), torch.randn(16, 40, 12)),
    "attention": (nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True), torch.randn(4, 200, 32)),
}


def peaks(module, x):
    """Return the peak of a second forward and backward pass: metered, and by the allocator."""
    x.requires_grad_()

    def step():
        module(x).square().mean().backward()
        module.zero_grad()
        x.grad = None

    step()
    with LivenessMeter([x, *held_by(module)]) as meter:
        step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    live = allocated = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            allocated = max(allocated, live)
    return meter.peak().bytes, allocated


@pytest.mark.parametrize("kind", [*ON_ANY, *(pytest.param(kind, marks=BLOCKS_OF_16) for kind in WITH_BLOCKS)])
def test_a_layer_takes_what_its_rule_says(kind):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        metered, allocated = peaks(*(ON_ANY | WITH_BLOCKS)[kind])
    finally:
        torch.set_num_threads(threads)
    assert -0.01 * allocated <= metered - allocated <= 0.02 * allocated


def test_gradients_that_meet_are_added_in_place():
    block = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    metered, allocated = peaks(nn.Sequential(nn.Linear(64, 64), Twice(block)), torch.randn(512, 64))
    assert metered == pytest.approx(allocated, rel=0.005)


class Twice(nn.Module):
    """x · f(x) + x, whose input gets three gradients."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x * self.layer(x) + x
