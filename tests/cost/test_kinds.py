"""Work by kind: counts worked out by hand, and sums that agree with the counts of MACs."""

from dataclasses import replace

import pytest
import torch
from made_costs import made_cost, worked_cost
from torch import nn

import edgefl
from edgefl.client.training import Training
from edgefl.cost.table import cost_of
from edgefl.cost.trace import Subject
from edgefl.records import Batch, Cost
from edgefl.records.work import NO_WORK, StepWork, Work


def cost(network: nn.Sequential, shape: tuple[int, ...], batch_size: int = 4, micro_batch: int | None = None) -> Cost:
    """Return the cost of a network whose loss is the sum of its outputs: trained by plain SGD."""
    subject = Subject(
        build=lambda: network,
        batch=lambda samples: Batch(torch.empty(samples, *shape), torch.zeros(samples, dtype=torch.int64), None),
        loss=lambda module, batch: module(batch.x).sum(),
        optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
    )
    return cost_of(subject, batch_size, (0, 0), micro_batch)


def test_a_depthwise_convolution_is_grouped_work():
    """8 channels of 6×6, kernel 3, padding 1: 9 MACs a value; the backward pass needs the weight's gradient only."""
    work = cost(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)), (8, 6, 6)).work_of(4, 1, 1)
    values = 4 * 8 * 6 * 6
    assert work.grouped_macs == work.grouped_backward_macs == 9 * values
    assert work.grouped_bytes == 4 * (values + values + 8 * 9)
    assert work.kernels == 8
    assert (work.convolution_macs, work.pointwise_macs, work.product_macs) == (0, 0, 0)


def test_a_pointwise_convolution_has_a_kernel_for_each_pair_of_channels():
    layers = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.Conv2d(16, 4, (3, 1), bias=False))
    work = cost(layers, (8, 6, 6)).work_of(4, 1, 1)
    assert work.pointwise_macs == work.pointwise_backward_macs == 4 * 36 * 8 * 16
    assert work.convolution_macs == 4 * (4 * 6) * 4 * 16 * 3
    assert work.convolution_backward_macs == 2 * work.convolution_macs
    assert work.kernels == 8 * 16 + 16 * 4
    forward = 4 * (4 * 288 + 128 + 4 * 576) + 4 * (4 * 576 + 192 + 4 * 96)
    backward = 4 * (4 * 576 + 4 * 288 + 128 + 128) + 4 * (4 * 96 + 4 * 576 + 192 + 4 * 576 + 192)
    assert work.product_bytes == forward + backward


def test_an_inference_transforms_its_weights_once_whatever_the_samples():
    network = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Flatten(), nn.Linear(48, 5, bias=False))
    one, eight = (cost(network, (2, 6, 6), batch_size=4).inference_of(samples) for samples in (1, 8))
    assert (one.packed_weights, one.convolutions, one.kernels) == (2 * 3 * 9, 1, 6)
    assert (eight.packed_weights, eight.convolutions, eight.operations) == (one.packed_weights, 1, one.operations)
    assert eight.convolution_macs == 8 * one.convolution_macs == 8 * 16 * 3 * 18
    assert eight.product_macs == 8 * 48 * 5


def test_reading_the_samples_and_updating_the_weights_are_counted():
    found = cost(nn.Sequential(nn.Linear(10, 5, bias=False)), (10,))
    work = found.work_of(8, 2, 2)
    assert work.input_bytes == 8 * 10 * 4
    assert work.update_bytes == 2 * found.work.update.update_bytes >= 2 * 2 * 4 * 50
    assert work.product_macs == 8 * 10 * 5 * 2


def test_micro_batches_cost_passes_but_one_update():
    network = nn.Sequential(nn.Linear(10, 5), nn.ReLU(), nn.Linear(5, 2))
    whole, parts = cost(network, (10,)), cost(network, (10,), micro_batch=1)
    assert parts.work_of(4, 4, 1).update_bytes == whole.work_of(4, 1, 1).update_bytes
    assert parts.work_of(4, 4, 1).operations > whole.work_of(4, 1, 1).operations


def test_a_partial_batch_of_micro_batches_costs_a_whole_update():
    # 5 samples in batches of 4: a whole one of 4 passes and a partial one of 1, in each of 3 epochs.
    parts = cost(nn.Sequential(nn.Linear(10, 5)), (10,), micro_batch=1)
    amounts = Training(3, 4, 0.1, 0.0, 0.0, micro_batch=1).amounts(5)
    assert amounts == (15, 15, 6)
    assert parts.work_of(*amounts).update_bytes == 6 * parts.work.update.update_bytes


@pytest.mark.parametrize("method", ["fedavg", "fedhm", "fedpara", "flanc", "prism", "heterofl", "fjord", "splitmix"])
def test_kinds_add_up_to_the_macs(method):
    for row in edgefl.profile("cnn-digits", method=method):
        layers = sum(
            (StepWork(**{key: Work(**counts) for key, counts in layer["work"].items()}) for layer in row.to_dict()["layers"]),
            StepWork(),
        )
        samples = row.batch_size
        expected = samples * (row.macs_forward + row.macs_backward) + row.macs_compose
        assert layers.of(samples, 1, 1).macs == expected


def test_work_grows_with_samples_passes_and_updates():
    # 6 samples in 2 passes, so 2 updates; 3 samples forward only, in 1 pass: convolution 6·100 + 3·100 forward and 6·100 backward,
    # recurrent 6·110 + 3·40, products 6·30 + 2·7 + 3·10, operations 2·9 + 3 + 2·2.
    counts = worked_cost().work_of(6, 2, 2, 3)
    assert counts == Work(
        convolution_macs=900, convolution_backward_macs=600, recurrent_macs=780, product_macs=224, elementwise_bytes=6 * 40 + 3 * 20,
        update_bytes=800, operations=25,
    )  # fmt: skip
    assert counts.macs == worked_cost().macs_of(6, 2, 3)


def test_a_network_drawn_each_step_does_a_share_of_every_kind():
    drawn = replace(worked_cost(), macs_drawn=170)  # half of 340 a sample
    assert drawn.work_of(6, 2, 2) == Work(
        convolution_macs=300, convolution_backward_macs=300, recurrent_macs=330, product_macs=90 + 14, elementwise_bytes=120,
        update_bytes=800, operations=22,
    )  # fmt: skip


def test_a_cost_without_kinds_counts_as_products():
    bare = made_cost(batch_size=4, micro_batch=4, macs_forward=7, macs_backward_input=2, macs_backward_weight=3, macs_compose=5)
    assert bare.work_of(3, 2, 2, 1) == Work(product_macs=3 * (7 + 2 + 3) + 2 * 5 + 7)
    assert bare.work_of(3, 2, 2) == Work(product_macs=bare.macs_of(3, 2))
    assert bare.inference_of(2) == Work(product_macs=14)
    assert bare.inference_work == NO_WORK
