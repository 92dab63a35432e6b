"""A round without a simulation: a server's bundle, devices that train it on data of their own, and the model that their updates make."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from torch_free import CLIENT, client, torch_free_python

from edgefl import RunConfig, fed_round, simulate, verify
from edgefl.contrib.serve.files import bundle_addresses, page_addresses
from edgefl.contrib.serve.server import PageServer
from edgefl.data.mix import load
from edgefl.errors import BundleError, CheckpointError, InputError
from edgefl.run.verify import verify_run

SHORT = {
    "dataset": "digits", "model": "mlp", "method": "fedhm", "tiers": (1.0, 0.5), "rounds": 1, "clients": 6, "per_round": 3,
    "local_epochs": 1, "seed": 1,
}  # fmt: skip
UNTIMED = ("--max-seconds", "0")  # how fast the computer of a test is says nothing of a device


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return torch_free_python(tmp_path_factory)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return simulate(RunConfig.of(SHORT), tmp_path_factory.mktemp("server") / "run").folder


def own_data(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return 250 training samples of the digits that nobody else of the three has."""
    train = load("digits").train
    index = np.random.default_rng(4).permutation(len(train))[number * 250 : (number + 1) * 250]
    return train.x[index], train.y[index]


@pytest.fixture(scope="module")
def sent(run, python, tmp_path_factory):
    """The updates of two devices without torch: one has prepared samples, the other raw pixels, and another tier."""
    inbox = tmp_path_factory.mktemp("inbox")
    for number, label in ((0, "1"), (1, "0.5")):
        x, y = own_data(number)
        if number == 1:
            how = load("digits").preprocessing
            x = np.rint((x * how["std"] + how["mean"]) / how["scale"]).astype(np.uint8)
        data, state = inbox.parent / f"data-{number}.npz", inbox.parent / f"state-{number}"
        np.savez(data, x=x, y=y)
        trained = client(python, "train", run / "bundle", label, data, "--out", state, "--epochs", 3, *UNTIMED)
        assert trained.returncode == 0, trained.stderr
        written = client(python, "update", state, "--out", inbox / f"device-{number}.safetensors")
        assert written.returncode == 0, written.stderr
    return inbox


def test_a_device_takes_the_steps_of_the_bundles_reference(run):
    sys.path.insert(0, str(CLIENT.parent))
    from edgefl_bundle import read_bundle
    from edgefl_steps import Steps

    bundle = read_bundle(run / "bundle")
    for label in ("1", "0.5"):
        table = bundle.training(label)
        reference = safetensors.numpy.load(bundle.content(table["reference"]))
        x, y = reference["x"], reference["y"]
        feeds = {f"p.{name}": tensor for name, tensor in bundle.parameters(label).items()}
        feeds |= {"lr": table["lr"], "beta": table["momentum"], "present": np.ones(10, bool)}
        steps = Steps(bundle, table["graphs"], feeds, {"x": x, "y": y}, threads=1, memory_bytes=None)
        np.testing.assert_allclose([steps.step({"x": x, "y": y}, 0) for _ in range(3)], reference["losses"], rtol=1e-3)


def better(result) -> bool:
    """Whether every tier is: by five points at least, where one of chance would have ten in a hundred right."""
    return all(row.after > row.before + 0.05 for row in result.tiers)


def test_two_devices_without_torch_make_the_model_better(run, sent, python, tmp_path):
    result = fed_round(run / "bundle", sent, tmp_path / "next")
    assert better(result), result
    assert [row.updates for row in result.tiers] == [1, 1]
    assert (result.round, result.refused) == (2, ())
    assert verify(tmp_path / "next" / "bundle").files > 0
    test = load("digits").test
    np.savez(tmp_path / "test.npz", x=test.x, y=test.y)
    classified = client(python, "infer", tmp_path / "next" / "bundle", "1", tmp_path / "test.npz")
    assert float(classified.stdout.split("accuracy: ")[1].split()[0]) == pytest.approx(result.tiers[0].after, abs=0.003)
    # The next round begins from there; an update of the round before is none of it.
    again = client(
        python, "train", tmp_path / "next" / "bundle", "0.5", sent.parent / "data-1.npz", "--state", sent.parent / "state-1",
        "--out", tmp_path / "state", *UNTIMED,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    assert client(python, "update", tmp_path / "state", "--out", inbox / "new").returncode == 0
    shutil.copy(sent / "device-0.safetensors", inbox / "old")
    later = fed_round(tmp_path / "next" / "bundle", inbox, tmp_path / "later", skip_bad=True)
    assert (later.round, [row.updates for row in later.tiers]) == (3, [0, 1])
    assert "round: got '1', expected '2'" in later.refused[0]
    checked_like_a_run(tmp_path / "later")


def checked_like_a_run(folder) -> None:
    """The folder of a round passes the check of runs; edited, or without its bundle, it does not."""
    found = verify_run(folder)
    assert found.bundle is not None
    record, graph = folder / "fed-round.json", folder / "bundle" / "1" / "forward.onnx"
    for path, error in ((record, CheckpointError), (graph, BundleError)):
        whole = path.read_bytes()
        path.write_bytes(whole.replace(whole[-9:-8], b"#"))
        with pytest.raises(error):
            verify_run(folder)
        path.write_bytes(whole)
    record.rename(folder / "moved.json")
    with pytest.raises(CheckpointError, match=r"fed-round\.json"):
        verify_run(folder)
    (folder / "moved.json").rename(record)
    shutil.rmtree(folder / "bundle")
    with pytest.raises(InputError, match="bundle"):
        verify_run(folder)


def test_a_browser_takes_part(run, sent, browser, ort_web, tmp_path):
    inbox = tmp_path / "inbox"
    shutil.copytree(sent, inbox)
    with opened(browser, run / "bundle", ort_web) as page:
        page.evaluate("() => edgefl.choose('0.5')")
        page.wait_for_selector("#tier:not([disabled])")
        x, y = own_data(2)
        trained = page.evaluate("given => edgefl.train(given)", {"x": x.tolist(), "y": y.tolist(), "epochs": 3})
        assert trained["losses"][-1] < trained["losses"][0]
        (inbox / "browser.safetensors").write_bytes(bytes(page.evaluate("() => edgefl.update()")))
    result = fed_round(run / "bundle", inbox, tmp_path / "next")
    assert better(result), result
    assert [row.updates for row in result.tiers] == [1, 2]
    assert sum(row.samples for row in result.tiers) == 750


@contextlib.contextmanager
def opened(browser, bundle: Path, library: Path):
    """Serve a bundle, and open its page."""
    with PageServer("127.0.0.1", 0, bundle_addresses(bundle) | page_addresses(library)) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            with contextlib.closing(browser.new_context()) as context:
                page = context.new_page()
                page.set_default_timeout(60_000)
                page.goto(server.url)
                page.wait_for_selector("#tier:not([disabled])")
                yield page
        finally:
            server.stop()
            thread.join()
