"""The contract that every method passes, one test per rule, over every kind of network and tier.

    pytest --pyargs edgefl.testing.contract --method mine --plugin mine.py

A method lists the rules that cannot hold for it in ``contract_exceptions``, by the rule's words or, where only one kind of network breaks
it, as ``words [kind]``. Such a rule must then really fail (strict xfail), so the list cannot outlive its reasons.
"""

from collections.abc import Iterator

import pytest

from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.registry import methods
from edgefl.testing.cases import RULES, parametrize
from edgefl.testing.rules_of_aggregation import *  # noqa: F403 - tests run where pytest finds their names
from edgefl.testing.rules_of_submodels import *  # noqa: F403
from edgefl.testing.rules_of_training import *  # noqa: F403
from edgefl.util.compute import one_thread


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test for the methods of ``--method``."""
    names = map(methods.resolve, metafunc.config.getoption("edgefl_methods"))
    parametrize(metafunc, {name: create(name) for name in names})


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def test_exceptions_name_rules_that_exist(method: Method) -> None:
    """A reason has more than a few words."""
    exceptions = method.contract_exceptions
    assert {words.partition(" [")[0] for words in exceptions} <= {rule.words for rule in RULES.values()}
    assert all(len(reason) > 30 for reason in exceptions.values())
