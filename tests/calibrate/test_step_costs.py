"""Kinds of work become seconds: their sum, the fit to measured steps, and its limits."""

from __future__ import annotations

import pytest
from made_costs import worked_cost
from made_measurements import LIMITS, TRUE_COSTS, WORK, Known, figure, step

from edgefl.fleet.time_model import fit, train_s
from edgefl.records.work import KINDS, Work


def test_seconds_are_the_sum_over_kinds():
    expected = (900 * 20 + 600 * 22 + 224 * 25 + 780 * 30 + 300 * 2000 + 800 * 1000) * 1e-12 + 25 * 5e-6
    assert train_s(Known(), worked_cost(), 6, 2, 2, 3) == pytest.approx(expected, rel=1e-12)


def test_a_profile_without_costs_of_kinds_counts_macs_by_its_rate():
    class OneRate:
        training_gmacs_per_s = figure(3.7)
        training_step = None

    assert train_s(OneRate(), worked_cost(), 6, 2, 2, 3) == worked_cost().macs_of(6, 2, 3) / 3.7e9


def test_macs_of_every_reference_kind_add_up():
    from edgefl.contrib.calibrate.bench import TrainedBench
    from edgefl.planning.network import architecture_of

    for name, kinds in (
        ("cnn-digits", (True, True, False)),
        ("lstm-shakespeare", (False, True, True)),
        ("mlp", (False, True, False)),
    ):
        cost = TrainedBench(architecture_of(name), 4).cost
        work = cost.work_of(4, 1, 1)
        assert work.macs == cost.macs_train_step
        assert (work.convolution_macs > 0, work.product_macs > 0, work.recurrent_macs > 0) == kinds


def test_the_probes_do_every_kind_of_work():
    from edgefl.contrib.calibrate.bench import TrainedBench
    from edgefl.contrib.calibrate.probes import probes

    found = [TrainedBench(probe, probe.batch_size).cost for probe in probes()]
    assert all(cost.uncounted_ops == () for cost in found)
    total = sum((cost.work_of(8, 1, 1) for cost in found), Work())
    assert dict(zip(KINDS, map(bool, total.counts), strict=True)) == dict.fromkeys(KINDS, True)


def test_the_fit_finds_the_costs_that_made_the_steps():
    measured = [part for work in WORK.values() for part in step(work).parts]
    assert fit(measured, LIMITS) == pytest.approx(TRUE_COSTS, rel=1e-3)


def test_no_kind_costs_less_than_the_hardware_allows_however_noisy_the_steps():
    slower = (4.0, 0.3, 1.0, 0.5, 2.0, 0.7)
    noisy = [part for at, work in enumerate(WORK.values()) for part in step(work, slower[at % 6]).parts]
    for kind, cost in zip(KINDS, fit(noisy, LIMITS), strict=True):
        assert cost >= LIMITS.least(kind) * (1 - 1e-9)
