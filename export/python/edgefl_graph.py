"""Finds the files that an ONNX graph would read, before onnxruntime sees the graph.

onnxruntime reads weights from any file that a tensor names as its external data. The graph's protobuf is therefore walked whole, in the
fields of onnx.proto that can lead to a tensor. What cannot be read as protobuf is refused.
"""

from __future__ import annotations

from collections.abc import Iterator

# Kind of message → field number → kind of the message in that field.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_EXTERNAL_DATA, _KEY, _VALUE = 13, 1, 2
_VARINT, _EIGHT_BYTES, _DELIMITED, _FOUR_BYTES = 0, 1, 2, 5
_DEEPEST = 100
"""As in protobuf itself."""
_ORT_FORMAT, _IN_MEMORY = b"ORTM", "_ORT_MEM_ADDR_"
"""onnxruntime reads a file with the first at byte 4 as its own format. It takes a location with the second as an address in memory."""


class GraphError(ValueError):
    """The content is no ONNX model, or nested too deep, or names a file in a way that cannot be checked."""


def external_files(content: bytes) -> set[str]:
    """Return the locations that the tensors of an ONNX model name, in its graphs, their inner graphs and its functions.

    Raises:
        GraphError: the content cannot be read as protobuf, or a location is no path in UTF-8.
    """
    if content[4:8] == _ORT_FORMAT:
        raise GraphError("onnxruntime's own format")
    found: set[str] = set()
    waiting: list[tuple[str, memoryview, int]] = [("model", memoryview(content), 0)]
    while waiting:
        kind, message, depth = waiting.pop()
        if depth > _DEEPEST:
            raise GraphError(f"graphs within each other, more than {_DEEPEST} deep")
        for number, inner in _messages(message):
            if kind == "tensor" and number == _EXTERNAL_DATA:
                entry = dict(_messages(inner))  # of a field that is there twice, protobuf takes the last
                if bytes(entry.get(_KEY, b"")) == b"location":
                    found.add(_path(bytes(entry.get(_VALUE, b""))))
            elif (of := _FIELDS.get(kind, {}).get(number)) is not None:
                waiting.append((of, inner, depth + 1))
    return found


def _path(location: bytes) -> str:
    """Return a location as text. The bytes must be this text in UTF-8: onnxruntime opens the file of these bytes."""
    try:
        text = location.decode()
    except UnicodeDecodeError:
        raise GraphError("the name of a file that is not UTF-8") from None
    if _IN_MEMORY in text:
        raise GraphError("weights at an address in memory")
    return text


def _messages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the content of each field of a message that has a length: inner messages, texts and bytes."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        if tag >= 1 << 32:  # protobuf drops the upper bits: the field would be another one there
            raise GraphError("a tag of more than 32 bits")
        number, wire = tag >> 3, tag & 7
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(wire, 0)
        if wire in (_VARINT, _DELIMITED):
            value, at = _varint(message, at)
            size = value if wire == _DELIMITED else 0
        elif not size:
            raise GraphError(f"field {number} has wire type {wire}, which ONNX does not use")
        if size > end - at:
            raise GraphError("cut")
        if wire == _DELIMITED:
            yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, in groups of seven bits, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise GraphError("cut")
        byte = message[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise GraphError("a number of more than 64 bits")
