"""A served bundle and a browser; tests skip where Chromium, Playwright or onnxruntime-web is missing."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hand_bundle import write_bundle
from serving import serving

from edgefl.util.files import shared

sys.path.insert(0, str(shared("export") / "python"))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web") / "bundle"
    write_bundle(folder)
    return folder


@pytest.fixture(scope="session")
def url(bundle: Path, ort_web: Path) -> Iterator[str]:
    with serving(bundle, ort_web) as server:
        yield server.url


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address in a browser of its own, wait until its first tier is there or a problem is shown, and return the page."""
    with contextlib.ExitStack() as stack:

        def open_page(address: str, **settings: Any) -> Any:
            context = stack.enter_context(contextlib.closing(browser.new_context(**settings)))
            page = context.new_page()
            page.set_default_timeout(60_000)
            page.goto(address)
            page.wait_for_selector("#problem:not([hidden]), #tier:not([disabled])")
            return page

        yield open_page


@pytest.fixture(scope="session")
def shared_page(browser: Any, url: str) -> Iterator[Any]:
    with contextlib.closing(browser.new_context(viewport={"width": 1000, "height": 800})) as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: pytest.fail(f"the page threw {error}"))
        page.goto(url)
        page.wait_for_selector("#tier:not([disabled])")
        yield page


@pytest.fixture
def page(shared_page: Any) -> Any:
    """The page with tier 1 as the bundle has it, and no samples."""
    shared_page.select_option("#tier", "1")
    shared_page.evaluate("() => edgefl.choose('1')")
    shared_page.wait_for_selector("#tier:not([disabled])")
    shared_page.evaluate("() => { document.getElementById('empty').click(); document.getElementById('clear').click(); }")
    return shared_page
