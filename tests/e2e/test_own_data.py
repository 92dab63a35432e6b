"""A user's own data in every form: trained in one process, or stopped and resumed in two workers, the result has the same bits."""

import numpy as np
import own_files
import pytest
from command import edgefl
from runs import lines_of, stopped_after

from edgefl import RunConfig, simulate

OPTIONS = {"clients": 3, "rounds": 2, "per_round": 2, "local_epochs": 1, "model": "mlp", "method": "fedavg", "tiers": (1.0,)}


@pytest.mark.parametrize(
    ("written", "more"),
    [
        (own_files.npz, {}),
        (own_files.image_folder, {"partition": "iid"}),
        (own_files.owned_parquet, {"label": "kind", "partition": "natural"}),
        (own_files.arrow_folder, {}),
    ],
)
def test_own_data_train_and_resume_to_the_same_bits(tmp_path, written, more):
    config = RunConfig(dataset=written(tmp_path), **OPTIONS, **more)
    whole = simulate(config, tmp_path / "whole")
    stopped_after(config, tmp_path / "cut", 1)
    resumed = simulate(config.model_copy(update={"engine": "pool", "workers": 2}), tmp_path / "cut", resume=True)
    assert lines_of(whole.folder) == lines_of(resumed.folder)
    files = [path.relative_to(whole.folder) for path in (whole.folder / "bundle").rglob("*") if path.suffix in (".onnx", ".json")]
    assert len(files) > 1
    for file in ("model.safetensors", *files):
        assert (whole.folder / file).read_bytes() == (resumed.folder / file).read_bytes(), file


def test_data_that_changed_or_cannot_be_read_stop_a_run_before_it_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.data.hub._reachable", lambda: False)
    path, out = own_files.npz(tmp_path), tmp_path / "out"
    flags = ["simulate", "--model", "mlp", "--clients", "3", "--rounds", "2", "--out", str(out), "--data"]
    for wrong in ("none.npz", "hf", "hf:nobody/none"):
        refused = edgefl(*flags, wrong, cwd=tmp_path)
        assert (refused.returncode, out.exists(), "Traceback" in refused.stderr) == (2, False, False), refused.stderr
        assert wrong != "hf:nobody/none" or "hf download --repo-type dataset nobody/none --local-dir DIR" in refused.stderr
    stopped_after(RunConfig(dataset=path, **OPTIONS), out, 1)
    x, y = own_files.images()
    np.savez(path, x=255 - x, y=y)
    refused = edgefl("simulate", "--out", str(out), "--resume")
    assert refused.returncode == 2
    assert f"{path} has changed since this run began; restore the file" in refused.stderr


def test_a_share_of_held_out_samples_lies_between_0_and_1(tmp_path):
    for share in ("0", "1.5", "nan"):
        refused = edgefl("simulate", "--data", str(own_files.npz(tmp_path)), "--held-out", share)
        assert (refused.returncode, f"more than 0 and less than 1, or a file, got {share}" in refused.stderr) == (2, True)


@pytest.mark.parametrize("method", ["heterofl", "flanc"])
def test_two_recurrent_layers_on_own_tokens_train_and_are_exported(tmp_path, method):
    draws = np.random.default_rng(0)
    np.savez(tmp_path / "own.npz", x=draws.integers(0, 80, (60, 5)), y=np.arange(60) % 3)
    options = {**OPTIONS, "model": "lstm-shakespeare", "method": method, "tiers": (1.0, 0.5), "rounds": 1}
    found = simulate(RunConfig(dataset=tmp_path / "own.npz", **options), tmp_path / "run")
    assert [row["macs_forward_onnx"] for row in found.summary["tiers"]] == [row["macs_forward"] for row in found.summary["tiers"]]
    assert edgefl("verify", str(tmp_path / "run" / "bundle")).returncode == 0
