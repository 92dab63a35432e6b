"""What tests need beside the extra ``test``: they skip by name without it, and the tests that a run skipped can be run alone."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import requirements
from requirements import REQUIREMENTS, Requirement, needs, require

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def lamp(tmp_path, monkeypatch):
    """A requirement that is present if a file is."""
    monkeypatch.setitem(REQUIREMENTS, "a lamp", Requirement((tmp_path / "lamp").exists, f"touch {tmp_path / 'lamp'}"))
    return tmp_path / "lamp"


def test_a_test_without_its_requirement_skips_and_says_what_to_install(lamp):
    words = rf"^needs a lamp: touch {lamp}$"
    with pytest.raises(pytest.skip.Exception, match=words):
        require("a lamp")
    mark = needs("a lamp").mark
    assert mark.args == (True,)
    assert re.match(words, mark.kwargs["reason"])
    lamp.touch()
    require("a lamp")
    assert needs("a lamp").mark.args == (False,)


def test_what_is_missing_is_installed_once(lamp, monkeypatch, capsys):
    monkeypatch.setattr(
        requirements, "REQUIREMENTS", {"a lamp": REQUIREMENTS["a lamp"], "no": Requirement(lambda: False, "false")}
    )
    assert requirements.missing() == {"a lamp": f"touch {lamp}", "no": "false"}
    requirements.install()
    assert capsys.readouterr().out.splitlines() == [f"a lamp: touch {lamp}", "no cannot be installed: false"]
    assert requirements.missing() == {"no": "false"}


def test_packages_outside_of_the_extra_are_asked_for_by_name():
    """pytest.importorskip does not say what to install: it is for packages that the extra brings."""
    wanted = {re.split(r"[<>=\[]", line)[0].lower() for line in EXTRAS["test"]}
    for extra in re.findall(r"\[([\w,-]+)\]", " ".join(EXTRAS["test"])):
        wanted |= {re.split(r"[<>=\[]", line)[0].lower() for name in extra.split(",") for line in EXTRAS[name]}
    wanted |= {"nbformat"}  # of nbclient
    distributions = packages_distributions()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"importorskip\(\"([\w]+)", text):
            assert {name.lower() for name in distributions.get(module, [module])} & wanted, f"{path}: {module}"
        if path.name != "requirements.py":
            assert not re.search(r"skipif\([^\n]*(?:shutil\.which|find_spec|importlib)", text), path


SUITE = """
from pathlib import Path
import pytest

LAMP = Path(__file__).with_name("lamp")

@pytest.mark.skipif(not LAMP.exists(), reason="needs a lamp")
@pytest.mark.parametrize("room", ["attic", "cellar"])
def test_light(room):
    assert LAMP.exists()

def test_dark():
    pass
"""
LAMPS = """
from pathlib import Path
import pytest

def require():
    if not Path(__file__).with_name("lamp").exists():
        pytest.skip("needs a lamp", allow_module_level=True)
"""
MODULE = """
from lamps import require

require()

def test_of_a_module_that_was_skipped():
    pass
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_the_tests_that_the_last_run_skipped_run_alone(tmp_path, workers):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    files = {"test_suite.py": SUITE, "test_other.py": "def test_other(): pass", "lamps.py": LAMPS}
    for name, text in (files | {"test_module.py": MODULE, "test_module_too.py": MODULE}).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]")

    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def closing(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", workers, *options]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False).stdout.splitlines()[-1]

    # xdist reports one of the modules that are skipped in one place for one reason.
    assert re.match("2 passed, [34] skipped", closing())
    (tmp_path / "lamp").touch()
    assert re.match(r"4 passed(, 1 deselected)? in", closing("--last-skipped"))
