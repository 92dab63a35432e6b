"""What verification must not let pass: graphs, references and manifests whose hashes are right and whose contents are not."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys

import numpy as np
import onnx
import pytest
from handmade import Regression, samples
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from pydantic import ValidationError
from small_bundle import WEIGHT, contents, manifest, model, reference, tier, value, written, written_trainable

from edgefl.bundle.manifest import Budget, FileEntry, Manifest, Objective, TierEntry, TrainEntry, Variant
from edgefl.bundle.manifest_file import read
from edgefl.bundle.verify import verify
from edgefl.bundle.write import client_files, write
from edgefl.errors import BundleError
from edgefl.util.files import sha256, shared
from edgefl.wire.update_file import ExpectedUpdate, read_update

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "bundle"
    write(folder, manifest(), contents())
    return folder


def test_a_sound_bundle_passes_and_reads_back(tmp_path):
    made = write(tmp_path / "bundle", manifest(), contents())
    report = verify(tmp_path / "bundle")
    assert (report.files, report.max_abs_errors.keys()) == (5, {"1", "0.5"})
    assert read(tmp_path / "bundle") == made
    assert made.class_names[2] == "ü"
    assert made.tiers[0].form == "factored"


def test_the_manifest_carries_its_own_hash_as_the_readme_says(sound):
    content = (sound / "manifest.json").read_bytes()
    digest = json.loads(content)["manifest_sha256"]
    assert sha256(content.replace(digest.encode(), b"0" * 64)) == digest


def readme_examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (shared("export") / "README.md").read_text(encoding="utf-8"), re.DOTALL)


def run_beside(folder, code):
    """Run ``code`` as a device would: beside the bundle, with nothing but onnxruntime and NumPy."""
    absent = "import sys\nsys.modules.update(torch=None, edgefl=None, onnx=None)\n"
    return subprocess.run([sys.executable, "-c", absent + code], cwd=folder.parent, capture_output=True, text=True, check=False)


def test_the_examples_of_the_readme_run_and_see_damage(sound, tmp_path):
    infer, _, check = readme_examples()
    done = run_beside(sound, infer)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "a", "")
    assert (run_beside(sound, check).returncode, run_beside(sound, check).stderr) == (0, "")
    shutil.copytree(sound, tmp_path / "bundle")
    (tmp_path / "bundle" / "0.5" / "forward.onnx").write_bytes(b"other")
    assert run_beside(tmp_path / "bundle", check).stderr == "0.5/forward.onnx: changed\n"
    (tmp_path / "bundle" / "manifest.json").write_bytes((sound / "manifest.json").read_bytes() + b" ")
    assert run_beside(tmp_path / "bundle", check).stderr == "manifest.json: changed\n"


def test_the_readmes_example_trains_and_writes_an_update(tmp_path):
    network = Regression(optimizer="adam")
    folder = written_trainable(tmp_path / "bundle", network)
    done = run_beside(folder, readme_examples()[1])
    x, y = samples(8)
    learned, losses = network.trained([(x, y)] * 3)
    assert (done.stdout.split(), done.returncode) == ([f"{loss:.4f}" for loss in losses], 0)
    manifest_ = read(folder)
    update = read_update(
        tmp_path / "update.safetensors",
        ExpectedUpdate(manifest_.manifest_sha256, 3, {"0.5": manifest_.tiers[0].train.upload}, manifest_.classes),
    )
    assert (update.tier, update.samples, update.steps) == ("0.5", 8, 3)
    for name, tensor in learned.items():
        assert np.abs(update.tensors[name] - tensor).max() < 1e-5


def test_the_readme_names_every_key_of_the_manifest():
    text = (shared("export") / "README.md").read_text(encoding="utf-8")
    for record in (Manifest, TierEntry, TrainEntry, Budget, Variant, Objective, FileEntry):
        assert [key for key in record.model_fields if not re.search(rf"`{key}(\[\])?`", text)] == []


def test_checking_a_bundle_needs_no_torch(sound):
    code = f"from pathlib import Path; from edgefl.bundle.verify import verify; verify(Path({str(sound)!r}))"
    code += "; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@given(data=st.data())
def test_any_changed_bit_of_any_file_is_seen(sound, tmp_path_factory, data):
    name = data.draw(st.sampled_from(["manifest.json", *contents()]))
    content = bytearray((sound / name).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    folder = tmp_path_factory.mktemp("bit")
    for path, original in {**contents(), "manifest.json": (sound / "manifest.json").read_bytes()}.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(bytes(content) if path == name else original)
    with pytest.raises(BundleError, match=name):
        verify(folder)


@given(data=st.data())
def test_any_cut_of_the_manifest_is_seen(sound, tmp_path_factory, data):
    content = (sound / "manifest.json").read_bytes()
    folder = tmp_path_factory.mktemp("cut")
    (folder / "manifest.json").write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(BundleError, match=r"manifest\.json: (not valid JSON|changed)"):
        verify(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"format_version": true}',
        b'{"format_version": 2.0}',
        b'{"round": 1, "round": 2}',
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"manifest\.json: (not valid JSON|format_version (None|True|2\.0), expected 2)"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("key", "wrong", "message"),
    [
        ("classes", "3", "classes must be a whole number"),
        ("classes", True, "classes must be a whole number"),
        ("classes", 3.0, r"classes must be a whole number, got 3\.0"),
        ("input_shape", [0], r"input_shape, entry 1, must be at least 1"),
        ("input_shape", [], "input_shape: expected the shape of a sample, or an empty one and inputs"),
        ("tiers", [], "tiers must be a list of at least 1, got"),
        ("manifest_sha256", "A" * 64, r"manifest_sha256 must be text of the form \^\[0-9a-f\]"),
    ],
)
def test_values_of_a_wrong_type_are_not_guessed(sound, tmp_path, key, wrong, message):
    values = json.loads((sound / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**values, key: wrong}))
    with pytest.raises(BundleError, match=rf"manifest\.json: {message}"):
        read(tmp_path)


def test_a_wrong_entry_of_a_list_does_not_make_it_too_short(sound, tmp_path):
    values = json.loads((sound / "manifest.json").read_text())
    (only, *_) = values["tiers"]
    (tmp_path / "manifest.json").write_text(json.dumps({**values, "tiers": [{**only, "opset": -1}]}))
    with pytest.raises(BundleError, match=r"tiers\.0\.opset must be") as caught:
        read(tmp_path)
    assert "too short" not in str(caught.value)
    assert "a list of at least" not in str(caught.value)


def test_a_manifest_contradicts_itself():
    with pytest.raises(ValidationError, match=r"label 'half', expected '0\.5'"):
        tier(0.5, label="half")
    with pytest.raises(ValidationError, match="expected each tier once, largest first: 1 "):
        manifest(tier(1), tier(1.0))
    with pytest.raises(ValidationError, match=r"expected each tier once, largest first: 1,0\.5"):
        manifest(tier(0.5), tier(1))
    with pytest.raises(ValidationError, match="class_names: 1 names, expected one per class: 3"):
        manifest(class_names=("a",))


@pytest.mark.parametrize("name", ["../escape", "/etc/x", "a\\b", "C:x", "a/../b", "./a", "", "a//b", "manifest.json"])
def test_content_never_leaves_the_bundle_when_written(tmp_path, name):
    with pytest.raises(BundleError, match="relative path inside the bundle|cannot hold its own hash"):
        write(tmp_path / "new" / "bundle", manifest(), {**contents(), name: b"x"})
    assert not list(tmp_path.iterdir())


def test_a_tier_without_its_files_is_not_written(tmp_path):
    with pytest.raises(BundleError, match=r"no content for 0\.5/forward\.onnx, which its tiers name"):
        write(tmp_path / "bundle", manifest(), {k: v for k, v in contents().items() if k != "0.5/forward.onnx"})
    assert not list(tmp_path.iterdir())


def test_clients_travel_with_a_bundle(tmp_path):
    files = client_files()
    assert {
        "client/python/edgefl_client.py",
        "client/ts/lib/cli.js",
        "client/web/index.html",
        "client/web/core/run.js",
    } <= files.keys()
    assert not any("node_modules" in name or "__pycache__" in name or "/." in name for name in files)
    write(tmp_path / "bundle", manifest(), {**contents(), **files})
    assert verify(tmp_path / "bundle").files == 5 + len(files)
    (tmp_path / "bundle" / "client" / "web" / "index.html").write_text("other")
    with pytest.raises(BundleError, match=r"client/web/index\.html: 5 bytes, the manifest says"):
        verify(tmp_path / "bundle")


def test_an_empty_folder_may_take_a_bundle(tmp_path):
    write(tmp_path, manifest(), contents())
    assert verify(tmp_path).files == 5
    assert oct(tmp_path.stat().st_mode & 0o777) == "0o755"


def test_what_is_wrong_with_every_tier_is_listed(tmp_path):
    write(tmp_path / "bundle", manifest(), {**contents(b"", b""), "0.5/forward.onnx": b"\xff"})
    with pytest.raises(BundleError) as caught:
        verify(tmp_path / "bundle")
    first, second = str(caught.value).splitlines()
    assert "tier 1: 1/reference.safetensors: not a valid safetensors file" in first
    assert "tier 0.5: 0.5/forward.onnx: not a valid ONNX model" in second


def test_nothing_of_a_damaged_bundle_is_run(tmp_path, monkeypatch):
    folder = written(tmp_path / "bundle")
    (folder / "0.5" / "forward.onnx").write_bytes(b"")
    monkeypatch.setattr("edgefl.bundle.verify.check_tiers", None)
    with pytest.raises(BundleError, match="0.5/forward.onnx: 0 bytes, the manifest says"):
        verify(folder)


def test_links_pipes_and_hidden_files_are_named(tmp_path):
    folder = written(tmp_path / "bundle")
    (folder / "0.5").rename(tmp_path / "elsewhere")
    (folder / "0.5").symlink_to(tmp_path / "elsewhere")
    (folder / "1" / ".hidden").touch()
    (folder / "1" / "loop").symlink_to(folder)
    os.mkfifo(folder / "1" / "pipe")
    (folder / "1" / "forward.onnx").rename(folder / "1" / "moved")
    (folder / "1" / "forward.onnx").symlink_to("moved")
    with pytest.raises(BundleError) as caught:
        verify(folder)
    parts = (
        "0.5: a symbolic link", "1/.hidden: not in the manifest", "1/loop: a symbolic link", "1/pipe: not in the manifest",
        "1/moved: not in the manifest", "1/forward.onnx: a symbolic link",
    )  # fmt: skip
    lines = str(caught.value).splitlines()
    assert [part for part in parts if not any(part in line for line in lines)] == []
    assert len([line for line in lines if "tier" not in line]) == len(parts)


def nested(domain: str) -> onnx.ModelProto:
    """A graph whose branches hold what the outer graph does not show."""
    branches = {
        name: helper.make_graph(
            [helper.make_node("MatMul", ["x", "weight"], ["y"], domain=domain)], name, [], [value("y", ["batch", 3])]
        )
        for name in ("then_branch", "else_branch")
    }
    condition = numpy_helper.from_array(np.array(True), "condition")
    weight = numpy_helper.from_array(WEIGHT, "weight")
    return model([helper.make_node("If", ["condition"], ["logits"], **branches)], initializers=[weight, condition])


def external(in_constant: bool) -> onnx.ModelProto:
    tensor = numpy_helper.from_array(WEIGHT, "weight")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../secret")
    if not in_constant:
        return model(initializers=[tensor])
    nodes = [helper.make_node("Constant", [], ["weight"], value=tensor), helper.make_node("MatMul", ["x", "weight"], ["logits"])]
    return model(nodes, initializers=[])


def function() -> onnx.ModelProto:
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    own = helper.make_function("own", "F", ["a", "b"], ["c"], body, [helper.make_opsetid("", 23)])
    return model([helper.make_node("F", ["x", "weight"], ["logits"], domain="own")], domains=["own"], functions=[own])


CAST = [helper.make_node("MatMul", ["x", "weight"], ["y"]), helper.make_node("Cast", ["y"], ["logits"], to=TensorProto.DOUBLE)]
GRAPHS = {
    "nested": (nested("com.example"), "operators outside ai.onnx: com.example"),
    "function": (function(), "operators outside ai.onnx: own"),
    "learning": (model(domains=["ai.onnx.ml"]), "operators outside ai.onnx: ai.onnx.ml"),
    "external": (external(False), "keeps weights outside the file, and not in one of the bundle"),
    "constant": (external(True), "keeps constants outside the file"),
    "opset": (model(opset=22), "opset 22, the manifest says 23"),
    "batch": (
        model(inputs=[value("x", [4, 6])], outputs=[value("logits", [4, 3])]),
        r"input x is float32 \(4, 6\), expected float32 \(batch, 6\)",
    ),
    "input": (
        model(inputs=[value("x", ["batch", 6]), value("extra", [1])]),
        r"input 'extra', expected only x float32 \(batch, 6\)",
    ),
    "name": (
        model([helper.make_node("MatMul", ["x", "weight"], ["y"])], outputs=[value("y", ["batch", 3])]),
        r"has no output logits, expected float32 \(batch, 3\)",
    ),
    "type": (
        model(CAST, outputs=[value("logits", ["batch", 3], TensorProto.DOUBLE)]),
        r"output logits is DOUBLE \(batch, 3\), expected float32",
    ),
    "undefined": (model([helper.make_node("MatMul", ["x", "nowhere"], ["logits"])]), "not a valid ONNX model"),
    "operator": (model([helper.make_node("Nonsense", ["x"], ["logits"])]), "operators that a bundle may not hold: Nonsense"),
    "garbage": (b"\x08\x0a\xff", "not a valid ONNX model"),
    "cut": (model().SerializeToString()[:-40], "not a valid ONNX model"),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_graph_with_a_right_hash_is_still_checked(tmp_path, kind):
    graph, message = GRAPHS[kind]
    with pytest.raises(BundleError, match=rf"tier 1: 1/forward\.onnx: {message}"):
        verify(written(tmp_path / "bundle", graph))


def test_branches_of_standard_operators_pass(tmp_path):
    assert verify(written(tmp_path / "bundle", nested(""))).max_abs_errors["1"] <= 1e-5


def raw(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


NAN = np.full((4, 3), np.nan, np.float32)
REFERENCES = {
    "garbage": (b"garbage", "not a valid safetensors file"),
    "empty": (b"", "not a valid safetensors file"),
    "type": (raw(b'{"x":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}}'), r"not a valid safetensors file \('BF16'\)"),
    "nothing": (raw(b"{}"), "lacks logits, x"),
    "missing": (reference(logits=None), "lacks logits"),
    "extra": (reference(y=NAN), "holds y, expected logits, x and nothing else"),
    "nan": (reference(logits=NAN), "logits holds values that are not finite"),
    "double": (reference(x=np.zeros((4, 6))), r"x is float64 \(4, 6\), expected float32 \(4, 6\)"),
    "count": (reference(logits=np.zeros((3, 3), np.float32)), r"logits is float32 \(3, 3\), expected float32 \(4, 3\)"),
    "scalar": (reference(x=np.array(1, np.float32)), r"x \(\), expected at least one sample"),
    "none": (
        reference(x=np.zeros((0, 6), np.float32), logits=np.zeros((0, 3), np.float32)),
        r"x \(0, 6\), expected at least one sample",
    ),
}


@pytest.mark.parametrize("kind", REFERENCES)
def test_a_reference_with_a_right_hash_is_still_checked(tmp_path, kind):
    stored, message = REFERENCES[kind]
    with pytest.raises(BundleError, match=rf"tier 1: 1/reference\.safetensors: .*{message}"):
        verify(written(tmp_path / "bundle", stored=stored))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_a_model_that_computes_no_number_is_refused(tmp_path, poison):
    weight = WEIGHT.copy()
    weight[0, 0] = poison
    with pytest.raises(
        BundleError, match=r"1/forward\.onnx: logits holds values that are not finite, such as -?(nan|inf): its weights"
    ):
        verify(written(tmp_path / "bundle", model(initializers=[numpy_helper.from_array(weight, "weight")])))


@pytest.mark.parametrize(
    ("scale", "shift", "passes"), [(1e6, 50.0, True), (1e6, 200.0, False), (1e-3, 9e-5, True), (1e-3, 2e-4, False)]
)
def test_the_tolerance_grows_with_large_outputs_only(tmp_path, scale, shift, passes):
    """A model that grew computes outputs of 10⁶, of which float32 has seven digits."""
    x = np.full((4, 6), scale / np.abs(WEIGHT.sum(0)).max(), np.float32)
    folder = written(tmp_path / "bundle", stored=reference(x=x, logits=(x @ WEIGHT + np.float32(shift)).astype(np.float32)))
    if passes:
        assert verify(folder).max_abs_errors["1"] == pytest.approx(shift, rel=0.1)
        return
    allowed = re.escape(f"{1e-4 * max(1, scale):.0e}")
    with pytest.raises(BundleError, match=rf"differs from its reference by [12]\.\d\de.*, expected at most {allowed}"):
        verify(folder)
