"""A bundle and samples for the clients of devices, a Python without torch, and the client in TypeScript."""

import sys
from pathlib import Path

import numpy as np
import pytest
from handmade import Regression, samples
from torch_free import CLIENT, torch_free_python
from ts_client import installed

sys.path.insert(0, str(CLIENT.parent))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Regression().write(tmp_path / "bundle")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x, y = samples(10)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path / "data.npz"


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with neither torch nor edgefl."""
    return torch_free_python(tmp_path_factory)


@pytest.fixture(scope="session")
def ts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the client in TypeScript, with its packages."""
    return installed(tmp_path_factory.mktemp("client") / "ts")
