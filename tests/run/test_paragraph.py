"""The methods paragraph of a comparison: every setting, and the command that makes the comparison again."""

import shlex

import pytest

from edgefl import RunConfig, compare, load_comparison
from edgefl.report.run_budget import RunBudget
from edgefl.run.compare_finished import compare_runs
from tests.command import told

CONFIG = RunConfig(
    model="mlp", rounds=1, clients=3, local_epochs=2, data_share=0.2, bundle=False, profile="lab", tiers=(1.0, 0.5), lr=0.03,
    lr_schedule="warmup(rounds=3)", clip_norm="adaptive", clip_quantile=0.75, metric="macro-f1", permute_labels=False, eval_samples=100,
)  # fmt: skip


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return compare(
        ["heterofl", "fjord"], CONFIG, tmp_path_factory.mktemp("study") / "both", seeds=(3, 4),
        options={"fjord": {"distill": False}}, settings={"heterofl": {"lr": 0.01}}, budget=RunBudget(bytes=5e6),
    )  # fmt: skip


def test_the_paragraph_has_every_setting_that_is_not_a_default(both):
    text = load_comparison(both.folder).paragraph()
    for said in (
        "We compared HeteroFL (Diao et al.", "trained mlp on digits, with metric macro-f1, divided among 3 clients by dirichlet:0.5",
        "each with 20 % of its samples", "In each of 1 rounds, 2 clients were selected (mode sync).",
        "trained 2 local epochs with momentum, learning rate its own lr (warmup(rounds=3)), momentum 0.9, batches of 32",
        "The tiers were 1,0.5 on the devices of the fleet lab", "on 100 held-out samples every 1 rounds",
        "clip norm adaptive; clip quantile 0.75", "heterofl had lr 0.01", "fjord had lr 0.03", "option distill false",
        "trained with the seeds 3 and 4", "ranked by the mean macro F1 over clients",
    ):  # fmt: skip
        assert said in text, text


def test_the_command_makes_the_same_comparison(both, tmp_path, monkeypatch):
    command = both.paragraph().splitlines()[-1]
    monkeypatch.chdir(tmp_path)
    status, output, errors = told(*shlex.split(command)[1:], "--format", "paragraph")
    assert status == 0, errors
    assert (tmp_path / "again/comparison.toml").read_text() == (both.folder / "comparison.toml").read_text()
    assert output.strip() == both.paragraph()


def test_finished_runs_have_a_paragraph_of_their_own(both, tmp_path):
    homes = [both.folder / label / "seed-3" for label in ("heterofl", "fjord")]
    text = compare_runs(homes, tmp_path / "runs").paragraph()
    assert "heterofl had" in text
    assert text.endswith(f"edgefl compare {homes[0]} {homes[1]} --out again")
