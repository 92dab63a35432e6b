"""The tools as modules: tests that import ``on_the_path`` can import them."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture(scope="module", autouse=True)
def on_the_path() -> Iterator[None]:
    """Tools import each other from their own folder, as when one of them is run."""
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


def tool_of(name: str) -> Any:
    return importlib.import_module(name)
