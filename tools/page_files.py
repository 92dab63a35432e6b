"""Write what is made from the browser page's other files: the icons, and the list of files with their hashes in its service worker.

Usage: python tools/page_files.py    (after a change in export/web, or of the compiled files in export/ts/lib)

onnxruntime-web's files are on the list with the hashes that they have in the version of ``export/web/package.json``; npm fetches them once.
"""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import vl_convert

from edgefl.contrib.serve.files import page_addresses
from edgefl.contrib.serve.runtime import GRAPHICS, runtime

PAGE = Path(__file__).parents[1] / "export" / "web"
SIDES = {"icon-192.png": 192, "icon-512.png": 512, "icon-maskable.png": 512}


def icon(name: str) -> bytes:
    """Return a PNG of the icon; the maskable one fills its square, because phones cut it themselves."""
    drawing = (PAGE / "icon.svg").read_text(encoding="utf-8")
    if name == "icon-maskable.png":
        drawing = re.sub(r' rx="\d+"', "", drawing)
    side = SIDES[name]
    return bytes(vl_convert.svg_to_png(drawing.replace("<svg ", f'<svg width="{side}" height="{side}" ', 1)))


def listed(contents: Mapping[str, bytes]) -> str:
    """Return the service worker's lines for files by their addresses below the page, such as ``core/run.js``; "./" is the page itself."""
    hashes = {path: f"sha256-{base64.b64encode(hashlib.sha256(contents[path]).digest()).decode()}" for path in sorted(contents)}
    later = {path: value for path, value in hashes.items() if path.removeprefix("ort/") in GRAPHICS}
    files = {path: value for path, value in hashes.items() if path not in later}
    lines = f"const FILES = {json.dumps(files, indent=2)};\nconst LATER = {json.dumps(later, indent=2)};\n"
    return f'const VERSION = "{hashlib.sha256(lines.encode()).hexdigest()[:16]}";\n{lines}'


def with_list(worker: str, contents: Mapping[str, bytes]) -> str:
    """Return the text of the service worker with the list of these files in place of its own."""
    return re.sub(
        r'const VERSION = ".*?";\nconst FILES = \{.*?\};\nconst LATER = \{.*?\};\n',
        lambda _: listed(contents),
        worker,
        count=1,
        flags=re.DOTALL,
    )


def contents() -> dict[str, bytes]:
    """Return address → content of what the page needs without a network."""
    table = page_addresses(runtime(lambda line: print(line, file=sys.stderr)))
    found = {address.removeprefix("/") or "./": served.path.read_bytes() for address, served in table.items()}
    return {address: content for address, content in found.items() if address != "sw.js"}


def main() -> None:
    """Write the icons and the list."""
    for name in SIDES:
        (PAGE / name).write_bytes(icon(name))
    worker = PAGE / "sw.js"
    worker.write_text(with_list(worker.read_text(encoding="utf-8"), contents()), encoding="utf-8")


if __name__ == "__main__":
    main()
