"""The contract that every part of the package passes, and every plug-in is meant to: one test per rule.

    pytest --pyargs edgefl.testing.contract --method mine --codec mine.py:Codec --plugin mine.py

Methods are checked over every kind of network and tier. A method lists the rules that cannot hold for it in ``contract_exceptions``, by the
rule's words or, where only one kind of network breaks it, as ``words [kind]``. Such a rule must then really fail (strict xfail), so the
list cannot outlive its reasons. The first line of any other rule's docstring is its words.
"""

from collections.abc import Iterator

import pytest

import edgefl.registry as registry
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.testing import options
from edgefl.testing.cases import RULES, parametrize
from edgefl.testing.rules_of_adversaries import *  # noqa: F403 - tests run where pytest finds their names
from edgefl.testing.rules_of_aggregation import *  # noqa: F403
from edgefl.testing.rules_of_codecs import *  # noqa: F403
from edgefl.testing.rules_of_datasets import *  # noqa: F403
from edgefl.testing.rules_of_defences import *  # noqa: F403
from edgefl.testing.rules_of_devices import *  # noqa: F403
from edgefl.testing.rules_of_engines import *  # noqa: F403
from edgefl.testing.rules_of_models import *  # noqa: F403
from edgefl.testing.rules_of_objectives import *  # noqa: F403
from edgefl.testing.rules_of_server_optimizers import *  # noqa: F403
from edgefl.testing.rules_of_submodels import *  # noqa: F403
from edgefl.testing.rules_of_training import *  # noqa: F403
from edgefl.util.compute import one_thread


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test for the parts that the options name."""
    for kind, kinds in options.KINDS.items():
        names = metafunc.config.getoption(f"edgefl_{kind}")
        if kinds:
            names = list(map(getattr(registry, kinds).resolve, names))
        if kind == "method":
            parametrize(metafunc, {name: create(name) for name in names})
        elif kind in metafunc.fixturenames:
            metafunc.parametrize(kind, names, scope="module")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def test_exceptions_name_rules_that_exist(method: Method) -> None:
    """A reason has more than a few words."""
    exceptions = method.contract_exceptions
    assert {words.partition(" [")[0] for words in exceptions} <= {rule.words for rule in RULES.values()}
    assert all(len(reason) > 30 for reason in exceptions.values())
