"""The table of costs in docs/secure-aggregation.md, computed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgefl.contrib.secagg.graph import threshold_of
from edgefl.contrib.secagg.messages import stages, vector_bytes
from edgefl.contrib.secagg.stage import masked_values
from edgefl.fleet.clock import trip_s
from edgefl.fleet.load import load_fleet
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.models.base import Architecture
from edgefl.records import RoundTrip, Tier
from edgefl.wire.payload import payload_bytes

PAGE = Path(__file__).parents[2] / "docs" / "secure-aggregation.md"
NETWORKS = {"digits CNN": Architecture("cnn-digits", (1, 8, 8), 10), "ResNet-18": Architecture("resnet18", (3, 32, 32), 10)}


def test_the_table_of_costs_is_what_the_code_computes():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "| secagg" in line]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert len(rows) == 7
    phones = {c.device.name: c.device for c in load_fleet("phone").classes}
    method, full = create("fedavg"), Tier(1.0)
    for network, protocol, neighbours, lost, messages, vector, plain, extra, *masks in rows:
        k, of = int(neighbours), stages(*[int(neighbours)] * 3)
        values = masked_values(method, NETWORKS[network], full)
        assert k + 1 - threshold_of(k, 0.5) == int(lost)
        assert messages == f"{sum(s.upload_bytes for s in of):,} + {sum(s.download_bytes for s in of):,}"
        assert vector == f"{vector_bytes(values, 16 if 'bits=16' in protocol else 32):,}"
        assert plain == f"{payload_bytes(upload_shapes(method, NETWORKS[network], full)):,}"
        for name, seconds in zip(("flagship-phone", "low-end-phone"), masks, strict=True):
            device = phones[name]
            assert extra == f"{sum(trip_s(device, RoundTrip(*stage)) for stage in of):.3f} s"
            assert device.compute.training_step is not None
            per_byte = device.compute.training_step.elementwise_ps_per_byte.value * 1e-12
            assert float(seconds.removesuffix(" s")) == pytest.approx(16 * (k + 1) * values * per_byte, abs=6e-4)
