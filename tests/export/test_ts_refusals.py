"""What the client in TypeScript refuses, in the words of the Python client."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import safetensors.numpy
from handmade import Regression, changed, samples
from python_client import ran
from spoiled_bundles import ENDLESS, GROWING, SPOILED, WRONG_DATA, bomb, edit_tier, hostile, put
from test_graph_files import PLACES, SECRET, broken
from ts_client import alone, batch, node


def test_wrong_bundles_are_refused_with_the_same_words(ts, data, tmp_path, capsys):
    commands = []
    for number, (spoil, _) in enumerate(SPOILED):
        (tmp_path / str(number)).mkdir()
        spoil(Regression().write(tmp_path / str(number) / "bundle"))
        commands.append(("train", tmp_path / str(number) / "bundle", "0.5", data, "--out", tmp_path / "no", "--allow-unsigned"))
    for (_, message), (status, out, errors), command in zip(SPOILED, batch(ts, commands), commands, strict=True):
        assert (status, out, errors.count("\n")) == (2, "", 1), (message, errors)
        assert errors.startswith("Error: ")
        assert message in errors
        expected = ran(capsys, *command)[2]
        if "not valid JSON" not in message and "got " in message:
            assert errors == expected
    assert not (tmp_path / "no").exists()


def test_wrong_data_are_refused_with_the_same_words(ts, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    commands = []
    for number, (given, _) in enumerate(WRONG_DATA):
        np.savez(tmp_path / f"{number}.npz", **given)
        commands.append(("train", bundle, "0.5", tmp_path / f"{number}.npz", "--out", tmp_path / "no", "--allow-unsigned"))
    (tmp_path / "text.npz").write_bytes(b"text")
    bomb(tmp_path / "bomb.npz")
    messages = [message for _, message in WRONG_DATA]
    for name, message in (
        ("text.npz", "not an .npz file"),
        ("bomb.npz", "times its size"),
        ("none.npz", "No such file"),
        ("", "images, which this client does not read"),
    ):
        commands.append(("infer", bundle, "0.5", tmp_path / name, "--allow-unsigned"))
        messages.append(message)
    for message, (status, out, errors) in zip(messages, batch(ts, commands), strict=True):
        assert (status, out, message in errors) == (2, "", True), (message, errors)
    assert not (tmp_path / "no").exists()


def test_weights_beside_a_graph_must_be_files_of_the_bundle(ts, data, tmp_path):
    commands = []
    for name in ("../../secret.bin", "weights.bin"):
        bundle = Regression().write(tmp_path / name.strip("./"))
        model = onnx.load_from_string(Regression().predict(weights=False))
        (tensor, *_) = model.graph.initializer
        values = onnx.numpy_helper.to_array(tensor)
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=name)
        put(bundle, "forward.onnx", model.SerializeToString())
        commands.append(("infer", bundle, "0.5", data, "--allow-unsigned"))
    put(bundle, "weights.bin", values.tobytes())
    commands.append(("infer", Regression().write(tmp_path / "inside"), "0.5", data, "--allow-unsigned"))
    commands.append(("infer", absolute(bundle, tmp_path / "absolute"), "0.5", data, "--allow-unsigned"))
    hidden, beside, inside, outside = batch(ts, commands)
    assert outside[0] == 2
    assert f"'0.5/{tmp_path}/outside.bin' is no file of the bundle" in outside[2]
    assert hidden[0] == 2
    assert "'0.5/../../secret.bin' is no file of the bundle" in hidden[2]
    assert beside == inside


def absolute(bundle: Path, folder: Path) -> Path:
    """Return a bundle that has weights in ``0.5//PATH``, as its manifest lists them, and names ``/PATH`` in its graph."""
    shutil.copytree(bundle, folder)
    path = folder.parent / "outside.bin"
    model = onnx.load(folder / "0.5" / "forward.onnx", load_external_data=False)
    model.graph.initializer[0].external_data[0].value = str(path)
    for place in (path, folder / "0.5" / str(path)[1:]):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes((folder / "0.5" / "weights.bin").read_bytes())
    put(folder, "forward.onnx", model.SerializeToString())
    put(folder, str(path), path.read_bytes())
    return folder


def test_files_that_a_graph_would_read_are_found_as_in_python(ts):
    contents = [*(place().SerializeToString() for place in PLACES.values()), *broken()]
    given = json.dumps([content.hex() for content in contents])
    code = f"""
    import {{ externalFiles }} from "./lib/core/graph.js";
    const found = (hex) => {{
      try {{ return [...externalFiles(Buffer.from(hex, "hex"))]; }} catch (error) {{ return error.constructor.name; }}
    }};
    console.log(JSON.stringify({given}.map(found)));"""
    assert node(ts, code) == [[SECRET]] * len(PLACES) + ["GraphError"] * len(broken())


def test_states_and_limits_are_refused(ts, data, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    other = Regression(seed=2).write(tmp_path / "other")
    unsent = Regression(keys={"no_update": "it has its own clusters"}).write(tmp_path / "unsent")
    only = Regression().write(tmp_path / "only")
    edit_tier(only, train=None)
    state, out = tmp_path / "state", tmp_path / "no"
    (tmp_path / "bad").write_bytes(safetensors.numpy.save({}))
    run = ("0.5", data, "--allow-unsigned", "--out")
    cases = [
        (("train", bundle, *run, state), 0, "6 steps in"),
        (("train", other, *run, out, "--state", state), 2, "it is of round 3 of another bundle, this one is of round 3"),
        (("train", bundle, *run, out, "--state", tmp_path / "bad"), 2, "format: got None, expected 'edgefl-state'"),
        (("train", bundle, *run, out, "--lr", "1e38"), 1, "step 3: the loss is NaN: training diverged; a smaller --lr may help"),
        (("train", bundle, *run, out, "--memory-bytes", "300"), 3, "are allowed"),
        (("train", bundle, *run, out, "--max-seconds", "1e-9"), 3, "the first step took"),
        (("train", bundle, *run, state, "--epochs", "1000000", "--max-seconds", "2"), 0, "steps: the limit is 2 s (--max-seconds)"),
        (("train", bundle, *run, tmp_path), 2, "expected the name of a file"),
        (("train", only, *run, out), 2, "exported for inference only"),
        (("train", unsent, *run, tmp_path / "kept"), 0, "written"),
        (("update", tmp_path / "kept", "--out", out), 2, "cannot be aggregated outside of a simulation: it has its own clusters"),
        (("infer", bundle, "0.25", data, "--allow-unsigned"), 2, "tier: got '0.25', the bundle has 0.5"),
        (("infer", bundle, "0.5", data, "--allow-unsigned", "--variant", "int8"), 2, "--variant: got 'int8', tier 0.5 has none"),
        *((("train", bundle, *run, out, *f.split()), 2, f.split()[0]) for f in ("--epochs 0", "--lr nan", "--seed -1", "--threads x")),
        (("train", bundle, *run, out, "--client", "a b"), 2, "expected 1 to 64 of"),
        (("train", bundle, "0.5", data), 2, "--out is required"),
        (("walk",), 2, "expected one of infer, train"),
    ]  # fmt: skip
    for (command, wanted, message), (status, text, errors) in zip(cases, batch(ts, [case[0] for case in cases]), strict=True):
        assert (status, message in text + errors) == (wanted, True), (command, errors)
    assert not out.exists()


def test_outputs_that_are_no_numbers_are_an_error(ts, tmp_path, capsys):
    bundle = Regression().write(tmp_path / "bundle")
    np.savez(tmp_path / "far.npz", x=np.sign(samples(10)[0]) * np.float32(3e38))
    command = ("infer", bundle, "0.5", tmp_path / "far.npz", "--allow-unsigned")
    expected = ran(capsys, *command)
    assert (expected[0], "expected finite outputs" in expected[2]) == (1, True)
    assert batch(ts, [command]) == [expected]


def test_what_an_objective_remembers_of_another_model_is_refused(ts, data, tmp_path):
    small, large = (Regression(shape=(1, 2, width), objective="dyn", strength=0.3) for width in (2, 3))
    x, y = samples(10, small.shape)
    np.savez(tmp_path / "small.npz", x=x, y=y)
    state, run = tmp_path / "state", ("--allow-unsigned", "--out")
    first = ("train", small.write(tmp_path / "small"), "0.5", tmp_path / "small.npz", *run, state)
    later = ("train", large.write(tmp_path / "large", round_=4), "0.5", data, *run, tmp_path / "no", "--state", state)
    done, refused = batch(ts, [first, later])
    assert (done[0], refused[0]) == (0, 2)
    assert "memory:fc.weight: missing or of another shape, expected (3, 6): it is of another model" in refused[2]


def test_hostile_graphs_are_stopped(ts, data, tmp_path):
    """A loop without an end, and constants larger than the memory that the bundle may have; names that change the terminal."""
    endless, growing = (Regression().write(tmp_path / name) for name in ("endless", "growing"))
    put(endless, "forward.onnx", hostile(ENDLESS, ""))
    put(growing, "forward.onnx", hostile(GROWING, "batch,1,2,3"))
    done = alone(ts, "infer", endless, "0.5", data, "--timeout", "1", "--allow-unsigned")
    assert (done.returncode, done.stdout) == (3, "")
    assert "a batch took more than 1 s; --timeout allows more" in done.stderr
    done = alone(ts, "infer", growing, "0.5", data, "--allow-unsigned")
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("Error: ")
    changed(growing, class_names=["a\x1b[2J", "b\x9b31m", "c\x07"])
    shutil.copy(Regression().write(tmp_path / "plain") / "0.5" / "forward.onnx", tmp_path / "forward")
    put(growing, "forward.onnx", (tmp_path / "forward").read_bytes())
    done = alone(ts, "infer", growing, "0.5", data, "--allow-unsigned")
    assert "\ufffd" in done.stdout
    assert not {"\x1b", "\x9b", "\x07"} & set(done.stdout)
    assert alone(ts).returncode == 2
