"""What the tests and the doctests share: keys of their own, and the option ``--last-skipped``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SKIPPED = "edgefl/skipped"
"""Where pytest's cache has the tests that the last run skipped."""


@pytest.fixture(scope="session", autouse=True)
def _own_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keys are made and pinned in a folder of the tests, not in that of the user who runs them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that goes on with what was missing."""
    parser.addoption("--last-skipped", action="store_true", help="run only the tests that the last run skipped")


def pytest_configure(config: pytest.Config) -> None:
    """Select tests, or record them in the process that has the reports of all others."""
    config.pluginmanager.register(LastSkipped(config))


class LastSkipped:
    """Records which tests a run skips, and selects those of the run before."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.before: list[str] = cache.get(SKIPPED, []) if (cache := _cache(config)) else []
        self.skipped: set[str] = set()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out files without a test that was skipped."""
        if not self.config.option.last_skipped or collection_path.is_dir():
            return None
        return str(collection_path) not in {str(self.config.rootpath / name.split("::")[0]) for name in self.before} or None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Select the tests that were skipped, alone or with their module."""
        if not self.config.option.last_skipped:
            return
        chosen = [item for item in items if not {item.nodeid, item.nodeid.split("::")[0]}.isdisjoint(self.before)]
        self.config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a skipped test."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Remember a module that is skipped as a whole."""
        if report.skipped:
            self.skipped.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add what a process of xdist skipped, which reports only one of the modules that are skipped for one reason."""
        self.skipped.update(getattr(node, "workeroutput", {}).get(SKIPPED, ()))

    def pytest_sessionfinish(self) -> None:
        """Store what was skipped."""
        cache = _cache(self.config)
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[SKIPPED] = sorted(self.skipped)
        elif cache and not self.config.option.collectonly:
            cache.set(SKIPPED, sorted(self.skipped))


def _cache(config: pytest.Config) -> pytest.Cache | None:
    """Return pytest's cache; None with ``-p no:cacheprovider``."""
    return getattr(config, "cache", None)
