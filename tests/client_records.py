"""Records of clients as a round leaves them, made by hand."""

from __future__ import annotations

from typing import Any

from edgefl.records import ClientRecord, Expected, Foreseen, Outcome, Shortfall, Tier, Timing

JOB = ("measured_peak_activation_bytes", "measured_training_memory_bytes", "host_memory_bytes")


def client_record(
    client: int,
    device: str,
    status: Any,
    tier: Tier | None = None,
    timing: Timing | None = None,
    *,
    steps: int = 6,
    train_loss: float | None = 0.3,
    staleness: int | None = None,
    refusal: tuple[Shortfall, ...] = (),
    samples: int = 70,
    **more: Any,
) -> ClientRecord:
    """Return the record of a client whose part in a round ended as ``status``; ``more`` are fields of its session and of its job."""
    measured = {name: more.pop(name) for name in JOB if name in more}
    foreseen: Foreseen = status if status in ("refused", "dropped", "interrupted") else "expected"
    silent = foreseen != "expected" or status == "late"
    outcome = None if silent else Outcome(client, status, steps, train_loss, **measured)
    return ClientRecord(Expected(client, device, foreseen, tier, samples, timing, refusal=refusal, **more), outcome, staleness)
