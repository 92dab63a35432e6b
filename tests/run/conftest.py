"""Bundles for rounds with update files, without the graphs that nobody runs there."""

import pytest
from device_rounds import write_bundle

from edgefl.server.checkpoint import of_file


@pytest.fixture
def bundles_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exporting takes seconds, and is tested where bundles are."""

    def build(run, tiers, source, out, say, wanted):
        write_bundle(run, of_file(out.parent / "model.safetensors"), out, source.round, source.state_sha256)

    monkeypatch.setattr("edgefl.run.device_round.build_bundle", build)
