"""A folder with profiles of a user's own."""

from pathlib import Path

import pytest
from own_profiles import DEVICE, FLEET, LINK


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A device, its link and a fleet with it."""
    (tmp_path / "board.toml").write_text(DEVICE.replace('"wifi-phone"', '"wire.toml"'))
    (tmp_path / "wire.toml").write_text(LINK)
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path
