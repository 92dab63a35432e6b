"""`edgefl serve` without a browser: what it hands out, to whom, and where onnxruntime-web comes from."""

import contextlib
import gc
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hand_bundle import write_bundle
from serving import serving

from edgefl.contrib.serve import runtime as runtime_module
from edgefl.contrib.serve.files import bundle_addresses
from edgefl.contrib.serve.runtime import FILES, cache, runtime, version
from edgefl.contrib.serve.server import PageServer
from edgefl.errors import BundleError, InputError
from edgefl.util.files import shared

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import page_files

PAGE = shared("export") / "web"


@pytest.fixture
def no_runtime(tmp_path: Path) -> Path:
    """Files of onnxruntime-web's names, and one more in a folder beside them."""
    folder = tmp_path / "runtime"
    folder.mkdir()
    for name in (*FILES, "README.md"):
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def server(tmp_path: Path, no_runtime: Path) -> Iterator[PageServer]:
    write_bundle(tmp_path / "bundle")
    (tmp_path / "secret.txt").write_text("secret")
    with serving(tmp_path / "bundle", no_runtime) as started:
        yield started


def asked(server: PageServer, target: str, method: str = "GET", **headers: str) -> Any:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request(method, target, headers=headers)
        answer = connection.getresponse()
        answer.content = answer.read()  # type: ignore[attr-defined]
        return answer


@pytest.mark.parametrize(
    ("target", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/core/trainer.js", "text/javascript; charset=utf-8"),
        ("/manifest.webmanifest", "application/manifest+json"),
        ("/icon-192.png", "image/png"),
        ("/ort/ort.wasm.min.mjs", "text/javascript; charset=utf-8"),
        ("/ort/ort-wasm-simd-threaded.wasm", "application/wasm"),
        ("/bundle/manifest.json", "application/json"),
        ("/bundle/0.5/train-1.onnx", "application/octet-stream"),
        ("/bundle/0%2E5/train%2D1.onnx?again", "application/octet-stream"),
    ],
)
def test_a_file_comes_with_its_type_and_a_page_that_is_isolated(server, target, content_type):
    answer = asked(server, target)
    assert (answer.status, answer.headers["Content-Type"]) == (200, content_type)
    assert int(answer.headers["Content-Length"]) == len(answer.content) > 0
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer.headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self' 'wasm-unsafe-eval';" in policy


@pytest.mark.parametrize(
    "target",
    [
        "/../secret.txt",
        "/bundle/../../secret.txt",
        "/bundle/%2e%2e/secret.txt",
        "/bundle/..%2fsecret.txt",
        "/bundle/1/..%5C..%5Csecret.txt",
        "/bundle//etc/passwd",
        "//etc/passwd",
        "/bundle/",
        "/bundle",
        "/bundle/1",
        "/ort/",
        "/ort/README.md",
        "/package.json",
        "/package-lock.json",
        "/bundle/manifest.json%00",
        "/%ff",
        "*",
        "http://127.0.0.1/secret.txt",
    ],
)
def test_nothing_else_is_there(server, target):
    assert asked(server, target).status == 404


def test_a_link_that_came_later_leads_nowhere(server, tmp_path):
    file = tmp_path / "bundle" / "1" / "train.onnx"
    file.unlink()
    file.symlink_to(tmp_path / "secret.txt")
    assert asked(server, "/bundle/1/train.onnx").status == 404
    (tmp_path / "bundle" / "0.5").rename(tmp_path / "elsewhere")
    (tmp_path / "bundle" / "0.5").symlink_to(tmp_path / "elsewhere")
    assert asked(server, "/bundle/0.5/train-0.onnx").status == 404


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:80", "LOCALHOST:8765"])
def test_this_computer_has_several_names(server, host):
    assert asked(server, "/", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "", "127.0.0.1@evil.example", "192.168.1.2"]
)
def test_another_name_is_refused(server, host):
    answer = asked(server, "/bundle/manifest.json", Host=host)
    assert answer.status == 421
    assert server.url in answer.content.decode()


def test_a_request_without_or_with_two_hosts_is_refused(server):
    for hosts in ("", "Host: localhost\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\n{hosts}\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
def test_files_are_only_read(server, method):
    answer = asked(server, "/", method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_head_has_no_body_and_an_unchanged_file_is_not_sent_again(server):
    whole, head = asked(server, "/app.js"), asked(server, "/app.js", "HEAD")
    assert head.content == b""
    assert head.headers["Content-Length"] == str(len(whole.content))
    again = asked(server, "/app.js", **{"If-None-Match": whole.headers["ETag"]})
    assert (again.status, again.content) == (304, b"")


def test_a_damaged_bundle_is_refused(tmp_path):
    write_bundle(tmp_path / "bundle")
    graph, parameters = tmp_path / "bundle/1/train.onnx", tmp_path / "bundle/1/parameters.safetensors"
    graph.write_bytes(graph.read_bytes()[:-1] + b"?")
    parameters.write_bytes(b"short")
    (tmp_path / "bundle/0.25/forward.onnx").rename(tmp_path / "forward.onnx")
    (tmp_path / "bundle/0.25/forward.onnx").symlink_to(tmp_path / "forward.onnx")
    (tmp_path / "bundle/0.5/forward.onnx").unlink()
    with pytest.raises(BundleError) as refused:
        bundle_addresses(tmp_path / "bundle")
    lines = str(refused.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "0.25/forward.onnx",
        "0.5/forward.onnx",
        "1/parameters.safetensors",
        "1/train.onnx",
    ]
    assert "symbolic link" in lines[0]
    assert "5 bytes, the manifest says" in lines[2]
    assert "changed: its SHA-256" in lines[3]


def test_a_server_that_ends_leaves_no_connection_open(monkeypatch):
    """Also none that it was about to accept. The collection of garbage would close those at some later time."""
    with contextlib.ExitStack() as stack, PageServer("127.0.0.1", 0, {}) as server:

        def client() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 60))

        def ends(reader: Any, writer: Any) -> None:
            accept(reader, writer)
            if len(clients) == 1:
                clients.append(client())
                server.stop()

        clients, accept = [client()], server._accept
        monkeypatch.setattr(server, "_accept", ends)
        gc.disable()
        stack.callback(gc.enable)
        thread = threading.Thread(target=server.serve)  # in the main thread an event loop of Playwright may run
        thread.start()
        thread.join()
        for one in clients:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""


def test_a_port_that_is_taken_is_named(server):
    with pytest.raises(InputError, match=f"--port {server.port}: .*--port 0 takes one that is free"):
        PageServer("127.0.0.1", server.port, {})


def test_the_command_serves_until_it_is_interrupted_without_torch(tmp_path):
    write_bundle(tmp_path / "bundle")
    filled = tmp_path / "cache" / "edgefl" / "web" / version()
    filled.mkdir(parents=True)
    for name in FILES:
        (filled / name).write_text(name)
    code = (
        # What a shell starts in the background ignores the signal, and so do its children.
        "import atexit, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); from edgefl.cli.main import main; "
        "atexit.register(lambda: print('torch' in sys.modules, 'onnxruntime' in sys.modules)); main()"
    )
    command = [sys.executable, "-c", code, "serve", str(tmp_path / "bundle"), "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/  \(Ctrl-C ends\)\n", first)[1])  # type: ignore[index]
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", "/ort/ort.wasm.min.mjs")
            assert connection.getresponse().read() == b"ort.wasm.min.mjs"
        process.send_signal(signal.SIGINT)
        try:
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, output, errors) == (0, "False False\n", "ended\n")


def test_the_command_names_what_is_wrong_with_a_bundle(called, tmp_path):
    status, output, errors = called("serve", str(tmp_path), "--port", "0")
    assert (status, output) == (2, "")
    assert "holds no manifest.json" in errors


# Where onnxruntime-web comes from. `npm` is a script here.


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that makes the package's folder and writes down how it was called; empty caches, nothing beside the page."""
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    log = tmp_path / "calls"
    dist = f"node_modules/{runtime_module.PACKAGE}/dist"
    made = " ".join(f"{dist}/{name}" for name in FILES)
    script.write_text(f'#!/bin/sh\necho "$@" >>{log}\ntest -f package-lock.json && mkdir -p {dist} && touch {made}\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime_module, "_page", lambda name: PAGE / name if name != "node_modules" else tmp_path / name)
    return script


def test_npm_fills_the_cache_once(npm, tmp_path):
    said: list[str] = []
    folder = runtime(said.append)
    assert folder == tmp_path / "cache" / "edgefl" / "web" / version() == cache()
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert [path.name for path in folder.parent.iterdir()] == [version()], "the temporary folder is gone"
    assert runtime(said.append) == folder
    assert len(said) == 1
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert calls[0].startswith("ci --ignore-scripts")
    assert "--fetch-retries=1" in calls[0], "without a network npm ends in seconds"


def test_what_lies_beside_the_page_comes_first_if_its_version_is_right(npm, tmp_path):
    package = tmp_path / "node_modules" / runtime_module.PACKAGE
    (package / "dist").mkdir(parents=True)
    for name in FILES:
        (package / "dist" / name).touch()
    (package / "package.json").write_text(json.dumps({"version": version()}))
    assert runtime(print) == package / "dist"
    (package / "package.json").write_text(json.dumps({"version": "1.0.0"}))
    assert runtime(lambda _: None) == cache()


def test_without_npm_the_message_says_what_to_do(npm, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="so is npm, which downloads it; install Node.js .* or copy ort.wasm.min.mjs"):
        runtime(print)


def test_a_failing_npm_leaves_no_cache(npm, tmp_path):
    npm.write_text("#!/bin/sh\necho 'npm error code ENOTFOUND' >&2\nexit 1\n")
    with pytest.raises(
        InputError, match=r"its registry cannot be reached \(code ENOTFOUND\); connect this computer to a network once, or"
    ):
        runtime(lambda _: None)
    assert list(cache().parent.iterdir()) == []
    npm.write_text("#!/bin/sh\necho 'npm error code EINTEGRITY' >&2\nexit 1\n")
    with pytest.raises(InputError, match="npm cannot fetch onnxruntime-web: code EINTEGRITY; install"):
        runtime(lambda _: None)


def test_an_npm_that_hangs_is_ended(npm, tmp_path, monkeypatch):
    npm.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(runtime_module, "_LONGEST_S", 0.2)
    said: list[str] = []
    with pytest.raises(InputError, match=r"npm did not fetch onnxruntime-web in 0.2 s; install"):
        runtime(said.append)
    assert len(said) == 1
    assert said[0].startswith("npm fetches onnxruntime-web")
    assert list(cache().parent.iterdir()) == []


# The page's own lists.


def test_one_version_of_onnxruntime_web_everywhere():
    lock = json.loads((PAGE / "package-lock.json").read_text())
    packages = [entry for path, entry in lock["packages"].items() if path]
    assert lock["packages"][f"node_modules/{runtime_module.PACKAGE}"]["version"] == version()
    assert all(entry["integrity"].startswith("sha512-") and "resolved" not in entry for entry in packages)


def test_the_service_worker_names_every_file_of_the_page_with_its_hash(ort_web):
    worker = (PAGE / "sw.js").read_text()
    found = page_files.contents()
    assert {
        "./",
        "app.js",
        "core/trainer.js",
        "manifest.webmanifest",
        "icon-192.png",
        *(f"ort/{name}" for name in FILES),
    } <= found.keys()
    assert not any("node_modules" in path or path.endswith(".json") for path in found)
    assert page_files.with_list(worker, found) == worker, "run tools/page_files.py"


def test_the_icons_of_the_app_are_as_large_as_it_says():
    manifest = json.loads((PAGE / "manifest.webmanifest").read_text())
    for icon in manifest["icons"][1:]:
        content = (PAGE / icon["src"]).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n"
        assert "x".join(map(str, struct.unpack(">II", content[16:24]))) == icon["sizes"]
    assert {icon.get("purpose") for icon in manifest["icons"]} == {None, "maskable"}


def test_every_file_of_the_page_can_be_read_in_one_go():
    for path in PAGE.glob("*.js"):
        assert len(path.read_text().splitlines()) <= 200, path.name
