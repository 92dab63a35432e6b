"""Flower is an extra: without it, these tests are skipped with that reason."""

import sys

import pytest

from edgefl.util.files import shared

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'edgefl-sim[flower]'")
sys.path[:0] = [str(shared("export") / "python"), str(shared("export") / "flower")]
