"""A process that has imported what a command needs, and forks one for each order: a start takes milliseconds, and a crash ends one case.

Usage: python zygote.py FUNCTION [MODULE]...      FUNCTION is module:function; orders are lines of JSON on standard input.

It is a script of its own and imports nothing of the tools: a forked command sees the modules and the threads that it would have alone.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn


def main() -> None:
    """Fork a process for every order to start one, and wait for those that are asked about, until standard input ends."""
    module, _, name = sys.argv[1].partition(":")
    function = getattr(importlib.import_module(module), name)
    for other in sys.argv[2:]:
        importlib.import_module(other)
    _say({"ready": os.getpid()})
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _say({"status": _waited(order["wait"], order["seconds"])})
            continue
        pid = os.fork()
        if pid == 0:
            _become(order)
            _run(function)
        _say({"pid": pid})


def _run(function: Callable[[], Any]) -> NoReturn:
    """Run a command and end this process as the interpreter does, but without the libraries that wait for threads of their parent."""
    atexit._clear()  # noqa: SLF001 - those of the parent's libraries
    status: Any = 1
    try:
        status = function()
    except SystemExit as left:
        status = left.code
    except BaseException:  # noqa: BLE001 - as the interpreter shows it
        traceback.print_exc()
    atexit._run_exitfuncs()  # noqa: SLF001
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status if isinstance(status, int) else int(status is not None))


def _say(answer: Mapping[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def _waited(pid: int, seconds: float) -> int | None:
    """Return the status with which a child ended, negative for a signal; None if it still runs after ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.003)


def _become(order: Mapping[str, Any]) -> None:
    """Make this process the one of an order: its session, folder, environment, files and limits."""
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.update(order["environment"])
    for fd, path, flags in ((0, os.devnull, os.O_RDONLY), (1, order["output"], os.O_WRONLY), (2, order["errors"], os.O_WRONLY)):
        handle = os.open(path, flags | os.O_CREAT, 0o644)
        os.dup2(handle, fd)
        os.close(handle)
    if order.get("file_bytes") is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"], order["file_bytes"]))
    sys.argv = ["edgefl", *order["arguments"]]


if __name__ == "__main__":
    main()
