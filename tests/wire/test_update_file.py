"""Update files: what is accepted, and that nothing else is, whatever a file claims."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import WireError
from edgefl.wire.update_file import MAX_HEADER_BYTES, ExpectedUpdate, read_update, receive

SHAPES = {"fc.weight": (3, 4), "fc.bias": (3,)}
EXPECTED = ExpectedUpdate("ab" * 32, 3, {"1": {"fc.weight": (6, 4), "fc.bias": (6,)}, "0.5": SHAPES}, 10)
ABOUT = {
    "format": "edgefl-update", "version": "1", "bundle": "ab" * 32, "round": "3", "tier": "0.5", "samples": "120", "steps": "20",
    "client": "c0ffee",
}  # fmt: skip


def tensors(**changes) -> dict[str, np.ndarray]:
    found = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
    return {name: tensor for name, tensor in {**found, **changes}.items() if tensor is not None}


def about(**changes) -> dict[str, str]:
    return {key: value for key, value in {**ABOUT, **changes}.items() if value is not None}


def content(given: dict[str, np.ndarray] | None = None, **changes) -> bytes:
    return safetensors.numpy.save(tensors() if given is None else given, metadata=about(**changes))


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entries(**changes) -> dict[str, object]:
    layout = {"fc.weight": [0, 48], "fc.bias": [48, 60]}
    return {name: {"dtype": "F32", "shape": list(SHAPES[name]), "data_offsets": at, **changes} for name, at in layout.items()}


def test_a_right_update_is_read(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content())
    update = read_update(tmp_path / "a.safetensors", EXPECTED)
    assert (update.client, update.tier, update.samples, update.steps) == ("c0ffee", "0.5", 120, 20)
    assert list(update.tensors) == list(SHAPES)
    np.testing.assert_array_equal(update.tensors["fc.weight"], tensors()["fc.weight"])
    assert update.labels is None


@pytest.mark.parametrize(("text", "labels"), [("0", (0,)), ("9", (9,)), ("0,3,7", (0, 3, 7))])
def test_an_update_may_state_the_labels_of_its_client(text, labels, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content(labels=text))
    assert read_update(tmp_path / "a.safetensors", EXPECTED).labels == labels


NAN, INFINITE = (np.array([0, value, 1], np.float32) for value in (np.nan, -np.inf))
HUGE = np.array([1e15, -1e15, -3e38], np.float32)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (content(format="edgefl-state"), "format: got 'edgefl-state', expected 'edgefl-update'"),
        (content(version="2"), "version: got '2', expected '1': made by another version of edgefl"),
        (content(bundle="cd" * 32), f"bundle: got '{'cd' * 32}', expected '{'ab' * 32}': it was trained from another bundle"),
        (content(round="4"), "round: got '4', expected '3', the bundle's round"),
        (content(round="03"), "round: got '03'"),
        (content(tier="0.25"), "tier: got '0.25', expected one of 1, 0.5"),
        (content(tier="1"), "fc.weight: got 'F32' of shape [3, 4], expected 'F32' of shape [6, 4]"),
        (content(samples="0"), "samples: got '0', expected a whole number from 1 to 1,000,000,000"),
        (content(samples="-5"), "samples: got '-5'"),
        (content(samples="1e3"), "samples: got '1e3'"),
        (content(samples="1000000001"), "samples: got '1000000001'"),
        (content(samples="٣"), "samples: got '٣'"),
        (content(samples="9" * 5000), f"samples: got '{'9' * 79}…"),
        (content(steps=""), "steps: got ''"),
        (content(client=""), "client: got ''"),
        (content(client="a b"), "client: got 'a b', expected 1 to 64 of 0-9 A-Z a-z . _ -"),
        (content(client="\x1b[2J"), r"client: got '\x1b[2J'"),
        (content(client="x" * 65), "client: got"),
        *(
            (
                content(labels=text),
                f"labels: got {text!r}, expected labels from 0 to 9, separated by commas, each once, ascending",
            )
            for text in ("", "10", "-1", "3,1", "1,1", "1, 2", "1,", "٣", "all")
        ),
        (content(labels="9" * 5000), f"labels: got '{'9' * 79}…"),
        (raw({"__metadata__": {**ABOUT, "labels": [1]}, **entries()}, bytes(60)), "labels: got [1], expected labels from 0"),
        (content(steps=None), "'steps': missing; an update says format, version, bundle"),
        (content(mood="good"), "'mood': not expected"),
        (safetensors.numpy.save(tensors()), "'bundle': missing"),
        (content(tensors(**{"fc.bias": None})), "'fc.bias': missing; expected 2 tensors, got 1"),
        (content(tensors(extra=np.zeros(1, np.float32))), "'extra': not expected; expected 2 tensors, got 3"),
        (
            content(tensors(**{"fc.bias": np.zeros(4, np.float32)})),
            "fc.bias: got 'F32' of shape [4], expected 'F32' of shape [3]",
        ),
        (content(tensors(**{"fc.bias": np.zeros((3, 1), np.float32)})), "fc.bias: got 'F32' of shape [3, 1]"),
        (content(tensors(**{"fc.bias": np.zeros(3)})), "fc.bias: got 'F64' of shape [3], expected 'F32'"),
        (content(tensors(**{"fc.bias": np.zeros(3, np.float16)})), "fc.bias: got 'F16'"),
        (content(tensors(**{"fc.bias": NAN})), "fc.bias: holds nan, expected finite values"),
        (content(tensors(**{"fc.bias": INFINITE})), "fc.bias: holds -inf, expected finite values"),
        (content(tensors(**{"fc.bias": HUGE})), "fc.bias: holds -3e+38, expected finite values from -1e+15 to 1e+15"),
        (content() + b"x", "bytes, expected"),
        (content()[:-1], "bytes, expected"),
        (b"", "no safetensors file"),
        (b"short", "no safetensors file"),
        (b"\xff" * 200, "a header of 18,446,744,073,709,551,615 bytes, expected at most 1,048,576"),
        (raw(b"[" * 100_000), "its header is not valid JSON"),
        (raw(b"{}"[:1]), "its header is not valid JSON"),
        (raw(b'{"a": 1, "a": 2}'), "its header is not valid JSON (\"the key 'a' comes twice\")"),
        (raw([1]), "its header is no table of tensors"),
        (raw({"__metadata__": ABOUT, **entries(), "fc.bias": 3}, bytes(60)), "its header is no table of tensors"),
        (raw({"__metadata__": {**ABOUT, "samples": 120}, **entries()}, bytes(60)), "samples: got 120, expected a whole number"),
        (raw({"__metadata__": {**ABOUT, "tier": ["0.5"]}, **entries()}, bytes(60)), "tier: got ['0.5'], expected"),
        (raw({"__metadata__": ABOUT, **entries(data_offsets=[0, 48])}, bytes(60)), "not a valid safetensors file"),
        (raw({"__metadata__": ABOUT, **entries(data_offsets=None)}, bytes(60)), "not a valid safetensors file"),
        (raw({"__metadata__": ABOUT, **entries(shape=[10**9, 10**9])}, bytes(60)), "fc.weight: got 'F32' of shape [1000000000,"),
        (raw({"__metadata__": ABOUT, **entries(dtype={"a": 1})}, bytes(60)), "fc.weight: got {'a': 1} of shape"),
        (raw(b" " * (MAX_HEADER_BYTES + 1)), "a header of 1,048,577 bytes"),
        (bytes(8 + MAX_HEADER_BYTES + 4 * 30 + 1), "bytes, expected at most 1,048,704 for any tier"),
    ],
)
def test_anything_else_is_refused_with_file_key_value_and_expectation(made, message, tmp_path):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(made)
    with pytest.raises(WireError) as caught:
        read_update(path, EXPECTED)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert message in said
    assert said.isprintable()
    assert len(said) < 500 + len(str(path))


def test_archives_folders_and_links_are_no_updates(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("update.safetensors", bytes(10**7))
    (tmp_path / "folder").mkdir()
    (tmp_path / "real").write_bytes(content())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("bomb.zip", "a zip archive"), ("folder", "a folder"), ("link", "a link"), ("pipe", "no plain file")):
        with pytest.raises(WireError, match=message):
            read_update(tmp_path / name, EXPECTED)


@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_a_value_only(position, value):
    """Whatever byte is damaged: either the file is refused, or it is still an update of the declared shapes, all finite."""
    damaged = bytearray(content())
    damaged[position % len(damaged)] = value
    path = Path(tempfile.gettempdir()) / f"edgefl-damaged-{os.getpid()}"
    path.write_bytes(bytes(damaged))
    try:
        update = read_update(path, EXPECTED)
    except WireError:
        return
    finally:
        path.unlink()
    assert {name: tensor.shape for name, tensor in update.tensors.items()} == SHAPES
    assert all(np.isfinite(tensor).all() for tensor in update.tensors.values())


def test_a_folder_is_received_in_the_order_of_names(tmp_path):
    for name, client, samples in (("b", "two", "7"), ("a", "one", "5"), ("c", "two", "9"), (".hidden", "three", "1")):
        (tmp_path / name).write_bytes(content(client=client, samples=samples))
    (tmp_path / "d").write_bytes(b"text")
    received = receive(tmp_path, EXPECTED)
    assert [(u.client, u.samples, dict(u.tensors)) for u in received.updates] == [("one", 5, {}), ("two", 7, {})]
    assert [Path(problem.split(": ")[0]).name for problem in received.problems] == ["c", "d"]
    assert "client: 'two' sent b already, expected one update of each" in received.problems[0]
    with pytest.raises(WireError, match="expected a folder of update files"):
        receive(tmp_path / "a", EXPECTED)


@pytest.mark.parametrize("name", [b"a\x1b[2Jb", b"line\nbreak", b"\xe2\x80\xaeback", b"not utf-8 \xff"])
def test_names_of_files_cannot_change_a_terminal(name, tmp_path):
    (tmp_path / os.fsdecode(name)).write_bytes(content())
    received = receive(tmp_path, EXPECTED)
    assert not received.updates
    assert received.problems[0].isprintable()
    assert "expected a name of printable characters" in received.problems[0]


def test_labels_have_one_spelling(tmp_path):
    for text in ("00", "0,03", "\u0663"):
        (tmp_path / "a.safetensors").write_bytes(content(labels=text))
        with pytest.raises(WireError, match="labels: got"):
            read_update(tmp_path / "a.safetensors", EXPECTED)


def test_reading_updates_needs_no_torch():
    code = "import sys, edgefl.wire.update_file; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
