"""Tests are ordered and marked by what they took, and what they take is stored."""

import json
from types import SimpleNamespace

import durations
import pytest
from durations import Durations, Group, arrange, group_of, left_out, stored


class Item(SimpleNamespace):
    """A test with its marks."""

    def __init__(self, nodeid):
        super().__init__(nodeid=nodeid, marks=[])
        self.add_marker = self.marks.append

    __hash__ = object.__hash__


def test_groups_that_take_longest_begin_and_those_of_quick_tests_are_fast():
    groups = {"a.py": Group(10, 0.5), "b.py": Group(2, 60.0), "c.py": Group(400, 90.0)}
    items = [Item("a.py::x"), Item("new.py::x"), Item("b.py::x"), Item("c.py::x"), Item("b.py::y")]
    arrange(items, groups)
    assert [item.nodeid for item in items] == ["c.py::x", "b.py::x", "b.py::y", "a.py::x", "new.py::x"]
    assert {item.nodeid for item in items if item.marks == ["fast"]} == {"a.py::x"}


def test_what_groups_took_is_stored_by_the_process_that_has_all_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "FILE", tmp_path / "tests" / "durations.json")
    durations.FILE.parent.mkdir()
    durations.FILE.write_text('{"old.py": {"tests": 1, "seconds": 1.5}, "gone.py": {"tests": 1, "seconds": 1.5}}')
    before = durations.FILE.read_text()
    (tmp_path / "old.py").touch()
    taken = Durations()
    for test, when, seconds in (
        ("b.py::x", "setup", 1.0), ("a.py::x", "call", 0.25), ("b.py::x", "call", 2.04), ("b.py::y[1]", "call", 3.0),
        ("b.py::y[2]", "setup", 9.0), ("b.py::y[2]", "call", 2.5), ("tests/tools/c.py::z", "call", 2.5),
    ):  # fmt: skip
        taken.pytest_runtest_logreport(SimpleNamespace(nodeid=test, when=when, duration=seconds))
    taken.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace(workerinput={})))
    assert durations.FILE.read_text() == before
    taken.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))
    assert stored(durations.FILE) == {
        "a.py": Group(1, 0.2), "b.py": Group(3, 17.5, ("b.py::y[1]",)), "old.py": Group(1, 1.5),
        "tests/tools/c.py": Group(1, 2.5, ("tests/tools/c.py::z",)),
    }  # fmt: skip
    assert list(json.loads(durations.FILE.read_text())) == ["a.py", "b.py", "old.py", "tests/tools/c.py"]


def test_further_long_cases_are_left_to_a_run_of_others_and_no_case_to_none():
    file = durations.CONTRACT
    groups = {"a.py": Group(2, 9.0, ("a.py::x[2]",))}
    items = [Item("a.py::x[1]"), Item("a.py::x[2]"), Item(f"{file}::y[fedhm-cnn]")]
    left = {cases: [item.nodeid for item in left_out(items, cases, groups)] for cases in durations.CASES}
    assert left == {"one": ["a.py::x[2]"], "others": ["a.py::x[1]"], "all": []}


@pytest.mark.parametrize("name", stored())
def test_groups_that_are_stored_exist(name):
    """Otherwise pytest --store-durations renews them."""
    file, _, _ = name.partition(" ")
    assert (durations.FILE.parent.parent / file).is_file()


def test_methods_of_the_contract_are_groups_of_their_own():
    file = durations.CONTRACT
    assert group_of(f"{file}::test_a[prism outputs-cnn]") == f"{file} prism outputs"
    assert group_of(f"{file}::test_exceptions_name_rules_that_exist[fedhm]") == file
