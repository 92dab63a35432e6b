"""A Ray cluster on this computer: raylets that are started by the command line, each with one slot."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

TOKEN = "0123456789abcdef" * 2
PATIENCE_S = 60.0


def wait_until(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > until_s:
            raise TimeoutError
        time.sleep(0.1)


class RayNodes:
    """The nodes of a cluster: at 127.0.0.2 its head, then at the following addresses those of ``add``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.address = f"127.0.0.2:{self.port}"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._started = 0
        own = ["--head", f"--port={self.port}", f"--ray-client-server-port={_free_port()}", f"--temp-dir={folder}/s"]
        self._start([*own, "--include-dashboard=false"], {})

    def add(self, **variables: str) -> psutil.Process:
        """Start one more node with ``variables`` in its environment; return its raylet when the cluster has it."""
        self._start([f"--address={self.address}"], variables)
        (raylet,) = self.processes(b"raylet/raylet", psutil.Process(self.nodes[-1].pid))
        return raylet

    def remove(self) -> None:
        """Stop the node that was started last, and wait until the cluster knows it."""
        node = self.nodes.pop()
        node.terminate()
        node.wait(PATIENCE_S)

    def processes(self, name: bytes, of: psutil.Process | None = None) -> list[psutil.Process]:
        """Return the processes of the cluster, or of one node, whose command contains ``name``."""
        found = []
        for node in (psutil.Process(one.pid) for one in self.nodes if one.poll() is None):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += node.children(recursive=True) if of in (None, node) else []
        return [one for one in found if name in _command(one)]

    def close(self) -> None:
        every = self.processes(b"")
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.wait(PATIENCE_S)
        _, left = psutil.wait_procs(every, timeout=5)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()

    def _start(self, options: list[str], variables: Mapping[str, str]) -> None:
        self._started += 1
        own = [f"--node-ip-address=127.0.0.{1 + self._started}", "--num-cpus=1", "--object-store-memory=80000000"]
        ray = shutil.which("ray", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert ray is not None
        path = self.folder / f"node-{self._started}.log"
        with path.open("wb") as log:
            command = [ray, "start", "--block", "--disable-usage-stats", *own, *options]
            environment = {**os.environ, **variables}
            self.nodes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.folder))
        wait_until(lambda: "Ray runtime started" in path.read_text())


@contextlib.contextmanager
def ray_nodes() -> Iterator[RayNodes]:
    """Yield a cluster of one node, whose token is in the environment within the block."""
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "RAY_worker_niceness": "0"}
    before = {name: os.environ.get(name) for name in settings}
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: the names of sockets are limited
    os.environ.update(settings)
    try:
        nodes = RayNodes(folder)
        try:
            yield nodes
        finally:
            nodes.close()
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        shutil.rmtree(folder, ignore_errors=True)


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)


def _command(process: psutil.Process) -> bytes:
    try:
        return " ".join(process.cmdline()).encode() or process.name().encode()
    except psutil.Error:
        return b""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.2", 0))
        port: int = one.getsockname()[1]
        return port
