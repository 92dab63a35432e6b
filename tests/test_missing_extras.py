"""Without its extra, a part of contrib ends with status 2 and names the command that installs it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
SMALL = ("--rounds=1", "--clients=2", "--no-bundle")
CASES = {
    "serve": ("h11", ("serve", "bundle")),
    "flower": ("flwr", ("flower", "new", "app", "--clients=2", "--deadline-s=60")),
    "ray": ("ray", ("simulate", "--engine=ray", *SMALL)),
    "privacy": ("dp_accounting", ("simulate", "--privacy=local", "--noise-multiplier=1", "--privacy-clip=1", *SMALL)),
    "tensorboard": ("tensorboard", ("simulate", "--log=tensorboard", *SMALL)),
    "mlflow": ("mlflow", ("simulate", "--log=mlflow", *SMALL)),
    "wandb": ("wandb", ("simulate", "--log=wandb", *SMALL)),
    "executorch": ("executorch", ("export", "run", "--out=bundle", "--also=executorch")),
    "litert": ("litert_torch", ("export", "run", "--out=bundle", "--also=litert")),
}
"""Extra → the package that is missing, and a command that needs it."""


@pytest.mark.parametrize("extra", CASES)
def test_the_extra_is_named(extra, called, monkeypatch):
    package, command = CASES[extra]
    monkeypatch.setitem(sys.modules, package, None)
    status, output, errors = called(*command)
    assert (status, output) == (2, "")
    assert f"pip install 'edgefl-sim[{extra}]'" in errors
    assert "Traceback" not in errors


def test_every_extra_that_is_named_exists():
    """The extras in messages of the package are those of pyproject.toml."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "edgefl").rglob("*.py"))
    named = {extra for text in texts for extra in re.findall(r"edgefl-sim\[([\w-]+)\]", text)}
    assert named <= EXTRAS.keys()
    assert CASES.keys() <= named


def test_charts_as_files_name_their_extra(monkeypatch):
    from edgefl.errors import InputError
    from edgefl.report.chart import Chart
    from edgefl.report.figures import drawn

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(InputError, match=r"needs vl_convert, .* run pip install 'edgefl-sim\[figures\]'"):
        drawn(Chart("key", "title", "sentence", {"mark": "bar"}), "svg")


def test_the_base_needs_neither_a_parser_of_requests_nor_an_engine_of_javascript():
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=\[]", line)[0] for line in base}
    assert not names & {"h11", "vl-convert-python"}
    assert "rich>=13" in base
