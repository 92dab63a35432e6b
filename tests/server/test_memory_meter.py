"""The meter of memory: a step that holds a byte more than the device has is the client's last."""

from __future__ import annotations

import pytest
from small_fleet import expected
from tight_runs import HALF, prepared, trained


@pytest.mark.parametrize(("micro_batch", "optimizer"), [(None, "momentum"), (8, "momentum"), (None, "adam")])
def test_a_step_that_holds_a_byte_more_than_the_device_has_is_the_last(micro_batch, optimizer, tmp_path):
    run = prepared(tmp_path, tiers=(1.0,), method="heterofl", optimizer=optimizer)
    client = max(range(12), key=run.clients.shards.size)
    free, _ = trained(run, client, micro_batch)
    peak = free.measured_training_memory_bytes
    exact, sent = trained(run, client, micro_batch, memory_bytes=float(peak))
    assert (exact.status, exact.train_loss, exact.payload) == ("trained", free.train_loss, free.payload)
    assert sent
    over, nothing = trained(run, client, micro_batch, memory_bytes=peak - 1.0)
    assert (over.status, over.steps, over.train_loss, over.payload, over.kept) == ("out_of_memory", 1, None, b"", b"")
    assert over.measured_training_memory_bytes == peak
    assert over.measured_peak_activation_bytes == free.measured_peak_activation_bytes
    assert nothing == {}


def test_what_a_client_that_ran_out_of_memory_would_have_kept_is_not_kept(tmp_path):
    run = prepared(tmp_path, tiers=(1.0,), method="fedper")
    kept, _ = trained(run, 3)
    assert kept.kept
    over, _ = trained(run, 3, memory_bytes=kept.measured_training_memory_bytes - 1.0)
    assert (over.status, over.kept) == ("out_of_memory", b"")


def test_only_a_metered_run_is_held_to_its_memory(tmp_path):
    run = prepared(tmp_path, tiers=(1.0,), method="heterofl", enforce="plan")
    found, _ = trained(run, 3, memory_bytes=1.0)
    assert found.status == "trained"


def test_the_smallest_tier_that_is_sent_although_it_does_not_fit_is_found_out(tmp_path, memory):
    """The plan foresees what the meter finds: to the byte, for clients of full batches."""
    run = prepared(tmp_path, memory[HALF, None] - 1, on_shortfall=("tier", "send"))
    full = next(c for c in range(12) if run.clients.shards.size(c) >= 32)
    (outcome,) = expected(run, [full])
    found, _ = trained(run, full, outcome.micro_batch, outcome.tier, outcome.memory_bytes)
    assert (found.status, found.measured_training_memory_bytes) == ("out_of_memory", outcome.predicted_memory_bytes)
