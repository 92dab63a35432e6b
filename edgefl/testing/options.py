"""The options of ``pytest --pyargs edgefl.testing.contract``, loaded at an entry point; other runs of pytest do not have them."""

import importlib.util
import inspect
from collections.abc import Generator, Mapping
from typing import Any

import pytest

KINDS: Mapping[str, str] = {
    "method": "methods", "codec": "codecs", "objective": "objectives", "server_optimizer": "server_optimizers", "dataset": "datasets",
    "adversary": "adversaries", "defence": "defences", "engine": "engines", "model": "models", "device": "",
}  # fmt: skip
"""Kind of part, the argument of its rules → the registry that has it; a device is a TOML file."""
_BROKEN = "edgefl rule"
_RULES = "edgefl.testing.rules_of_"
_OF_METHODS = ("aggregation", "submodels", "training")
_REWRITTEN = (*_OF_METHODS, *(kinds or f"{kind}s" for kind, kinds in KINDS.items() if kind != "method"))
pytest.register_assert_rewrite("edgefl.testing.cases", *(_RULES + what for what in _REWRITTEN))


def pytest_load_initial_conftests(parser: pytest.Parser, args: list[str]) -> None:
    """Add the options if the contract is among the arguments."""
    if any(argument.startswith("edgefl.testing.contract") for argument in args):
        group = parser.getgroup("edgefl", "the contract of the parts of edgefl")
        for kind in KINDS:
            form = "a name or a TOML file" if kind == "device" else "a name, package.module:Class or file.py:Class"
            text = f"{kind.replace('_', ' ')} to check: {form}; may be repeated"
            group.addoption(_flag(kind), dest=f"edgefl_{kind}", action="append", default=[], metavar="NAME", help=text)
        text = "Python file or module that defines parts; may be repeated"
        group.addoption("--plugin", dest="edgefl_plugins", action="append", default=[], metavar="FILE|MODULE", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Import the plug-ins and the parts; wrong ones are a usage error."""
    if config.getoption("edgefl_plugins", None) is None:
        return
    if importlib.util.find_spec("hypothesis") is None:
        raise pytest.UsageError("the contract needs hypothesis, which is not installed; run pip install 'edgefl-sim[contract]'")
    import edgefl.registry as registry  # other runs of pytest need none of these
    from edgefl.errors import EdgeflError
    from edgefl.fleet.load import load_device
    from edgefl.plugins import load

    asked = {kind: config.getoption(f"edgefl_{kind}") for kind in KINDS}
    if not any(asked.values()):
        raise pytest.UsageError(f"give the part to check, such as --method NAME; kinds: {', '.join(map(_flag, KINDS))}")
    try:
        load(config.getoption("edgefl_plugins"))
        for kind, names in asked.items():
            for name in names:
                (getattr(registry, KINDS[kind]).load if KINDS[kind] else load_device)(name)
    except EdgeflError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> list[pytest.Item] | None:
    """Leave the rules out whose kind of part is not to be checked."""
    if not name.startswith("test_") or collector.name != "contract.py" or not inspect.isfunction(obj):
        return None
    chosen = [kind for kind in KINDS if collector.config.getoption(f"edgefl_{kind}", None)]
    needed = {"method" if argument == "case" else argument for argument in inspect.signature(obj).parameters}
    return None if needed & set(chosen) else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in words which rule a part breaks."""
    report = yield
    function = getattr(item, "function", None)
    if report.failed and call.excinfo is not None and getattr(function, "__module__", "").startswith(_RULES):
        reason = str(call.excinfo.value).split("\n")[0] or call.excinfo.typename
        report.user_properties.append((_BROKEN, f"{_part(item)} breaks the rule: {_words(function)}\n    {reason}"))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the broken rules after all tests."""
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    if lines := [str(text) for report in failed for name, text in getattr(report, "user_properties", ()) if name == _BROKEN]:
        terminalreporter.section("broken rules")
        for line in lines:
            terminalreporter.write_line(line)


def _words(rule: Any) -> str:
    from edgefl.testing.cases import RULES  # a rule of methods has its words there

    return RULES[rule.__name__].words if rule.__name__ in RULES else (inspect.getdoc(rule) or rule.__name__).split("\n")[0]


def _part(item: Any) -> str:
    """Return kind and name of the part that a test is run for."""
    kind, value = next((kind, value) for kind, value in item.callspec.params.items() if kind in KINDS or kind == "case")
    return f"method {type(value.method).__name__}" if kind == "case" else f"{kind.replace('_', ' ')} {value}"


def _flag(kind: str) -> str:
    return f"--{kind.replace('_', '-')}"
