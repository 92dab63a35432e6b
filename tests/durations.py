"""What tests took in a whole run: long ones begin first, those of a contributor's loop are marked ``fast``, and further long cases wait.

A group of tests stays in one process, which shares their exports and finished runs. It is a file, or a method's part of the contract.
Of a test that is repeated for several cases, those that are long are left to ``--cases others``, except the quickest case. So are long
tests of the house's own tools.

    pytest --store-durations    runs all cases, and renews the groups that it runs in tests/durations.json
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

FILE = Path(__file__).with_suffix(".json")
CONTRACT = "tests/contract/test_contract.py"
FAST_S = 0.1
"""A group is fast if its tests take less than this on average."""
LONG_S = 0.6
"""A case is long if it takes more than this without its setup."""
CASES = "one", "others", "all"
"""Which cases of tests run: all but the further long ones, only these, or all."""


@dataclass(frozen=True)
class Group:
    """What the tests of a group took: how many they are, their seconds with setup and teardown, and the ids of further long cases."""

    tests: int
    seconds: float
    others: tuple[str, ...] = ()


def group_of(test: str) -> str:
    """Return the group of a test's id.

    >>> group_of("tests/a.py::test_x[1]"), group_of("tests/contract/test_contract.py::test_x[fedhm-beta-cnn]")
    ('tests/a.py', 'tests/contract/test_contract.py fedhm-beta')
    """
    file, _, rest = test.partition("::")
    method = rest.partition("[")[2].rpartition("-")[0]
    return f"{file} {method}".rstrip() if file == CONTRACT else file


def stored(file: Path = FILE) -> dict[str, Group]:
    """Return group → what its tests took when they were last stored."""
    groups = json.loads(file.read_text(encoding="utf-8"))
    return {name: Group(**{**values, "others": tuple(values.get("others", ()))}) for name, values in groups.items()}


def others_of(seconds: Mapping[str, float]) -> list[str]:
    """Return the further long cases among tests that took these ``seconds`` each.

    >>> others_of({"tests/a.py::test_x[1]": 4.0, "tests/a.py::test_x[2]": 3.0, "tests/a.py::test_y": 9.0, "tests/tools/b.py::test_z": 9.0})
    ['tests/a.py::test_x[1]', 'tests/tools/b.py::test_z']
    """
    cases = defaultdict[str, list[str]](list)
    for test in seconds:
        cases[test.partition("[")[0]].append(test)
    quickest = {min(of, key=seconds.__getitem__) for name, of in cases.items() if not name.startswith("tests/tools/")}
    return [test for test, taken in seconds.items() if taken > LONG_S and test not in quickest]


def left_out(items: Sequence[pytest.Item], cases: str, groups: Mapping[str, Group]) -> list[pytest.Item]:
    """Return the tests that do not run; of the contract's other kinds of networks, all run that were made."""
    others = {test for group in groups.values() for test in group.others}
    if cases == "one":
        return [item for item in items if item.nodeid in others]
    return [item for item in items if cases == "others" and item.nodeid not in others and not item.nodeid.startswith(CONTRACT)]


def is_fast(group: Group | None) -> bool:
    """Return whether the tests of a group are part of the loop of a contributor: those that were measured, and are quick."""
    return group is not None and group.seconds < FAST_S * group.tests


def arrange(items: list[pytest.Item], groups: Mapping[str, Group]) -> None:
    """Mark the fast tests, and begin with the groups that take longest: no process works on one of them alone in the end."""
    names = {item: group_of(item.nodeid) for item in items}
    for item in items:
        if is_fast(groups.get(names[item])):
            item.add_marker("fast")
    items.sort(key=lambda item: -groups[names[item]].seconds if names[item] in groups else 0.0)


class Durations:
    """Adds up what tests take, in the process that has the reports of all others, and stores it."""

    def __init__(self) -> None:
        self.taken: defaultdict[str, float] = defaultdict(float)
        self.called: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test."""
        self.taken[report.nodeid] += report.duration
        if report.when == "call":
            self.called[report.nodeid] = report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Store the seconds of each group."""
        if hasattr(session.config, "workerinput"):
            return
        groups = defaultdict[str, list[float]](list)
        for test, seconds in self.taken.items():
            groups[group_of(test)].append(seconds)
        others = defaultdict[str, list[str]](list)
        for test in sorted(others_of(self.called)):
            others[group_of(test)].append(test)
        ran = {name: Group(len(each), round(sum(each), 1), tuple(others[name])) for name, each in groups.items()}
        before = {name: group for name, group in stored(FILE).items() if (FILE.parents[1] / name.partition(" ")[0]).is_file()}
        found = sorted({**before, **ran}.items())
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(_shown(group))}" for name, group in found)
        FILE.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


def _shown(group: Group) -> dict[str, Any]:
    """Return the form in which a group is stored."""
    return {key: value for key, value in vars(group).items() if value or key != "others"}


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
    """Hands whole groups of tests to processes."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self.log = Producer("groups") if log is None else log.groups

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
