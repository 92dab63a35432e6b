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
_LONGEST_S = 300
_REQUEST_S = 120
_NPM = (
    *("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
    # By default npm waits 20 s without a network, before it tries again.
    *("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=1000"),
    f"--fetch-timeout={1000 * _REQUEST_S}",
)
_NO_NETWORK = (
    "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ENETUNREACH", "EHOSTUNREACH", "ETIMEDOUT", "ERR_SOCKET_TIMEOUT",
)  # fmt: skip
"""Codes of npm's errors when its registry cannot be reached."""


def version() -> str:
    """Return the version of onnxruntime-web that ``export/web/package.json`` names."""
    return str(json.loads(_page("package.json").read_text(encoding="utf-8"))["dependencies"][PACKAGE])


def cache() -> Path:
    """Return the folder that caches the files: ``edgefl/web/VERSION`` in the user's cache folder."""
    return user_cache() / "web" / version()


def installed() -> Path | None:
    """Return a folder of this computer with :data:`FILES`: beside the page, or the cache; None if they must be fetched."""
    beside = _page("node_modules") / PACKAGE
    if _holds(beside / "dist") and _version_of(beside) == version():
        return beside / "dist"
    return folder if _holds(folder := cache()) else None


def runtime(say: Callable[[str], None]) -> Path:
    """Return a folder with :data:`FILES`, which npm fetches into the cache if this computer has none; InputError if npm fails."""
    if (folder := installed()) is None:
        _fetch(folder := cache(), say)
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
    say(f"npm fetches {PACKAGE} {version()} (42 MB) into {folder}, once; this takes at most {_LONGEST_S // 60} minutes")
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
        reason = "; ".join(lines[:3]) or "no message"
        if any(code in reason for code in _NO_NETWORK):
            remedy = _otherwise(folder, "connect this computer to a network once")
            raise InputError(f"npm cannot fetch {PACKAGE}: its registry cannot be reached ({lines[0]}); {remedy}")
        raise InputError(f"npm cannot fetch {PACKAGE}: {reason}; {_otherwise(folder)}")


def _otherwise(folder: Path, remedy: str = "install Node.js with npm and be online once") -> str:
    return f"{remedy}, or copy {', '.join(FILES)} from the package's folder dist to {folder}"
