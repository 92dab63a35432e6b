"""A folder with networks of a user's own, as modules."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_modules import OWN


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module of networks of one's own."""
    (tmp_path / "own_networks.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("def f(:\n")
    (tmp_path / "own_exits.py").write_text("import sys\nsys.exit('usage: own_exits DATA')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("own_networks", "own_broken", "own_exits"):
        sys.modules.pop(name, None)
