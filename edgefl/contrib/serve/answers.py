"""The server's answers: a pure function of the request and the table of files. Every answer has the headers of :data:`HEADERS`."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote_to_bytes

import h11

from edgefl.contrib.serve.files import ServedFile

HEADERS = {
    # Threads of WebAssembly need a page that is isolated from other origins.
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Server": "edgefl",
}
_TAGS = re.compile(r'(?:W/)?("[^"]*")')


@dataclass(frozen=True)
class HttpAnswer:
    """The head of an answer, and its body: a line of text, or a part of a file.

    Attributes:
        status: the status code.
        headers: those of this answer, without :data:`HEADERS`.
        content: the body, if it is not a file.
        served: the file whose bytes are the body.
        span: the first byte of the file that is sent, and the one after the last.
    """

    status: HTTPStatus
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    served: ServedFile | None = None
    span: tuple[int, int] = (0, 0)

    def head(self) -> h11.Response:
        """Return status line and headers."""
        headers = {"Date": formatdate(usegmt=True), **HEADERS, **self.headers}
        return h11.Response(status_code=self.status, reason=self.status.phrase.encode(), headers=list(headers.items()))


def error(status: HTTPStatus, text: str, **headers: str) -> HttpAnswer:
    """Return an answer that says in a line of text what is wrong. The connection ends with it.

    >>> error(HTTPStatus.NOT_FOUND, "no such file").content.decode().rstrip()
    '404 Not Found: no such file'
    """
    content = f"{status.value} {status.phrase}: {text}\n".encode()
    plain = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(content)), "Connection": "close"}
    return HttpAnswer(status, {**plain, **headers}, content)


def answer(request: h11.Request, table: Mapping[str, ServedFile], names: Set[str], url: str) -> HttpAnswer:
    """Return the answer to a request without a body.

    Args:
        request: a request that h11 accepted.
        table: path → file.
        names: the names that this server has. With another one, a foreign page whose name resolves to this computer (DNS rebinding) asks.
        url: where the page is; for the text of errors.
    """
    if request.http_version not in (b"1.0", b"1.1"):
        return error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 only")
    headers = {name.decode(): value.decode("latin-1") for name, value in request.headers}
    # A proxy before this server may take the other one (RFC 9112, section 6.1).
    if {"content-length", "transfer-encoding"} <= headers.keys():
        return error(HTTPStatus.BAD_REQUEST, "Content-Length and Transfer-Encoding at once")
    authority, target = _parts(request.target.decode("ascii"), headers.get("host", ""))
    if authority not in names:
        return error(HTTPStatus.MISDIRECTED_REQUEST, f"this server is {url}")
    if request.method not in (b"GET", b"HEAD"):
        return error(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", Allow="GET, HEAD")
    served = table.get(_decoded(target))
    if served is None:
        return error(HTTPStatus.NOT_FOUND, "no such file")
    tag = f'"{served.sha256}"'
    if "if-match" in headers and not _matches(headers["if-match"], tag):
        return error(HTTPStatus.PRECONDITION_FAILED, "the file has another ETag", ETag=tag)
    if _matches(headers.get("if-none-match", ""), tag):
        return HttpAnswer(HTTPStatus.NOT_MODIFIED, {"ETag": tag})
    head = {"Content-Type": served.content_type, "ETag": tag, "Accept-Ranges": "bytes"}
    if "range" in headers and request.method == b"GET" and headers.get("if-range", tag) == tag:
        size_bytes = served.size_bytes
        span = _span(headers["range"], size_bytes)
        if span == (0, 0):
            text = f"the file has {size_bytes} bytes"
            return error(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, text, **{"Content-Range": f"bytes */{size_bytes}"})
        if span is not None:
            first, end = span
            part = {"Content-Range": f"bytes {first}-{end - 1}/{size_bytes}", "Content-Length": str(end - first)}
            return HttpAnswer(HTTPStatus.PARTIAL_CONTENT, {**head, **part}, served=served, span=span)
    whole = {**head, "Content-Length": str(served.size_bytes)}
    return HttpAnswer(HTTPStatus.OK, whole, served=served, span=(0, served.size_bytes))


def _parts(target: str, host: str) -> tuple[str, str]:
    """Return name and path of a request. A target that names a host itself overrides the header (RFC 9112, section 3.2.2).

    >>> _parts("/a?b", "LocalHost:8765"), _parts("http://evil.example/a", "localhost"), _parts("*", "[::1]:8765")
    (('localhost', '/a?b'), ('evil.example', '/a'), ('::1', '*'))
    """
    if absolute := re.fullmatch(r"(?i:http)://([^/?#]*)(.*)", target):
        host, target = absolute[1], absolute[2] or "/"
    return _host_name(host), target


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port; empty if there is none.

    >>> _host_name("LocalHost:8765"), _host_name("[::1]:8765"), _host_name("evil.example"), _host_name("a:b:c")
    ('localhost', '::1', 'evil.example', '')
    """
    match = re.fullmatch(r"\[([0-9a-f:.]+)\](?::\d+)?|([^:\[\]]+)(?::\d+)?", host.strip().lower())
    return str(match[1] or match[2]) if match else ""


def _decoded(target: str) -> str:
    """Return the decoded path of a target, as in the table; empty if it is not text.

    >>> _decoded("/bundle/0.5/a%20b.onnx?again=1"), _decoded("/bundle/%2e%2e/secret"), _decoded("/%ff")
    ('/bundle/0.5/a b.onnx', '/bundle/../secret', '')
    """
    try:
        return unquote_to_bytes(target.partition("?")[0]).decode()
    except UnicodeDecodeError:
        return ""


def _matches(condition: str, tag: str) -> bool:
    """Return whether a list of entity tags, or an asterisk, includes ``tag``.

    >>> _matches('W/"a", "b"', '"a"'), _matches("*", '"a"'), _matches('"b"', '"a"'), _matches("", '"a"')
    (True, True, False, False)
    """
    return condition.strip() == "*" or tag in _TAGS.findall(condition)


def _span(text: str, size_bytes: int) -> tuple[int, int] | None:
    """Return the first byte of a range and the one after its last; (0, 0) if the file has none of it, None if it is to be ignored.

    Several ranges at once are ignored, as RFC 9110 (section 14.2) allows: the whole file is the answer.

    >>> _span("bytes=2-4", 10), _span("bytes=7-", 10), _span("bytes=-3", 10), _span("bytes=5-99", 10)
    ((2, 5), (7, 10), (7, 10), (5, 10))
    >>> _span("bytes=10-", 10), _span("bytes=-0", 10), _span("bytes=4-2", 10), _span("bytes=0-1,4-5", 10), _span("lines=1-2", 10)
    ((0, 0), (0, 0), None, None, None)
    """
    match = re.fullmatch(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*", text, re.IGNORECASE)
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        return (max(0, size_bytes - int(match[2])), size_bytes) if int(match[2]) and size_bytes else (0, 0)
    first, last = int(match[1]), int(match[2] or size_bytes - 1)
    if match[2] and last < first:
        return None
    return (first, min(last + 1, size_bytes)) if first < size_bytes else (0, 0)
