"""The tables of docs/privacy.md are those of the code and of the stored runs. Eight processor seconds."""

from __future__ import annotations

import sys

import pytest
from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name


def test_the_page_has_what_is_computed_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["privacy_tables.py", "--check"])
    tool_of("privacy_tables").main()  # exits with a message otherwise


def test_stored_runs_are_those_of_the_tool() -> None:
    module = tool_of("privacy_tables")
    stored = module.stored()
    cells = {(entry["method"], entry["target"], entry["seed"]) for entry in stored}
    assert cells == {(method, target, seed) for method in module.METHODS for target in module.TARGETS for seed in module.SEEDS}
    for entry in stored:
        assert entry["settings"] == module.SETTINGS
        assert (entry["epsilon"] is None) == (entry["target"] is None)
        assert entry["target"] is None or 0.99 * entry["target"] <= entry["epsilon"] <= entry["target"]
