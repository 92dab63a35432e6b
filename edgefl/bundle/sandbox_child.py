"""The child process of :mod:`edgefl.bundle.sandbox`: reads one line of JSON, and answers with a line for each file and tier."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgefl.bundle.manifest_file import read
from edgefl.bundle.tier_check import check_tier
from edgefl.client.isolation.limits import die_with, own, set_data_limit
from edgefl.errors import BundleError

_NO_MEMORY = re.compile(r"allocate memory|bad_alloc|bad allocation|out of memory|smaller than requested bytes", re.IGNORECASE)
Say = Callable[[dict[str, Any]], None]


def run(folder: Path, labels: list[str], memory_bytes: int, say: Say) -> None:
    """Check the tiers with these ``labels``, and ``say`` the file before it is checked, the result of each tier, and the end."""
    manifest = read(folder)
    place = ""

    def announce(name: str) -> None:
        nonlocal place
        place = name
        say({"at": name})

    for entry in manifest.tiers:
        if entry.label not in labels:
            continue
        try:
            errors = check_tier(folder, manifest, entry, announce)
        except Exception as error:  # noqa: BLE001 - any error that a file causes is a problem of the file
            say({"tier": entry.label, "problem": _problem(place, error, memory_bytes)})
        else:
            say({"tier": entry.label, "errors": errors})
    say({"done": True})


def _problem(place: str, error: Exception, memory_bytes: int) -> str:
    """Return the text of the problem that ``error`` is, with ``place``, the file that was being checked."""
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error.__cause__ or error)):
        return f"{place}: needs more than {memory_bytes:,} bytes of memory; --memory allows more"
    return str(error) if isinstance(error, BundleError) else f"{place}: cannot be checked: {type(error).__name__}: {error}"


def main() -> None:
    """Read the order from standard input and run it. Output of libraries goes to standard error, only answers to standard output."""
    order = json.loads(sys.stdin.readline())
    die_with(order.pop("parent"))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if sys.platform == "linux":
        set_data_limit(own().data_bytes + order["memory_bytes"])

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    run(Path(order["folder"]), order["labels"], order["memory_bytes"], say)


if __name__ == "__main__":
    main()
