"""Shared pieces of the tests."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from durations import CASES, ByGroup, Durations, arrange, left_out, stored
from hypothesis import settings
from requirements import CHROMIUM, require, unavailable

import edgefl.testing.options  # noqa: F401 - asserts of the contract are rewritten
from edgefl.cli.main import main
from edgefl.errors import InputError
from edgefl.util.shelf import Shelf

os.environ["HF_HUB_OFFLINE"] = "1"  # no test waits for the hub's computer; read when the package datasets is imported
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

_RECALLED = Shelf.recalled

collect_ignore_glob = ["*conftest.py"]  # loaded as plugins; as doctest modules they would share one name

settings.register_profile("edgefl", deadline=None, max_examples=40)
settings.load_profile("edgefl")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of whole runs."""
    parser.addoption("--store-durations", action="store_true", help="renew tests/durations.json, which orders the tests")
    told = "cases of tests to run: without further long ones and kinds of networks of the contract of methods, only these, or all"
    parser.addoption("--cases", choices=CASES, default="one", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Store what tests take."""
    if config.getoption("--store-durations"):
        config.option.cases = "all"
        config.pluginmanager.register(Durations())


def pytest_collection() -> None:
    """Let nobody look for garbage among 14,000 tests while they are made: it takes a quarter of that time, and there is none."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what is there until the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order and mark the tests, and leave out further long cases, but not of files that are named on the command line."""
    groups = stored()
    if not (config.args and all(".py" in argument for argument in config.args)):
        left = set(left_out(items, config.getoption("--cases"), groups))
        config.hook.pytest_deselected(items=list(left))
        items[:] = [item for item in items if item not in left]
    arrange(items, groups)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a network that a test makes the same weights in whatever order the tests run."""
    torch.default_generator.manual_seed(crc32(item.nodeid.encode()))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    """Keep groups of tests together."""
    return ByGroup(config, log)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run tests in this process if each is named on the command line: others would import torch first."""
    return 0 if config.args and all("::" in argument for argument in config.args) else None


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: sums come out to the same bits whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _nothing_recalled() -> Iterator[None]:
    """Tests replace parts of what computes costs and graphs: none gets what another made, and none leaves its own to the user."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shelf, "recalled", lambda self, facts, compute: compute())
        yield


@pytest.fixture
def recalling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results are stored and recalled, in a cache folder of the test's own; returns it."""
    monkeypatch.setattr(Shelf, "recalled", _RECALLED)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "edgefl"


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line, called in an empty folder: arguments → exit status, standard output, standard error."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edgefl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        output, errors = capsys.readouterr()
        return int(left.value.code or 0), output, errors

    return call


@pytest.fixture(scope="session")
def ort_web() -> Path:
    """The folder with onnxruntime-web's files, fetched by npm the first time."""
    from edgefl.contrib.serve.runtime import runtime

    try:
        return runtime(lambda _: None)
    except InputError as error:
        unavailable("onnxruntime-web", error)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: one per process of tests, as Playwright allows only one at a time."""
    require("web", "Chromium")
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        # Its folder for the user's data is fresh and removed afterwards.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()
