"""Joules of training: the user's watts times seconds, watts by kinds of work on shipped devices, and the error of both."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path

import pytest
from small_fleet import write_device

from edgefl.errors import ProfileError
from edgefl.fleet.clock import with_joules
from edgefl.fleet.load import load_device, load_link, names
from edgefl.fleet.power import both, bound_of
from edgefl.planning.profile import profile
from edgefl.records import Timing
from edgefl.records.work import KINDS
from edgefl.report.words import energy_trust

WATTS = Path(__file__).parents[2] / "tools" / "clock" / "board-watts.csv"


def step(device, model="cnn-digits"):
    (row,) = profile(model, method="fedhm", device=str(device), tiers=(1.0,))
    return row


def test_a_step_takes_the_watts_that_the_user_measured(tmp_path):
    for watts in (5, 500):
        row = step(write_device(tmp_path, "phone", load_w=watts, burst_s=0.001, sustained_share=0.5))
        assert row.train_step_joules == pytest.approx(watts * row.train_step_seconds, rel=1e-12)
        assert row.epoch_joules == pytest.approx(watts * row.epoch_seconds, rel=1e-12)
        assert row.inference_joules == pytest.approx(watts * row.inference_seconds, rel=1e-12)


@pytest.mark.parametrize("model", ["mlp", "cnn-digits", "resnet9"])
def test_on_every_shipped_device_a_step_takes_watts_between_idle_and_load(model):
    for row in profile(model, method="fedhm", device=tuple(names("devices")), tiers=(1.0,)):
        power = load_device(row.device).power
        watts = row.train_step_joules / row.train_step_seconds
        # A dispatching core alone is the least: nothing computes then.
        least = power.idle_w.value + (power.load_w.value - power.idle_w.value) * (
            power.waiting_share.value if power.waiting_share else 1
        )
        assert least * (1 - 1e-12) <= watts <= power.load_w.value * (1 + 1e-12), row.device


def test_work_bound_by_memory_takes_its_share_of_the_load(tmp_path):
    """By hand: 2 of 4 s are bound by memory, 1 by one core, with half and a tenth of the 10 W above idle: 1 + 10 · (.25 + .25 + .025)."""
    costs = dict.fromkeys(KINDS, 0.0) | {"product_macs": 1e-9, "update_bytes": 2e-9, "operations": 1.0}
    path = write_device(tmp_path, "board", idle_w=1, load_w=11)
    shares = "".join(
        f'{key} = {{ value = {value}, mark = "measured", source = "a meter" }}\n'
        for key, value in (("memory_bound_share", 0.5), ("waiting_share", 0.1))
    )
    path.write_text(path.read_text().replace("idle_w", shares + "idle_w"))
    power = load_device(str(path)).power

    class Costs:
        seconds = tuple(costs.values())

    from edgefl.records.work import Work

    work = Work(product_macs=10**9, update_bytes=10**9, operations=1)
    assert power.busy_w(11.0, Costs(), work) == pytest.approx(1 + 10 * (0.25 + 0.25 + 0.025))
    assert power.busy_w(11.0, None, work) == 11.0
    assert {bound_of(kind) for kind in KINDS} == {"compute", "memory", "waiting"}


def test_picojoules_of_a_mac_count_only_without_watts_and_are_an_order_of_magnitude(tmp_path):
    given = load_device(str(write_device(tmp_path, "given")))
    bare = load_device(str(write_device(tmp_path, "bare", load_w=None)))
    row = step(tmp_path / "bare.toml")
    assert row.train_step_joules == pytest.approx(400e-12 * row.macs_train_step + 0.25 * row.train_step_seconds)
    assert (bare.power_error, bare.energy_error, given.power_error) == (10.0, 10.0, 3.0)
    assert given.energy_error == pytest.approx(both(3.0, given.clock_error))
    with pytest.raises(ProfileError, match="power.load_w: missing"):
        load_device(str(write_device(tmp_path, "none", load_w=None, energy_pj_per_mac=None)))


def test_shares_of_a_load_that_is_not_given_are_refused(tmp_path):
    path = write_device(tmp_path, "board", load_w=None)
    share = 'waiting_share = { value = 0.2, mark = "assumed", source = "a guess" }\n'
    path.write_text(path.read_text().replace("idle_w", share + "idle_w"))
    with pytest.raises(
        ProfileError, match="power: waiting_share: expected load_w too, got none; give load_w, or leave waiting_share out"
    ):
        load_device(str(path))


def test_the_radio_stays_on_after_a_transfer_until_training_ends_and_after_the_upload(tmp_path):
    """By hand: tails of 2 s with 1.5 W. Training of 0.5 s ends the first, and nothing was uploaded in the second case."""
    text = write_device(tmp_path, "board").read_text()
    tail = "".join(
        f'tail_{unit} = {{ value = {v}, mark = "assumed", source = "a guess" }}\n' for unit, v in (("s", 2), ("w", 1.5))
    )
    (tmp_path / "tail.toml").write_text(text + tail)
    device = load_device(str(tmp_path / "tail.toml"))
    timing = Timing(1.0, 0.5, 1.0, 0.0, 0.0)
    assert with_joules(device, timing, 10**6, 10**6).radio_j == pytest.approx(0.4 + 1.5 * 2.5)
    assert with_joules(device, timing, 10**6, 0).radio_j == pytest.approx(0.1 + 1.5 * 0.5)
    assert load_link("4g").tail == (11.6, 0.12)
    (tmp_path / "half.toml").write_text(text + tail.splitlines()[0] + "\n")
    with pytest.raises(ProfileError, match="tail_s: expected tail_w too, got none; give both, or leave tail_s out"):
        load_device(str(tmp_path / "half.toml"))


def test_independent_errors_multiply_as_their_logarithms_add_in_squares():
    assert both(1.5, 1.18) == pytest.approx(math.exp(math.sqrt(math.log(1.5) ** 2 + math.log(1.18) ** 2)))
    assert energy_trust(1.0, [both(1.5, 1.18)]).endswith("right within a factor of 1.55")


def test_the_share_of_work_bound_by_memory_and_the_error_are_those_of_measured_machines():
    """The share comes from rows of ``fit``. The error holds the held-out boards, also under a load that was not fitted."""
    rows = list(csv.DictReader(WATTS.read_text().splitlines()))
    above = {row["machine"]: (float(row["hpl_w"]) - float(row["idle_w"])) for row in rows}
    shares = [(float(r["stress_ng_w"]) - float(r["idle_w"])) / above[r["machine"]] for r in rows if r["split"] == "fit"]
    pi = load_device("raspberry-pi-4").power
    assert (len(shares), round(statistics.median(shares), 2)) == (30, pi.memory_bound_share.value)
    wrong = []
    for row in rows:
        predicted = float(row["idle_w"]) + pi.memory_bound_share.value * above[row["machine"]]
        if row["split"] == "held-out":
            wrong += [abs(math.log(predicted / float(row[key]))) for key in ("stress_ng_w", "geekbench_w") if row[key]]
    assert (len(wrong), math.exp(max(wrong)) <= pi.error.value) == (14, True)
    assert math.exp(max(wrong)) > 1.4
