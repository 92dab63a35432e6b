"""Runs that train by the user's own loss, on labels and on the targets of a regression."""

import json
import re
import sys

import numpy as np
import pytest
import safetensors.numpy

from edgefl import RunConfig, compare, fed_round, load_run, simulate
from edgefl.bundle.verify import verify
from edgefl.client.criterion import Criterion
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import ConfigError, DataError
from edgefl.onnxgrad.session import OutOfMemoryError
from edgefl.report import html
from edgefl.report.run_budget import RunBudget
from edgefl.report.run_files import read_rounds, read_trained
from edgefl.run import bundle as bundling
from edgefl.run import prepare as preparing
from edgefl.run.checks import no_graphs
from edgefl.run.prepare import prepare
from edgefl.util.files import shared
from edgefl.util.units import human_bytes
from tests import regression
from tests.pages import Page
from tests.runs import lines_of, stopped_after

KEYS = {
    "model": "tests.regression:tiny",
    "loss": "tests.regression:huber",
    "method": "fedavg",
    "tiers": (1.0,),
    "partition": "iid",
    "clients": 3,
    "rounds": 2,
    "batch_size": 16,
}


@pytest.fixture
def points(monkeypatch):
    data = regression.line()
    monkeypatch.setattr(preparing, "load", lambda *of: data)
    return data


def test_every_engine_trains_a_regression_to_the_same_metric(points, tmp_path):
    whole = simulate(RunConfig(**KEYS), tmp_path / "whole")
    others = [{"engine": "pool", "workers": 2}, {"engine": "group"}, {"runtime": "onnx"}]
    runs = [stopped_after(RunConfig(**KEYS | other), tmp_path / str(n), 2) for n, other in enumerate(others)]
    first, *rest = ([line["accuracy"]["global"] for line in lines_of(folder)] for folder in (whole.folder, *runs))
    assert first[1] < first[0]
    assert rest == [first, pytest.approx(first, rel=1e-5), pytest.approx(first, rel=1e-4)]

    model = safetensors.numpy.load((whole.folder / "model.safetensors").read_bytes())
    x, y = points.test.x, points.test.y
    layers = [{key: model[f"model/{n}.{key}"] for key in ("weight", "bias")} for n in (0, 2)]
    hidden = np.tanh(x @ layers[0]["weight"].T + layers[0]["bias"])
    error = hidden @ layers[1]["weight"].T + layers[1]["bias"] - y
    assert first[-1] == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-5)

    manifest = json.loads((whole.folder / "bundle" / "manifest.json").read_text())
    assert (manifest["target_shape"], manifest["metric"], manifest["classes"]) == ([1], "root mean square", 1)
    assert manifest["tiers"][0]["accuracy_onnx"] == pytest.approx(first[-1], rel=1e-5)
    assert verify(whole.folder / "bundle").files == len(manifest["files"]) + 3  # the manifest, its signature, and its signer

    samples = tmp_path / "held_out.npz"
    np.savez(samples, x=x, y=y)
    sys.path.insert(0, str(shared("export") / "python"))
    import edgefl_client

    bundle = edgefl_client.read_bundle(whole.folder / "bundle")
    given = edgefl_client.read_data(samples, bundle.manifest, labels=True)
    outputs = edgefl_client.infer(bundle, "1", given[0])
    assert np.sqrt(np.square(outputs - y).mean()) == pytest.approx(first[-1], rel=1e-5)
    losses = edgefl_client.train(bundle, "1", *given, edgefl_client.Training(epochs=5)).losses
    assert losses[-1] < losses[0]


def test_devices_state_no_labels_of_a_regression(points, tmp_path):
    """HeteroFL averages a row of the classifier over the clients with its label; a regression has none, and every row counts."""
    run = simulate(RunConfig(**KEYS | {"method": "heterofl", "rounds": 1}), tmp_path / "run")
    sys.path.insert(0, str(shared("export") / "python"))
    import edgefl_client

    bundle = edgefl_client.read_bundle(run.folder / "bundle")
    assert bundle.training("1")["labels"] is False
    state = edgefl_client.train(bundle, "1", points.train.x, points.train.y, edgefl_client.Training(epochs=3))
    (tmp_path / "updates").mkdir()
    (tmp_path / "updates" / "one.safetensors").write_bytes(edgefl_client.update(state))
    found = fed_round(run.folder / "bundle", tmp_path / "updates", tmp_path / "next")
    assert found.tiers[0].updates == 1
    assert found.accuracy[1] < found.accuracy[0]


def test_one_number_per_sample_needs_no_reshaping(points, monkeypatch, tmp_path):
    """Outputs (batch,) or (batch, 1) and targets (batch,) or (batch, 1) train to the same metric, also in onnxruntime, and on a device."""
    flat = Dataset("line", "Line", *(Split(part.x, part.y[:, 0]) for part in (points.train, points.test)), (), {}, "mlp")
    keys = KEYS | {"loss": "torch.nn.functional:mse_loss"}
    reached = {}
    for name, data in (("columns", points), ("numbers", flat)):
        monkeypatch.setattr(preparing, "load", lambda *of, data=data: data)
        for model in ("tiny", "Flat"):
            config = RunConfig(**keys | {"model": f"tests.regression:{model}"})
            folder = simulate(config, tmp_path / f"{name}-{model}").folder
            reached[name, model] = [line["accuracy"]["global"] for line in lines_of(folder)]
            manifest = json.loads((folder / "bundle" / "manifest.json").read_text())
            assert manifest["tiers"][0]["accuracy_onnx"] == pytest.approx(reached[name, model][-1], rel=1e-4)
            assert max(verify(folder / "bundle").max_loss_errors.values()) < 1e-4
    one = reached["columns", "tiny"]
    assert one[1] < one[0]
    assert all(other == pytest.approx(one, rel=1e-5) for other in reached.values())
    onnx = stopped_after(config.model_copy(update={"runtime": "onnx"}), tmp_path / "onnx", 2)
    assert [line["accuracy"]["global"] for line in lines_of(onnx)] == pytest.approx(one, rel=1e-4)


def test_a_run_whose_metric_is_not_finite_does_not_end_a_comparison(points, monkeypatch, tmp_path):
    measured = Criterion.measured
    seen = []

    def first_infinite(self, outputs, targets):
        seen.append(len(targets))
        return measured(self, outputs if len(seen) > 1 else np.full_like(outputs, np.inf), targets)

    monkeypatch.setattr(Criterion, "measured", first_infinite)
    found = compare(("fedavg",), RunConfig(**KEYS | {"bundle": False}), tmp_path / "compared", seeds=(0, 1))
    (row,) = found.methods
    assert row.seeds == (1,)
    assert [(of.seed, of.reason) for of in row.failures] == [
        (0, f"round 1: tier 1: loss: metric root mean square is inf for {seen[0]} held-out samples, expected a finite number")
    ]


def test_methods_with_a_loss_of_the_users_own_are_ranked_within_a_budget(points, tmp_path):
    asked = ("heterofl", "fedavg"), RunConfig(**KEYS | {"bundle": False}), tmp_path / "both"
    with pytest.raises(ConfigError, match="target_accuracy: is a share, and values of root mean square may be others; leave it"):
        compare(*asked, target_accuracy=0.5)
    assert not (tmp_path / "both").exists()
    slow = {"heterofl": {"lr": 1e-4}}
    whole = compare(*asked, settings=slow)
    cost = max(row.steps["client_bytes"][0].cost for row in whole.summary.verdict.methods)
    found = compare(*asked, settings=slow, budget=RunBudget(bytes=cost), resume=True)
    first = {name: lines_of(tmp_path / "both" / name / "seed-0")[0]["accuracy"]["global"] for name in ("fedavg", "heterofl")}
    assert [(row.label, row.rounds, row.accuracy.mean) for row in found.summary.verdict.methods] == [
        ("fedavg", (1,), first["fedavg"]),
        ("heterofl", (1,), first["heterofl"]),
    ]
    assert first["fedavg"] < first["heterofl"]
    text = " ".join(Page((tmp_path / "both" / "compare.html").read_text()).text.split())
    assert f"fedavg has the best root mean square {first['fedavg']:.4g} within {human_bytes(cost)} a client" in text
    assert f"With the whole budget, fedavg has the best mean, {first['fedavg']:.4g}" in text


def test_a_metric_below_0_is_read_back_compared_and_shown(points, tmp_path):
    config = RunConfig(**KEYS | {"loss": "tests.regression:mean_square", "lr": 1e-5})
    found = compare(("fedavg",), config, tmp_path / "compared")
    folder = found.folder / "fedavg" / "seed-0"
    result = load_run(folder)
    reached = [line["accuracy"]["global"] for line in lines_of(folder)]
    assert reached[1] == result.global_accuracy == result.tiers[0].torch_accuracy < 0
    assert found.methods[0].accuracy.mean == found.to_dict()["target_accuracy"] == reached[1]
    text = f"log likelihood {reached[1]:.4g}"
    assert text in repr(result)
    assert text in result._repr_html_()
    page = html.render(read_trained(folder / "summary.json"), read_rounds(folder / "rounds.jsonl"))
    assert page == (folder / "report.html").read_text()
    assert f"{reached[1]:.4g} log likelihood after" in page


@pytest.mark.parametrize(("loss", "counted"), [({}, None), ({"loss": None, "model": "mlp"}, 0.0)])
def test_a_tier_that_does_not_run_on_its_device_has_no_value_of_an_own_metric(loss, counted, points, monkeypatch):
    if counted is not None:
        monkeypatch.undo()

    def short(*of, **how):
        raise OutOfMemoryError("needs more", 2, 1)

    monkeypatch.setattr(bundling, "predict_capped", short)
    run, said = prepare(RunConfig(**KEYS | loss)), []
    assert bundling._run_on_device(run, run.tiers[0], b"", run.test, said.append) == (counted, None)
    told = "it has no root mean square" if counted is None else "its accuracy counts as 0"
    assert said[0].endswith(f"needs more; {told}")


def test_costs_are_those_of_the_loss(points):
    plain, product = (prepare(RunConfig(**KEYS | keys)).costs.full for keys in ({}, {"loss": "tests.regression:mixed"}))
    assert product.macs_train_step - plain.macs_train_step == 2 * 16 * 50  # forward, and for the gradient of the outputs
    assert product.training_memory_bytes > plain.training_memory_bytes


def test_a_regression_needs_a_loss_and_a_partition_without_labels(points):
    with pytest.raises(
        ConfigError, match="loss: line has float32 targets, no labels; give a loss such as torch.nn.functional:mse"
    ):
        prepare(RunConfig(**KEYS | {"loss": None}))
    with pytest.raises(
        ConfigError, match="partition: dirichlet:0.5 needs labels, and line has float32 targets; give partition iid"
    ):
        prepare(RunConfig(**KEYS | {"partition": "dirichlet:0.5"}))
    with pytest.raises(
        ConfigError, match="loss: tests.regression:huber makes no sense with DepthFL: distillation compares class prob"
    ):
        prepare(RunConfig(**KEYS | {"method": "depthfl"}))
    shards = Shards(points, 3, "index:20", 0)
    assert len(shards.train(2)) == 20
    assert shards.test(2).y.dtype == np.float32


def test_arrays_of_floats_are_targets():
    points = regression.line()
    x, y = np.concatenate([points.train.x, points.test.x]), np.concatenate([points.train.y, points.test.y])
    for given, shape in ((y, (1,)), (y[:, 0].astype(np.float64), ()), (np.rint(y), (1,))):
        data = Dataset.from_arrays(x, given)
        assert (data.target_shape, data.train.y.dtype, len(data.test)) == (shape, np.float32, len(x) // 5)
    assert Dataset.from_arrays(x, np.rint(y[:, 0]) % 2).classes == 2


def test_targets_are_checked():
    x, y = np.zeros((4, 2), np.float32), np.zeros((4, 1), np.float32)
    for bad, problem in (
        (np.full((4, 1), np.nan, np.float32), "a target is NaN or infinity"),
        (y.astype(np.float64), "expected float32 targets, at least one, got float64 \\(4, 1\\)"),
    ):
        with pytest.raises(DataError, match=problem):
            Dataset("own", "Own", Split(x, bad), Split(x, y), (), {}, "mlp")


def test_a_loss_that_cannot_be_exported_is_known_before_the_first_round(points):
    run = prepare(RunConfig(**KEYS | {"loss": "tests.regression:per_sample"}))
    assert re.search(r"its loss depends on how many .*len of a tensor in regression.py, line \d+", no_graphs(run))


def test_a_changed_loss_is_said_on_resume_and_an_object_is_given_again(tmp_path):
    path = tmp_path / "own.py"
    source = "from torch.nn import functional as F\ndef loss(outputs, targets):\n    return F.cross_entropy(outputs, targets)\n"
    path.write_text(source)
    keys = KEYS | {"model": "mlp", "loss": f"{path}:loss", "data_share": 0.1}
    folder = stopped_after(RunConfig(**keys), tmp_path / "run", 1)
    path.write_text(source + "# changed\n")
    said = []
    stopped_after(RunConfig(**keys), folder, 2, resume=True, notify=said.append)
    assert [line for line in said if "source of own.py:loss has changed since this run began" in line]
    plain = RunConfig(**keys | {"loss": lambda outputs, targets: (outputs**2).mean()})
    with pytest.raises(ConfigError, match="loss: <lambda> is an object that other processes cannot import"):
        prepare(plain.model_copy(update={"engine": "pool", "workers": 2}))


def test_cross_entropy_as_an_own_loss_trains_the_same_bits(tmp_path):
    keys = KEYS | {"model": "mlp", "data_share": 0.1}
    runs = [{"loss": None}, {"loss": "torch.nn.functional:cross_entropy"}]
    folders = [stopped_after(RunConfig(**keys | loss), tmp_path / str(n), 2) for n, loss in enumerate(runs)]
    models = [next((folder / "checkpoints").glob("round-000001-*")).read_bytes() for folder in folders]
    assert models[0] == models[1]


def test_a_metric_of_a_private_function_has_no_space_around_its_name():
    def _mean_error(outputs, targets):
        return (outputs - targets).abs().mean()

    def private(outputs, targets):
        return (outputs - targets).square().mean()

    _mean_error.better, private.metric = "lower", _mean_error
    assert Criterion.of(RunConfig(loss=private).loss, np.zeros((2, 1), np.float32)).metric.name == "mean error"
