"""The client in TypeScript trains and infers as the Python client does."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import safetensors.numpy
from handmade import Regression, samples, without_defaults
from python_client import header, ran
from signing import KEY, sign_bundle
from ts_client import batch, node

from edgefl.util.keys import SigningKey
from edgefl.wire.update_file import ExpectedUpdate, read_update

PARITY = 1e-6
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")

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
        expected = ran(capsys, *command)
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
    np.savez_compressed(tmp_path / "raw.npz", x=(x * 3 + 9).astype(np.uint8), y=np.arange(9).reshape(3, 3))
    np.savez(tmp_path / "short.npz", x=x, y=np.ones((3, 2), np.int64))
    ids = Regression().write(tmp_path / "ids", input_dtype="int64", input_shape=[4], preprocessing={"alphabet": "abc"})
    np.savez(tmp_path / "ids.npz", x=np.array([[0, 1, 2, 3]], np.uint16))
    commands = [("infer", folder, "0.5", tmp_path / name) for name in ("raw.npz", "short.npz")]
    commands.append(("infer", ids, "0.5", tmp_path / "ids.npz"))
    found = batch(ts, [(*command, "--allow-unsigned") for command in commands])
    for (status, out, errors), command in zip(found, commands, strict=True):
        expected = ran(capsys, *command, "--allow-unsigned")
        assert (status, errors) == (expected[0], expected[2])
        assert NUMBER.sub("#", out) == NUMBER.sub("#", expected[1])
        ours, theirs = ([float(number) for number in NUMBER.findall(text)] for text in (out, expected[1]))
        np.testing.assert_allclose(ours, theirs, rtol=PARITY, atol=PARITY)
    assert found[0][1].splitlines()[-1].startswith("mean squared error: ")
    assert "expected finite numbers of shape (3, 3)" in found[1][2]
    assert "token ids 0 to 3, expected 0 to 2" in found[2][2]


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


def test_the_host_of_react_native_computes_and_signs_the_same(ts, data, tmp_path):
    """With onnxruntime-node in place of onnxruntime-react-native: hashes, signatures and training are those of the other hosts."""
    owner = SigningKey.new(tmp_path / "owner.pem")
    bundle = sign_bundle(Regression(objective="scaffold", optimizer="sgd").write(tmp_path / "bundle"), owner)
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
    assert read_update(tmp_path / "update", ExpectedUpdate(manifest["manifest_sha256"], 3, {"0.5": shapes}, 3)).key is not None
