"""Export, bundle and verification: whole, tampered with, and under a memory limit."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
import torch
from exported import forward_graph
from small_bundle import replaced, rewrite
from torch import nn

from edgefl.bundle.manifest import Manifest, TierEntry
from edgefl.bundle.manifest_file import read
from edgefl.bundle.verify import verify
from edgefl.bundle.write import build_tier, write
from edgefl.errors import BundleError, EdgeflError
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.graphs import OPSET
from edgefl.onnxgrad.predict import predict, predict_capped
from edgefl.onnxgrad.session import OutOfMemoryError
from edgefl.util.files import shared

SHAPE = (1, 8, 8)
pytestmark = pytest.mark.usefixtures("in_process")


def network(norm: str = "group") -> nn.Module:
    return Architecture("cnn-digits", SHAPE, 10, norm).build().eval()


def manifest(tiers: tuple[TierEntry, ...]) -> Manifest:
    return Manifest(
        edgefl_version="0", method="fedhm", model="cnn-digits", dataset="digits", input_shape=SHAPE, classes=10,
        class_names=tuple("0123456789"), preprocessing={"scale": 1.0}, tiers=tiers, files={},
    )  # fmt: skip


def entry(label: str, error: float) -> TierEntry:
    return TierEntry(
        tier=float(label), label=label, device="board", form="factored", opset=OPSET, forward=f"{label}/forward.onnx",
        reference=f"{label}/reference.safetensors", params=1, batch_size=32, costs={"macs_forward": 1}, uncounted_ops=(),
        accuracy_onnx=0.5, accuracy_torch=0.5, parity_max_abs_error=error,
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made") / "bundle"
    tiers = {label: build_tier(network(), InputSpec(SHAPE), label, np.random.default_rng(0)) for label in ("1", "0.5")}
    entries = tuple(entry(label, files.parity_max_abs_error) for label, files in tiers.items())
    write(folder, manifest(entries), {k: v for files in tiers.values() for k, v in files.contents.items()})
    return folder


@pytest.fixture
def bundle(made, tmp_path):
    shutil.copytree(made, tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.mark.parametrize(
    ("model", "shape", "norm"),
    [
        ("cnn-digits", (1, 8, 8), "group"), ("cnn-digits", (1, 8, 8), "static"), ("cnn-digits", (1, 8, 8), "batch"),
        ("cnn-fashion", (1, 28, 28), None), ("mlp", (1, 8, 8), None), ("resnet18", (3, 32, 32), None),
    ],
)  # fmt: skip
def test_exported_graphs_compute_what_torch_does_at_any_batch_size(model, shape, norm):
    module = Architecture(model, shape, 10, norm).build().eval()
    graph = forward_graph(module, shape)
    for batch in (1, 3, 32):
        x = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
        with torch.no_grad():
            expected = module(torch.from_numpy(x)).numpy()
        assert np.abs(predict(graph, x, batch_size=batch) - expected).max() <= 1e-4


def test_an_exported_graph_is_current_small_and_says_nothing_of_this_computer():
    module = network()
    graph = forward_graph(module, SHAPE)
    assert graph == forward_graph(module, SHAPE)
    model = onnx.load_model_from_string(graph)
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": OPSET}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    for word in (b"site-packages", b".py", b"edgefl"):
        assert word not in graph
    assert len(graph) < 4 * sum(p.numel() for p in module.parameters()) + 10_000


def test_only_evaluation_mode_is_exported():
    with pytest.raises(EdgeflError, match="call eval"):
        forward_graph(network().train(), SHAPE)


def test_a_network_that_cannot_be_exported_says_so():
    class Data(nn.Module):
        def forward(self, x):
            return x[x > 0][: int(x.sum())] if x.sum() > 0 else x

    with pytest.raises(EdgeflError, match="Data cannot be exported to ONNX"):
        forward_graph(Data().eval(), SHAPE)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_model_that_diverged_has_no_bundle(value):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    nn.init.constant_(module[1].bias, value)
    with pytest.raises(
        BundleError, match=f"tier 1: the network computes {value}, expected finite outputs: its training diverged"
    ) as caught:
        build_tier(module, InputSpec((1, 8, 8)), "1", np.random.default_rng(0))
    assert caught.value.exit_code == 2


def test_a_whole_bundle_verifies(bundle):
    report = verify(bundle)
    assert report.files == 5
    assert max(report.max_abs_errors.values()) <= 1e-4
    assert json.loads((bundle / "manifest.json").read_text())["tiers"][0]["tier"] == 1


@pytest.mark.parametrize("name", ["1/forward.onnx", "0.5/forward.onnx", "1/reference.safetensors"])
@pytest.mark.parametrize("position", [0, 0.5, 0.999])
def test_one_changed_byte_is_named(bundle, name, position):
    content = bytearray((bundle / name).read_bytes())
    content[int(position * len(content))] ^= 1
    (bundle / name).write_bytes(content)
    with pytest.raises(BundleError, match=f"{name}: changed"):
        verify(bundle)


def test_everything_wrong_is_listed_at_once(bundle):
    (bundle / "1" / "forward.onnx").unlink()
    (bundle / "0.5" / "forward.onnx").write_bytes(b"short")
    (bundle / ".hidden").write_text("x")
    (bundle / "extra").mkdir()
    (bundle / "0.5" / "link").symlink_to("/etc/hostname")
    with pytest.raises(BundleError) as error:
        verify(bundle)
    text = str(error.value)
    for part in (
        "1/forward.onnx: missing", "0.5/forward.onnx: 5 bytes, the manifest says", ".hidden: not in the manifest",
        "extra/: not in the manifest", "0.5/link: a symbolic link",
    ):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=1), "format_version 1, expected 2"),
        (lambda m: m.update(surprise=1), "surprise: unknown key"),
        (lambda m: m.pop("classes"), "classes: missing"),
        (lambda m: m["tiers"][0].update(forward="../forward.onnx"), "expected a relative path inside the bundle"),
        (lambda m: m["tiers"][0].update(forward="/etc/passwd"), "expected a relative path inside the bundle"),
        (lambda m: m["tiers"][0].update(forward="C:\\x"), "expected a relative path inside the bundle"),
        (lambda m: m["files"].update({"a/../../b": {"sha256": "0" * 64, "bytes": 0}}), "expected a relative path inside"),
        (lambda m: m["tiers"][0].update(forward="1/other.onnx"), "1/other.onnx: used by tier 1, but not among"),
        (
            lambda m: m.update(input_shape=[1, 9, 9]),
            r"1/reference.safetensors: x is float32 \(4, 1, 8, 8\), expected float32 \(4, 1, 9, 9\)",
        ),
        (lambda m: m["preprocessing"].update(mean="x"), r"preprocessing: mean: got 'x', expected finite numbers"),
        (lambda m: m["preprocessing"].update(std=[1, 0]), r"preprocessing: std: got \[1, 0\], expected .* none of std is 0"),
        (lambda m: m["preprocessing"].update(scale=float("nan")), r"preprocessing: scale: got nan"),
        (lambda m: m["preprocessing"].update(words=[1]), r"preprocessing: words: got \[1\], expected a list of texts"),
        (lambda m: m["preprocessing"].update(domains={"a": {"mean": []}}), r"preprocessing: mean: got \[\], expected finite"),
        (lambda m: m.update(round=10**400), "round must be at most 4.6"),
        (lambda m: m["tiers"][0].update(batch_size=2**31), r"tiers.*batch_size.* must be below 2,147,483,648"),
        (lambda m: m.update(classes=7), "class_names: 10 names, expected one per class: 7"),
        (
            lambda m: m.update(classes=7, class_names=list("0123456")),
            r"1/reference.safetensors: logits is float32 \(4, 10\), expected float32 \(4, 7\)",
        ),
    ],
)
def test_a_wrong_manifest_is_refused(bundle, change, message):
    rewrite(bundle, change)
    with pytest.raises(BundleError, match=message):
        verify(bundle)


@pytest.mark.parametrize("keep", [0, 10, -3])
def test_a_cut_manifest_is_refused(bundle, keep):
    path = bundle / "manifest.json"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BundleError, match=r"manifest.json: not valid JSON"):
        verify(bundle)


def test_no_bundle_at_all(tmp_path):
    with pytest.raises(BundleError, match="holds no manifest.json: not a bundle"):
        verify(tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x0a\xff\xff"])
def test_garbage_with_a_right_hash_is_refused(bundle, content):
    replaced(bundle, "1/forward.onnx", content)
    with pytest.raises(BundleError, match="tier 1: 1/forward.onnx: (not a valid ONNX model|0 operator sets, expected one)"):
        verify(bundle)


def test_a_damaged_reference_with_a_right_hash_is_refused(bundle):
    replaced(bundle, "1/reference.safetensors", b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(BundleError, match="1/reference.safetensors: not a valid safetensors file"):
        verify(bundle)


def test_a_model_that_computes_something_else_is_refused(bundle):
    replaced(bundle, "1/forward.onnx", forward_graph(network(), SHAPE))
    with pytest.raises(BundleError, match="1/forward.onnx: differs from its reference by"):
        verify(bundle)


def test_operators_outside_the_standard_are_refused(bundle):
    model = onnx.load_model_from_string((bundle / "1" / "forward.onnx").read_bytes())
    model.graph.node[1].domain = "com.example"
    model.opset_import.append(onnx.helper.make_opsetid("com.example", 1))
    replaced(bundle, "1/forward.onnx", model.SerializeToString())
    with pytest.raises(BundleError, match=r"operators outside ai.onnx: com.example|not a valid ONNX model"):
        verify(bundle)


def test_a_bundle_is_never_written_over(bundle):
    with pytest.raises(BundleError, match="exists and is not an empty folder"):
        write(bundle, read(bundle), {})


def test_a_failed_write_leaves_nothing(tmp_path, bundle, monkeypatch):
    import edgefl.bundle.write as module

    def fail(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_bytes", fail)
    with pytest.raises(EdgeflError, match="no space left on the device"):
        write(tmp_path / "new", read(bundle), dict.fromkeys(read(bundle).files, b""))
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_the_committed_schema_is_current():
    schema = json.loads((shared("export") / "bundle.schema.json").read_text())
    assert schema == json.loads(json.dumps(Manifest.model_json_schema()))


def test_a_device_with_little_memory_runs_small_batches_only(tmp_path):
    path = tmp_path / "forward.onnx"
    path.write_bytes(forward_graph(network(), SHAPE))
    x = np.random.default_rng(0).standard_normal((64, *SHAPE)).astype(np.float32)
    weights = path.stat().st_size
    free = predict(path, x, batch_size=64)
    with pytest.raises(OutOfMemoryError, match="batch of 64, .* bytes allowed: needs .* bytes more, has"):
        predict_capped(path, x, batch_size=64, memory_bytes=weights + 500_000)
    capped = predict_capped(path, x, batch_size=1, memory_bytes=weights + 500_000)
    assert np.abs(capped.logits - free).max() < 1e-5
    assert capped.host_s > 0
    with pytest.raises(OutOfMemoryError, match="the weights alone take"):
        predict_capped(path, x, batch_size=1, memory_bytes=weights)


def test_a_graph_that_onnxruntime_does_not_take_is_an_error_in_its_words(tmp_path):
    path = tmp_path / "forward.onnx"
    path.write_bytes(b"nonsense" * 100)
    with pytest.raises(EdgeflError, match="onnxruntime stopped with status 1: .*does not take the graph"):
        predict_capped(path, np.zeros((1, *SHAPE), np.float32), batch_size=1, memory_bytes=10**9)
