"""A network without training graphs trains; its run says before the first round, and at its end, that it has no bundle and why."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake

from edgefl import RunConfig, export, load_run, simulate
from edgefl.errors import BundleError, EdgeflError
from edgefl.run.verify import verify_run

REASON = "Rows cannot be trained in ONNX: prims.zeta"


class Rows(nn.Module):
    """Reads a digit row by row."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(8, 4, batch_first=True), nn.Linear(4, 10)

    def forward(self, x):
        last = self.cells(x.flatten(1, 2))[0][:, -1]
        return self.head(last * torch.special.zeta(last.detach().abs() + 2, 1.0))


def test_a_run_whose_network_cannot_be_exported_finishes_and_says_why(tmp_path):
    said = []
    config = RunConfig(
        model=Rows,
        method="fedavg",
        tiers=(1.0,),
        rounds=1,
        clients=2,
        per_round=2,
        local_epochs=1,
        data_share=0.1,
        engine="inline",
    )
    result = simulate(config, tmp_path / "run", on_round=lambda record: said.append("round"), notify=said.append)
    assert said[0].startswith(f"the run will have no bundle: {REASON}")
    assert "round" in said[1:]
    assert result.summary["no_bundle"].startswith(REASON)
    assert result.tiers[0].accuracy == result.tiers[0].torch_accuracy == pytest.approx(result.global_accuracy)
    assert not (result.folder / "bundle").exists()
    page = (result.folder / "report.html").read_text()
    assert f"The run has no bundle: {REASON}" in page
    assert "exported file on held-out samples" not in page
    assert load_run(result.folder).summary == result.summary
    assert simulate(config, result.folder, resume=True, notify=said.append).summary == result.summary
    assert said[-1].endswith("the run is complete; nothing left to do")
    assert verify_run(result.folder).bundle is None
    with pytest.raises(BundleError, match=REASON) as refused:
        export(result.folder, tmp_path / "bundle")
    assert refused.value.exit_code == 2
    assert not (tmp_path / "bundle").exists()


def test_a_run_that_wants_no_bundle_is_not_sent_to_a_command_that_writes_none(tmp_path):
    options = {"handed_momentum": True, "outputs": 0.5}
    keys = {"method": "prism", "method_options": options, "model": "mlp", "clients": 2, "local_epochs": 1, "data_share": 0.1}
    run = simulate(RunConfig(**keys, rounds=1, bundle=False), tmp_path / "run")
    assert run.summary["no_bundle"].startswith("PriSM has no training graphs: handed_momentum hands the momentum")
    with pytest.raises(EdgeflError, match="PriSM has no training graphs"):
        export(tmp_path / "run", tmp_path / "bundle")


def test_a_run_that_wants_no_bundle_has_its_results_from_torch_and_can_be_exported(tmp_path):
    said, few = (
        [],
        {"method": "heterofl", "tiers": (1.0, 0.5), "clients": 2, "local_epochs": 1, "data_share": 0.1, "model": "mlp"},
    )
    run = tmp_path / "run"
    first = simulate(RunConfig(**few, rounds=1), run)
    assert (run / "bundle").is_dir()
    without = simulate(RunConfig(**few, rounds=2, bundle=False), run, resume=True, notify=said.append)
    assert not (run / "bundle").exists(), "a bundle of the shorter run would be of other weights"
    assert not any("bundle" in line for line in said)
    assert without.summary["no_bundle"] == "none was wanted; 'edgefl export RUN --out DIR' writes it"
    assert all(row.accuracy == row.torch_accuracy for row in without.tiers)
    straight = simulate(RunConfig(**few, rounds=2), tmp_path / "straight")
    assert straight.global_accuracy == without.global_accuracy
    export(run, tmp_path / "bundle")
    for file in ("manifest.json", "0.5/forward.onnx", "0.5/train.onnx"):
        assert (tmp_path / "bundle" / file).read_bytes() == (tmp_path / "straight" / "bundle" / file).read_bytes()
    assert verify_run(run).bundle is None
    assert first.summary["rounds"] == 1


class Picky(nn.Module):
    """Knows no digit without a black corner."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        if not (torch.compiler.is_exporting() or is_fake(x) or self.training) and x[:, 0, 0, 0].unique().numel() > 1:
            raise KeyError("no such digit")
        return self.head(x.flatten(1))


def test_a_run_whose_network_refuses_random_samples_finishes_and_says_why(tmp_path):
    few = {"rounds": 1, "clients": 2, "local_epochs": 1, "data_share": 0.1, "engine": "inline"}
    result = simulate(RunConfig(model=Picky, method="fedavg", **few), tmp_path / "run")
    told = (
        "tier 1: the network does not take random samples in place of real ones: KeyError: 'no such digit' (at test_no_bundle.py:"
    )
    assert result.summary["no_bundle"].startswith(told)
    assert told in (result.folder / "report.html").read_text().replace("&#39;", "'")
