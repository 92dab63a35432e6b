"""What was measured on a made-up device, and calibration that takes it instead of half a minute."""

import pytest
from made_measurements import INFERRED, REFERENCES, WORK, constant, step

from edgefl.contrib.calibrate.device import Inference, MachineFigures


@pytest.fixture
def measured() -> MachineFigures:
    pair = (constant(30e9), constant(40e9))
    return MachineFigures(
        processor='A "fast" board',
        system="Linux x86_64",
        threads=2,
        total_bytes=4_000_000_000,
        free_bytes=3_000_000_000,
        battery=False,
        source="edgefl calibrate on it; 2 threads where not one; torch 2.13.0",
        product=pair,
        copied=constant(9e9),
        steps={name: [step(work, slower) for slower in (1.0, 1.0, 1.5, 3.0)] for name, work in WORK.items()},
        inference={
            name: Inference(one, constant(one.macs / 10e9 / at), constant(one.macs / 12e9 / at))
            for at, (name, one) in enumerate(INFERRED.items(), 1)
        },
        references=REFERENCES,
        busy=0.02,
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, measured: MachineFigures) -> None:
    """Calibration without its half minute."""
    from edgefl.contrib.calibrate import calibrate as calibrating

    monkeypatch.setattr(calibrating, "measure", lambda seconds, threads, notify, meter: measured)
