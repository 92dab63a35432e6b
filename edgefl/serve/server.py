"""A web server for one page and one bundle, for a browser on the same computer."""

import http.server
import os
import re
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import unquote_to_bytes, urlsplit

from edgefl.errors import InputError
from edgefl.serve.files import Served

HEADERS = {
    # Threads of WebAssembly need a page that is isolated from other origins.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CHUNK_BYTES = 1 << 18
_PLAIN = "text/plain; charset=utf-8"


class Server(http.server.ThreadingHTTPServer):
    """Answers GET and HEAD for the addresses of ``table`` if Host is this computer or ``host``; InputError if the port cannot be used."""

    daemon_threads = True

    def __init__(self, host: str, port: int, table: Mapping[str, Served]) -> None:
        self.table = table
        self.names = frozenset({*LOOPBACK, host.lower()})
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"--host {host} --port {port}: {reason}; give another, --port 0 takes one that is free") from None
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def server_bind(self) -> None:
        """Bind the socket. The base class would also ask a name server for this computer's name, which may take seconds."""
        if os.name == "posix":  # elsewhere the option lets two servers take the same port
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: a browser may close the connection in the middle of an answer."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 30

    def __getattr__(self, name: str) -> Any:
        # The base class answers METHOD by self.do_METHOD.
        if name.startswith("do_"):
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        hosts = self.headers.get_all("Host") or []
        served = self.server.table.get(_path_of(self.path))
        if len(hosts) != 1 or _host_name(hosts[0]) not in self.server.names:
            # Otherwise a foreign page whose name resolves to this computer (DNS rebinding) could read the files.
            self._say(HTTPStatus.MISDIRECTED_REQUEST, f"this server is {self.server.url}")
        elif self.command not in ("GET", "HEAD"):
            self._say(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", {"Allow": "GET, HEAD"})
        elif served is None:
            self._say(HTTPStatus.NOT_FOUND, "no such file")
        else:
            try:
                file = served.open()
            except OSError:
                return self._say(HTTPStatus.NOT_FOUND, "no such file")
            with file:
                self._send(served, file)
        return None

    def _send(self, served: Served, file: BinaryIO) -> None:
        facts = os.fstat(file.fileno())
        tag = f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
        if self.headers.get("If-None-Match") == tag:
            return self._head(HTTPStatus.NOT_MODIFIED, {"ETag": tag})
        self._head(HTTPStatus.OK, {"Content-Type": served.content_type, "Content-Length": str(facts.st_size), "ETag": tag})
        left = 0 if self.command == "HEAD" else facts.st_size
        while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
            self.wfile.write(chunk)
            left -= len(chunk)
        self.close_connection |= left > 0  # the file became shorter: the promised length cannot be kept
        return None

    def _say(self, status: HTTPStatus, text: str, more: Mapping[str, str] | None = None) -> None:
        """Answer with a line of text, and close the connection: the body of the request was not read."""
        self.close_connection = True
        content = f"{status.value} {status.phrase}: {text}\n".encode()
        self._head(status, {"Content-Type": _PLAIN, "Content-Length": str(len(content)), "Connection": "close", **(more or {})})
        if self.command != "HEAD":
            self.wfile.write(content)

    def _head(self, status: HTTPStatus, more: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def version_string(self) -> str:
        """Return the value of the header Server."""
        return "edgefl"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: only the command line prints."""


def _path_of(target: str) -> str:
    """Return the decoded path of a request's target, as in the table; empty if there is none.

    >>> _path_of("/bundle/0.5/a%20b.onnx?again=1"), _path_of("/bundle/%2e%2e/secret"), _path_of("/%ff")
    ('/bundle/0.5/a b.onnx', '/bundle/../secret', '')
    """
    try:
        return unquote_to_bytes(urlsplit(target).path).decode() if target.startswith("/") else ""
    except ValueError:
        return ""


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port; empty if there is none.

    >>> _host_name("LocalHost:8765"), _host_name("[::1]:8765"), _host_name("evil.example"), _host_name("a:b:c")
    ('localhost', '::1', 'evil.example', '')
    """
    found = re.fullmatch(r"\[([0-9a-f:.]+)\](?::\d+)?|([^:\[\]]+)(?::\d+)?", host.strip().lower())
    return str(found[1] or found[2]) if found else ""
