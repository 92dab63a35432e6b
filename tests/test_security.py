"""SECURITY.md names the test of each promise, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

from edgefl.config.run_config import CODE
from tests.test_consent import KEYS

ROOT = Path(__file__).parents[1]


def test_every_test_that_a_promise_names_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named, files = set(re.findall(r"`(test_\w+)`", text)), re.findall(r"`(tests/[\w/]+\.py)`", text)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(named) > 80
    assert sorted(named - there) == []
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_every_key_that_may_name_code_is_named() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    keys = re.search(r"may name Python files and modules: under (.*?)\. The tests", text, re.DOTALL)
    assert keys is not None
    named = set(re.findall(r"`(\w+)`", keys[1]))
    assert named == set(KEYS) == CODE | {"plugins"}
