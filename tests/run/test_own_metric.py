"""Runs with a metric of their own: the user's function without a loss of the user's, and the metrics that have a name."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy

from edgefl import RunConfig, compare, load_run, simulate
from edgefl.client import evaluate
from edgefl.client.criterion import Criterion
from edgefl.client.metrics import OF_CLASSES
from edgefl.config.task import METRICS as NAMES
from edgefl.data.digits import digits
from edgefl.errors import ConfigError, MetricError
from edgefl.records import METRICS, Metric
from edgefl.run.prepare import prepare
from tests.command import told
from tests.runs import lines_of

OWN = """
import torch

def f1(outputs, targets):
    chosen = outputs.argmax(1)
    right = [2 * ((chosen == k) & (targets == k)).sum() / ((chosen == k).sum() + (targets == k).sum()) for k in range(10)]
    return float(torch.stack(right).nan_to_num().mean())

f1.better = "higher"

def undirected(outputs, targets):
    return 1.0

def alone(outputs):
    return 1.0

def text(outputs, targets):
    return "good"

def late(outputs, targets):
    return float("nan") if outputs.abs().max() != 0 else 1.0

def beyond(outputs, targets):
    return 1.5

for of in (alone, text, late, beyond):
    of.better = "lower"
beyond.share = True
"""
KEYS = {
    "model": "mlp", "method": "heterofl", "tiers": (1.0, 0.5), "profile": "lab", "clients": 4, "rounds": 2, "local_epochs": 1,
    "data_share": 0.3, "partition": "classes:3", "bundle": False,
}  # fmt: skip


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: f"{tmp_path / 'own.py'}:{name}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return simulate(RunConfig(**KEYS), tmp_path_factory.mktemp("plain") / "run").folder


def weights(folder):
    return safetensors.numpy.load((folder / "model.safetensors").read_bytes())


def test_a_metric_alone_leaves_training_and_its_masks_as_they_are(own, plain, tmp_path):
    """HeteroFL masks the loss to the labels of a client, which a loss of the user's switches off; a metric does not."""
    found = simulate(RunConfig(**KEYS, metric=own("f1")), tmp_path / "run")
    before, after = weights(plain), weights(found.folder)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert load_run(found.folder).summary["metric"] == {"name": "f1", "better": "higher", "share": False}
    named = simulate(RunConfig(**KEYS, metric="macro-f1"), tmp_path / "named")
    mine, shipped = ([line["accuracy"] for line in lines_of(run.folder)] for run in (found, named))
    assert all(one == pytest.approx(other, abs=1e-6) for one, other in zip(mine, shipped, strict=True))
    assert mine != [line["accuracy"] for line in lines_of(plain)]
    assert json.loads((named.folder / "summary.json").read_text())["evaluation"] is not None
    assert "macro F1" in (named.folder / "report.html").read_text()


def test_named_metrics_are_those_of_their_definitions():
    rng = np.random.default_rng(0)
    labels, chosen = rng.integers(0, 5, 200), rng.integers(0, 6, 200)
    table = np.zeros((6, 6))
    np.add.at(table, (labels, chosen), 1)
    with np.errstate(invalid="ignore"):
        recall, precision = table.diagonal() / table.sum(1), table.diagonal() / table.sum(0)
    assert OF_CLASSES["accuracy"](chosen, labels) == pytest.approx(np.trace(table) / 200)
    assert OF_CLASSES["balanced-accuracy"](chosen, labels) == pytest.approx(np.nanmean(recall))
    f1 = [0.0 if not (p and r) or np.isnan(p + r) else 2 * p * r / (p + r) for p, r in zip(precision, recall, strict=True)]
    assert OF_CLASSES["macro-f1"](chosen, labels) == pytest.approx(np.mean(f1))
    assert tuple(METRICS) == NAMES == tuple(OF_CLASSES)


def test_the_worst_client_is_the_least_accuracy_of_all_clients(plain, tmp_path):
    config = RunConfig(**KEYS | {"metric": "worst-client", "bundle": True})
    folder = simulate(config, tmp_path / "run").folder
    network, shards = load_run(folder).network(), prepare(config).clients.shards
    least = min(evaluate.accuracy(network, shards.test(client)) for client in range(4))
    assert lines_of(folder)[-1]["accuracy"]["global"] == pytest.approx(least)
    manifest = json.loads((folder / "bundle" / "manifest.json").read_text())
    assert manifest["metric"] == "accuracy of the worst client"
    assert manifest["tiers"][0]["accuracy_torch"] == pytest.approx(least)
    assert load_run(plain).global_accuracy > least


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("undirected", "metric: own.py:undirected does not say which values are better; set undirected.better to 'higher' or"),
        ("alone", r"metric: own.py:alone raised an error for outputs \(360, 10\) and targets \(360,\): TypeError: .*takes 1 pos"),
        ("text", "metric: own.py:text returned str, expected a number or a scalar tensor"),
        ("f2", "own.py has no 'f2'; give a function"),
    ],
)
def test_what_is_no_metric_is_refused(name, message, own, tmp_path):
    status, _, errors = told("simulate", "--metric", own(name), "--rounds", "1", "--out", str(tmp_path / "run"))
    assert (status, (tmp_path / "run").exists()) == (2, False)
    assert re.search(message, " ".join(errors.split())), errors


def test_a_name_that_is_no_metric_is_refused():
    with pytest.raises(ConfigError, match="metric: got 'f1'; did you mean 'macro-f1'\\? expected one of accuracy, macro-f1, bal"):
        RunConfig(metric="f1")
    with pytest.raises(
        ConfigError, match="metric: worst-client judges one model by every client, and clients have models of their"
    ):
        prepare(RunConfig(**KEYS | {"metric": "worst-client", "method": "fedper", "tiers": (1.0,)}))
    with pytest.raises(ConfigError, match="is a share, and values of accuracy of the worst client may be others"):
        compare(["fedavg"], RunConfig(**KEYS | {"metric": "worst-client"}), "nowhere", target_accuracy=0.5)


@pytest.mark.parametrize(
    ("name", "said"), [("late", "late is nan for 360 held-out samples, expected a finite"), ("beyond", "beyond is 1.5 for 360")]
)
def test_a_value_that_is_no_number_or_share_names_its_round(name, said, own, tmp_path):
    with pytest.raises(MetricError, match=f"round 1: tier 1: metric: own.py:{said}"):
        simulate(RunConfig(**KEYS, metric=own(name)), tmp_path / "run")


def test_a_comparison_is_ranked_by_shares_of_what_clients_get(tmp_path):
    found = compare(["heterofl", "fedavg"], RunConfig(**KEYS | {"metric": "macro-f1", "rounds": 1}), tmp_path / "both")
    verdict = found.to_dict()["verdict"]
    assert (verdict["rank_by"], found.to_dict()["metric"]["name"]) == ("clients", "macro F1")
    assert "mean macro F1 over clients" in (tmp_path / "both" / "compare.html").read_text()


def test_a_loss_takes_the_metric_that_is_given(own):
    both = Criterion.of("torch.nn.functional:cross_entropy", measure="balanced-accuracy")
    assert both.metric == Metric("balanced accuracy")
    assert both.measured(np.eye(3, dtype=np.float32), np.array([0, 1, 0])) == 0.75
    mine = Criterion.of("torch.nn.functional:cross_entropy", measure=own("f1"))
    assert (mine.metric.name, Criterion.read(mine.fields())) == ("f1", mine)
    assert digits().classes == 10
