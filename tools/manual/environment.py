"""The environment of a newcomer: edgefl as a plain ``pip install`` leaves it, with no package that only an extra brings."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution
from pathlib import Path

from extras import needed

ROOT = Path(__file__).resolve().parents[2]
INSTALL = "pip install -c constraints.txt ."


def create(folder: Path) -> dict[str, str]:
    """Make the environment in ``folder``; return the variables that activate it.

    The packages that edgefl requires are links to those of the present environment, where pip has resolved and unpacked them already. pip
    installs only edgefl's own wheel.
    """
    venv.create(folder)
    env = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(folder)}
    env.pop("PYTHONPATH", None)
    env["XDG_CONFIG_HOME"] = str(folder.parent / "config")  # keys and pins of a newcomer, not those of this account
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in needed("edgefl-sim", {}).values():
        if distribution.metadata["Name"] != "edgefl-sim":
            _link(distribution, site)
    install = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install", "--quiet", "--no-deps", str(ROOT)]
    subprocess.run(install, env=env, check=True)
    return env


def _link(distribution: Distribution, site: Path) -> None:
    """Link what a distribution has in the present site-packages into ``site``. Its commands are left out."""
    for name in {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}:
        target = Path(str(distribution.locate_file(name)))
        if target.exists() and not (site / name).exists():
            (site / name).symlink_to(target)
