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
from dataclasses import dataclass
from pathlib import Path

import psutil

TOKEN = "0123456789abcdef" * 2
PATIENCE_S = 120.0


def wait_until(done: Callable[[], bool]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > until_s:
            raise TimeoutError
        time.sleep(0.1)


@dataclass
class Node:
    """A node of the cluster.

    Attributes:
        process: ``ray start``, which ends soon after its raylet.
        address: the node's own, on loopback.
        log: what ``ray start`` has written.
        plain: no variable of its environment is its own.
        doomed: a test has asked for its raylet, to kill it.
    """

    process: subprocess.Popen[bytes]
    address: str
    log: Path
    plain: bool
    doomed: bool = False


class RayNodes:
    """The nodes of a cluster: at 127.0.0.2 its head, then at the following addresses those of ``add``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self.address = f"127.0.0.2:{self.port}"
        self.nodes: list[Node] = []
        self._started = 0
        own = ["--head", f"--port={self.port}", f"--ray-client-server-port={_free_port()}", f"--temp-dir={folder}/s"]
        wait_until(self._start([*own, "--include-dashboard=false"], {}))

    def add(self, *variables: Mapping[str, str]) -> None:
        """Start one more node for each of ``variables``, which are added to its environment; return when the cluster has all of them."""
        for of_node in variables or ({},):  # one after the other: raylets of one computer share the names of sockets
            wait_until(self._start([f"--address={self.address}"], of_node))

    def mend(self, count: int = 2) -> None:
        """Bring the cluster to ``count`` nodes that are alike and alive; others are removed."""
        assert self._alive(self.nodes[0]), f"the head of the cluster is lost: {self.nodes[0].log.read_text()}"
        for number in reversed(range(1, len(self.nodes))):
            if not (self.nodes[number].plain and self._alive(self.nodes[number])):
                self.remove(number)
        while len(self.nodes) > count:
            self.remove()
        while len(self.nodes) < count:
            self.add()

    def lost(self) -> list[str]:
        """Return the logs of nodes that have died though no test wanted it."""
        return [f"{node.address}: {node.log.read_text()}" for node in self.nodes if not (node.doomed or self._alive(node))]

    def raylet(self, number: int) -> psutil.Process:
        """Return the process whose death is that of node ``number``, 0 for the head; the caller will kill it."""
        (found,) = self._raylets(self.nodes[number])
        self.nodes[number].doomed = True
        return found

    def actor(self, number: int) -> psutil.Process:
        """Return the process of the engine's actor on node ``number``."""
        (found,) = self.processes(b"ray::Node", self.nodes[number])
        return found

    def remove(self, number: int = -1) -> None:
        """Stop a node, by default the one that was started last, and wait until its processes are gone."""
        of_node = self.processes(b"", self.nodes[number])
        process = self.nodes.pop(number).process
        process.terminate()  # then its raylet leaves the cluster; of one that is killed, the cluster learns later
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE_S / 4)
        process.kill()
        process.wait(PATIENCE_S)
        for one in of_node:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(of_node, timeout=PATIENCE_S)

    def _raylets(self, node: Node) -> list[psutil.Process]:
        return self.processes(b"raylet/raylet", node)

    def _alive(self, node: Node) -> bool:
        return node.process.poll() is None and bool(self._raylets(node))

    def processes(self, name: bytes, of: Node | None = None) -> list[psutil.Process]:
        """Return the processes of the cluster, or of one node, whose command contains ``name``."""
        found = []
        for node in self.nodes if of is None else [of]:
            if node.process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += psutil.Process(node.process.pid).children(recursive=True)
        return [one for one in found if name in _command(one)]

    def close(self) -> None:
        """End every process of the cluster."""
        every = self.processes(b"")
        for node in self.nodes:
            node.process.kill()
        for one in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        for node in self.nodes:
            node.process.wait(PATIENCE_S)
        psutil.wait_procs(every, timeout=PATIENCE_S)

    def _start(self, options: list[str], variables: Mapping[str, str]) -> Callable[[], bool]:
        """Start a node; return what says whether it is ready."""
        self._started += 1
        address = f"127.0.0.{1 + self._started}"
        own = [f"--node-ip-address={address}", "--num-cpus=1", "--object-store-memory=80000000", "--include-log-monitor=false"]
        ray = shutil.which("ray", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert ray is not None
        path = self.folder / f"node-{self._started}.log"
        with path.open("wb") as log:
            command = [ray, "start", "--block", "--disable-usage-stats", *own, *options]
            environment = {**os.environ, **variables}
            node = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=self.folder)
        self.nodes.append(Node(node, address, path, plain=not variables))

        def ready() -> bool:
            assert node.poll() is None, path.read_text()
            return "Ray runtime started" in path.read_text()

        return ready


@contextlib.contextmanager
def ray_nodes(mode: str = "token") -> Iterator[RayNodes]:
    """Yield a cluster of one node, whose token is in the environment within the block; ``mode`` "disabled": it ignores tokens."""
    settings = {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": TOKEN, "RAY_worker_niceness": "0"}
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
