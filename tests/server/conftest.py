"""Fleets of one or two classes, and runs on devices on which everything fits, traced once."""

from pathlib import Path

import pytest
from small_fleet import write_device, write_fleet
from tight_runs import BIG, HALF, PARTS, Costs, cost_of, prepared

from edgefl.records import Tier
from edgefl.run.run import Run


@pytest.fixture
def board(tmp_path: Path) -> str:
    """A device that throttles after a millisecond, on a link whose path to the server takes energy too."""
    write_device(
        tmp_path, "board", spread_sigma=0.5, session_sigma=0.3, network_nj_per_byte=24_000, burst_s=0.001, sustained_share=0.4
    )
    return write_fleet(tmp_path, {"board": 1.0}, behaviour={"response_sigma": 0.2})


@pytest.fixture
def two_links(tmp_path: Path) -> str:
    """Two classes on different links; no session is lost."""
    write_device(tmp_path, "quick")
    write_device(tmp_path, "far", rtt_ms=200)
    return write_fleet(tmp_path, {"quick": 0.5, "far": 0.5}, behaviour={})


@pytest.fixture(scope="session")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on devices on which everything fits."""
    return prepared(tmp_path_factory.mktemp("fleet"))


@pytest.fixture(scope="session")
def costs(roomy: Run) -> Costs:
    """(tier, samples at once or None) → cost."""
    return {(tier, parts): cost_of(roomy, tier, parts) for tier in (BIG, HALF) for parts in (None, *PARTS)}


@pytest.fixture(scope="session")
def memory(costs: Costs) -> dict[tuple[Tier, int | None], int]:
    """(tier, samples at once or None) → bytes of a training step."""
    return {key: cost.training_memory_bytes for key, cost in costs.items()}
