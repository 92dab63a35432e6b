"""The origin of worker processes: on Linux, a process that has imported what workers need and forks one in milliseconds.

The fork server imports torch and the client once, and then only forks. That is safe. It has one Python thread, and torch uses one thread
from the start. No backward pass has run, so there is no autograd thread. CUDA is not touched, and OpenBLAS stops its threads before a fork.
It exits with this process, because its socket ends then. On other systems every worker is such a process, without a fork. Unlike with the
fork server of :mod:`multiprocessing`, a script needs no ``if __name__ == "__main__"``.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import NoReturn

from edgefl.errors import ConfigError, EdgeflError

STARTS = hasattr(socket, "send_fds")
"""Whether workers can be started at all: on Linux and macOS."""
FORKS = sys.platform == "linux"
"""Whether workers are forked. The libraries of macOS do not allow it; there, a process like the fork server becomes the worker."""

_ORDER = struct.Struct("<cq")  # what to do, and the worker's number
_FORK, _BECOME, _STOP, _ABANDON = b"f", b"b", b"s", b"a"
_FILES = 4  # most descriptors of an order
_PATIENCE_S = 10.0  # how long a process may take to exit before it is killed
_POLL_S = 0.001
_CODE = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from edgefl.engine.fork_server import main; main(int(sys.argv[2]))"
)


_here: list[int] = []  # a worker's process number; empty in other processes


def check_not_worker() -> None:
    """Raise :class:`EdgeflError` in a worker, which runs the main script for its definitions: the script must not start a run there."""
    if _here:
        raise EdgeflError(
            "a worker process was to start workers: a script that defines a part of a run, such as its method, must call edgefl under "
            "if __name__ == '__main__'"
        )


class _Process:
    """A process that runs :func:`main`, and the socket to it."""

    def __init__(self) -> None:
        if not STARTS:
            raise ConfigError("workers need Linux or macOS: use one worker (engine: inline), or run in WSL")
        self.socket, theirs = socket.socketpair()
        with theirs:
            arguments = (json.dumps([str(path) for path in sys.path]), str(theirs.fileno()))
            command = [sys.executable, "-P", "-c", _CODE, *arguments]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def order(self, what: bytes, worker: int, files: Sequence[int] = ()) -> None:
        socket.send_fds(self.socket, [_ORDER.pack(what, worker)], list(files))

    def stop(self) -> None:
        self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class ForkServer:
    """Starts and stops worker processes. Any thread may use it.

    ``needless`` becomes true when what was started early had no use: the next runs of this process are probably as short.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._common: _Process | None = None
        self._own: dict[int, _Process] = {}  # where there are no forks: worker → its process
        self._waiting: list[_Process] = []
        self._count = 0
        self.needless = False
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def warm(self, workers: int = 1) -> None:
        """Start the process that forks, or where there are no forks a process for each of ``workers``; do not wait.

        Raises:
            EdgeflError: this process is a worker.
        """
        check_not_worker()
        with self._lock:
            if FORKS:
                self._ready()
            while not FORKS and len(self._waiting) < workers:
                self._waiting.append(_Process())

    def start(self, files: Sequence[int]) -> int:
        """Start a worker and return its number at once.

        It receives duplicates of the descriptors ``files``, see :func:`edgefl.engine.workers.work`. Once it runs, it writes to the first;
        if it cannot be started, that file ends.
        """
        with self._lock:
            self._count += 1
            if not FORKS:
                self._own[self._count] = self._waiting.pop() if self._waiting else _Process()
                with contextlib.suppress(OSError):
                    self._own[self._count].order(_BECOME, self._count, files)
                return self._count
            for _ in range(2):  # a fork server that was killed is replaced
                try:
                    self._ready().order(_FORK, self._count, files)
                    break
                except OSError:
                    self._end_common()
            return self._count

    def stop(self, worker: int, wait: bool = True) -> None:
        """Terminate the worker of this number, kill it if it does not exit, and ``wait`` until it is gone."""
        with self._lock:
            if not FORKS:
                self._own.pop(worker).stop()
            elif self._common is not None:
                try:
                    self._common.order(_STOP if wait else _ABANDON, worker)
                    if wait and not self._common.socket.recv(1):
                        raise ConnectionResetError("the fork server is gone")
                except OSError:  # it was killed: its workers exit by themselves
                    self._end_common()

    def stop_unused(self) -> None:
        """Stop what :meth:`warm` has started if no worker has ever come from it: it has the memory of a process with torch."""
        if not self._count:
            self.needless = self.needless or self._common is not None
            self.close()

    def close(self) -> None:
        """Stop the processes that workers come from; workers exit by themselves."""
        with self._lock:
            self._end_common()
            for process in (*self._waiting, *self._own.values()):
                process.stop()
            self._waiting.clear()
            self._own.clear()

    def _ready(self) -> _Process:
        if self._common is None:
            self._common = _Process()
        return self._common

    def _end_common(self) -> None:
        if self._common is not None:
            self._common.stop()
            self._common = None

    def _forget(self) -> None:
        """Forget all processes, in a fork of this one: they belong to its parent."""
        for process in (self._common, *self._waiting, *self._own.values()):
            if process is not None:
                process.socket.close()
                process.process.returncode = 0  # otherwise Popen would wait for it when it is collected
        self.__dict__.update(_lock=threading.Lock(), _common=None, _own={}, _waiting=[])


@functools.cache
def fork_server() -> ForkServer:
    """Return this process's fork server."""
    return ForkServer()


def main(fd: int) -> NoReturn:
    """Carry out the orders that arrive on the socket ``fd``, until its other end is closed."""
    orders = socket.socket(fileno=fd)
    alive: dict[int, int] = {}  # worker → process number, which the system does not reuse until this process has waited for it
    _prepare()
    while True:
        order, files, _, _ = socket.recv_fds(orders, _ORDER.size, _FILES)
        if len(order) < _ORDER.size:
            os._exit(0)
        what, worker = _ORDER.unpack(order)
        if what in (_STOP, _ABANDON):
            if worker in alive:
                _stop(alive.pop(worker))
            if what == _STOP:
                orders.sendall(b".")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of threads; these are OpenBLAS's, which stops them before the fork
            pid = os.fork() if what == _FORK else 0
        if pid == 0:
            orders.close()
            _work(files)
        alive[worker] = pid
        for file in files:
            os.close(file)


def _prepare() -> None:
    """Import what every worker needs, and exclude it from garbage collections, which would write to the pages that workers share."""
    import torch

    importlib.import_module("edgefl.engine.workers")
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


def _work(files: Sequence[int]) -> NoReturn:
    """Run as a worker, then exit without the exit functions of the fork server."""
    from edgefl.engine.workers import work

    _here.append(os.getpid())
    try:
        work(*files)
    except SystemExit:
        pass  # it was told to exit
    except BaseException:  # noqa: BLE001 - a child must not return into the fork server
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(0)


def _stop(pid: int) -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        os.kill(pid, how)
        give_up_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < give_up_s:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(_POLL_S)
