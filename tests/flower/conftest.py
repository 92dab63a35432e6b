"""Flower is an extra: without it, these tests are skipped with that reason."""

import sys

from requirements import require

from edgefl.util.files import shared

require("flower")
sys.path[:0] = [str(shared("export") / "python"), str(shared("export") / "flower")]
