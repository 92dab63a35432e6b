"""The client in Kotlin on a desktop JVM, against onnxruntime's own library: what it computes against the Python client, what it refuses.

Of ``export/kotlin/app``, Android's binding of the runtime and the worker are only compiled here.
"""

from __future__ import annotations

import re
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from edgefl_bundle import State
from edgefl_client import Training, infer, read_bundle, train, update
from edgefl_keys import signed
from handmade import Regression, samples, without_defaults
from kotlin_client import KotlinClient, compiled
from python_client import called, header
from signing import device_key, of_round, sign_bundle
from spoiled_bundles import SPOILED, edit_train
from test_cpp_client import content, stored
from test_odd_manifests import commands, told  # noqa: F401 - a fixture
from test_resuming import MODELS, dropout  # noqa: F401 - a fixture
from test_same_inputs import GIVEN, Y, bundle, normalised_twice, of_torch, reference, same  # noqa: F401 - fixtures
from users_home import left_in_home

from edgefl.contrib.calibrate.meters import MeterSpan, meter_of
from edgefl.run.device_round import fed_round
from edgefl.util.keys import SigningKey
from tests.run.device_rounds import AVERAGED
from tests.run.test_export_line import begun  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> KotlinClient:
    return compiled(tmp_path_factory.mktemp("kotlin"))


def works(client: KotlinClient, *arguments: object) -> str:
    """Run a command that succeeds, and return its output."""
    status, out, errors = client.run(*arguments)
    assert (status, errors) == (0, "")
    return out


def equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Check that tensors have the same bits."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, err_msg=name)


@pytest.mark.parametrize("name", MODELS)
def test_updates_and_states_are_those_of_the_python_client_to_the_bit(client, tmp_path, name):
    model = replace(MODELS[name], present=name == "adam", keys={**MODELS[name].keys, "labels": True})
    folder, (x, y) = model.write(tmp_path / "bundle"), samples(10)
    out, state, seed = tmp_path / "update", tmp_path / "state", 2**40 + 9
    ways = ("--out", out, "--state", state, "--epochs", 3, "--client", "me", "--seed", seed)
    works(client, "train", folder, "0.5", stored(tmp_path, x, y), *ways)
    expected = train(read_bundle(folder), "0.5", x, y, Training(epochs=3, max_seconds=0, seed=seed), client="me")
    (tmp_path / "expected").write_bytes(update(expected))
    (about, tensors), (about_expected, tensors_expected) = content(out), content(tmp_path / "expected")
    assert about == about_expected
    equal(tensors, tensors_expected)
    found = State.of_file(state)
    equal(found.tensors, expected.tensors)
    assert found.upload == expected.upload
    assert float(found.about["lr_sum"]) == float(expected.about["lr_sum"])
    rest = {key: value for key, value in expected.about.items() if key not in ("upload", "lr_sum")}
    assert {key: value for key, value in found.about.items() if key not in ("upload", "lr_sum")} == rest


@pytest.mark.parametrize("kind", GIVEN)
def test_every_kind_of_values_trains_what_torch_does(client, bundle, tmp_path, kind):  # noqa: F811 - the fixture
    state, data = tmp_path / "state", stored(tmp_path, GIVEN[kind], Y)
    out = works(client, "train", bundle, "1", data, "--state", state)
    losses = [float(number) for number in re.findall(r"\d\.\d+", out)]
    assert losses == pytest.approx([of_torch()[0][0], of_torch()[0][-1]], rel=1e-4)
    same(safetensors.numpy.load_file(state))


def test_it_checks_the_tensors_of_the_reference(client, bundle, reference, tmp_path):  # noqa: F811 - the fixtures
    for folder, status in ((bundle, 0), (normalised_twice(bundle, reference, tmp_path), 1)):
        found, out, errors = client.run("check", folder)
        assert found == status, out + errors
    assert out.endswith(": wrong\n")


@pytest.mark.parametrize("name", ["momentum, flipped, two graphs", "adam", "scaffold"])
def test_two_trainings_are_one_and_states_move_between_clients(client, tmp_path, name):
    model = MODELS[name]
    folder, (x, y) = model.write(tmp_path / "bundle"), samples(10)
    data, loaded, how = stored(tmp_path, x, y), read_bundle(folder), Training(epochs=1, batch_size=4, seed=5, max_seconds=0)
    run = ("train", folder, "0.5", data, "--allow-unsigned", "--batch-size", 4, "--client", "c", "--epochs", 1, "--state")
    parts, mixed = tmp_path / "parts", tmp_path / "mixed"
    mixed.write_bytes(train(loaded, "0.5", x, y, how, client="c").to_bytes())
    assert [status for status, _, _ in client.batch([(*run, parts, "--seed", 5), (*run, parts), (*run, mixed)])] == [0, 0, 0]
    expected = train(loaded, "0.5", x, y, replace(how, epochs=2), client="c")
    for path in (parts, mixed):
        equal(State.of_file(path).tensors, expected.tensors)
    further = train(loaded, "0.5", x, y, replace(how, seed=None), State.of_file(parts))
    assert (further.note, further.about["steps"]) == ("", "9")
    again = {parts: (0, "--state: of seed 5, not 6: training shuffles the samples anew\n")}
    for key, value in (("round", "x"), ("labels", "0,x"), ("order", "5 99 1 1 1"), ("format", "x")):
        again[tmp_path / key] = (2, "damaged" if key != "format" else "not a state that train wrote")
        safetensors.numpy.save_file(safetensors.numpy.load_file(mixed), tmp_path / key, {**header(mixed), key: value})
    other = (*run[:1], replace(model, seed=3).write(tmp_path / "other"), *run[2:], mixed)
    again[mixed] = (2, "it is of round 3 of another bundle, this one is of round 3")
    bad = [(*run, path) for path in again if path not in (parts, mixed)]
    found = client.batch([(*run, parts, "--seed", 6), *bad, other])
    for (status, words), (ended, _, errors) in zip(again.values(), found, strict=True):
        assert (ended, words in errors) == (status, True), errors


def test_parts_of_an_epoch_are_the_whole(client, tmp_path):
    folder, (x, y) = MODELS["momentum, flipped, two graphs"].write(tmp_path / "bundle"), samples(10)
    run = ("train", folder, "0.5", stored(tmp_path, x, y), "--batch-size", 4, "--epochs", 2)
    states = {(6,): tmp_path / "whole", (2, 1, 3): tmp_path / "parts"}
    client.batch([[*run, "--max-steps", n, "--state", path, "--allow-unsigned"] for parts, path in states.items() for n in parts])
    whole, parts = (State.of_file(path) for path in states.values())
    assert (whole.about["steps"], parts.about["order"]) == ("6", whole.about["order"])
    equal(parts.tensors, whole.tensors)


def test_dropout_continues_too(client, dropout, tmp_path):  # noqa: F811 - the fixture
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(10, 4)).astype(np.float32), rng.integers(3, size=10)
    state = tmp_path / "state"
    for _ in range(2):
        works(client, "train", dropout, "1", stored(tmp_path, x, y), "--state", state, "--epochs", 1, "--batch-size", 4)
    how = Training(epochs=2, batch_size=4, max_seconds=0)
    equal(State.of_file(state).tensors, train(read_bundle(dropout), "1", x, y, how).tensors)


def test_personal_tensors_come_from_an_earlier_round(client, tmp_path):
    model, (x, y) = Regression(personal=("fc.bias",)), samples(10)
    first, second = (model.write(tmp_path / f"round-{round_}", round_=round_) for round_ in (3, 4))
    state, data = tmp_path / "state", stored(tmp_path, x, y)
    expected = None
    for folder in (first, second):
        works(client, "train", folder, "0.5", data, "--state", state, "--client", "c")
        expected = train(read_bundle(folder), "0.5", x, y, Training(max_seconds=0), expected, client="c")
        equal(State.of_file(state).tensors, expected.tensors)


def test_fed_round_takes_its_update(client, begun, tmp_path):  # noqa: F811 - the fixture
    folder, _ = begun
    rng, inbox = np.random.default_rng(0), tmp_path / "inbox"
    inbox.mkdir()
    data = stored(tmp_path, rng.normal(size=(12, 1, 4)).astype(np.float32), rng.integers(3, size=12))
    works(client, "train", folder, "1", data, "--out", inbox / "me.safetensors", "--epochs", 2)
    after = fed_round(folder, inbox, tmp_path / "next", screening=AVERAGED)
    assert (after.round, after.refused, after.tiers[0].updates) == (1, (), 1)
    sent = content(inbox / "me.safetensors")[1]
    found = safetensors.numpy.load_file(after.folder / "bundle" / "1" / "parameters.safetensors")
    for name, tensor in sent.items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=1e-6)


def test_it_infers_as_the_python_client(client, tmp_path):
    folder, (x, y) = Regression().write(tmp_path / "bundle"), samples(10)
    rows = [line.split("\t") for line in works(client, "infer", folder, "0.5", stored(tmp_path, x, y)).splitlines()]
    powers = np.exp(np.array([row[1:] for row in rows], np.float64))
    expected = infer(read_bundle(folder), "0.5", x)
    np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), expected, rtol=0, atol=1e-6)
    assert [row[0] for row in rows] == [["ant", "bee", "cat"][best] for best in expected.argmax(1)]


def test_keys_with_a_default_may_be_missing(client, tmp_path):
    path, sent = stored(tmp_path, *samples(10)), []
    for name in ("whole", "brief"):
        folder = Regression().write(tmp_path / name)
        if name == "brief":
            without_defaults(folder)
        works(client, "train", folder, "0.5", path, "--out", tmp_path / f"{name}.update")
        sent.append(content(tmp_path / f"{name}.update")[1])
    equal(*sent)


def test_an_enrolled_device_signs_as_the_server_expects(client, tmp_path):
    folder, key = Regression().write(tmp_path / "bundle"), device_key(tmp_path, 7)
    out = tmp_path / "update"
    works(client, "train", folder, "0.5", stored(tmp_path, *samples(8)), "--out", out, "--device-key", tmp_path / "device-7.pem")
    about, tensors = content(out)
    unsigned = {name: value for name, value in about.items() if name not in ("key", "signature")}
    assert signed(unsigned, tensors, key) == about


def test_a_divergence_has_the_number_of_the_training_also_when_it_was_resumed(client, tmp_path):
    folder, data = MODELS["momentum, flipped, two graphs"].write(tmp_path / "bundle"), stored(tmp_path, *samples(10))
    train = ("train", folder, "0.5", data, "--batch-size", 4, "--epochs", 500, "--max-seconds", 0, "--lr", "1e37")
    progress = tmp_path / "progress"
    given = (*train, "--state", tmp_path / "state", "--checkpoint", progress, "--checkpoint-every", 3)
    first, again = (client.run(*given) for _ in range(2))
    done = len(safetensors.numpy.load_file(progress)["losses"])
    assert done >= 3
    assert (first[0], int(re.search(r"step (\d+): .*training diverged", first[2])[1]) > done) == (1, True)
    assert again == first


@pytest.mark.parametrize("name", ["momentum, flipped, two graphs", "adam"])
def test_a_training_that_is_killed_continues_to_the_same_bits(client, tmp_path, name):
    folder, data = MODELS[name].write(tmp_path / "bundle"), stored(tmp_path, *samples(10))
    whole, parts, progress = (tmp_path / name for name in ("whole", "parts", "progress"))
    train = ("train", folder, "0.5", data, "--batch-size", 4, "--epochs", 500, "--max-seconds", 0, "--seed", 5)
    given = (*train, "--state", parts, "--checkpoint", progress, "--checkpoint-every", 7)
    with subprocess.Popen(client.command(*given, "--allow-unsigned"), stdout=subprocess.DEVNULL) as process:
        while not progress.exists():
            assert process.poll() is None
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not parts.exists()
    kept = progress.read_bytes()
    done = len(safetensors.numpy.load(kept)["losses"])
    assert (done % 7, 0 < done < 1500) == (0, True)
    status, _, errors = client.run("train", folder, "0.5", data, "--state", parts, "--checkpoint", progress)
    assert (status, "progress: of another training: bundle, tier, data or settings differ; delete it" in errors) == (2, True), (
        errors
    )
    assert progress.read_bytes() == kept
    assert works(client, *given) == works(client, *train, "--state", whole)
    assert not progress.exists()
    (said, one), (expected, other) = content(parts), content(whole)
    assert said == {**expected, "client": said["client"]}
    assert one.keys() == other.keys()
    assert all(np.array_equal(value, other[name]) for name, value in one.items())
    for bad in (kept[:-9], b"", kept.replace(b"losses", b"lasses")):
        progress.write_bytes(bad)
        status, _, errors = client.run(*train, "--state", tmp_path / "none", "--checkpoint", progress)
        assert (status, "progress: not the progress of a training (" in errors) == (2, True), errors


def test_time_is_limited(client, tmp_path):
    folder, data = Regression().write(tmp_path / "bundle"), stored(tmp_path, *samples(10))
    edit = ("train", folder, "0.5", data, "--state", tmp_path / "state", "--max-seconds")
    status, _, errors = client.run(*edit, 1e-9)
    assert (status, "the first step took" in errors, (tmp_path / "state").exists()) == (3, True, False)
    assert works(client, *edit, 0).startswith("6 steps")


def test_onnxruntime_sends_nothing(client, tmp_path):
    folder, data = Regression().write(tmp_path / "bundle"), stored(tmp_path, *samples(10))
    assert left_in_home(client.command("infer", folder, "0.5", data, "--allow-unsigned"), tmp_path) == []


def test_odd_manifests_are_refused_as_by_the_python_client(client, commands, capsys, tmp_path_factory):  # noqa: F811 - the fixture
    """A limit of memory is not one that this client knows, and a state is checked before it makes an update."""
    folder = tmp_path_factory.mktemp("data")
    given = []
    for command in commands:
        data = folder / f"{command[3].stem}.safetensors"
        if not data.exists():
            with np.load(command[3]) as arrays:
                safetensors.numpy.save_file(dict(arrays), data)
        given.append([*command[:3], data, *("--state" if word == "--out" else word for word in command[4:])])
    for command, (status, output, errors) in zip(commands, client.batch(given), strict=True):
        told(command, status, output, errors)
        expected = called(capsys, *command)[0]
        assert bool(status) == bool(expected) or expected == 3, ((command[1] / "manifest.json").read_text(), errors)


def test_spoiled_bundles_are_refused_with_one_sentence(client, tmp_path):
    data = stored(tmp_path, *samples(10))
    given = []
    for number, (spoil, _) in enumerate(SPOILED):
        folder = Regression().write(tmp_path / str(number) / "bundle")
        spoil(folder)
        given.append(["train", folder, "0.5", data, "--out", tmp_path / "update", "--allow-unsigned"])
    for (_, words), (status, _, errors) in zip(SPOILED, client.batch(given), strict=True):
        assert status == 2, words
        assert re.fullmatch(r"Error: [^\n]+\n", errors)
    assert not (tmp_path / "update").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 200_000, "nested deeper than 200 levels"),
        ('{"a": 1, "a": 2}', 'the key "a" occurs twice'),
        ('{"a": 01}', "expected '}'"),
        ('{"a": 1} x', "expected its end"),
        ('{"a": "\n"}', "expected the end of a text"),
        ('{"a": "\\x"}', "no such escape"),
        ("{", "expected a key"),
        ("[1]", "expected a table"),
        ('{"a": 1e999}', "expected a finite number of at most 63 bits"),
        ("{}", "format_version: got nothing, expected 2"),
    ],
)
def test_a_manifest_is_read_strictly(client, tmp_path, text, words):
    (tmp_path / "manifest.json").write_text(text)
    status, _, errors = client.run("check", tmp_path)
    assert (status, words in errors) == (2, True), errors


def test_what_it_refuses(client, tmp_path):
    out, key, other = tmp_path / "update", SigningKey.new(tmp_path / "owner.pem"), SigningKey.new(tmp_path / "other.pem")
    folder = sign_bundle(Regression().write(tmp_path / "bundle"), key)
    (tmp_path / "owner.pub").write_bytes(key.public.pem)
    (tmp_path / "other.pub").write_bytes(other.public.pem)
    path = stored(tmp_path, *samples(8))
    held = Regression().write(tmp_path / "held")
    edit_train(held, no_update="it is personal")
    ways = ("train", folder, "0.5", path, "--out", out)
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "long").write_bytes(b"\xff" * 40)
    cases: list[tuple[int, str, tuple[object, ...]]] = [
        (2, "not a signature of this manifest", (*ways, "--key", tmp_path / "other.pub")),
        (2, "not an Ed25519 public key", (*ways, "--key", path)),
        (2, "the bundle has 0.5", ("train", folder, "0.25", path, "--out", out)),
        (1, ": training diverged", (*ways, "--lr", 3e38, "--epochs", 9)),
        (2, "train BUNDLE TIER DATA", ("train", folder)),
        (2, "--epoch: train has no such option", (*ways, "--epoch", 3)),
        (2, "--epochs: infer has no such option", ("infer", folder, "0.5", path, "--epochs", 3)),
        (2, "--epochs: got -1, expected a whole number above 0", (*ways, "--epochs", -1)),
        (2, "--lr: got 0.1x, expected a number above 0", (*ways, "--lr", "0.1x")),
        (2, f"--seed: got {1 << 64}, expected a whole number from 0 to", (*ways, "--seed", 1 << 64)),
        (2, "--client: got ", (*ways, "--client", "a b")),
        (2, "got neither --out UPDATE nor --state FILE", ("train", folder, "0.5", path)),
        (2, "is no file, but a folder or a device", ("train", folder, "0.5", path, "--out", "/dev/full")),
        (2, "cannot be aggregated outside of a simulation: it is personal", ("train", held, "0.5", path, "--out", out)),
        (2, "missing, or not a regular file; expected a safetensors file", ("train", folder, "0.5", tmp_path / "none", "--out", out)),
        (2, "not a safetensors file (shorter than its header)", ("train", folder, "0.5", tmp_path / "short", "--out", out)),
        (2, "not a safetensors file", ("train", folder, "0.5", tmp_path / "long", "--out", out)),
    ]  # fmt: skip
    x, y = samples(8)
    wrong = {
        "x: got shape [8, 1, 1, 3]": {"x": x[:, :, :1], "y": y},
        "x: got float64, expected float32": {"x": x.astype(np.float64), "y": y},
        "x holds NaN or infinity": {"x": x * np.float32(np.nan), "y": y},
        "x: no sample": {"x": x[:0], "y": y[:0]},
        "y: got shape [7], expected [8]": {"x": x, "y": y[:7]},
        "y: got float32, expected whole numbers": {"x": x, "y": y.astype(np.float32)},
        "y: label 7, expected 0 to 2": {"x": x, "y": np.full(8, 7)},
        "y: no labels": {"x": x},
        "got nothing, expected x and y": {"y": y},
    }
    for number, (words, tensors) in enumerate(wrong.items()):
        safetensors.numpy.save_file(tensors, tmp_path / f"{number}.safetensors")
        cases.append((2, words, ("train", folder, "0.5", tmp_path / f"{number}.safetensors", "--out", out)))
    given = [[*arguments, *(() if "--key" in arguments else ("--allow-unsigned",))] for _, _, arguments in cases]
    for (status, words, _), (found, _, errors) in zip(cases, client.batch(given), strict=True):
        assert (found, words in errors) == (status, True), errors
    assert not out.exists()
    assert client.run(*ways, "--key", tmp_path / "owner.pub")[0] == 0
    assert client.batch([ways])[0][2] == "Error: a bundle is code: give --key FILE, or --allow-unsigned\n"


def test_an_expired_bundle_is_refused_and_an_update_has_its_deadline(client, tmp_path):
    key, path = SigningKey.new(tmp_path / "owner.pem"), stored(tmp_path, *samples(8))
    (tmp_path / "owner.pub").write_bytes(key.public.pem)
    for expires, status in (("2020-01-31T12:00:00Z", 2), ("2999-01-31T12:00:00Z", 0)):
        folder, out = of_round(tmp_path / expires, key, 3, expires=expires), tmp_path / f"update-{status}"
        found, _, errors = client.run("train", folder, "0.5", path, "--out", out, "--key", tmp_path / "owner.pub")
        assert (found, f"expired at {expires}" in errors) == (status, status == 2)
    assert content(out)[0]["deadline"] == expires


def test_a_phone_logs_what_its_battery_gives_for_calibrate(client, tmp_path):
    """Android's battery is a stand-in: 4 V, and microamperes of either sign."""
    log = tmp_path / "log.csv"

    def logged(*figures: int) -> str:
        command = ["java", "-cp", client.classes, "edgefl.app.Battery", log, *map(str, figures)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    assert logged(4000, -150_000, -1_200_000, 0) == "worked"
    meter = meter_of(str(log))
    assert [meter.mean_w(MeterSpan(state)) for state in ("idle", "training")] == pytest.approx([0.6, 4.8])
    assert logged(4000, 150_000, 1_200_000, 1).startswith("the phone is plugged in")
    for millivolts, microamperes in ((4000, 0), (4000, -(2**31)), (0, 150_000)):
        assert logged(millivolts, microamperes, 1_200_000, 0).startswith(
            "this phone does not tell its battery's volts and amperes"
        )
