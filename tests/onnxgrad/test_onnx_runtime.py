"""Graphs run in onnxruntime as a device would run them: the memory budget is real, and exact."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from edgefl.errors import EdgeflError
from edgefl.onnxgrad import predict as onnx_runtime
from edgefl.onnxgrad import session as onnx_session
from edgefl.onnxgrad.predict import predict, predict_capped
from edgefl.onnxgrad.session import OutOfMemoryError

CLASSES, WIDTH = 4, 64


def weights() -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((16, WIDTH), (16, WIDTH), (WIDTH, CLASSES))]


def model_bytes(nodes, initializers) -> bytes:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 16])
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", CLASSES])
    graph = helper.make_graph(nodes, "forward", [x], [logits], [numpy_helper.from_array(a, n) for n, a in initializers.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


@pytest.fixture(scope="module")
def graph() -> bytes:
    """Two branches, so that more than one activation lives at a time."""
    nodes = [
        helper.make_node("MatMul", ["x", "left"], ["a"]),
        helper.make_node("MatMul", ["x", "right"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["h"]),
        helper.make_node("MatMul", ["h", "last"], ["logits"]),
    ]
    return model_bytes(nodes, dict(zip(("left", "right", "last"), weights(), strict=True)))


def samples(count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 16)).astype(np.float32)


def expected(x: np.ndarray) -> np.ndarray:
    left, right, last = weights()
    return ((x @ left) * (x @ right)) @ last


@settings(max_examples=15)
@given(count=st.integers(1, 20), batch_size=st.integers(1, 25), threads=st.integers(1, 2))
def test_batches_do_not_change_the_outputs(graph, count, batch_size, threads):
    x = samples(count)
    found = predict(graph, x, batch_size=batch_size, threads=threads)
    assert found.shape == (count, CLASSES)
    np.testing.assert_allclose(found, expected(x), rtol=1e-5, atol=1e-4)


def test_a_path_and_bytes_give_the_same(graph, tmp_path):
    path = tmp_path / "g.onnx"
    path.write_bytes(graph)
    x = samples(5)
    assert np.array_equal(predict(path, x, batch_size=2), predict(graph, x, batch_size=2))
    one = predict_capped(path, x, batch_size=2, memory_bytes=10**8)
    other = predict_capped(graph, x, batch_size=2, memory_bytes=10**8)
    assert np.array_equal(one.logits, other.logits)
    assert one.peak_bytes == other.peak_bytes


@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_budget_is_exact_and_whatever_is_below_it_fails(graph, batch_size):
    x = samples(2 * batch_size + 1)
    free = predict_capped(graph, x, batch_size=batch_size, memory_bytes=10**9)
    np.testing.assert_allclose(free.logits, expected(x), rtol=1e-5, atol=1e-4)
    assert free.host_s > 0
    # The weights once, and both branches of one batch: 4 bytes a number. Kernels pad the weights that they repack.
    least = 4 * (2 * 16 * WIDTH + WIDTH * CLASSES) + 2 * 4 * batch_size * WIDTH
    assert least <= free.peak_bytes < 2 * least
    exact = predict_capped(graph, x, batch_size=batch_size, memory_bytes=free.peak_bytes)
    assert np.array_equal(exact.logits, free.logits)
    for memory_bytes in (free.peak_bytes - 1, free.peak_bytes - 300):
        message = rf"batch of {batch_size}, {memory_bytes:,} bytes allowed: needs [\d,]+ bytes more, has [\d,]+ left$"
        with pytest.raises(OutOfMemoryError, match=message) as caught:
            predict_capped(graph, x, batch_size=batch_size, memory_bytes=memory_bytes)
        assert caught.value.have_bytes == memory_bytes < caught.value.need_bytes


def test_every_larger_budget_is_enough_too(graph):
    x = samples(16)
    peak_bytes = predict_capped(graph, x, batch_size=16, memory_bytes=10**9).peak_bytes
    for more_bytes in range(1000, 15_000, 2000):
        assert predict_capped(graph, x, batch_size=16, memory_bytes=peak_bytes + more_bytes).peak_bytes == peak_bytes


@pytest.mark.parametrize("memory_bytes", [1, 100, 4000])
def test_a_budget_below_the_weights_fails_rather_than_lifting_the_limit(graph, memory_bytes):
    with pytest.raises(OutOfMemoryError, match=rf"the weights alone take [\d,]+ bytes, {memory_bytes:,} are allowed$") as caught:
        predict_capped(graph, samples(4), batch_size=2, memory_bytes=memory_bytes)
    assert caught.value.need_bytes >= len(graph)
    assert caught.value.exit_code == 1


def test_memory_does_not_grow_with_the_number_of_batches(graph):
    few = predict_capped(graph, samples(8), batch_size=4, memory_bytes=10**9)
    many = predict_capped(graph, samples(1203), batch_size=4, memory_bytes=few.peak_bytes)
    assert many.logits.shape == (1203, CLASSES)
    assert many.peak_bytes == few.peak_bytes


def test_a_damaged_graph_is_an_error_in_both(graph):
    for run in (predict, lambda m, x, batch_size: predict_capped(m, x, batch_size=batch_size, memory_bytes=10**8)):
        with pytest.raises(EdgeflError, match="onnxruntime does not take the graph"):
            run(graph[: len(graph) // 2], samples(2), batch_size=2)


def test_samples_of_a_wrong_shape_or_type_are_an_error_in_both(graph):
    with pytest.raises(EdgeflError, match="onnxruntime cannot run the graph: .*INVALID_ARGUMENT"):
        predict(graph, samples(2)[:, :7], batch_size=2)
    with pytest.raises(EdgeflError, match="stopped with status 1: onnxruntime cannot run the graph: .*INVALID_ARGUMENT"):
        predict_capped(graph, samples(2).astype(np.float64), batch_size=2, memory_bytes=10**8)


@pytest.mark.parametrize(("count", "batch_size"), [(0, 2), (3, 0)])
def test_nothing_to_run_is_said(graph, count, batch_size):
    with pytest.raises(EdgeflError, match=f"nothing to run: {count} samples in batches of {batch_size}"):
        predict(graph, samples(count), batch_size=batch_size)
    with pytest.raises(EdgeflError, match=f"nothing to run: {count} samples in batches of {batch_size}"):
        predict_capped(graph, samples(count), batch_size=batch_size, memory_bytes=10**8)


def test_a_child_that_dies_gives_its_last_words(graph, monkeypatch):
    def died(*order):
        return subprocess.CompletedProcess([], -6, stdout="", stderr="first\nlast words\n")

    monkeypatch.setattr(onnx_runtime, "_spawn", died)
    with pytest.raises(EdgeflError, match=r"onnxruntime stopped with status -6: last words$"):
        predict_capped(graph, samples(2), batch_size=2, memory_bytes=10**8)


def test_the_child_finds_the_package_and_not_the_files_of_the_working_directory(graph, tmp_path, monkeypatch):
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)
    assert predict_capped(graph, samples(2), batch_size=2, memory_bytes=10**8).logits.shape == (2, CLASSES)


def test_an_onnxruntime_that_hides_its_memory_is_named(graph, tmp_path, monkeypatch):
    session = onnx_session.opened(graph, onnx_session.profiled(onnx_session.options_for(1), str(tmp_path)))
    monkeypatch.setattr(onnx_session.json, "loads", lambda text: [{"args": {"output_size": "4"}}, {}])
    with pytest.raises(EdgeflError, match=r"onnxruntime .* does not report its memory; 1\.28 or newer does"):
        onnx_runtime._first_batch(session, samples(1))


def test_neither_parent_nor_child_needs_torch(graph, tmp_path):
    (tmp_path / "g.onnx").write_bytes(graph)
    code = (
        "import sys, pathlib, numpy as np\n"
        "sys.modules['torch'] = None\n"
        "from edgefl.onnxgrad.predict import predict\n"
        f"print(predict(pathlib.Path({str(tmp_path / 'g.onnx')!r}), np.zeros((1, 16), np.float32), batch_size=1).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"(1, {CLASSES})"


def test_a_graph_of_absurd_size_prints_nothing(capfd):
    """onnxruntime logs some errors itself, in colour, before it raises them."""
    axes = onnx.TensorProto(name="axes", data_type=onnx.TensorProto.INT64, dims=[2**62])
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    node = onnx.helper.make_node("Unsqueeze", ["x", "axes"], ["y"])
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [axes])
    with pytest.raises(EdgeflError, match="onnxruntime does not take the graph"):
        onnx_session.opened(onnx.helper.make_model(graph).SerializeToString(), onnx_session.options_for(1))
    assert capfd.readouterr() == ("", "")
