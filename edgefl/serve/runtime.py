"""Finds the files of onnxruntime-web, which are not part of edgefl (42 MB). npm fetches them once, in the version that the page names."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from edgefl.errors import InputError
from edgefl.util.files import shared, storage_errors, user_cache

PACKAGE = "onnxruntime-web"
GRAPHICS = ("ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.mjs", "ort-wasm-simd-threaded.asyncify.wasm")
"""Those that compute by WebGPU; a page loads them only if it is asked to."""
FILES = ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm", *GRAPHICS)
_NPM = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
_LONGEST_S = 600


def version() -> str:
    """Return the version of onnxruntime-web that ``export/web/package.json`` names."""
    return str(json.loads(_page("package.json").read_text(encoding="utf-8"))["dependencies"][PACKAGE])


def cache() -> Path:
    """Return the folder that caches the files: ``edgefl/web/VERSION`` in the user's cache folder."""
    return user_cache() / "web" / version()


def runtime(say: Callable[[str], None]) -> Path:
    """Return a folder with :data:`FILES`: beside the page, or the cache, which npm fills if it is empty; InputError if npm fails."""
    beside = _page("node_modules") / PACKAGE
    if _holds(beside / "dist") and _version_of(beside) == version():
        return beside / "dist"
    folder = cache()
    if not _holds(folder):
        _fetch(folder, say)
    return folder


def _page(name: str) -> Path:
    return shared("export") / "web" / name


def _holds(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def _version_of(package: Path) -> str:
    try:
        return str(json.loads((package / "package.json").read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _fetch(folder: Path, say: Callable[[str], None]) -> None:
    """Let npm install the packages of the lock file into a temporary folder, and rename the folder of :data:`FILES` to ``folder``."""
    npm = shutil.which("npm")
    if npm is None:
        raise InputError(
            f"{PACKAGE} {version()} is missing on this computer, and so is npm, which downloads it; {_otherwise(folder)}"
        )
    say(f"fetching {PACKAGE} {version()} into {folder}, once")
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".npm.") as temporary:
            work = Path(temporary)
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(_page(name), work / name)
            _install(npm, work, folder)
            whole = work / "whole"
            whole.mkdir()
            for name in FILES:
                shutil.move(work / "node_modules" / PACKAGE / "dist" / name, whole / name)
            if folder.is_dir() and not _holds(folder):
                shutil.rmtree(folder)
            try:
                whole.rename(folder)
            except OSError:
                if not _holds(folder):  # another process may have been first
                    raise


def _install(npm: str, work: Path, folder: Path) -> None:
    try:
        done = subprocess.run([npm, *_NPM], cwd=work, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        raise InputError(f"npm did not fetch {PACKAGE} in {_LONGEST_S} s; {_otherwise(folder)}") from None
    if done.returncode != 0:
        lines = [line.removeprefix("npm error ") for line in done.stderr.splitlines() if line.startswith("npm error ")]
        raise InputError(f"npm cannot fetch {PACKAGE}: {'; '.join(lines[:3]) or 'no message'}; {_otherwise(folder)}")


def _otherwise(folder: Path) -> str:
    return f"install Node.js with npm and be online once, or copy {', '.join(FILES)} from the package's folder dist to {folder}"
