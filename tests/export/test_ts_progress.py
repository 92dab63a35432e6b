"""Progress of the TypeScript client, and the tables and arrays that it reads, as in Python."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy
from handmade import Regression, changed, samples
from python_client import header, ran
from test_resuming import MODELS
from ts_client import batch, node

SECONDS = re.compile(r"[\d.]+ s;")


def test_two_trainings_are_one_and_states_move_between_clients(ts, data, tmp_path, capsys):
    commands = []
    for number, model in enumerate(MODELS.values()):
        folder, run = model.write(tmp_path / str(number)), ("--allow-unsigned", "--client", "c1", "--max-seconds", "0")
        path = [tmp_path / f"{number}.{kind}" for kind in ("whole", "half", "again", "python", "mixed")]
        assert ran(capsys, "train", folder, "0.5", data, "--out", path[3], "--seed", 5, "--epochs", 1, *run)[0] == 0
        commands += [
            ("train", folder, "0.5", data, "--out", path[0], "--seed", 5, *run),
            ("train", folder, "0.5", data, "--out", path[1], "--seed", 5, "--max-steps", 4, *run),
            ("train", folder, "0.5", data, "--out", path[2], "--state", path[1], "--max-steps", 2, *run),
            ("train", folder, "0.5", data, "--out", path[4], "--state", path[3], "--epochs", 1, *run),
        ]
    assert {(status, errors) for status, _, errors in batch(ts, commands)} == {(0, "")}
    for number in range(len(MODELS)):
        whole, again, mixed = (tmp_path / f"{number}.{kind}" for kind in ("whole", "again", "mixed"))
        assert again.read_bytes() == whole.read_bytes()
        assert header(mixed)["order"] == header(whole)["order"]
        ours, theirs = safetensors.numpy.load_file(mixed), safetensors.numpy.load_file(whole)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            np.testing.assert_allclose(ours[name], tensor, rtol=0, atol=1e-6, err_msg=name)


def test_what_does_not_continue_is_named_as_in_python(ts, data, tmp_path, capsys):
    folder, state, older = Regression().write(tmp_path / "b"), tmp_path / "s", tmp_path / "older"
    assert ran(capsys, "train", folder, "0.5", data, "--out", state, "--seed", 5, "--allow-unsigned")[0] == 0
    tensors, about = safetensors.numpy.load_file(state), header(state)
    safetensors.numpy.save_file(tensors, older, {key: value for key, value in about.items() if key not in ("order", "data")})
    safetensors.numpy.save_file(tensors, tmp_path / "bad", {**about, "order": "5 99 1 1 1"})
    safetensors.numpy.save_file({**tensors, "now:m.fc.bias": np.zeros(7, np.float32)}, tmp_path / "shape", about)
    x, y = samples(9)
    np.savez(tmp_path / "less.npz", x=x, y=y)
    run = ("--out", tmp_path / "out", "--allow-unsigned", "--state")
    commands = [
        ("train", folder, "0.5", data, *run, state, "--seed", 6),
        ("train", folder, "0.5", tmp_path / "less.npz", *run, state),
        *(("train", folder, "0.5", data, *run, tmp_path / name) for name in ("older", "bad", "shape")),
    ]
    for (status, _, errors), command in zip(batch(ts, commands), commands, strict=True):
        expected = ran(capsys, *command)
        assert errors
        assert (status, errors) == (expected[0], expected[2])


INTERRUPTED = """
import {{ readBundle, readSamples, stateBytes, train }} from "./lib/core/index.js";
import {{ bundleFiles, contentOf }} from "./lib/node/files.js";
import {{ inflate, nodeHost }} from "./lib/node/host.js";
const bundle = await readBundle(bundleFiles({folder}), nodeHost());
const data = await readSamples("own.npz", contentOf({data}, ""), bundle.manifest, true, inflate);
let kept = null;
const store = {{ where: "progress", every: 2, read: () => kept, write: (content) => void (kept = Uint8Array.from(content)) }};
const how = {{ epochs: 4, batchSize: 4, seed: 3 }};
const hex = (state) => Buffer.from(stateBytes(state)).toString("hex");
const whole = await train(bundle, "0.5", data, how, null, "c1");
for (const step of [5, 8]) {{
  const stop = async (n) => {{ if (n === step) throw new Error("stop"); }};
  try {{ await train(bundle, "0.5", data, how, null, "c1", stop, store); }} catch {{}}
}}
const numbers = [];
const again = await train(bundle, "0.5", data, how, null, "c1", async (n) => void numbers.push(n), store);
const refused = [];
for (const [settings, content] of [[{{ ...how, seed: 4 }}, kept], [how, Uint8Array.from([1, 2])]]) {{
  kept = content;
  try {{ await train(bundle, "0.5", data, settings, null, "c1", undefined, store); }} catch (error) {{ refused.push(error.message); }}
}}
console.log(JSON.stringify([hex(whole) === hex(again), numbers, whole.losses, again.losses, refused]));
"""


@pytest.mark.parametrize("name", ["momentum, flipped, two graphs", "adam"])
def test_an_interrupted_training_ends_with_the_same_bits(ts, data, tmp_path, name):
    folder = MODELS[name].write(tmp_path / "b")
    code = INTERRUPTED.format(folder=json.dumps(str(folder)), data=json.dumps(str(data)))
    same, numbers, whole, again, refused = node(ts, code)
    assert (same, numbers, again) == (True, [9, 10, 11, 12], whole)
    assert refused[0] == "progress: of another training: bundle, tier, data or settings differ; delete it to begin anew"
    assert refused[1].startswith("progress: not the progress of a training (")


def test_a_line_for_each_step_and_progress_that_is_deleted(ts, data, tmp_path, capsys):
    order = (
        "train",
        Regression().write(tmp_path / "b"),
        "0.5",
        data,
        "--out",
        tmp_path / "s",
        "--allow-unsigned",
        "--batch-size",
        "5",
    )
    checkpoint = ("--checkpoint", tmp_path / "progress", "--checkpoint-every", "1")
    text, lines, wrong = batch(
        ts, [(*order, *more) for more in (("--progress", "text", *checkpoint), ("--progress", "json"), ("--progress", "x"))]
    )
    assert text[2] == ran(capsys, *order, "--progress", "text")[2]
    assert [json.loads(line)["step"] for line in lines[2].splitlines()] == [1, 2, 3, 4]
    assert json.loads(lines[2].splitlines()[0]).keys() == {"step", "steps", "loss", "seconds"}
    assert (wrong[0], "--progress: got x, expected none, text or json" in wrong[2]) == (2, True)
    assert not (tmp_path / "progress").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_client_that_is_ended_leaves_its_progress(ts, data, tmp_path):
    progress = tmp_path / "progress"
    order = ("train", Regression().write(tmp_path / "b"), "0.5", data, "--out", tmp_path / "s", "--allow-unsigned")
    more = ("--epochs", 10**6, "--max-seconds", 0, "--checkpoint", progress, "--checkpoint-every", 2)
    command = ["node", ts / "lib" / "cli.js", *map(str, (*order, *more))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        while running.poll() is None and not progress.exists():
            time.sleep(0.05)
        running.terminate()
        assert (running.communicate(timeout=60)[1], running.returncode) == ("Interrupted: nothing was written.\n", 143)
    assert len(safetensors.numpy.load_file(progress)["losses"]) % 2 == 0
    assert not (tmp_path / "s").exists()


TABLES = {
    "named": "width,label,height\n5,blue,0\n1,0,2\n\n1,7,2\n",
    "quoted": '\ufeff"wi,dth","height","class"\r\n"5"," 1e-1 ","red"\r\n1,.5,blue',
    "unlabelled": "a,b\n5,0\n",
    "text": "a,b,y\n1,x,0\n",
    "empty cell": "a,b,y\n1,,0\n",
    "short": "a,b,y\n1\n",
    "infinite": "a,b,y\n1,inf,0\n",
    "class": "a,b,y\n1,2,green\n",
    "wide": "a,b,c,y\n1,2,3,0\n",
    "two labels": "y,label,a,b\n0,0,1,2\n",
    "no rows": "a,b,y\n",
    "label": "a,b,y\n1,2,9\n",
}


def test_tables_and_arrays_are_read_as_in_python(ts, tmp_path, capsys):
    folder = Regression(shape=(2,)).write(tmp_path / "b")
    how = {"scale": 1.0, "raw": "float32", "mean": [1, 2], "std": [2, 4]}
    changed(folder, preprocessing=how, class_names=["red", "blue", "7"])
    aims = Regression(shape=(2,), seed=1).write(tmp_path / "aims")
    changed(aims, target_shape=[3])
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "latin.csv").write_bytes(b"a,b,y\n1,2,\xe9\n")
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    for name in ("alone", "beside", "broken"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.array([[5, 0], [1, 2]], np.float32))
    np.save(tmp_path / "beside" / "y.npy", np.array([2, 0]))
    (tmp_path / "broken" / "x.npy").write_bytes(b"no array")
    paths = [tmp_path / f"{name}.csv" for name in TABLES]
    for path, text in zip(paths, TABLES.values(), strict=True):
        path.write_text(text, newline="")
    paths += [
        tmp_path / name for name in ("empty.csv", "latin.csv", "mine.parquet", "alone/x.npy", "beside/x.npy", "broken/x.npy")
    ]
    commands = [(*order, *more) for path in paths for order, more in ((("infer", folder, "0.5", path, "--allow-unsigned"), ()),)]
    commands += [
        ("train", folder, "0.5", path, "--out", tmp_path / "s", "--allow-unsigned")
        for path in (paths[0], paths[2], paths[-3], paths[-2])
    ]
    commands += [("infer", aims, "0.5", paths[0], "--allow-unsigned")]
    statuses = []
    for (status, out, errors), command in zip(batch(ts, commands), commands, strict=True):
        expected = ran(capsys, *command)
        got = (status, SECONDS.sub("", out), errors)
        statuses.append(status)
        for inside in ("not a CSV", "not an .npy file", "are not read"):  # the reason in brackets is of the language
            if inside in errors:
                assert inside in expected[2], (command, errors, expected[2])
                break
        else:
            assert got == (expected[0], SECONDS.sub("", expected[1]), expected[2]), command
    assert statuses.count(0) == 7
