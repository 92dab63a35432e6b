"""The page as an installed app: what Chromium asks of one, and which version it shows after an update. About 10 s."""

import sys
from pathlib import Path
from typing import Any

import pytest
from serving import reload, running, serving

from edgefl.contrib.serve.files import ServedFile, bundle_addresses, page_addresses, seal

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import page_files

VERSIONS = "() => caches.keys().then((names) => names.filter((name) => name.startsWith('edgefl-page-')))"

GONE = """async (version) => {
  while ((await caches.keys()).includes(version)) await new Promise((resolve) => setTimeout(resolve, 50));
}"""
FAILED = """() => navigator.serviceWorker.getRegistration().then(async (found) => {
  await found.update().catch(() => {});
  while (found.installing) await new Promise((resolve) => setTimeout(resolve, 50));
  return found.waiting === null;
})"""


def with_changes(
    table: dict[str, ServedFile], folder: Path, changes: dict[str, str], listed: dict[str, str] | None = None
) -> dict[str, ServedFile]:
    """Return the table with lines added to some files, and a service worker that lists these or the ``listed`` contents."""
    folder.mkdir()
    contents = page_files.contents()
    for name, line in (changes | (listed or {})).items():
        contents[name] = contents[name] + line.encode()
    worker = page_files.with_list(table["/sw.js"].path.read_text(), contents)
    files = {name: table[f"/{name}"].path.read_text() + line for name, line in changes.items()} | {"sw.js": worker}
    for name, text in files.items():
        (folder / name).write_text(text)
    return {**table, **{f"/{name}": seal(folder / name, folder) for name in files}}


def shown(page: Any) -> Any:
    """The version of the page's parts after it is loaded anew."""
    reload(page)
    page.wait_for_selector("#tier:not([disabled])")
    return page.evaluate("() => [window.one ?? 1, window.two ?? 1]")


@pytest.fixture(scope="module")
def table(bundle: Path, ort_web: Path) -> dict[str, ServedFile]:
    return bundle_addresses(bundle) | page_addresses(ort_web)


def test_chromium_finds_nothing_that_hinders_installing(bundle, ort_web, opened):
    with serving(bundle, ort_web) as server:
        page = opened(server.url)
        page.wait_for_selector("html[data-stored]")
        client = page.context.new_cdp_session(page)
        found = client.send("Page.getAppManifest")
        hindrances = client.send("Page.getInstallabilityErrors")["installabilityErrors"]
        assert found["url"] == f"{server.url}manifest.webmanifest"
        assert found["errors"] == []
        assert [
            one["errorId"] for one in hindrances if one["errorId"] != "in-incognito"
        ] == []  # tests have a window of their own
        assert page.evaluate("() => caches.keys()")[0].startswith("edgefl-")


def test_an_update_is_stored_whole_and_nothing_old_is_shown(table, opened, tmp_path):
    new = with_changes(table, tmp_path / "new", {"app.js": "\nwindow.one = 2;\n", "dom.js": "\nwindow.two = 2;\n"})
    with running(table) as server:
        page = opened(server.url)
        page.wait_for_selector("html[data-stored]")
        (first,) = page.evaluate(VERSIONS)
        server.table = new
        assert shown(page) == [2, 2], "with a network the page is the server's"
        page.evaluate(GONE, first)
        (second,) = page.evaluate(VERSIONS)
        page.wait_for_selector("html[data-stored]")
    assert first != second
    assert shown(page) == [2, 2], "without one it is the version that was stored last"


def test_half_an_update_is_not_stored(table, opened, tmp_path):
    """The list names a file that the server does not have in this version: what was stored stays, whole."""
    half = with_changes(table, tmp_path / "half", {"app.js": "\nwindow.one = 2;\n"}, listed={"dom.js": "\nwindow.two = 2;\n"})
    with running(table) as server:
        page = opened(server.url)
        page.wait_for_selector("html[data-stored]")
        before = page.evaluate(VERSIONS)
        server.table = half
        reload(page)
        page.wait_for_selector("#tier:not([disabled])")
        assert page.evaluate(FAILED)
    assert shown(page) == [1, 1]
    assert before[0] in page.evaluate(VERSIONS)
