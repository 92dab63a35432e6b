"""The command line called in this process: another start of Python and torch would take seconds each time."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

import pytest

from edgefl.cli.main import main


def edgefl(*arguments: str, cwd: Path | None = None) -> CompletedProcess[str]:
    """Return exit status, standard output and standard error of ``edgefl`` with ``arguments``, called in the folder ``cwd``."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd) if cwd else contextlib.nullcontext(),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        patch.object(sys, "argv", ["edgefl", *arguments]),
        # The memory that a process keeps is measured by other tests.
        patch("edgefl.client.isolation.limits.keep_freed_memory"),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return CompletedProcess(arguments, int(left.value.code or 0), output.getvalue(), errors.getvalue())


def told(*arguments: object) -> tuple[int, str, str]:
    """Return exit status, standard output and standard error of ``edgefl`` with ``arguments``."""
    done = edgefl(*map(str, arguments))
    return done.returncode, done.stdout, done.stderr


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Return the options that give a run these keys."""

    def text(value: Any) -> str:
        return ",".join(f"{part}" for part in value) if isinstance(value, tuple) else f"{value}"

    switches = {"dynamic_devices": "--dynamic-devices"}
    return [switches.get(key, f"--{key.replace('_', '-')}={text(value)}") for key, value in values.items()]
