"""Compile the TypeScript client from export/ts/src to export/ts/lib, and list the hashes of the browser page, which shares its core.

Usage: python tools/compile_client.py    (needs npm; its packages lie in the user's cache, so that no node_modules gets into a build)
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import page_files

from edgefl.util.files import user_cache

CLIENT = Path(__file__).parents[1] / "export" / "ts"
_NPM = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")  # a script of onnxruntime-node would fetch CUDA


class PackagesError(Exception):
    """npm is missing, or does not fetch the packages."""


def packages() -> Path:
    """Return the folder node_modules with the packages of ``export/ts/package-lock.json``; npm fetches them once (320 MB)."""
    folder = user_cache() / "ts" / hashlib.sha256((CLIENT / "package-lock.json").read_bytes()).hexdigest()[:16]
    if folder.is_dir():
        return folder / "node_modules"
    npm = shutil.which("npm")
    if npm is None:
        raise PackagesError("npm is not installed, so the packages of the TypeScript client cannot be had")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".npm.") as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(CLIENT / name, whole)
        done = subprocess.run([npm, *_NPM], cwd=whole, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            raise PackagesError(f"npm does not fetch the packages of the TypeScript client: {done.stderr.strip()[:300]}")
        if not folder.exists():
            whole.rename(folder)
    return folder / "node_modules"


def copied(folder: Path) -> Path:
    """Copy the client's sources and compiled files to ``folder``, put the packages beside them, and return it."""
    found = packages()
    shutil.copytree(CLIENT, folder, ignore=shutil.ignore_patterns("node_modules"), dirs_exist_ok=True)
    (folder / "node_modules").symlink_to(found)
    return folder


def main() -> int:
    """Compile, and return the exit status of the compiler."""
    with tempfile.TemporaryDirectory() as temporary:
        work = copied(Path(temporary) / "ts")
        compiler = [shutil.which("node") or "node", "node_modules/typescript/bin/tsc", "--outDir", str(CLIENT / "lib")]
        done = subprocess.run(compiler, cwd=work, check=False)
    if done.returncode == 0:
        page_files.main()
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
