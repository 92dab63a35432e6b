"""Flower is an extra: without it, the modules of these tests are skipped with that reason."""

import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest
from requirements import require

from edgefl.util.files import shared

sys.path[:0] = [str(shared("export") / "python"), str(shared("export") / "flower")]

with suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Flower's own, about click
    import flwr.serverapp  # noqa: F401


class OfFlower(pytest.Module):
    """A module of tests that imports Flower."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return the tests, or skip the module before it is imported."""
        require("flower")
        return super().collect()


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> OfFlower:
    """Make each module of this folder one that is skipped without Flower."""
    return OfFlower.from_parent(parent, path=module_path)
