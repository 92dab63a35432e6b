"""The runtime of browsers, for ``edgefl doctor``."""

import shutil
from collections.abc import Iterator

from edgefl.cli.doctor import Check
from edgefl.contrib.serve.runtime import PACKAGE, installed, version
from edgefl.registry import view


@view("browser")
def browser_runtime() -> Iterator[Check]:
    """Yield whether the page can run a bundle in a browser."""
    folder = installed()
    npm = shutil.which("npm")
    about = f"{PACKAGE} {version()}" + (
        f" in {folder}" if folder else ", which 'edgefl serve' fetches" if npm else "; install npm to fetch it"
    )
    yield Check("browser runtime", "ok" if folder or npm else "missing", about)
