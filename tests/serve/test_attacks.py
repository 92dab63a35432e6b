"""The server against clients that keep no rule: slow, many, malformed, dishonest about their host, or after other files."""

import contextlib
import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hand_bundle import write_bundle
from serving import running

from edgefl.contrib.serve.answers import HEADERS
from edgefl.contrib.serve.connection import ConnectionLimits
from edgefl.contrib.serve.files import BLOCK_BYTES, ServedFile, bundle_addresses, page_addresses, seal
from edgefl.contrib.serve.runtime import FILES
from edgefl.contrib.serve.server import PageServer

LIMITS = ConnectionLimits(connections=8, request_s=0.6, block_s=0.6, linger_s=0.2)
LARGE_BYTES = 40 * BLOCK_BYTES + 17
"""More than the two sockets of a connection hold."""


class _Unreadable(ServedFile):
    def block(self, file: object, index: int) -> bytes:
        raise OSError(5, "Input/output error")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("attacked")
    write_bundle(root / "bundle")
    (root / "secret.txt").write_text("secret")
    (root / "runtime").mkdir()
    for name in FILES:
        (root / "runtime" / name).write_text(name)
    (root / "large.bin").write_bytes(np.random.default_rng(1).bytes(LARGE_BYTES))
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[PageServer]:
    large = seal(folder / "large.bin", folder)
    broken = _Unreadable(large.path, folder, large.sha256, large.size_bytes, large.blocks, (0,))
    table = {
        **bundle_addresses(folder / "bundle"),
        **page_addresses(folder / "runtime"),
        "/large": large,
        "/broken": broken,
        "/other": replace(large, blocks=(b"",) * len(large.blocks), stamp=(0,)),
    }
    with running(table, LIMITS) as started:
        yield started


@contextlib.contextmanager
def connected(server: PageServer, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as client:
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(30)
        client.connect(("127.0.0.1", server.port))
        yield client


def rest(client: socket.socket) -> bytes:
    """Everything until the server ends the connection; what a reset cuts off is not an error."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := client.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def said(server: PageServer, request: bytes) -> bytes:
    with connected(server) as client:
        client.sendall(request)
        return rest(client)


def get(path: str, *more: str, method: str = "GET", host: str = "localhost") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *more, "", ""]).encode("latin-1")


def last(path: str, *more: str, method: str = "GET", host: str = "localhost") -> bytes:
    return get(path, "Connection: close", *more, method=method, host=host)


def statuses(answers: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb"HTTP/1\.1 (\d{3}) [A-Z]", answers)]


# Every answer has the headers.


@pytest.mark.parametrize(
    ("status", "request_bytes"),
    [
        (200, last("/")),
        (206, last("/", "Range: bytes=1-2")),
        (400, b"nonsense\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n\r\n"),
        (404, get("/secret.txt")),
        (405, get("/", method="DELETE")),
        (408, b"GET / HT"),
        (409, get("/other")),
        (412, get("/", 'If-Match: "another"')),
        (413, get("/", "Content-Length: 5")),
        (416, get("/", "Range: bytes=99999999-")),
        (421, get("/", host="evil.example")),
        (431, b"GET /" + b"a" * (17 << 10)),
        (500, get("/broken")),
        (501, get("/", "Transfer-Encoding: gzip")),
    ],
)
def test_every_answer_has_the_headers_of_the_page(server, status, request_bytes):
    answer = said(server, request_bytes)
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert statuses(answer) == [status]
    given = dict(line.split(": ", 1) for line in lines[1:])
    assert HEADERS.items() <= given.items()
    assert len(given) == len(lines) - 1, "no header twice"
    assert given["Content-Length"] == str(len(body))
    assert "Date" in given
    if status >= 400:
        assert given["Content-Type"] == "text/plain; charset=utf-8"
        assert body.startswith(lines[0].removeprefix("HTTP/1.1 ").encode() + b": ")


# Slow ones, and many.


def test_a_byte_now_and_then_does_not_keep_a_connection(server):
    start = time.monotonic()
    with connected(server) as client, contextlib.suppress(ConnectionError):
        for byte in itertools.cycle(b"GET / HTTP/1.1\r\nX-A: b\r\n" + b"X-Another: one\r\n" * 1000):
            client.sendall(bytes([byte]))
            time.sleep(0.1)
            if time.monotonic() - start > 5:
                break
    assert time.monotonic() - start < 4, "not ended by the server"


def test_a_connection_without_a_request_ends_in_silence_and_so_does_one_after_its_answer(server):
    assert said(server, b"") == b""
    assert statuses(said(server, get("/app.js"))) == [200]


def test_a_body_is_not_waited_for(server):
    start = time.monotonic()
    with connected(server) as client:
        client.sendall(get("/", "Content-Length: 1000000000", method="POST"))
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - start < 5:
                client.sendall(b"x" * 1000)
                time.sleep(0.02)
    assert time.monotonic() - start < 4, "not ended by the server"


def test_who_does_not_read_is_dropped_and_others_are_served_meanwhile(server):
    with contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(connected(server, 4096)) for _ in range(4)]
        for client in stalled:
            client.sendall(get("/large"))
        assert statuses(said(server, last("/app.js"))) == [200]
        time.sleep(LIMITS.block_s + LIMITS.linger_s + 0.5)
        assert not server._connections
        assert all(len(rest(client)) < LARGE_BYTES for client in stalled)


def test_connections_and_threads_are_bounded_and_a_new_request_still_gets_its_answer(server):
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        for _ in range(5 * LIMITS.connections):
            stack.enter_context(connected(server)).sendall(b"GET / HTTP/1.1\r\n")
        assert statuses(said(server, last("/app.js"))) == [200]
        assert len(server._connections) <= LIMITS.connections
        assert threading.active_count() <= threads + (os.cpu_count() or 1) + 4  # those that read files, of the loop's own pool


def test_one_too_many_is_told_so_while_all_others_are_being_answered(server):
    with contextlib.ExitStack() as stack:
        for _ in range(LIMITS.connections):
            client = stack.enter_context(connected(server, 4096))
            client.sendall(get("/large"))
            client.recv(10)
        with connected(server) as client:
            answer = rest(client)
        assert statuses(answer) == [503]
        assert all(f"{name}: {value}".encode() in answer for name, value in HEADERS.items())
    time.sleep(0.1)
    assert statuses(said(server, last("/app.js"))) == [200]


# What is a request, and what is not.


@pytest.mark.parametrize(
    "request_bytes",
    [
        get("/app.js", "Content-Length: {}") + b"{}",
        get("/app.js", "Transfer-Encoding: chunked") + b"{:x}\r\n{}\r\n0\r\n\r\n",
        get("/app.js", "Content-Length: 0", "Content-Length: {}") + b"{}",
        get("/app.js", "Content-Length: 3", "Transfer-Encoding: chunked") + b"{:x}\r\n{}\r\n0\r\n\r\n",
        get("/app.js", "Transfer-Encoding : chunked") + b"{}",
        get("/app.js", "Content-Length: +{}") + b"{}",
    ],
)
def test_a_body_is_not_the_next_request(server, request_bytes):
    inner = last("/style.css")
    text = (
        request_bytes.decode()
        .replace("{:x}", f"{len(inner):x}")
        .replace("h: {}", f"h: {len(inner)}")
        .replace("+{}", f"+{len(inner)}")
    )
    found = statuses(said(server, text.replace("{}", inner.decode()).encode()))
    assert len(found) == 1
    assert found[0] in (400, 413)


def test_a_request_of_two_lengths_is_the_last(server):
    both = get("/app.js", "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n"
    assert statuses(said(server, both + last("/style.css"))) == [400]


def test_requests_in_a_row_are_answered_in_their_order(server):
    paths = ["/app.js", "/style.css", "/icon.svg"] * 20
    answers = said(server, b"".join(get(path, "Range: bytes=0-9") for path in paths) + last("/nowhere"))
    assert statuses(answers) == [206] * 60 + [404]
    types = re.findall(rb"Content-Type: (\S+?);? ", answers.replace(b"\r\n", b" "))
    assert types == [b"text/javascript", b"text/css", b"image/svg+xml"] * 20 + [b"text/plain"]


def test_nothing_is_answered_after_an_error(server):
    assert statuses(said(server, get("/nowhere") + last("/app.js"))) == [404]
    assert statuses(said(server, b"\x00\r\n\r\n" + last("/app.js"))) == [400]


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (get("/app.js\0"), 400),
        (get("/app.js%00"), 404),
        (get("/app.js\x7f"), 400),
        (get("/app.js", "X: a\0b"), 400),
        (get("/app.js", "X: a\rb"), 400),
        (get("/app.js", "X Y: 1"), 400),
        (get("/app.js", ": 1"), 400),
        (get("/%0d%0aSet-Cookie:%20a=b"), 404),
        (get("/app.js\r\n X: folded"), 400),
        (b"GET /app.js\r\n\r\n", 400),
        (b"GET  /app.js HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /app.js HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40) + b"\r\n\r\n", 400),  # a browser that asks for https
        (get("/app.js", "Upgrade: h2c", "Connection: Upgrade, close"), 200),
        (get("/app.js", "Upgrade: websocket", "Connection: Upgrade, close"), 200),
        (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (get("/app.js", "Expect: 100-continue", "Connection: close"), 200),
        (get("/app.js", "Expect: 100-continue", "Content-Length: 10"), 413),
        (b"GET /app.js HTTP/1.0\r\n\r\n", 421),
        (b"GET /app.js HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
        (get("/app.js", *(f"X-{i}: {'a' * 60}" for i in range(1000))), 431),
        (get("/app.js", "X: " + "a" * 100_000), 431),
        (get("/" + "a" * 100_000), 431),
        (get("/app.js", "Connection: close", "X: " + "a" * (15 << 10)), 200),
        (get("/app.js", "X: " + "a" * (16 << 10)), 431),  # sent at once, so that it comes whole
    ],
)
def test_what_is_malformed_or_unusual(server, request_bytes, expected):
    answer = said(server, request_bytes)
    assert statuses(answer) == [expected]
    assert b"Set-Cookie" not in answer


@pytest.mark.parametrize(
    ("target", "host", "expected"),
    [
        ("http://localhost:1/app.js", "localhost", 200),
        ("HTTP://127.0.0.1", "localhost", 200),
        ("http://localhost/secret.txt", "localhost", 404),
        ("http://evil.example/app.js", "localhost", 421),  # the target counts, not the header
        ("http://localhost/app.js", "evil.example", 200),
        ("http://localhost@evil.example/app.js", "localhost", 421),
        ("https://localhost/app.js", "localhost", 404),
        ("file:///etc/passwd", "localhost", 404),
        ("/app.js", "127.0.0.1.evil.example", 421),
        ("/app.js", "localhost, evil.example", 421),
        ("/app.js", "[::1", 421),
        ("/app.js", "localhost:a", 421),
        ("/app.js", "2130706433", 421),
        ("/app.js", "0x7f.1", 421),
        ("/app.js", "localhost.", 421),
        ("//localhost/app.js", "localhost", 404),
        ("//evil.example/app.js", "localhost", 404),
    ],
)
def test_the_host_is_this_computer(server, target, host, expected):
    assert statuses(said(server, last(target, host=host))) == [expected]


def traversals() -> list[str]:
    """Paths that lead to other files where a server joins them to a folder."""
    prefixes = ["/", "//", "/bundle/", "/bundle/1/", "/ort/", "/.//", "/bundle//", "/app.js/"]
    dots = ["..", "%2e%2e", "%2E.", ".%2e", "%252e%252e", "..;", "..%00", "%c0%ae%c0%ae", "%uff0e%uff0e", "...."]
    slashes = ["/", "%2f", "\\", "%5c", "%c0%af", "%252f"]
    made = [
        prefix + (dot + slash) * depth + "secret.txt"
        for prefix, dot, slash in itertools.product(prefixes, dots, slashes)
        for depth in (1, 3)
    ]
    return [
        *made,
        "/proc/self/environ",
        "/bundle/manifest.json/",
        "/bundle/1/../manifest.json",
        "/%2fetc%2fpasswd",
        "/file:///etc/passwd",
    ]


def test_no_path_leads_elsewhere(server):
    paths = traversals()
    assert len(paths) > 900
    for path in paths:
        answer = said(server, last(path))
        assert statuses(answer) == [404], path
        assert b"secret\r" not in answer
        assert answer.endswith(b"404 Not Found: no such file\n")


def test_random_bytes_are_answered_with_an_error_or_not_at_all(server):
    rng = np.random.default_rng(7)
    sample = get("/bundle/manifest.json", "Range: bytes=0-9", 'If-None-Match: "a"', "Accept: */*")
    for _ in range(300):
        changed = bytearray(sample)
        for _ in range(rng.integers(1, 9)):
            place = int(rng.integers(len(changed)))
            changed[place : place + int(rng.integers(4))] = rng.bytes(int(rng.integers(4)))
        with connected(server) as client:
            client.sendall(bytes(changed))
            client.shutdown(socket.SHUT_WR)
            found = statuses(rest(client))
        assert set(found) <= {200, 206, 304, 400, 404, 405, 413, 416, 421, 431, 501, 505}, bytes(changed)
    assert statuses(said(server, last("/app.js"))) == [200]


# Files that change.


def test_a_file_that_changed_is_not_served_and_a_restored_one_is(server, folder):
    path = folder / "bundle" / "1" / "train.onnx"
    content, times = path.read_bytes(), path.stat()
    for changed in (content[:-1] + b"?", content[:-1], content + b"?", b""):
        path.write_bytes(changed)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert statuses(said(server, get("/bundle/1/train.onnx", method="HEAD"))) == [409]
        assert b"409 Conflict: train.onnx changed since the server started; start it again\n" in said(
            server, get("/bundle/1/train.onnx")
        )
    path.write_bytes(content)
    assert said(server, last("/bundle/1/train.onnx")).endswith(content)


def test_a_file_that_changes_while_it_is_sent_ends_the_connection(server, folder):
    path = folder / "large.bin"
    content = path.read_bytes()
    with connected(server, 4096) as client:
        client.sendall(last("/large"))
        first = b"".join(client.recv(1024) for _ in range(8))
        path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
        received = (first + rest(client)).partition(b"\r\n\r\n")[2]
    path.write_bytes(content)
    assert 0 < len(received) <= len(content) // 2
    assert content.startswith(received)
    assert said(server, last("/large")).endswith(content)


def test_ranges_are_the_bytes_of_the_file(server, folder):
    content = (folder / "large.bin").read_bytes()
    edges = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, LARGE_BYTES - 1]
    for first, end in itertools.combinations(edges, 2):
        answer = said(server, last("/large", f"Range: bytes={first}-{end - 1}"))
        assert statuses(answer[:20]) == [206]
        assert answer.partition(b"\r\n\r\n")[2] == content[first:end]
    assert said(server, last("/large", "Range: bytes=-5")).endswith(b"\r\n\r\n" + content[-5:])
