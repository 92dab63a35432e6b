"""The project's own promises: versions agree, everything is pinned, lists come from the registries, bad settings are explained."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

import edgefl
from edgefl import RunConfig, extend, onnxgrad
from edgefl.cli.doctor import TORCH
from edgefl.errors import ConfigError
from edgefl.methods.base import Method
from edgefl.registry import datasets, methods, models

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_newest_changelog_entry_is_this_version():
    versions = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [versions[0], *cited] == [edgefl.__version__] * 2


def test_every_dependency_is_pinned():
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    extras = PROJECT["optional-dependencies"]
    wanted = [
        *PROJECT["dependencies"],
        *(name for name in extras["test"] if not name.startswith("edgefl-sim[")),
        *(extras[e][0] for e in ("trace", "web")),
    ]
    assert {re.split(r"[<>=]", name)[0].lower() for name in wanted} <= pinned


def test_doctor_knows_the_newest_torch_that_the_tests_run_with():
    pinned = re.search(r"^torch==(\d+)\.(\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert tuple(map(int, pinned.groups())) == TORCH


def test_the_lock_file_has_every_pinned_version_with_hashes_and_no_place():
    text = (ROOT / "requirements.lock").read_text()
    entries = re.findall(r"^(\S+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    locked = {name.lower().replace("_", "-"): version for name, version, _ in entries}
    assert len(entries) == len(locked) == len(re.findall("==", text))
    assert text == text[: text.index("\n") + 1] + "".join(f"{name}=={version} \\\n{hashes}" for name, version, hashes in entries)
    pinned = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    assert locked == {name.lower().replace("_", "-"): version + "+cpu" * (name == "torch") for name, version in pinned}, (
        "run tools/lock.py"
    )


def test_ruff_has_the_rules_of_bandit():
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in lint["select"]
    assert [rule for rule in lint["ignore"] if re.fullmatch(r"S\d+", rule)] == ["S101", "S603"]
    ours = [rule for path, rules in lint["per-file-ignores"].items() if not path.startswith("tests") for rule in rules]
    assert [rule for rule in ours if re.fullmatch(r"S\d+", rule)] == []


def test_every_exception_from_bandit_has_its_reason():
    lines = [
        line
        for path in ("edgefl", "tools", "export")
        for file in (ROOT / path).rglob("*.py")
        for line in file.read_text().splitlines()
    ]
    exceptions = [line for line in lines if re.search(r"# noqa: [A-Z0-9, ]*\bS\d{3}\b", line)]
    assert exceptions
    assert [line for line in exceptions if not re.search(r"# noqa: [A-Z0-9, ]+ - \w", line)] == []


def test_public_names_are_there_and_documented():
    for name in edgefl.__all__:
        value = getattr(edgefl, name)
        assert name == "__version__" or len(value.__doc__) > 60
    assert set(edgefl.__all__) <= set(dir(edgefl))
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = edgefl.simulat  # type: ignore[attr-defined]


@pytest.mark.parametrize("package", [edgefl, onnxgrad])
def test_names_that_load_on_first_use_are_those_that_type_checkers_see(package):
    """A checker reads the imports under TYPE_CHECKING, and the running program reads the table of homes."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname: node.module for node in checked.body for alias in node.names}
    assert seen == {
        name: home if home.startswith("edgefl.") else f"edgefl.onnxgrad.{home}" for name, home in package._HOMES.items()
    }


TWICE = {
    "Budget": "edgefl.Budget is public, and the format of bundles calls its table so",
    "Objective": "edgefl.extend has it, and the format of bundles calls its table so",
    "Block": "each transformer calls its layers as its library does; cost tables show the names",
    "Recurrent": "a layer and the axes of its gates; cost tables show the name",
}
"""Class names with two meanings, each with its reason."""


def test_a_class_name_has_one_meaning():
    """edgefl.onnxgrad is a package of its own: its names are compared among themselves."""
    for package in (True, False):
        homes = defaultdict(list)
        for path in sorted(Path(edgefl.__file__).parent.rglob("*.py")):
            if ("onnxgrad" in path.parts) != package:
                continue
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(path.name)
        found = {name: files for name, files in homes.items() if len(files) > 1}
        assert {name: files for name, files in found.items() if name not in TWICE} == {}
        assert package or found.keys() == TWICE.keys(), "a name that has one meaning now leaves the list"


def test_the_page_of_the_python_interface_has_every_public_name():
    page = (ROOT / "docs/api.md").read_text()
    ours = {name for name, value in vars(extend).items() if getattr(value, "__module__", "").startswith("edgefl.")}
    names = [*(set(edgefl.__all__) - {"__version__"}), *(f"extend.{name}" for name in ours - set(edgefl.__all__))]
    assert [name for name in names if not re.search(rf":: edgefl\.{name}\b", page)] == []


@pytest.mark.parametrize("name", methods.names())
def test_every_method_says_what_it_is(name):
    method: type[Method] = methods.load(name)
    for text in (method.title, method.paper, method.tier_meaning, method.__doc__):
        assert text
    assert f"`{name}`" in (ROOT / "docs/methods.md").read_text()


def test_a_page_names_every_model_and_data_set():
    page = (ROOT / "docs/models.md").read_text()
    assert all(f"`{name}`" in page for name in [*models.names(), *datasets.names()])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"tiers": (0.5, 1.0)}, "tiers: expected each tier once, largest first: 1,0.5"),
        (
            {"tiers": (1.0, 0.99999999, 0.5)},
            "tiers: 1.0 and 0.99999999 have one name, 1; give ratios that differ within six digits",
        ),
        ({"tiers": ()}, "tiers: expected at least one tier"),
        ({"per_round": 30}, "per_round: got 30, expected at most the 20 clients"),
        ({"lr": float("inf")}, "lr must be a finite number, got inf"),
        ({"rounds": -1, "clients": 0}, r"clients must be .*\nrounds must be "),
    ],
)
def test_settings_from_python_are_explained_like_those_from_a_file(values, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig(**values)
