"""Writes requirements.lock: the versions in constraints.txt, with the hash of every file that the package index has of them.

uv asks the index. Of torch the build without CUDA is locked, for this platform only: PyTorch's own index has it.

    python tools/lock.py [--torch-links PAGE_OR_FOLDER]
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS, LOCK = ROOT / "constraints.txt", ROOT / "requirements.lock"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu/torch/"
HEAD = """\
# The versions of constraints.txt, with hashes. Written by tools/lock.py; docs/supply-chain.md says how to install them.
"""


def locked(constraints: str) -> str:
    """Return each of the versions with its hashes; nothing is resolved."""
    options = "--quiet --no-deps --no-config --generate-hashes --no-header --no-annotate --python-version 3.11"
    command = [sys.executable, "-m", "uv", "pip", "compile", "-", *options.split()]
    return subprocess.run(command, input=constraints, text=True, stdout=subprocess.PIPE, check=True).stdout


def build_without_cuda(torch: str, links: str) -> str:
    """Return the hash of the build of torch without CUDA for this platform."""
    options = ["--quiet", "--no-deps", "--dry-run", "--ignore-installed", "--report", "-", "--no-index", "--find-links", links]
    found = subprocess.run([sys.executable, "-m", "pip", "install", *options, f"{torch}+cpu"], stdout=subprocess.PIPE, check=True)
    return str(json.loads(found.stdout)["install"][0]["download_info"]["archive_info"]["hashes"]["sha256"])


def with_build(lock: str, torch: str, sha256: str) -> str:
    r"""Return the lock file with the build without CUDA in place of torch's others.

    >>> lock = "torch==2 \\\n    --hash=sha256:0f \\\n    --hash=sha256:10\nzipp==4 \\\n    --hash=sha256:ab\n"
    >>> print(with_build(lock, "torch==2", "01"))
    torch==2+cpu \
        --hash=sha256:01
    zipp==4 \
        --hash=sha256:ab
    <BLANKLINE>
    """
    entry = rf"^{re.escape(torch)} \\\n(    --hash=\S+( \\)?\n)+"
    return re.sub(entry, lambda _: f"{torch}+cpu \\\n    --hash=sha256:{sha256}\n", lock, flags=re.MULTILINE)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-links", default=CPU_BUILDS, help="where torch's builds without CUDA are linked")
    links = parser.parse_args().torch_links
    constraints = CONSTRAINTS.read_text(encoding="utf-8")
    torch = next(line for line in constraints.splitlines() if line.startswith("torch=="))
    LOCK.write_text(HEAD + with_build(locked(constraints), torch, build_without_cuda(torch, links)), encoding="utf-8")


if __name__ == "__main__":
    main()
