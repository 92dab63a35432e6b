"""A Flower federation as processes on loopback: certificates, keys, a SuperLink and SuperNodes, all of which end with the block."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
_PEM, _PLAIN = serialization.Encoding.PEM, serialization.NoEncryption()


def write_key(path: Path) -> Path:
    """Write an ECDSA key pair, as ``flwr supernode register`` expects it, to ``path`` and ``path.pub``; return the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.write_bytes(key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN))
    path.with_suffix(".pub").write_bytes(public)
    return path.with_suffix(".pub")


def write_certificates(folder: Path) -> None:
    """Write ``ca.crt``, and ``server.pem`` and ``server.key`` for 127.0.0.1, valid for a day."""
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in ("ca", "server")}
    names = {name: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"edgefl test {name}")]) for name in keys}
    now = datetime.datetime.now(datetime.UTC)
    for name, file in (("ca", "ca.crt"), ("server", "server.pem")):
        made = (
            x509.CertificateBuilder()
            .subject_name(names[name])
            .issuer_name(names["ca"])
            .public_key(keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        )
        if name == "server":
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            made = made.add_extension(x509.SubjectAlternativeName([address, x509.DNSName("localhost")]), critical=False)
        (folder / file).write_bytes(made.sign(keys["ca"], hashes.SHA256()).public_bytes(_PEM))
    private = keys["server"].private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN)
    (folder / "server.key").write_bytes(private)


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait(until: Callable[[], Any], seconds: float, what: str) -> Any:
    """Return the first true value of ``until``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := until():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {seconds} s")


@dataclass
class Processes:
    """A federation in ``home``: its processes, by name, and their logs."""

    home: Path
    port: int = field(default_factory=free_port)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    seen: set[psutil.Process] = field(default_factory=set)

    @property
    def user(self) -> Path:
        """The user's folder, where nothing is to be written."""
        return self.home / "user"

    @property
    def environment(self) -> dict[str, str]:
        """Flower's own folder and the user's are in ``home``, and nothing is downloaded."""
        told = {
            "HOME": str(self.user), "FLWR_HOME": str(self.home / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        return {**os.environ, **told, "OMP_NUM_THREADS": "1"}

    def log(self, name: str) -> str:
        """Return what a process has written."""
        path = self.home / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, name: str, *command: str, path: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a process of Flower with a log ``name.log``, which imports modules from ``path`` before others."""
        environment = self.environment if path is None else {**self.environment, "PYTHONPATH": str(path)}
        with (self.home / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                cwd=self.home,
                env=environment,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def superlink(self, *more: str) -> None:
        """Start the SuperLink with TLS and authentication, and wait until it listens."""
        secure = (
            "--ssl-ca-certfile",
            "ca.crt",
            "--ssl-certfile",
            "server.pem",
            "--ssl-keyfile",
            "server.key",
            "--enable-supernode-auth",
        )
        own = (
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
            "--database",
            "flower.db",
        )
        process = self.start("superlink", "flower-superlink", *secure, *own, *more)

        def ready() -> bool:
            assert process.poll() is None, self.log("superlink")
            return self.listens()

        wait(ready, 60, "the SuperLink listens")

    def listens(self) -> bool:
        """Whether somebody listens at the SuperLink's port."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def supernode(self, name: str, config: str, *more: str, path: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a SuperNode with the key and the certificate of ``name``."""
        link, own = ("--superlink", f"127.0.0.1:{self.port}"), ("--host", "127.0.0.1", "--port", str(free_port()))
        key = ("--auth-supernode-private-key", f"{name}.key", "--node-config", config)
        return self.start(name, "flower-supernode", *link, *own, *key, *more, path=path)

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a command of ``flwr`` and return its JSON."""
        ran = subprocess.run(
            [str(BIN / "flwr"), *arguments, "--format", "json"], capture_output=True, text=True, cwd=self.home, env=self.environment,
            check=False, timeout=120,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found: dict[str, Any] = json.loads(ran.stdout)
        return found

    def run(self, app: str, *more: str) -> int:
        """Submit the app in a folder of ``home``; return the run's number."""
        return int(self.flwr("run", app, "test", *more)["run-id"])

    def status(self, run: int) -> dict[str, Any]:
        """Return what Flower says of a run."""
        return next(dict(one) for one in self.flwr("list", "test", "--run-id", str(run))["runs"])

    def stop(self, name: str) -> None:
        """Ask a process to end: a SuperNode then signs off, and its key can be used again at once."""
        self.running[name].terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.running[name].wait(60)
        self.kill(name)

    def kill(self, name: str) -> None:
        """End a process and all that it has started."""
        process = self.running.pop(name)
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen |= {*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for one in self.seen:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()

    def trains(self, name: str) -> bool:
        """Whether a SuperNode has started a process for a message."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.running[name].pid).children(recursive=True)
            return any("flwr-clientapp" in " ".join(one.cmdline()) for one in children)
        return False

    def left(self) -> list[str]:
        """Return the processes that were started here and still run ten seconds after they were killed."""
        end = time.monotonic() + 60
        while (alive := [str(one) for one in self.seen if _alive(one)]) and time.monotonic() < end:
            time.sleep(0.1)
        return alive


def _alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


@contextlib.contextmanager
def processes(home: Path) -> Iterator[Processes]:
    """Yield a federation with certificates and keys for no node yet; end its processes with the block."""
    home.mkdir(parents=True, exist_ok=True)
    write_certificates(home)
    federation = Processes(home)
    (home / "flwr").mkdir()
    federation.user.mkdir()
    (home / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "test"\n\n[superlink.test]\naddress = "127.0.0.1:{federation.port}"\nroot-certificates = "{home}/ca.crt"\n'
    )
    try:
        yield federation
    finally:
        for name in list(federation.running):
            federation.kill(name)
