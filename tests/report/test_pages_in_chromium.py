"""Every kind of page in a browser, at three widths, light and dark: nothing cut, no text on text, no serious fault for axe-core.

A page is loaded once and resized, all of its details open. Its geometry does not depend on the colours; axe-core sees both schemes.
"""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from made_pages import KINDS, made_pages
from requirements import require, unavailable

from edgefl.util.files import user_cache

WIDTHS = (390, 768, 1280)
AXE = "4.14.1"
INTEGRITY = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
GEOMETRY = Path(__file__).with_name("geometry.js").read_text(encoding="utf-8").partition("\n")[2]


@pytest.fixture(scope="module")
def axe() -> str:
    """axe-core, which npm fetches once into the user's cache."""
    stored = user_cache() / f"axe-core-{AXE}.tgz"
    if not stored.exists():
        require("npm")
        stored.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=stored.parent, prefix=".npm.") as folder:  # another process may fetch it, too
            command = [shutil.which("npm") or "npm", "pack", f"axe-core@{AXE}", "--pack-destination", folder, "--silent"]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
            if done.returncode:
                unavailable(f"axe-core {AXE}", f"npm cannot fetch it: {done.stderr.strip()[:300]}")
            (Path(folder) / stored.name).rename(stored)
    digest = base64.b64encode(hashlib.sha512(stored.read_bytes()).digest()).decode()
    assert f"sha512-{digest}" == INTEGRITY
    with tarfile.open(stored) as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, text in made_pages().items():
        found[name] = folder / f"{name}.html"
        found[name].write_text(text, encoding="utf-8")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_and_accessible_at_every_width(kind: str, pages: dict[str, Path], browser: Any, axe: str) -> None:
    page = browser.new_page(color_scheme="light")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(pages[kind].as_uri())
    page.evaluate(f"() => {{ window.geometry = {GEOMETRY} }}")
    page.evaluate("() => { for (const details of document.querySelectorAll('details')) details.open = true; }")
    page.evaluate(axe)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => geometry.drawn()")
        page.evaluate("() => geometry.settled()")
        assert page.evaluate("() => geometry.cut()") == [], (kind, width)
        assert page.evaluate("() => geometry.overlapping()") == [], (kind, width)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("() => geometry.faults()") == [], (kind, width, scheme)
    assert page.locator("dl.answer dd").count() == 3
    assert errors == []
    page.close()


def test_charts_and_tables_are_saved_as_png_and_csv(pages: dict[str, Path], browser: Any) -> None:
    page = browser.new_page(accept_downloads=True)
    page.goto(pages["run"].as_uri())
    with page.expect_download() as csv:
        page.locator("#accuracy-round .save button", has_text="CSV").click()
    text = Path(csv.value.path()).read_text(encoding="utf-8")
    assert {"series", "accuracy", "round"} <= set(text.splitlines()[0].split(","))
    with page.expect_download() as png:
        page.locator("#outcomes-classes .save button", has_text="PNG").click()
    data = Path(png.value.path()).read_bytes()
    assert data.startswith(b"\x89PNG")
    width = int.from_bytes(data[16:20], "big")
    drawn = page.evaluate("() => document.querySelector('#outcomes-classes svg').getBoundingClientRect().width")
    assert width == int(2 * drawn)
    with page.expect_download() as table:
        page.locator(".scroll[data-name='key figures of tiers'] + .save button").click()
    assert "parameters" in Path(table.value.path()).read_text(encoding="utf-8")
    page.close()
