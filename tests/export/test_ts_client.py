"""The client in TypeScript: it computes what the Python client computes, refuses what that refuses, and is compiled from its source.

About 20 s on one core, of which the compiler takes a half.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.numpy
from handmade import Regression, changed, samples, without_defaults
from signed_update_by_hand import ABOUT, TENSORS
from signing import CONTENT, KEY, device_key
from test_graph_files import PLACES, SECRET, broken
from test_python_client import ENDLESS, GROWING, SPOILED, WRONG_DATA, edgefl_client, header, hostile, put
from ts_client import SOURCE, alone, batch, installed, node
from users_home import left_in_home

from edgefl.bundle.signature import signature_files
from edgefl.util.keys import SigningKey
from edgefl.wire.device_keys import DeviceKeys, Enrolment
from edgefl.wire.update_file import Expected, read_update
from edgefl.wire.update_signature import signer

PARITY = 1e-6


@pytest.fixture(scope="module")
def ts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("client") / "ts")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    x, y = samples(10)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return tmp_path / "data.npz"


def python(capsys, *arguments) -> tuple[int, str, str]:
    try:
        status = edgefl_client.main([str(argument) for argument in arguments])
    except SystemExit as left:
        status = int(left.code or 0)
    return (status, *capsys.readouterr())


# What it computes.

MODELS = {
    "plain": (Regression(), ()),
    "sgd-scaffold": (Regression(classes=4, optimizer="sgd", objective="scaffold", present=True), ("--lr", "0.05")),
    "dyn-personal": (Regression(optimizer="sgd", objective="dyn", strength=0.3, personal=("fc.bias",)), ("--seed", "3")),
    "adam-prox": (Regression(optimizer="adam", objective="prox", strength=0.3), ("--epochs", "3", "--batch-size", "3")),
    "two-graphs": (Regression(width=2), ("--seed", "20261123", "--max-steps", "5")),
    "flip": (Regression(keys={"augment": "flip"}), ("--seed", str(2**70 + 9))),
    "labels": (Regression(keys={"labels": True, "momentum": 0.5}), ()),
}


def test_training_is_that_of_the_python_client(ts, data, tmp_path, capsys):
    """Two rounds of training on the same bundle, then the next round's bundle, inference and the update."""
    commands = []
    for name, (model, extra) in MODELS.items():
        folder = model.write(tmp_path / name)
        later = model.__class__(**{**model.__dict__, "seed": 9}).write(tmp_path / f"{name}-later", round_=4)
        state, again, after = (tmp_path / f"{name}.{kind}" for kind in ("state", "again", "after"))
        run = ("--allow-unsigned", "--client", "c1", *extra)
        commands += [
            ("train", folder, "0.5", data, "--out", state, *run),
            ("train", folder, "0.5", data, "--out", again, "--state", state, *run),
            ("train", later, "0.5", data, "--out", after, "--state", state, *run),
            ("infer", folder, "0.5", data, "--state", again, "--allow-unsigned"),
            ("update", again, "--out", tmp_path / f"{name}.update"),
        ]
    found = batch(ts, commands)
    written = {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix in (".state", ".again", ".after", ".update")
    }
    assert len(written) == 4 * len(MODELS)
    for command, (status, out, errors) in zip(commands, found, strict=True):
        expected = python(capsys, *command)
        assert (status, errors, expected[0], expected[2]) == (0, "", 0, ""), (command, errors, expected)
        if command[0] == "infer":
            assert out == expected[1]
    for name, content in written.items():
        (path := tmp_path / "ts" / name).parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        ours, theirs = safetensors.numpy.load(content), safetensors.numpy.load((tmp_path / name).read_bytes())
        assert ours.keys() == theirs.keys()
        for tensor, value in theirs.items():
            assert (ours[tensor].dtype, ours[tensor].shape) == (value.dtype, value.shape)
            np.testing.assert_allclose(ours[tensor], value, rtol=0, atol=PARITY, err_msg=f"{name}: {tensor}")
        mine, other = header(path), header(tmp_path / name)
        for about in (mine, other):
            for key, read in (("lr_sum", float), ("upload", json.loads)):
                if key in about:
                    about[key] = read(about[key])
        assert mine == other


def test_a_regression_and_token_ids_are_read_as_in_python(ts, tmp_path, capsys):
    folder = Regression().write(tmp_path / "b", target_shape=[3], class_names=["a", "b", "c"])
    x, _ = samples(3)
    np.savez_compressed(tmp_path / "raw.npz", x=(x * 3 + 9).astype(np.uint8))
    ids = Regression().write(tmp_path / "ids", input_dtype="int64", input_shape=[4], preprocessing={"alphabet": "abc"})
    np.savez(tmp_path / "ids.npz", x=np.array([[0, 1, 2, 3]], np.uint16))
    commands = [("infer", folder, "0.5", tmp_path / "raw.npz"), ("infer", ids, "0.5", tmp_path / "ids.npz")]
    found = batch(ts, [(*command, "--allow-unsigned") for command in commands])
    for (status, out, errors), command in zip(found, commands, strict=True):
        expected = python(capsys, *command, "--allow-unsigned")
        assert (status, errors) == (expected[0], expected[2])
        rows = [[float(value) for value in line.split("\t")] for line in (*out.splitlines(), *expected[1].splitlines())]
        np.testing.assert_allclose(rows[: len(rows) // 2], rows[len(rows) // 2 :], atol=PARITY)
    assert "token ids 0 to 3, expected 0 to 2" in found[1][2]


def test_keys_with_a_default_may_be_missing(ts, data, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    without_defaults(brief := Regression().write(tmp_path / "brief"))
    commands = [("infer", folder, "0.5", data, "--allow-unsigned") for folder in (bundle, brief)]
    commands.append(("train", brief, "0.5", data, "--out", tmp_path / "state", "--allow-unsigned"))
    inferred, again, trained = batch(ts, commands)
    assert (inferred[0], again) == (0, inferred)
    assert trained[0] == 0, trained


def test_outputs_are_compared_with_the_largest_of_the_reference(ts):
    """The rule of verify: 1e-4, or 1e-4 of the largest output if that is above 1. The page applies it."""
    code = """
    import { allowedError, checkInputs } from "./lib/core/run.js";
    import { float32 } from "./lib/core/values.js";
    const [two, manifest] = [float32([1], [0]), { inputs: { a: {}, b: {} } }];
    checkInputs(manifest, new Map([["y", two], ["x.b", two], ["x.a", two]])); // in any order
    console.log(JSON.stringify([[0.5, -0.25], [2500, -5000]].map((row) => allowedError(float32([1, 2], row)))));"""
    assert node(ts, code) == pytest.approx([1e-4, 0.5])


def test_random_numbers_are_those_of_numpy(ts):
    code = """
    import { Random } from "./lib/core/random.js";
    const found = [];
    for (const seeds of [[0n, 0], [7n, 1], [2n ** 70n, 2]]) {
      const random = new Random(seeds);
      const below = (end) => Array.from({ length: 50 }, () => random.below(end));
      found.push([random.permutation(1000), below(3), random.fraction(), below(3e9)]);
    }
    console.log(JSON.stringify(found));"""
    for seeds, (order, small, share, large) in zip(([0, 0], [7, 1], [2**70, 2]), node(ts, code), strict=True):
        random = np.random.default_rng(seeds)
        assert order == random.permutation(1000).tolist()
        assert small == random.integers(3, size=50).tolist()
        assert share == random.random()
        assert large == random.integers(3 * 10**9, size=50).tolist()


# What it refuses.


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
        expected = python(capsys, *command)[2]
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
    with (
        zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as file,
        file.open("x.npy", "w", force_zip64=True) as x,
    ):
        for _ in range(300):
            x.write(bytes(1 << 20))
    messages = [message for _, message in WRONG_DATA]
    for name, message in (
        ("text.npz", "not an .npz file"),
        ("bomb.npz", "times its size"),
        ("none.npz", "No such file"),
        ("", "reads .npz files only"),
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
    tier = json.loads((bundle / "manifest.json").read_text())["tiers"][0]
    only = Regression().write(tmp_path / "only")
    changed(only, tiers=[{**tier, "train": None}])
    state, out = tmp_path / "state", tmp_path / "no"
    (tmp_path / "bad").write_bytes(safetensors.numpy.save({}))
    run = ("0.5", data, "--allow-unsigned", "--out")
    cases = [
        (("train", bundle, *run, state), 0, "6 steps in"),
        (("train", other, *run, out, "--state", state), 2, "it is of round 3 of another bundle, this one is of round 3"),
        (("train", bundle, *run, out, "--state", tmp_path / "bad"), 2, "format: got None, expected 'edgefl-state'"),
        (("train", bundle, *run, out, "--lr", "1e38"), 1, "training diverged; a smaller --lr may help"),
        (("train", bundle, *run, out, "--memory-bytes", "300"), 3, "are allowed"),
        (("train", bundle, *run, out, "--max-seconds", "1e-9"), 3, "the first step took"),
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
    expected = python(capsys, *command)
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
    assert "memory:fc.weight: missing or of another shape, expected [3, 6]: it is of another model" in refused[2]


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


# Whom it trusts.


def test_publishers_are_pinned_in_the_same_file_as_in_python(ts, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    owner, other = (SigningKey.new(tmp_path / f"{name}.pem") for name in ("owner", "other"))
    bundles = {}
    for name, key in (("own", owner), ("foreign", other), ("forged", owner), ("plain", None)):
        bundles[name] = Regression().write(tmp_path / name)
        if key is not None:
            for path, content in signature_files((bundles[name] / "manifest.json").read_bytes(), key).items():
                (bundles[name] / path).write_bytes(content)
    changed(bundles["forged"], round=9)
    (tmp_path / "own.pub").write_bytes(owner.public.pem)
    commands = [
        ("infer", bundles["own"], "0.5", data), ("infer", bundles["own"], "0.5", data), ("infer", bundles["foreign"], "0.5", data),
        ("infer", bundles["forged"], "0.5", data), ("infer", bundles["plain"], "0.5", data),
        ("infer", bundles["own"], "0.5", data, "--key", tmp_path / "own.pub"),
        ("infer", bundles["foreign"], "0.5", data, "--key", tmp_path / "own.pub"),
        ("infer", bundles["own"], "0.5", data, "--key", tmp_path / "own.pub", "--allow-unsigned"), ("trust", bundles["foreign"]),
    ]  # fmt: skip
    found = batch(ts, commands)
    pins = tmp_path / "config" / "edgefl" / "trusted.json"
    assert json.loads(pins.read_text()) == {"keys": [str(owner.public), str(other.public)]}
    assert [status for status, _, _ in found] == [0, 0, 2, 2, 2, 0, 2, 2, 0]
    assert f"signed by {owner.public}; pinned in {pins}" in found[0][2]
    assert f"signed by {other.public}, this device trusts {owner.public}" in found[2][2]
    assert "not a signature of this manifest by" in found[3][2]
    assert found[4][2] == python(capsys, *commands[4])[2]
    assert python(capsys, "infer", bundles["foreign"], "0.5", data)[::2] == (0, "")
    for content in ("", "{}", '{"keys": []}', '{"keys": [7]}', "[" * 5000):
        pins.write_text(content)
        ((status, _, errors),) = batch(ts, [commands[0]])
        assert (status, "trusted.json: expected the public keys that this device trusts" in errors) == (2, True)


def test_updates_and_requests_are_signed_as_in_python(ts, data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bundle = Regression().write(tmp_path / "bundle")
    key = device_key(tmp_path, 5)
    own = tmp_path / "device-5.pem"
    (tmp_path / "open.pem").write_bytes(own.read_bytes())
    (tmp_path / "open.pem").chmod(0o644)
    found = batch(ts, [
        ("train", bundle, "0.5", data, "--out", tmp_path / "state", "--allow-unsigned"),
        ("update", tmp_path / "state", "--out", tmp_path / "plain"),
        ("update", tmp_path / "state", "--out", tmp_path / "signed", "--device-key", own),
        ("enroll", "--name", "phone-8", "--out", tmp_path / "request.json"),
        ("update", tmp_path / "state", "--out", tmp_path / "made"),
        ("update", tmp_path / "state", "--out", tmp_path / "no", "--device-key", tmp_path / "open.pem"),
        ("enroll", "--name", "a b", "--out", tmp_path / "no"),
    ])  # fmt: skip
    assert [status for status, _, _ in found] == [0] * 5 + [2] * 2, found
    assert "others may read or change this private key: chmod 600" in found[5][2]
    manifest = json.loads((bundle / "manifest.json").read_text())
    shapes = {name: tuple(shape) for name, shape in manifest["tiers"][0]["train"]["upload"].items()}
    expected = Expected(manifest["manifest_sha256"], manifest["round"], {"0.5": shapes}, manifest["classes"])
    assert read_update(tmp_path / "plain", expected).key is None
    request = Enrolment.of_file(tmp_path / "request.json")
    keys = DeviceKeys(tmp_path / "fleet.toml").with_device("phone-8", request.key)
    assert read_update(tmp_path / "made", Expected(expected.bundle, 3, expected.tiers, 3, keys)).device == "phone-8"
    assert header(tmp_path / "signed")["key"] == key.public
    assert (tmp_path / "config" / "edgefl" / "device.pem").stat().st_mode & 0o777 == 0o600


def test_it_hashes_and_signs_the_golden_update(ts, tmp_path):
    device_key(tmp_path, 5)
    given = json.dumps(
        {name: [[int(side) for side in shape.split(",") if side], values] for name, (shape, values) in TENSORS.items()}
    )
    code = f"""
    import {{ contentSha256, signed }} from "./lib/core/state.js";
    import {{ deviceKey }} from "./lib/node/files.js";
    import {{ nodeHost }} from "./lib/node/host.js";
    const value = ([dims, data]) => ({{ type: "float32", dims, data: Float32Array.from(data) }});
    const tensors = new Map(Object.entries({given}).map(([name, given]) => [name, value(given)]));
    const about = await signed(nodeHost(), {json.dumps(ABOUT)}, tensors, deviceKey({json.dumps(str(tmp_path / "device-5.pem"))}));
    console.log(JSON.stringify([await contentSha256(nodeHost(), tensors), about]));"""
    content, about = node(ts, code)
    assert content == CONTENT
    assert str(signer(about, CONTENT)) == about["key"]


def test_onnxruntime_sends_nothing(ts, data, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    command = ["node", ts / "lib" / "cli.js", "infer", bundle, "0.5", data, "--allow-unsigned"]
    assert left_in_home(command, tmp_path) == []


def test_the_program_of_the_page_runs(ts, data):
    page = (Path(__file__).parents[2] / "docs" / "typescript.md").read_text()
    code = page.split("```ts\n")[1].split("```")[0]
    Regression().write(ts / "bundle")
    shutil.copy(data, ts / "mine.npz")
    assert node(ts, code + "console.log(JSON.stringify([state.losses.length, content.length > 400]));") == [6, True]


def test_the_host_of_react_native_computes_and_signs_the_same(ts, data, tmp_path):
    """With onnxruntime-node in place of onnxruntime-react-native: hashes, signatures and training are those of the other hosts."""
    owner = SigningKey.new(tmp_path / "owner.pem")
    bundle = Regression(objective="scaffold", optimizer="sgd").write(tmp_path / "bundle")
    for path, content in signature_files((bundle / "manifest.json").read_bytes(), owner).items():
        (bundle / path).write_bytes(content)
    batch(ts, [("train", bundle, "0.5", data, "--out", tmp_path / "state", "--allow-unsigned", "--client", "c1")])
    code = f"""
    import ort from "onnxruntime-node";
    import {{ checkPinned, readBundle, readSamples, stateBytes, train, update }} from "./lib/core/index.js";
    import {{ bundleFiles, claimOf, contentOf }} from "./lib/node/files.js";
    import {{ inflate }} from "./lib/node/host.js";
    import {{ nativeHost, nativeKey, storedPins }} from "./lib/native/host.js";
    const host = nativeHost(ort, "test");
    const stored = new Map();
    const setItem = async (name, text) => void stored.set(name, text);
    const pins = storedPins({{ getItem: async (name) => stored.get(name) ?? null, setItem }});
    const folder = {json.dumps(str(bundle))};
    const check = async (manifest) => void (await checkPinned(host, manifest, claimOf(folder), pins));
    const bundle = await readBundle(bundleFiles(folder), host, check);
    const samples = await readSamples("data", contentOf({json.dumps(str(data))}, ""), bundle.manifest, true, inflate);
    const state = await train(bundle, "0.5", samples, {{}}, null, "c1");
    const key = nativeKey(Uint8Array.from({{ length: 32 }}, (_, i) => i + 1));
    const hex = (bytes) => Buffer.from(bytes).toString("hex");
    console.log(JSON.stringify([hex(stateBytes(state)), hex(await update(host, state, key)), key.public, [...stored.values()]]));"""
    state, sent, key, pins = node(ts, code)
    assert bytes.fromhex(state) == (tmp_path / "state").read_bytes()
    assert json.loads(pins[0]) == {"keys": [str(owner.public)]}
    assert key == KEY
    (tmp_path / "update").write_bytes(bytes.fromhex(sent))
    manifest = json.loads((bundle / "manifest.json").read_text())
    upload = manifest["tiers"][0]["train"]["upload"]
    shapes = {n: tuple(s) for n, s in upload.items()} | {f"control:{n}": tuple(upload[n]) for n in ("fc.weight", "fc.bias")}
    assert read_update(tmp_path / "update", Expected(manifest["manifest_sha256"], 3, {"0.5": shapes}, 3)).key is not None


# How it is made.


def test_the_compiled_files_are_those_of_the_source(ts, tmp_path):
    """The core compiles without the types of a page or Node, and React Native's example with those of the client."""
    tsc = [ts / "node_modules" / ".bin" / "tsc", "--project"]
    for project, arguments in (
        ("tsconfig.json", ("--outDir", tmp_path / "lib")),
        ("tsconfig.core.json", ()),
        ("tsconfig.native.json", ()),
    ):
        done = subprocess.run([*tsc, project, *arguments], cwd=ts, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    made = {path.relative_to(tmp_path): path.read_text() for path in (tmp_path / "lib").rglob("*.ts")}
    made |= {path.relative_to(tmp_path): path.read_text() for path in (tmp_path / "lib").rglob("*.js")}
    kept = {path.relative_to(SOURCE): path.read_text() for path in (SOURCE / "lib").rglob("*.?s")}
    assert made == kept, "run tools/compile_client.py"


def test_one_version_of_onnxruntime_and_a_lock_without_addresses():
    lock = json.loads((SOURCE / "package-lock.json").read_text())["packages"]
    assert all(entry["integrity"].startswith("sha512-") and "resolved" not in entry for path, entry in lock.items() if path)
    page = json.loads((SOURCE.parent / "web" / "package.json").read_text())["dependencies"]["onnxruntime-web"]
    assert {lock[f"node_modules/onnxruntime-{part}"]["version"] for part in ("node", "common")} == {page}


def test_files_can_be_read_in_one_go():
    for path in (SOURCE / "src").rglob("*.ts"):
        assert len(path.read_text().splitlines()) <= 270, path.name
