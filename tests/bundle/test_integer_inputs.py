"""Token ids from the architecture to the verified bundle: int64 wherever images are float32."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from exported import forward_graph
from torch import nn

import edgefl
from edgefl.bundle.manifest import MANIFEST, Manifest, TierEntry
from edgefl.bundle.manifest_file import read
from edgefl.bundle.verify import verify
from edgefl.bundle.write import build_tier, write
from edgefl.client import evaluate
from edgefl.data.split import Split
from edgefl.errors import BundleError, ConfigError, EdgeflError
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.graphs import OPSET
from edgefl.onnxgrad.predict import predict, predict_capped
from edgefl.planning.network import architecture_of
from edgefl.rng import torch_seeded
from edgefl.util.files import sha256

WINDOW = (6,)
TEXT = Architecture("rnn-shakespeare", WINDOW, 80)


def network(width: float = 0.1) -> torch.nn.Module:
    with torch_seeded(np.random.default_rng(0)):
        return TEXT.build(width).eval()


def ids(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(80, size=(count, *WINDOW))


@pytest.fixture(scope="module")
def files():
    return build_tier(network(), InputSpec(WINDOW, torch.int64, TEXT.vocabulary), "1", np.random.default_rng(0))


@pytest.fixture(scope="module")
def graph(files):
    return files.contents["1/forward.onnx"]


def written(folder, contents, **changes):
    entry = TierEntry(
        tier=1, label="1", device="board", opset=OPSET, forward="1/forward.onnx", reference="1/reference.safetensors", params=1,
        batch_size=2, costs={}, uncounted_ops=(), accuracy_onnx=None, accuracy_torch=None, parity_max_abs_error=0.0,
    )  # fmt: skip
    of = {
        "edgefl_version": "0", "method": "fedavg", "model": TEXT.model, "dataset": "shakespeare", "input_shape": WINDOW, "classes": 80,
        "class_names": tuple(map(str, range(80))), "preprocessing": {}, "tiers": (entry,), "files": {}, "input_dtype": "int64",
    }  # fmt: skip
    write(folder, Manifest(**{**of, **changes}), contents)
    return folder


def test_a_batch_of_token_ids_is_of_zeros():
    batch = TEXT.samples(3)
    assert batch.dtype is torch.int64
    assert torch.equal(batch, torch.zeros(3, *WINDOW, dtype=torch.int64))
    assert TEXT.vocabulary == 80
    with torch.device("meta"):
        assert TEXT.samples(2).is_meta
    assert Architecture("mlp", (4,), 2).samples(1).dtype is torch.float32


def test_the_graph_takes_int64_and_computes_what_torch_does_at_any_batch_size(graph):
    value = onnx.load_model_from_string(graph).graph.input[0]
    assert (value.name, value.type.tensor_type.elem_type) == ("x", onnx.TensorProto.INT64)
    for count in (1, 5):
        with torch.no_grad():
            expected = network()(torch.from_numpy(ids(count))).numpy()
        np.testing.assert_allclose(predict(graph, ids(count), batch_size=3), expected, atol=1e-5)


def test_a_graph_of_ids_is_not_one_of_numbers():
    with pytest.raises(EdgeflError, match=r"cannot be exported"):
        forward_graph(network(), WINDOW)


def test_reference_samples_are_ids_of_the_vocabulary(files):
    tensors = safetensors.numpy.load(files.contents["1/reference.safetensors"])
    assert tensors["x"].dtype == np.int64
    assert tensors["x"].shape == (4, *WINDOW)
    assert 0 <= tensors["x"].min() < tensors["x"].max() < 80
    assert files.parity_max_abs_error <= 1e-4


def test_a_bundle_of_ids_verifies_and_says_its_type(tmp_path, files):
    folder = written(tmp_path / "bundle", files.contents)
    assert read(folder).input_dtype == "int64"
    assert verify(folder).max_abs_errors["1"] <= 1e-4


def test_a_bundle_that_says_another_type_than_its_graph_does_not_verify(tmp_path, files):
    folder = written(tmp_path / "bundle", files.contents, input_dtype="float32")
    with pytest.raises(BundleError, match=r"1/reference\.safetensors: x is int64 \(4, 6\), expected float32 \(4, 6\)"):
        verify(folder)


def test_a_reference_of_another_type_does_not_verify(tmp_path, files):
    tensors = safetensors.numpy.load(files.contents["1/reference.safetensors"])
    wrong = safetensors.numpy.save({**tensors, "x": tensors["x"].astype(np.float32)})
    folder = written(tmp_path / "bundle", {**files.contents, "1/reference.safetensors": wrong})
    with pytest.raises(BundleError, match=r"1/reference\.safetensors: x is float32 \(4, 6\), expected int64 \(4, 6\)"):
        verify(folder)


def test_bundles_from_before_the_key_are_read_as_float32(tmp_path, files):
    folder = written(tmp_path / "bundle", files.contents)
    values = json.loads((folder / MANIFEST).read_text())
    del values["input_dtype"]
    values["manifest_sha256"] = "0" * 64
    text = json.dumps(values, indent=2) + "\n"
    (folder / MANIFEST).write_text(text.replace("0" * 64, sha256(text.encode()), 1))
    assert read(folder).input_dtype == "float32"


def test_a_device_runs_ids_under_its_memory(graph):
    ran = predict_capped(graph, ids(5), batch_size=2, memory_bytes=64 << 20)
    np.testing.assert_allclose(ran.logits, predict(graph, ids(5), batch_size=5), atol=1e-5)


def test_models_are_evaluated_on_ids():
    x = ids(5)
    x.setflags(write=False)
    outputs = evaluate.outputs(network(), x, 2)
    assert outputs.shape == (5, 80)
    labels = outputs.argmax(1)
    assert evaluate.accuracy(network(), Split(x, labels), 2) == 1.0


def test_a_text_network_is_described_by_its_name_alone():
    assert architecture_of("lstm-shakespeare") == Architecture("lstm-shakespeare", (80,), 80)
    assert architecture_of("lstm-imdb").classes == 2
    assert architecture_of("resnet18").classes == 10
    assert architecture_of("lstm-shakespeare", "20", 7) == Architecture("lstm-shakespeare", (20,), 7)
    assert architecture_of("lstm-shakespeare", "int64:20").input_shape == (20,)
    assert architecture_of("lstm-shakespeare", torch.zeros(2, 9, dtype=torch.int64)).input_shape == (9,)


@pytest.mark.parametrize(
    ("model", "given", "message"),
    [
        ("lstm-shakespeare", InputSpec((80,), torch.int32), "takes one input of int64 token ids, such as 80"),
        ("resnet18", "int64:3x32x32", "takes one input of float32, such as 3x32x32"),
    ],
)
def test_inputs_of_another_type_are_refused(model, given, message):
    with pytest.raises(ConfigError, match=message):
        architecture_of(model, given)


class Columns(nn.Module):
    """Reads two columns of a table, each by an embedding of its own; the second one begins at 20."""

    def __init__(self, num_classes: int = 2) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Embedding(5, 4), nn.Embedding(7, 4), nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([self.first(x[:, 0]), self.second(x[:, 1] - 20)], 1).relu())


def table() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([rng.integers(5, size=80), rng.integers(20, 27, size=80)], 1)


@pytest.mark.parametrize("trained", [True, False])
def test_columns_of_ids_have_ranges_of_their_own(trained, tmp_path):
    if trained:
        data = edgefl.Dataset.from_arrays(table(), np.arange(80) % 2)
        few = {"rounds": 1, "clients": 2, "partition": "iid", "conditions": "ideal"}
        config = edgefl.RunConfig(model=Columns, dataset=data, method="heterofl", tiers=(1.0, 0.5), **few)
        folder = edgefl.simulate(config, tmp_path / "run").folder / "bundle"
    else:
        folder = edgefl.export_network(Columns(), torch.from_numpy(table()), tmp_path / "bundle", sign=False)
    assert verify(folder).max_abs_errors["1"] <= 1e-4
    for name in ("reference", "train_reference"):
        x = safetensors.numpy.load((folder / f"1/{name}.safetensors").read_bytes())["x"]
        assert (x >= [0, 20]).all()
        assert (x <= [4, 26]).all()
        assert x[:, 0].max() > 0
