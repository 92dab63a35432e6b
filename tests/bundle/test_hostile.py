"""Bundles that mean harm: refused with a message, and whatever is run of them runs in a process that can be killed."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from handmade import Regression
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError
from small_bundle import contents, manifest, model, replaced, rewrite, tier, trainable, value, written

from edgefl.bundle import graph_check
from edgefl.bundle.graph_check import OPERATORS
from edgefl.bundle.manifest import TierEntry
from edgefl.bundle.manifest_file import parse, read
from edgefl.bundle.sandbox import Limits, _lines, default_memory_bytes
from edgefl.bundle.verify import verify
from edgefl.bundle.write import write
from edgefl.errors import BundleError, InputError
from edgefl.util.files import sha256

GIB = 1 << 30


def test_the_operators_are_those_that_compute_and_nothing_else():
    known = {s.name: s for s in onnx.defs.get_all_schemas_with_history() if s.domain == "" and s.since_version <= 20}
    random = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
    text = {"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "ImageDecoder"}
    lists = {name for name in known if "Sequence" in name or "Optional" in name} - {"ReverseSequence"}
    old = {"Scatter", "Upsample"}
    assert set(known) - random - text - lists - old == OPERATORS


def of(nodes, *initializers):
    """A graph of ``nodes`` from x (batch, 6) to logits (batch, 3), with the weight of the sound one."""
    sound = model()
    return model([*nodes], initializers=[*sound.graph.initializer, *initializers])


def number(name, value, dtype=np.int64):
    return numpy_helper.from_array(np.array(value, dtype), name)


FINISH = [
    helper.make_node("ReduceSum", ["much"], ["sum"], keepdims=0), helper.make_node("MatMul", ["x", "weight"], ["y"]),
    helper.make_node("Add", ["y", "sum"], ["logits"]),
]  # fmt: skip


def loop(trips, body, value_info):
    """Return a loop over ``body`` that carries ``much``."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), *body], "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("old", value_info)],
        [value("on", [], TensorProto.BOOL), value("new", value_info)],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", "yes", "first"], ["much"], body=graph)
    return of([node, *FINISH], number("trips", trips), number("yes", True, np.bool_), number("first", [1.0], np.float32))


GREEDY = {
    "constant": of([helper.make_node("ConstantOfShape", ["size"], ["much"]), *FINISH], number("size", [1 << 35])),
    "expand": of(
        [
            helper.make_node("ReduceSum", ["x"], ["one"], keepdims=0),
            helper.make_node("Expand", ["one", "size"], ["much"]),
            *FINISH,
        ],
        number("size", [1 << 33, 4]),
    ),
    "loop": loop(60, [helper.make_node("Concat", ["old", "old"], ["new"], axis=0)], [None]),
}
ENDLESS = loop(1 << 60, [helper.make_node("Add", ["old", "old"], ["new"])], [1])


def test_graphs_that_ask_for_too_much_memory_or_time_are_stopped(tmp_path):
    graphs = {0.9: GREEDY["constant"], 0.8: GREEDY["expand"], 0.7: GREEDY["loop"], 0.6: ENDLESS}
    files = {}
    for ratio, graph in graphs.items():
        files |= {f"{ratio:g}/forward.onnx": graph.SerializeToString(), f"{ratio:g}/reference.safetensors": _reference()}
    write(tmp_path / "bundle", manifest(*(tier(ratio) for ratio in graphs)), files)
    with pytest.raises(BundleError) as caught:
        verify(tmp_path / "bundle", limits=Limits(memory_bytes=300 << 20, file_s=2))
    folder = tmp_path / "bundle"
    short = "needs more than 314,572,800 bytes of memory; --memory allows more"
    lines = [f"{folder}: tier {label}: {label}/forward.onnx: {short}" for label in ("0.9", "0.8", "0.7")]
    assert str(caught.value).splitlines() == [*lines, f"{folder}: 0.6/forward.onnx: did not end in 2 s; --timeout allows more"]


def _reference() -> bytes:
    return contents()["1/reference.safetensors"]


def _child(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_process_that_holds_too_much_is_killed_where_the_system_does_not_refuse_it():
    with _child("much = b'x' * (200 << 20); import time; time.sleep(60)") as child:
        assert list(_lines(child, 30, 100 << 20)) == [
            json.dumps({"killed": "needs more than 104,857,600 bytes of memory; --memory allows more"})
        ]
        child.kill()


def test_every_line_gives_the_next_file_its_time():
    with _child("import time\nfor i in range(4): print(i, flush=True); time.sleep(0.3)") as child:
        assert list(_lines(child, 5, GIB)) == [f"{i}\n" for i in range(4)]


def test_a_process_that_dies_is_said_to_have_died(tmp_path, monkeypatch):
    started = "import sys, json, os, signal; print(json.dumps({'at': '1/forward.onnx'}), flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    popen = subprocess.Popen
    monkeypatch.setattr(
        "edgefl.bundle.sandbox.subprocess.Popen", lambda command, **given: popen([sys.executable, "-c", started], **given)
    )
    with pytest.raises(BundleError, match=r"bundle: 1/forward\.onnx: the process that ran it died of SIGSEGV"):
        verify(written(tmp_path / "bundle"))
    started = "raise SystemExit('no room')"
    with pytest.raises(InputError, match="the process that checks it did not start: no room"):
        verify(tmp_path / "bundle")


def test_limits_follow_the_files_and_this_computers_memory(monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr("edgefl.bundle.sandbox.psutil.virtual_memory", lambda: SimpleNamespace(available=100 * GIB))
    assert default_memory_bytes(GIB) == 12 * GIB
    assert default_memory_bytes(20 * GIB) == 80 * GIB


def nested(node):
    """``node`` in a branch of an If in a branch of an If."""
    graph = helper.make_graph([node], "inner", [], [value("out", None)])
    for name in ("middle", "outer"):
        branch = helper.make_node("If", ["yes"], ["out"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([branch], name, [], [value("out", None)])
    inner = graph.node[0]
    inner.output[0] = "logits"
    return of([inner], number("yes", True, np.bool_))


def with_function():
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    own = helper.make_function("", "Relu", ["a", "b"], ["c"], body, [helper.make_opsetid("", 23)])
    return model(functions=[own])


def declared(*dims, raw=None, floats=None, kind=TensorProto.FLOAT):
    tensor = TensorProto(name="weight", dims=dims, data_type=kind, float_data=floats or [])
    if raw is not None:
        tensor.raw_data = raw
    return model(initializers=[tensor])


def with_training():
    result = model()
    result.training_info.add().algorithm.node.append(helper.make_node("RandomNormal", [], ["r"], shape=[1]))
    return result


def sparse():
    result = model()
    values, places = numpy_helper.from_array(np.ones(1, np.float32), "weight"), number("places", [0])
    result.graph.ClearField("initializer")
    result.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [6, 3]))
    return result


def default_input():
    result = model()
    result.graph.initializer.append(numpy_helper.from_array(np.ones((1, 6), np.float32), "x"))
    return result


def misnamed():
    return model().SerializeToString().replace(b"MatMul", b"Mat\xfful")


def spoken():
    return model().SerializeToString().replace(b"MatMul", b"\x1b[2J\nX")


GRAPHS = {
    "random in a branch": (nested(helper.make_node("RandomNormal", [], ["out"], shape=[1, 3])), r"operators that a .* hold: RandomNormal"),
    "foreign in a branch": (nested(helper.make_node("Do", [], ["out"], domain="com.x")), "operators outside ai.onnx: com.x"),
    "sequence": (of([helper.make_node("SequenceConstruct", ["x"], ["logits"])]), "operators that a bundle may not hold: SequenceConstruct"),
    "picture": (of([helper.make_node("ImageDecoder", ["x"], ["logits"])]), "operators that a bundle may not hold: ImageDecoder"),
    "function": (with_function(), "operators outside ai.onnx: a function of its own"),
    "training": (with_training(), "holds functions or training information"),
    "huge": (declared(1 << 40, 3, raw=b"12345678"), r"not a valid ONNX model \(tensor 'weight' holds 2 of 3298534883328 values\)"),
    "huge floats": (declared(6, 1 << 60, floats=[1.0]), r"not a valid ONNX model \(tensor 'weight' holds 1 of"),
    "negative": (declared(-6, -3, floats=[1.0] * 18), "not a valid ONNX model"),
    "words": (declared(6, 3, kind=TensorProto.STRING), "tensor 'weight' of type STRING, expected numbers"),
    "no type": (declared(6, 3, kind=999), "tensor 'weight' of type unknown, expected numbers"),
    "sparse": (sparse(), "holds a sparse tensor"),
    "input with a value": (default_input(), "input x has a value inside the file"),
    "no text": (misnamed(), r"not a valid ONNX model \(a name that is not UTF-8\)"),
    "terminal codes": (spoken(), r"operators that a bundle may not hold: \\x1b\[2J\\nX$"),
}  # fmt: skip


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.usefixtures("in_process")
def test_a_graph_that_may_not_be_run_is_not(tmp_path, kind, monkeypatch):
    graph, message = GRAPHS[kind]
    monkeypatch.setattr("edgefl.onnxgrad.session.ort.InferenceSession", None)
    write(tmp_path / "bundle", manifest(tier(1)), {k: v for k, v in contents(graph).items() if k[0] == "1"})
    with pytest.raises(BundleError, match=rf"tier 1: 1/forward\.onnx: {message}"):
        verify(tmp_path / "bundle")


WEIGHTS = np.random.default_rng(2).standard_normal((6, 3)).astype(np.float32)


def beside(location="weights.data", offset=0, length=72):
    """A graph whose weights lie in another file."""
    tensor = TensorProto(name="weight", dims=(6, 3), data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, given_value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(given_value))
    return model(initializers=[tensor])


def written_beside(folder, graph):
    write(folder, manifest(), {**contents(graph), "1/weights.data": WEIGHTS.tobytes()})
    return folder


@pytest.mark.usefixtures("in_process")
def test_weights_lie_beside_a_graph_only_where_one_file_cannot_hold_them(tmp_path, monkeypatch):
    folder = written_beside(tmp_path / "bundle", beside())
    with pytest.raises(BundleError, match=r"keeps weights outside the file: \d+ bytes with it, expected more than 2,147,483,647"):
        verify(folder)
    monkeypatch.setattr(graph_check, "MAX_INNER_BYTES", 100)
    assert verify(folder).max_abs_errors["1"] < 1e-5


@pytest.mark.parametrize(
    "change",
    [
        {"location": "../0.5/forward.onnx"}, {"location": "/etc/passwd"}, {"location": "other.data"}, {"location": ""},
        {"offset": 1}, {"offset": -1}, {"length": 71}, {"length": "9" * 30}, {"offset": "x"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.usefixtures("in_process")
def test_weights_never_lie_outside_of_the_bundle(tmp_path, change):
    with pytest.raises(BundleError, match=r"1/forward\.onnx: keeps weights outside the file, and not in one of the bundle"):
        verify(written_beside(tmp_path / "bundle", beside(**change)))


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a\\b", "C:x", "a/../b", "./a", "", "a//b", "a/", "a\nb", "a\x1b[2J", "a /b", " a", "\u202eb", "a\0b"]
)
def test_paths_that_leave_the_bundle_or_read_differently_elsewhere(path):
    for entry in ({"forward": path}, {"train": {**trainable(Regression())[0].train.model_dump(), "predict": path}}):
        with pytest.raises(ValidationError, match="expected a relative path inside the bundle"):
            tier(0.5, **entry)


def test_files_that_are_one_file_elsewhere_and_names_that_are_taken(tmp_path):
    for extra, message in (("1/Forward.ONNX", "several spellings"), ("manifest.sig", "cannot hold its hash")):
        with pytest.raises(BundleError, match=message):
            write(tmp_path / "bundle", manifest(), {**contents(), extra: b""})
    with pytest.raises(ValidationError, match="tiers\n  Tuple should have at most 100 items"):
        manifest(*(tier(1) for _ in range(101)))
    assert not list(tmp_path.iterdir())


def test_what_is_no_folder_is_not_unpacked(tmp_path):
    folder, archive = written(tmp_path / "bundle"), tmp_path / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(folder / "manifest.json", "manifest.json")
    with pytest.raises(BundleError, match=r"bundle\.zip: a file; a folder is expected: unpack an archive of a bundle first"):
        verify(archive)
    with pytest.raises(BundleError, match="nowhere: no such folder; give the folder bundle of a run"):
        read(tmp_path / "nowhere")


def test_sizes_are_looked_at_before_any_content(tmp_path, monkeypatch):
    folder = written(tmp_path / "bundle")
    with (folder / "1" / "forward.onnx").open("r+b") as file:
        file.truncate(1 << 40)  # a hole of a terabyte, for which there is no room
    monkeypatch.setattr("edgefl.bundle.verify.check_tiers", None)
    with pytest.raises(BundleError, match=r"1/forward\.onnx: 1099511627776 bytes, the manifest says \d{3}$"):
        verify(folder)
    rewrite(folder, lambda m: m["files"]["1/forward.onnx"].update(bytes=1 << 40))
    with pytest.raises(BundleError, match=r"1,099,511,\d+,\d+ bytes by its manifest, expected at most 68,719,476,736"):
        verify(folder)
    with (folder / "manifest.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match=r"manifest\.json: 1,099,511,627,776 bytes, expected at most 16,777,216"):
        verify(folder)


def test_messages_stay_short_and_printable(tmp_path):
    folder = written(tmp_path / "bundle")
    for i in range(200):
        (folder / f"extra\n\x1b[{i:03}").touch()
    with pytest.raises(BundleError) as caught:
        verify(folder)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{folder}: extra\\n\\x1b[000: not in the manifest"
    assert (len(lines), lines[-1]) == (51, f"{folder}: and more")
    rewrite(folder, lambda m: m.update({f"a\nkey {i}": i for i in range(1000)}))
    with pytest.raises(BundleError) as caught:
        verify(folder)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{folder}/manifest.json: 'a\\nkey 0': unknown key"
    assert (len(lines), lines[-1]) == (21, f"{folder}/manifest.json: and 980 more")


def test_the_reason_for_no_updates_is_printable_and_short(tmp_path, called):
    entry, files = trainable(Regression())
    write(tmp_path / "bundle", manifest(entry, input_shape=(1, 2, 3)), files)
    rewrite(tmp_path / "bundle", lambda m: m["tiers"][0]["train"].update(no_update="\x1b[2J\n" + "x" * 10_000, upload={}))
    status, out, _ = called("verify", str(tmp_path / "bundle"))
    assert status == 0
    (line,) = [line for line in out.splitlines() if line.startswith("devices send no updates: ")]
    assert line.removeprefix("devices send no updates: ") == "\\x1b[2J\\n" + "x" * 291


def test_folders_in_folders_without_end_are_listed_without_recursion(tmp_path):
    folder = written(tmp_path / "bundle")
    inner, depth = folder / "1" / "d", 1500
    for _ in range(depth):  # from the innermost outwards, as no path is that long
        outer = folder / "1" / "e"
        outer.mkdir()
        if inner.exists():
            inner.rename(outer / "d")
        outer.rename(inner)
    with pytest.raises(BundleError, match="1/d/: not in the manifest"):
        verify(folder)
    for _ in range(depth - 1):  # what clears up after tests does recurse
        (inner / "d").rename(folder / "1" / "e")
        inner.rmdir()
        (folder / "1" / "e").rename(inner)


def test_every_refusal_of_a_bundle_ends_with_status_2(tmp_path, called):
    folder = written(tmp_path / "bundle")
    status, out, errors = called("verify", str(folder))
    assert (status, errors) == (0, "")
    assert re.fullmatch(
        rf"tier 1: max abs error \S+\ntier 0\.5: max abs error \S+\n{folder}: 5 files verified; not signed\n", out
    )
    replaced(folder, "1/forward.onnx", GRAPHS["sequence"][0].SerializeToString())
    before = sorted(path.stat().st_mtime_ns for path in folder.rglob("*"))
    status, out, errors = called("verify", str(folder))
    assert (status, out) == (2, "")
    assert errors == f"Error: {folder}: tier 1: 1/forward.onnx: operators that a bundle may not hold: SequenceConstruct\n"
    assert sorted(path.stat().st_mtime_ns for path in folder.rglob("*")) == before
    status, out, errors = called("verify", str(folder), "--memory", "much")
    assert (status, out) == (2, "")


def mutated(content: bytes, kind: str, place: float, with_byte: int) -> bytes:
    """Return ``content`` cut, or with a byte changed, taken away or put in."""
    at = int(place * (len(content) - 1))
    middle = {"cut": None, "flip": bytes([content[at] ^ (1 << with_byte % 8)]), "set": bytes([with_byte]), "drop": b""}
    return content[:at] if middle[kind] is None else content[:at] + middle[kind] + content[at + 1 :]


MUTATION = st.tuples(
    st.sampled_from(["cut", "flip", "flip", "set", "drop"]), st.floats(0, 1), st.integers(0, 255), st.integers(0, 5)
)


@settings(max_examples=2)
@given(st.lists(MUTATION, min_size=25, max_size=25))
def test_no_damage_with_a_right_hash_ends_in_anything_but_a_message(tmp_path_factory, mutations):
    entry, own = trainable(Regression())
    tiers, files = [], {}
    for i, (kind, place, with_byte, which) in enumerate(mutations, 1):
        label = f"{i / 100:g}"
        text = entry.model_copy(update={"tier": i / 100, "label": label}).model_dump_json().replace("0.5/", f"{label}/")
        tiers.append(TierEntry.model_validate_json(text))
        here = {name.replace("0.5/", f"{label}/"): content for name, content in own.items()}
        name = sorted(here)[which]
        files |= {**here, name: mutated(here[name], kind, place, with_byte)}
    folder = tmp_path_factory.mktemp("damaged") / "bundle"
    write(folder, manifest(*tiers, input_shape=(1, 2, 3)), files)
    said = ""
    try:
        verify(folder, limits=Limits(memory_bytes=2 * GIB, file_s=20))
    except BundleError as error:
        said = str(error)
    for line in said.splitlines():
        assert re.match(rf"{folder}: tier 0\.\d+: 0\.\d+/\w+\.(onnx|safetensors): (?!cannot be checked)", line)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["../x", "1/forward.onnx"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    entry, files = trainable(Regression())
    folder = tmp_path_factory.mktemp("sound") / "bundle"
    write(folder, manifest(entry, input_shape=(1, 2, 3)), files)
    return (folder / "manifest.json").read_text()


@given(st.data())
def test_any_value_in_a_manifest_is_right_or_refused(text, data):
    whole = values = json.loads(text)
    while True:
        key = data.draw(st.sampled_from(sorted(values) if isinstance(values, dict) else range(len(values))))
        if not (isinstance(values[key], dict | list) and values[key] and data.draw(st.booleans())):
            break
        values = values[key]
    values[key] = data.draw(JSON)
    content = json.dumps({**whole, "manifest_sha256": "0" * 64}).encode()
    said = "x: "
    try:
        parse(Path("x"), content.replace(b"0" * 64, sha256(content).encode(), 1))
    except BundleError as error:
        said = str(error)
    assert all(line.startswith("x: ") and line.isprintable() for line in said.splitlines())
