"""Costs: closed forms for MACs, and predicted against measured memory."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.training import Training
from edgefl.cost.macs import COUNTED, ELEMENTWISE, IGNORED
from edgefl.cost.memory import LivenessMeter
from edgefl.cost.table import cost_of
from edgefl.cost.trace import Subject, Tracer
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.registry import methods


def loss(module, batch):
    return F.cross_entropy(module(batch.x).flatten(1)[:, :3], batch.y)


def subject(build, shape):
    def batch(size):
        return Batch(torch.empty(size, *shape), torch.zeros(size, dtype=torch.int64))

    return Subject(build, batch, loss, lambda m: torch.optim.SGD(m.parameters(), 0.1, 0.9))


def cost(build, shape, batch_size=4, **options):
    return cost_of(subject(build, shape), batch_size, (0, 0), **options)


# A stem in front, so that the layer under test needs its input's gradient.
STEM = 2 * 4 * 8 * 8
LAYERS = {
    "3x3": (lambda: nn.Conv2d(4, 6, 3, padding=1), 9 * 4 * 6 * 64),
    "strided": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1), 9 * 4 * 6 * 16),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2), 9 * 4 * 6 * 16),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), 9 * 4 * 64),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), 9 * 2 * 6 * 64),
    "kx1": (lambda: nn.Conv2d(4, 6, (3, 1), padding=(1, 0)), 3 * 4 * 6 * 64),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), 4 * 4 * 6 * 64),
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(256, 5)), 256 * 5),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_macs_equal_the_closed_form(kind):
    layer, macs = LAYERS[kind]
    row = cost(lambda: nn.Sequential(nn.Conv2d(2, 4, 1, bias=False), layer()), (2, 8, 8))
    assert row.macs_forward == STEM + macs
    # The stem's own input gradient is not needed, and not counted.
    assert row.macs_backward_weight == STEM + macs
    assert row.macs_backward_input == macs
    assert row.macs_backward == STEM + 2 * macs
    assert row.macs_compose == 0
    assert row.macs_train_step == 4 * (row.macs_forward + row.macs_backward)
    assert row.uncounted_ops == ()


def test_frozen_layers_have_no_weight_gradient():
    def build():
        network = nn.Sequential(nn.Conv2d(2, 4, 1, bias=False), nn.Conv2d(4, 6, 3, padding=1), nn.Conv2d(6, 3, 1))
        network[1].requires_grad_(False)
        return network

    row = cost(build, (2, 8, 8))
    middle, last = 9 * 4 * 6 * 64, 6 * 3 * 64
    assert row.macs_backward == STEM + middle + 2 * last
    assert row.gradient_bytes == 4 * (2 * 4 + 6 * 3 + 3)


def test_a_shared_layer_counts_as_often_as_it_runs():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(7, 7)

        def forward(self, x):
            return self.layer(self.layer(x))

    row = cost(Twice, (7,))
    assert row.macs_forward == 2 * 49
    assert row.params == 56


def test_work_on_weights_counts_once_per_step():
    class Composed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(10, 3)), nn.Parameter(torch.zeros(3, 20))

        def forward(self, x):
            return x @ (self.a @ self.b)

    row = cost(Composed, (10,), batch_size=6)
    assert row.macs_forward == 10 * 20
    assert row.macs_backward == 10 * 20
    assert row.macs_compose == 3 * 10 * 3 * 20


class Bilinear(nn.Module):
    """y_k = Σ x_i a_kij z_j with x and z of 6 and 5 values that two layers make of 3."""

    def __init__(self):
        super().__init__()
        self.x, self.z, self.layer = nn.Linear(3, 6, bias=False), nn.Linear(3, 5, bias=False), nn.Bilinear(6, 5, 4)

    def forward(self, x):
        return self.layer(self.x(x), self.z(x))


def test_a_bilinear_layer_counts_its_two_products_and_those_of_its_gradients():
    row = cost(Bilinear, (3,))
    inputs, whole = 3 * 6 + 3 * 5, 4 * 6 * 5
    assert row.macs_forward == inputs + whole + 4 * 5  # x into a, then z
    to_x, to_z, to_weight = whole + 6 * 5, whole + 4 * 5, 4 * 6 + whole
    assert row.macs_backward == inputs + to_x + to_z + to_weight
    assert row.uncounted_ops == ()


@pytest.mark.parametrize("centres", [30, 20])
def test_distances_are_element_wise_work_although_torch_multiplies_matrices_for_many_rows(centres):
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.centres = nn.Parameter(torch.zeros(centres, 8))

        def forward(self, x):
            return torch.cdist(x, self.centres)

    row = cost(Distances, (8,), batch_size=4)
    assert (row.macs_forward, row.uncounted_ops) == (0, ())
    assert sum(layer.elementwise_ops for layer in row.layers if layer.kind == "Distances") == centres * 8


def test_a_fourier_transform_goes_through_all_values_once_for_each_doubling_of_its_length():
    class Fourier(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))

        def forward(self, x):
            return torch.view_as_real(torch.fft.fft(x * self.scale)).flatten(1)

    row = cost(Fourier, (16,))
    assert (row.macs_forward, row.uncounted_ops) == (0, ())
    (layer,) = (layer for layer in row.layers if layer.kind == "Fourier")
    assert layer.elementwise_ops == 16 + 4 * 2 * 16  # 16 products; 4 passes through 16 complex values


class ComplexNetwork(nn.Module):
    """A complex convolution of 2×5×5 to 3×3×3 values, then a complex product of 9 values each with 9 × 4."""

    def __init__(self):
        super().__init__()
        self.kernel = nn.Parameter(torch.zeros(3, 2, 3, 3, dtype=torch.complex64))
        self.matrix = nn.Parameter(torch.zeros(9, 4, dtype=torch.complex64))

    def forward(self, x):
        x = F.conv2d(x.to(torch.complex64), self.kernel).flatten(2)
        return (x @ self.matrix * 1j).abs()


def test_a_complex_product_counts_four_real_ones_and_torch_s_complex_convolution_three():
    row = cost(ComplexNetwork, (2, 5, 5))
    product, convolution = 3 * 9 * 4, 27 * 2 * 9
    assert row.macs_forward == 4 * product + 3 * convolution
    assert row.macs_backward_weight == 4 * product + 3 * convolution
    assert (row.macs_backward_input, row.macs_compose) == (4 * product, 0)


def test_a_complex_value_counts_as_two():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return torch.view_as_real((x * self.scale).to(torch.complex64) * 2).sum(2)

    (layer,) = (layer for layer in cost(Doubled, (5,)).layers if layer.kind == "Doubled")
    assert layer.elementwise_ops == 5 + 10 + 10  # five products, five complex ones, the sum of ten parts


def test_an_operation_in_no_table_is_reported():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return torch.linalg.matrix_exp(self.layer(x)[:, :, None] * 0.0 + torch.zeros(4, 4)).sum(1)

    assert any("exp" in name for name in cost(Odd, (4,)).uncounted_ops)


def test_no_operation_is_in_two_tables_and_every_reason_is_written():
    tables = [{op.overloadpacket for op in COUNTED}, set(IGNORED), set(ELEMENTWISE)]
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert all(len(reason) > 10 for reason in (*IGNORED.values(), *ELEMENTWISE.values()))


def test_inference_peak_of_a_chain_is_its_largest_pair():
    """No view or element-wise operation adds anything; input and output of the largest step are alive together."""

    def build():
        grow = nn.Conv2d(4, 16, 1)
        return nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), grow, nn.Flatten(), nn.Linear(16 * 64, 3))

    peak = Tracer(subject(build, (2, 8, 8))).inference(5).peak_bytes
    floats = 5 * 64
    # x (2 channels) is held by the caller; the convolution's input (4) and output (16) are alive with it.
    assert peak == 4 * floats * (2 + 4 + 16)


@pytest.mark.parametrize("batch_size", [1, 8, 32])
@pytest.mark.parametrize("name", methods.names())
def test_predicted_memory_is_what_training_holds(name, batch_size):
    method = create(name)
    architecture = Architecture("cnn-digits", (1, 8, 8), 10)
    training = Training(1, batch_size, 0.05, 0.9, 1e-4)
    for ratio in method.default_tiers:
        tier = Tier(ratio)
        module = method.network(architecture, tier)
        rng = np.random.default_rng(0)
        x = torch.from_numpy(rng.standard_normal((batch_size, 1, 8, 8))).float()
        y = torch.from_numpy(rng.integers(10, size=batch_size))
        optimizer = optimizer_of(method, module, training)
        result = train(
            LocalTraining(module, lambda m, b: method.local_loss(m, b), x, y, torch.ones(10) > 0, training, rng), optimizer
        )
        predicted = tier_cost(method, architecture, tier, training)
        assert predicted.peak_activation_bytes_training == pytest.approx(result.peak_activation_bytes, rel=0.01)
        assert predicted.training_memory_bytes == pytest.approx(result.memory_bytes, rel=0.01)


def test_the_meter_sees_what_the_allocator_sees():
    """An independent witness: torch's profiler records every allocation of the CPU allocator in a forward and backward pass."""
    network = Architecture("cnn-digits", (1, 8, 8), 10).build()
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((32, 1, 8, 8))).float()

    def step():
        network(x).logsumexp(1).sum().backward()

    step()
    network.zero_grad()
    with torch_profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    network.zero_grad()
    with LivenessMeter() as meter:
        step()
    assert meter.peak().bytes == pytest.approx(peak, rel=0.05)
