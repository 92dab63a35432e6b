"""Graphs that may not be run are refused, and weights never lie outside of the bundle."""

import onnx
import pytest
from hostile_graphs import GRAPHS
from onnx import TensorProto
from small_bundle import WEIGHT, contents, manifest, model, tier

from edgefl.bundle import graph_check
from edgefl.bundle.graph_check import OPERATORS
from edgefl.bundle.verify import verify
from edgefl.bundle.write import write
from edgefl.errors import BundleError


def test_the_operators_are_those_that_compute_and_nothing_else():
    known = {s.name: s for s in onnx.defs.get_all_schemas_with_history() if s.domain == "" and s.since_version <= 20}
    random = {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
    text = {"RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit", "TfIdfVectorizer", "ImageDecoder"}
    lists = {name for name in known if "Sequence" in name or "Optional" in name} - {"ReverseSequence"}
    old = {"Scatter", "Upsample"}
    assert set(known) - random - text - lists - old == OPERATORS


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.usefixtures("in_process")
def test_a_graph_that_may_not_be_run_is_not(tmp_path, kind, monkeypatch):
    graph, message = GRAPHS[kind]
    monkeypatch.setattr("edgefl.onnxgrad.session.ort.InferenceSession", None)
    write(tmp_path / "bundle", manifest(tier(1)), {k: v for k, v in contents(graph).items() if k[0] == "1"})
    with pytest.raises(BundleError, match=rf"tier 1: 1/forward\.onnx: {message}"):
        verify(tmp_path / "bundle")


def beside(location="weights.data", offset=0, length=72):
    """A graph whose weights lie in another file."""
    tensor = TensorProto(name="weight", dims=(6, 3), data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, given_value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(given_value))
    return model(initializers=[tensor])


def written_beside(folder, graph):
    write(folder, manifest(), {**contents(graph), "1/weights.data": WEIGHT.tobytes()})
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
