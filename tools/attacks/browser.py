"""Bundles that mean harm, on the browser's page: it shows a problem or works, runs no script of theirs, and asks no other server."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attacks.bundles import hostile
from attacks.harness import TESTS, Bench, Case, Finding, Rng, Unavailable
from attacks.made import simulated
from edgefl.bundle.manifest import MANIFEST
from edgefl.bundle.signature import signature_files
from edgefl.contrib.serve.files import seal
from edgefl.errors import InputError
from edgefl.util.keys import SigningKey

sys.path[:0] = [str(TESTS), str(TESTS / "serve")]

_READY = "#problem:not([hidden]), #tier:not([disabled])"
_TRAINS = """options => Promise.race([
  edgefl.train(options).then(() => "trained", (error) => `refused: ${error.message}`),
  new Promise((late) => setTimeout(late, 120000, "hangs")),
])"""


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    browser, runtime, serving = _browser(bench), _runtime(), _serving()

    def case(rng: Rng, folder: Path) -> str:
        here, kind = folder / "here", str(rng.choice(["manifest", "graph", "damaged file"]))
        how = hostile(bench, here, kind, rng)
        mine, key = here / "served", SigningKey.new(here / "publisher.pem")
        shutil.copytree(simulated(bench) / "bundle", mine)
        with serving(mine, runtime) as server, contextlib.closing(browser.new_context()) as context:
            shutil.rmtree(mine)
            (here / "bundle").rename(mine)
            for name, content in signature_files((mine / MANIFEST).read_bytes(), key).items():
                (mine / name).write_bytes(content)
            # As a server that checks nothing: each file as it is.
            server.table = {address: _sealed(one, mine) for address, one in server.table.items()}
            page, wrong = context.new_page(), list[str]()
            page.on("pageerror", lambda error: wrong.append(f"threw {error}"))
            page.on("dialog", lambda dialog: wrong.append("opened a dialog"))
            page.on("request", lambda request: None if _own(request.url, server.url) else wrong.append(f"asked {request.url}"))
            said = _used(page, server.url, how)
        if wrong:
            raise Finding(f"{how}: the page {wrong[0]}")
        return f"{how}: {said}"

    return case


def _used(page: Any, url: str, how: str) -> str:
    """Open the page, train if it offers that, and return what came of it."""
    from playwright.sync_api import Error

    try:
        page.goto(url, wait_until="commit")
        page.wait_for_selector(_READY, timeout=90_000)
        if page.locator("#problem").is_visible() or page.locator("#train").is_disabled():
            return "refused"
        x, y = [[[[0.5] * 8] * 8]] * 4, [0, 1, 2, 3]
        given = {"x": x, "y": y, "steps": 2, "batchSize": 4}
        said = str(page.evaluate(_TRAINS, given)).partition(":")[0]
    except Error as error:
        raise Finding(f"{how}: the page hangs or has crashed: {str(error)[:300]}") from None
    if said == "hangs":
        raise Finding(f"{how}: training hangs")
    return said


def _sealed(served: Any, bundle: Path) -> Any:
    return seal(served.path, bundle) if served.folder == bundle and served.path.is_file() else served


def _own(address: str, url: str) -> bool:
    return address.startswith((url, "blob:", "data:"))


def _browser(bench: Bench) -> Any:
    """Return a headless Chromium."""
    if find_spec("playwright") is None:
        raise Unavailable("needs the package playwright")
    from playwright.sync_api import sync_playwright
    from requirements import CHROMIUM, REQUIREMENTS

    import conftest

    if not REQUIREMENTS["Chromium"].present():
        raise Unavailable(f"needs Chromium: {REQUIREMENTS['Chromium'].install}")
    chromium = bench.opened.enter_context(sync_playwright()).chromium
    return bench.opened.enter_context(contextlib.closing(chromium.launch(executable_path=CHROMIUM, args=conftest.ARGUMENTS)))


def _runtime() -> Path:
    """Return the folder of onnxruntime-web."""
    from edgefl.contrib.serve.runtime import runtime

    try:
        return runtime(lambda _: None)
    except InputError as error:
        raise Unavailable(str(error)) from None


def _serving() -> Callable[..., Any]:
    from serving import serving

    found: Callable[..., Any] = serving
    return found
