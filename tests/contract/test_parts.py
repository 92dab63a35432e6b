"""The contract of every other kind of part, held against all parts of the package; engines have tests/contract/test_engines.py."""

import re
from pathlib import Path

import pytest
import requirements

import edgefl.testing
from edgefl.fleet.load import names
from edgefl.models.base import small_models
from edgefl.registry import adversaries, codecs, defences, objectives, server_optimizers
from edgefl.testing.rules_of_adversaries import *  # noqa: F403
from edgefl.testing.rules_of_codecs import *  # noqa: F403
from edgefl.testing.rules_of_datasets import *  # noqa: F403
from edgefl.testing.rules_of_defences import *  # noqa: F403
from edgefl.testing.rules_of_devices import *  # noqa: F403
from edgefl.testing.rules_of_models import *  # noqa: F403
from edgefl.testing.rules_of_objectives import *  # noqa: F403
from edgefl.testing.rules_of_server_optimizers import *  # noqa: F403

# Data sets that need no network; tests/data/test_presets.py has the others.
DATASETS = [
    "digits",
    "digits-edges",
    "digits+digits-edges",
    pytest.param("shakespeare", marks=requirements.needs("shakespeare")),
    pytest.param("fashion-mnist", marks=requirements.needs("Fashion-MNIST")),
]
PARTS = {
    "codec": codecs.names(),
    "objective": objectives.names(),
    "server_optimizer": server_optimizers.names(),
    "adversary": adversaries.names(),
    "defence": defences.names(),
    "model": small_models(),
    "dataset": DATASETS,
    "device": names("devices"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every rule for the parts of its kind."""
    for kind, known in PARTS.items():
        if kind in metafunc.fixturenames:
            metafunc.parametrize(kind, known, scope="module")


def test_no_rule_hides_another_by_its_name() -> None:
    files = Path(edgefl.testing.__file__).parent.glob("rules_of_*.py")
    rules = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)]
    assert len(rules) == len(set(rules)) > 50
