"""Plans with a safety factor for the clock, and how its error is shown."""

import math

import pytest
from small_fleet import small, write_device, write_fleet

import edgefl
from edgefl.errors import ConfigError
from edgefl.fleet.budget import Budget
from edgefl.fleet.clock import chance_of, confidence_of, within
from edgefl.fleet.load import load_device
from edgefl.fleet.time_model import ONE_RATE_ERROR
from edgefl.planning.plan import plan
from edgefl.planning.profile import profile
from edgefl.records import Tier, Timing
from edgefl.report.summary import class_rows

BOARD = "raspberry-pi-4"


def deadline(seconds: float) -> Budget:
    return Budget(deadline_s=seconds)


def test_a_plan_with_a_margin_still_fits_where_training_takes_that_much_longer():
    whole = profile("cnn-digits", method="fedhm", device=BOARD, tiers=(1.0,))[0]
    (plain,) = plan("cnn-digits", device=BOARD, budget=deadline(whole.round_seconds))
    (careful,) = plan("cnn-digits", device=BOARD, budget=deadline(whole.round_seconds), clock_margin=1.5)
    assert plain.ratio == 1.0
    assert careful.ratio < 1.0
    row = profile("cnn-digits", method="fedhm", device=BOARD, tiers=(careful.ratio,))[0]
    sent_s = load_device(BOARD).link.rtt_s * 2
    assert row.round_seconds < whole.round_seconds
    assert careful.uses["deadline_s"][0] <= whole.round_seconds
    assert careful.uses["deadline_s"][0] > 1.4 * (row.round_seconds - sent_s)
    # What a round may last is what it is for every other command: the margin is a choice, no error of the clock.
    said = careful.to_dict()
    expected = {name: getattr(row, name) for name in ("clock_error", "round_seconds_low", "round_seconds_high")}
    assert {name: said[name] for name in expected} == expected
    assert (said["clock_margin"], plain.clock_margin) == (1.5, 1.0)


def test_the_table_of_a_plan_and_its_refusal_say_the_margin(called):
    """Also where energy is a budget, which the margin makes larger, and not where memory is."""
    words = ("plan", "cnn-digits", "--method", "fedhm", "--device", BOARD, "--joules", "100")
    status, text, _ = called(*words, "--seconds", "60", "--clock-margin", "1.5")
    assert status == 0
    said = " ".join(text.split())
    assert "memory used deadline used, clock margin 1.5 energy used, clock margin 1.5" in said
    assert "margin" not in called(*words, "--seconds", "60")[1]
    status, _, error = called(*words, "--seconds", "1ms", "--clock-margin", "1.5")
    assert status == 3
    assert [line.count("with a clock margin of 1.5") for line in error.splitlines()[1:4]] == [0, 1, 1]


@pytest.mark.parametrize("margin", [0.5, float("nan"), float("inf")])
def test_a_margin_below_one_is_refused(margin):
    with pytest.raises(ConfigError, match="clock_margin: got .*, expected a factor of at least 1, such as 1.25"):
        plan("cnn-digits", device=BOARD, budget=deadline(60), clock_margin=margin)
    with pytest.raises(ConfigError, match="clock_margin"):
        edgefl.RunConfig(clock_margin=margin)


def run(folder, deadline_s, margin=1.0):
    write_device(folder, "board")
    fleet = write_fleet(folder, {"board": 1.0}, behaviour={})
    return small(fleet, method="fedhm", model="cnn-digits", tiers=(1.0, 0.5), deadline_s=deadline_s, clock_margin=margin)


def test_a_run_assigns_a_smaller_tier_where_the_margin_needs_it_and_its_clock_stays(tmp_path):
    plain = run(tmp_path, 1e6)
    device, largest = plain.plan.classes[0].device, plain.clients.shards.largest
    full, half = (plain.plan.timing(device, tier, largest) for tier in (Tier(1.0), Tier(0.5)))
    close_s = full.total_s + 0.1 * full.train_s
    assert run(tmp_path, close_s).plan.classes[0].tier == Tier(1.0)
    assert half.train_s < full.train_s
    careful = run(tmp_path, close_s, 1.2)
    assert careful.plan.classes[0].tier == Tier(0.5)
    assert careful.plan.timing(device, Tier(0.5), largest) == half


def test_the_margin_is_of_seconds_that_contain_throttling_and_the_summary_says_where_it_is(tmp_path):
    whole = run(tmp_path, 1e6).plan
    full_rate_s = whole.timing(whole.classes[0].device, Tier(1.0), whole.workload.largest_shard).train_s
    write_device(tmp_path, "board", burst_s=0.9 * full_rate_s, sustained_share=0.5)
    fleet = write_fleet(tmp_path, {"board": 1.0}, behaviour={})
    keys = {"method": "fedhm", "model": "cnn-digits", "tiers": (1.0, 0.5)}
    plain = small(fleet, **keys, deadline_s=1e6).plan
    device, largest = plain.classes[0].device, plain.workload.largest_shard
    full, half = (plain.timing(device, tier, largest) for tier in (Tier(1.0), Tier(0.5)))
    limit_s = full.total_s + 0.1 * full.train_s
    (row,) = class_rows(small(fleet, **keys, deadline_s=limit_s, clock_margin=1.2).plan)
    (short,) = row.refusals
    assert (short.tier, short.clock_margin) == (1.0, 1.2)
    assert short.need == pytest.approx(full.total_s + 0.2 * full.train_s)
    assert "deadline needs" in str(short)
    assert " s with a clock margin of 1.2, has " in str(short)
    uses = {use.budget: use for use in row.budgets}
    assert {name: use.clock_margin for name, use in uses.items()} == {"memory_bytes": 1.0, "deadline_s": 1.2}
    assert uses["deadline_s"].need == pytest.approx(half.total_s + 0.2 * half.train_s)
    assert class_rows(plain)[0].budgets[1].clock_margin == 1.0
    exact_s = full.total_s + 0.2 * full.train_s + 1e-9
    assert small(fleet, **keys, deadline_s=exact_s, clock_margin=1.2).plan.classes[0].tier == Tier(1.0)
    assert small(fleet, **keys | {"tiers": "auto"}, deadline_s=exact_s, clock_margin=1.2).tiers == (Tier(1.0),)


def test_a_budget_says_when_the_clock_s_error_decides_whether_it_is_met(tmp_path):
    plain = run(tmp_path, 1e6)
    device, largest = plain.plan.classes[0].device, plain.clients.shards.largest
    timing = plain.plan.timing(device, Tier(1.0), largest)
    error = device.clock_error
    assert error == ONE_RATE_ERROR
    for limit_s, expected in ((timing.total_s + timing.train_s, error), (timing.total_s + error * timing.train_s, None)):
        uses = class_rows(run(tmp_path, limit_s).plan)[0].budgets
        assert {use.budget: use.clock_error for use in uses} == {"memory_bytes": None, "deadline_s": expected}
    assert within(timing, 1.0) == (timing.total_s, timing.total_s)


def test_the_seconds_of_layers_add_up_to_the_step_without_reading_the_samples():
    row = profile("cnn-digits", method="fedhm", device=BOARD, tiers=(0.5,))[0]
    costs = load_device(BOARD).compute.training_step
    reading_s = row.batch_size * 64 * 4 * costs.input_ps_per_byte.value * 1e-12
    assert sum(row.layer_seconds) + reading_s == pytest.approx(row.train_step_seconds, rel=1e-6)
    assert row.clock_error == costs.error.value
    assert row.round_seconds_low < row.round_seconds < row.round_seconds_high


def test_a_margin_without_a_device_is_refused(called):
    status, _, error = called("plan", "mlp", "--memory", "1MB", "--clock-margin", "3")
    assert (status, error) == (
        2,
        "Error: clock_margin: no device is given, whose clock could be wrong; give device, or leave clock_margin out\n",
    )


def test_an_inference_at_one_rate_of_macs_is_said_to_be_the_least(called, tmp_path):
    said = "Inference time is the least: MACs at one rate, no time per operation."
    assert said in " ".join(called("profile", "mlp", "--device", BOARD)[1].split())
    assert said in called("profile", "mlp", "--device", BOARD, "--format", "html")[1]
    kinds = ("convolution", "pointwise", "grouped", "product", "recurrent")
    keys = [f"{kind}_ps_per_mac" for kind in kinds] + ["kernel_ns", "operation_us"]
    keys += [f"{kind}_ps_per_byte" for kind in ("grouped", "product", "normalization", "elementwise", "input")]
    costs = "".join(f'{key} = {{ value = 1, mark = "assumed", source = "made for a test" }}\n' for key in (*keys, "error"))
    path = write_device(tmp_path, "measured")
    path.write_text(path.read_text().replace("[power]", f"[compute.inference_step]\n{costs}[power]"))
    status, table, _ = called("profile", "mlp", "--device", str(path))
    assert (status, "Inference time" in table) == (0, False)


@pytest.mark.parametrize(("factor", "confidence"), [(1.0, "open"), (1.1, "likely"), (1.19, "safe")])
def test_a_plan_is_open_likely_or_safe_by_the_error_of_the_clock(factor, confidence, called):
    """The error of the board is 1.18. The chance of at most f times the seconds is Φ(1.645 · ln f / ln 1.18): .5, .83 and .96."""
    device = load_device(BOARD)
    row = profile("cnn-digits", method="fedhm", device=BOARD, tiers=(1.0,))[0]
    timing = Timing(1.0, 10.0, 1.0, 5.0, 1.0, train_j=4.0)
    assert confidence_of(chance_of(device, timing, deadline(2.0 + factor * 10.0))) == confidence
    joules = 2.0 + 4.0 * device.energy_error ** (math.log(factor) / math.log(device.clock_error))
    assert confidence_of(chance_of(device, timing, Budget(energy_j=joules, deadline_s=1e6))) == confidence
    assert chance_of(device, timing, Budget(memory_bytes=1.0)) is None
    (planned,) = plan("cnn-digits", device=BOARD, budget=deadline(factor * row.round_seconds))
    assert planned.confidence in ({"open", "likely"} if factor == 1.0 else {confidence, "safe"})
    assert planned.to_dict()["confidence"] == planned.confidence
    status, text, _ = called("plan", "cnn-digits", "--device", BOARD, "--seconds", f"{factor * row.round_seconds:.6f}")
    assert status == 0
    assert f"{planned.confidence} (" in text


def test_a_plan_without_a_limit_of_time_has_no_confidence():
    (planned,) = plan("cnn-digits", device=BOARD)
    assert (planned.confidence, planned.clock_chance) == (None, None)
