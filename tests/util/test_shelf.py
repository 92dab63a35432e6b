"""Stored results: found again by their facts, computed again if the file is damaged, and no more than the folder has places for."""

import os

import pytest

from edgefl.errors import EdgeflError
from edgefl.util.shelf import Shelf

NUMBERS = Shelf[int]("numbers", lambda number: str(number).encode(), int, places=3)


class Counter:
    """Computes 7, and counts how often."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return 7


def test_a_result_is_computed_once_for_the_same_facts(recalling):
    compute = Counter()
    found = [NUMBERS.recalled(facts, compute) for facts in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}, None, None)]
    assert found == [7] * 5
    assert compute.calls == 4
    assert len(list((recalling / "numbers").iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"7", b"0" * 64 + b"\n7", None])
def test_a_damaged_file_is_replaced(recalling, damage):
    compute = Counter()
    NUMBERS.recalled({"a": 1}, compute)
    (path,) = (recalling / "numbers").iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"8" if damage is None else damage)
    assert NUMBERS.recalled({"a": 1}, compute) == 7
    assert path.read_bytes() == whole
    assert compute.calls == 2


def test_a_pipe_in_its_place_is_not_waited_for(recalling):
    NUMBERS.recalled({"a": 1}, Counter())
    (path,) = (recalling / "numbers").iterdir()
    path.unlink()
    os.mkfifo(path)
    assert NUMBERS.recalled({"a": 1}, Counter()) == 7


def test_without_a_folder_to_write_to_results_are_computed(recalling):
    recalling.parent.mkdir(exist_ok=True)
    recalling.write_text("")
    compute = Counter()
    assert [NUMBERS.recalled({"a": 1}, compute) for _ in range(2)] == [7, 7]
    assert compute.calls == 2


@pytest.mark.usefixtures("recalling")
def test_a_user_without_a_home_computes_results(monkeypatch):
    def no_home():
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("edgefl.util.files.Path.home", no_home)
    assert NUMBERS.recalled({"a": 1}, Counter()) == 7


def test_errors_of_the_computation_are_its_own(recalling):
    def fails():
        raise EdgeflError("no")

    for _ in range(2):
        with pytest.raises(EdgeflError, match="no"):
            NUMBERS.recalled({"a": 1}, fails)


def test_the_results_that_were_not_used_for_longest_go(recalling):
    for number in range(3):
        NUMBERS.recalled({"a": number}, Counter())
    paths = sorted((recalling / "numbers").iterdir(), key=lambda path: path.stat().st_mtime)
    for age, path in enumerate(paths):
        os.utime(path, (1e9 + age, 1e9 + age))
    NUMBERS.recalled({"a": 0}, Counter())  # used again
    NUMBERS.recalled({"a": 3}, Counter())
    kept = {path.name for path in (recalling / "numbers").iterdir()}
    assert len(kept) == 3
    compute = Counter()
    NUMBERS.recalled({"a": 0}, compute)
    assert compute.calls == 0
    NUMBERS.recalled({"a": 1}, compute)
    assert compute.calls == 1
