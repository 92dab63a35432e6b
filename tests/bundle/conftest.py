"""Shared pieces of the tests of graphs and bundles."""

import pytest
from small_bundle import checked_here


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let verification check graphs in this process, not in a child: the same code, sooner. Not for graphs that do harm."""
    monkeypatch.setattr("edgefl.bundle.verify.check_tiers", checked_here)
