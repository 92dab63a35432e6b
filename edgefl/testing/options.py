"""The options of ``pytest --pyargs edgefl.testing.contract``, loaded at an entry point; other runs of pytest do not have them."""

import pytest

_RULES = ("aggregation", "submodels", "training")
pytest.register_assert_rewrite(*(f"edgefl.testing.{module}" for module in ("cases", *(f"rules_of_{what}" for what in _RULES))))


def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Add the options if the contract is among the arguments."""
    if any(argument.startswith("edgefl.testing.contract") for argument in args):
        group = parser.getgroup("edgefl", "the contract of edgefl's methods")
        told = "method to check: a name, package.module:Class or file.py:Class; may be repeated"
        group.addoption("--method", dest="edgefl_methods", action="append", metavar="NAME", help=told)
        told = "Python file or module that defines methods; may be repeated"
        group.addoption("--plugin", dest="edgefl_plugins", action="append", metavar="FILE|MODULE", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Import the plug-ins and the methods; wrong ones are a usage error."""
    names = config.getoption("edgefl_methods", False)
    if names is False:
        return
    from edgefl.errors import EdgeflError  # other runs of pytest need none of these
    from edgefl.plugins import load
    from edgefl.registry import methods

    try:
        if not names:
            raise pytest.UsageError("give --method NAME: the method to check")
        load(config.getoption("edgefl_plugins") or ())
        for name in names:
            methods.load(name)
    except EdgeflError as error:
        raise pytest.UsageError(str(error)) from None
