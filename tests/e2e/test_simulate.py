"""Whole runs through the command line, as a user starts, kills, resumes and misuses them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from command import edgefl, flags_of
from runs import checkpoint_of, killed, lines_of, model_of, stopped_after

from edgefl import RunConfig, export, simulate, verify
from edgefl.errors import BudgetError, CheckpointError
from edgefl.onnxgrad.macs import macs_per_sample

SMALL = {"rounds": 3, "clients": 6, "per_round": 4, "local_epochs": 1, "seed": 3}
FLAGS = flags_of(SMALL)
TIER_KEYS = {
    "tier", "device", "accuracy", "params", "macs_forward", "macs_train_step", "peak_activation_bytes_inference",
    "peak_activation_bytes_training", "measured_peak_activation_bytes_training", "download_bytes", "upload_bytes", "round_seconds",
    "round_joules",
}  # fmt: skip


def in_a_process(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "edgefl.cli.main", *args], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    return simulate(RunConfig.of(SMALL), folder)


def test_a_run_folder_holds_everything(finished):
    names = {path.name for path in finished.folder.iterdir()}
    assert names == {
        "config.toml", "rounds.jsonl", "summary.json", "model.safetensors", "checkpoints", "bundle", "report.html",
        "hashes.json",
    }  # fmt: skip
    lines = lines_of(finished.folder)
    assert [line["round"] for line in lines] == [1, 2, 3]
    # 1.3 times those wanted, of those that are not still at work for the round before.
    assert all(4 <= len(line["clients"]) <= math.ceil(1.3 * 4) for line in lines)
    assert {"method", "model", "dataset", "seed", "rounds", "global_accuracy", "tiers"} <= finished.summary.keys()
    assert all(row.to_dict().keys() >= TIER_KEYS for row in finished.tiers)
    assert "http" not in (finished.folder / "config.toml").read_text()


def test_every_tier_is_exported_and_verifies(finished):
    report = verify(finished.folder / "bundle")
    assert list(report.max_abs_errors) == ["1", "0.5", "0.25"]
    manifest = json.loads((finished.folder / "bundle" / "manifest.json").read_text())
    for entry, row in zip(manifest["tiers"], finished.tiers, strict=True):
        assert entry["accuracy_onnx"] == row.accuracy
        assert entry["tier"] == row.tier


def test_inference_costs_of_a_manifest_are_those_of_its_file(finished):
    """Layers whose factors are multiplied out count as what they are in the file."""
    folder = finished.folder / "bundle"
    entries = json.loads((folder / "manifest.json").read_text())["tiers"]
    assert any(entry["composed_layers"] for entry in entries)
    for entry in entries:
        graph = onnx.load(folder / entry["forward"])
        floats = [tensor for tensor in graph.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
        values = sum(math.prod(tensor.dims) for tensor in floats)
        # The exporter writes group norms with a scale and a shift for each of their 4 groups more, of which there are 3.
        assert entry["costs"]["weights_bytes_inference"] == 4 * (values - 3 * 8)
        assert entry["params"] == values - 3 * 8
        assert entry["costs"]["macs_inference"] == macs_per_sample(graph)


def test_measured_costs_are_the_predicted_ones(finished):
    lines = lines_of(finished.folder)
    by_tier = {row.tier: row for row in finished.tiers}
    clients = [client for line in lines for client in line["clients"] if client["status"] == "trained"]
    assert clients
    for client in clients:
        row = by_tier[client["tier"]]
        assert client["download_bytes"] == row.download_bytes
        assert client["upload_bytes"] == row.upload_bytes
        # A client with fewer samples than a batch holds less; none holds more than was predicted.
        assert client["measured_peak_activation_bytes"] <= 1.01 * row.peak_activation_bytes_training


def test_a_round_closes_with_the_last_answer_that_it_waits_for(finished):
    lines = lines_of(finished.folder)
    clock_s = 0.0
    for line in lines:
        answers = sorted(client["total_s"] for client in line["clients"] if client["status"] == "trained")
        late = [client["total_s"] for client in line["clients"] if client["status"] == "late"]
        clock_s += line["round_s"]
        assert line["clock_s"] == clock_s
        if len(answers) == 4:
            assert line["round_s"] == answers[-1]
        assert all(seconds > line["round_s"] or seconds > line["deadline_s"] for seconds in late)


def test_under_ideal_conditions_a_round_is_its_slowest_client(tmp_path):
    for line in lines_of(stopped_after(RunConfig.of({**SMALL, "conditions": "ideal"}), tmp_path / "run", 3)):
        assert {client["status"] for client in line["clients"]} == {"trained"}
        assert line["round_s"] == max(client["total_s"] for client in line["clients"])
        assert len(line["clients"]) == 4


def test_the_written_configuration_gives_the_same_bits(finished, tmp_path):
    again = stopped_after(RunConfig.load(finished.folder / "config.toml", {}), tmp_path / "again", 3)
    assert last_of(again) == last_of(finished.folder)


def test_two_workers_give_the_same_bits_as_one(finished, tmp_path):
    pooled = stopped_after(RunConfig.of({**SMALL, "workers": 2}), tmp_path / "pool", 3)
    assert last_of(pooled) == last_of(finished.folder)
    assert lines_of(pooled) == lines_of(finished.folder)


def test_a_killed_run_resumes_to_the_same_bits(finished, tmp_path):
    folder = tmp_path / "killed"
    killed(folder, "round-*", "--workers=2", *FLAGS)
    resumed = edgefl("simulate", "--out", str(folder), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert model_of(folder) == model_of(finished.folder)
    assert lines_of(folder) == lines_of(finished.folder)
    # A second resume finds nothing to do and loses nothing.
    assert "complete" in edgefl("simulate", "--out", str(folder), "--resume").stderr


def last_of(folder: Path) -> str:
    """Return the name of the last checkpoint, which ends in its content's hash."""
    return checkpoint_of(folder, SMALL["rounds"]).name


def test_resuming_before_anything_was_written_starts_the_run(finished, tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    result = edgefl("simulate", "--out", str(folder), "--resume", *FLAGS)
    assert result.returncode == 2
    assert "exists and is not an empty folder" in result.stderr or "holds no config.toml" in result.stderr
    (folder / "checkpoints").rmdir()
    (folder / ".config.toml.x1").write_text("cut")
    result = edgefl("simulate", "--out", str(folder), "--resume", *FLAGS)
    assert result.returncode == 0, result.stderr
    assert model_of(folder) == model_of(finished.folder)
    assert not list(folder.glob(".*"))


def test_a_corrupt_checkpoint_falls_back_to_the_one_before_and_says_so(finished, tmp_path):
    folder = tmp_path / "run"
    stopped_after(RunConfig.of(SMALL), folder, 2)
    newest = max((folder / "checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    messages: list[str] = []
    stopped_after(RunConfig.of(SMALL), folder, 3, resume=True, notify=messages.append)
    assert f"{newest.name}: its SHA-256 differs from the one in its name" in messages[0]
    assert "falling back to the checkpoint before it" in messages[0]
    assert last_of(folder) == last_of(finished.folder)


def test_no_whole_checkpoint_is_an_error(tmp_path):
    folder = tmp_path / "run"
    stopped_after(RunConfig.of(SMALL), folder, 1)
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="no checkpoint is whole"):
        simulate(RunConfig.of(SMALL), folder, resume=True)


def test_a_torn_last_line_of_rounds_is_played_again(finished, tmp_path):
    folder = tmp_path / "run"
    stopped_after(RunConfig.of(SMALL), folder, 2)
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 3, "clie')
    stopped_after(RunConfig.of(SMALL), folder, 3, resume=True)
    assert lines_of(folder) == lines_of(finished.folder)


def test_resuming_with_another_configuration_names_the_key(finished):
    with pytest.raises(CheckpointError, match=r"configuration: lr was 0\.05, now 0\.1"):
        simulate(RunConfig.of({**SMALL, "lr": 0.1}), finished.folder, resume=True)
    result = edgefl("simulate", "--out", str(finished.folder), "--resume", "--seed", "4")
    assert result.returncode == 2
    assert "the run has seed = 3, got 4" in result.stderr


def test_a_folder_that_holds_a_run_is_left_alone(finished):
    before = model_of(finished.folder)
    result = edgefl("simulate", "--out", str(finished.folder), *FLAGS)
    assert result.returncode == 2
    assert "already holds a run; give another --out, or --resume" in result.stderr
    assert model_of(finished.folder) == before


def test_export_writes_the_same_bundle_again(finished, tmp_path):
    export(finished.folder, tmp_path / "bundle")
    for path in (finished.folder / "bundle").rglob("*.onnx"):
        twin = tmp_path / "bundle" / path.relative_to(finished.folder / "bundle")
        assert twin.read_bytes() == path.read_bytes()
    result = edgefl("verify", str(tmp_path / "bundle"))
    assert (result.returncode, result.stderr) == (0, "")
    target = tmp_path / "bundle" / "0.5" / "forward.onnx"
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    target.write_bytes(content)
    result = edgefl("verify", str(tmp_path / "bundle"))
    assert result.returncode == 2
    assert "0.5/forward.onnx" in result.stderr


def test_json_is_alone_on_standard_output(tmp_path):
    result = edgefl(
        "simulate", "--json", "--out", str(tmp_path / "run"), "--method=heterofl", "--tier-assignment=dynamic", *FLAGS
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["method"] == "heterofl"


def test_a_class_that_fits_nothing_is_refused_and_the_run_goes_on(tmp_path):
    config = RunConfig.of({**SMALL, "rounds": 2, "method": "fedavg", "clients": 8, "per_round": 8, "local_epochs": 5})
    lines = lines_of(stopped_after(config, tmp_path / "run", 2))
    refused = [c for line in lines for c in line["clients"] if c["status"] == "refused"]
    assert {c["device"] for c in refused} == {"mid-range-phone", "low-end-phone"}
    for client in refused:
        (reason,) = client["refusal"]
        assert reason["budget"] == "deadline_s"
        assert reason["need"] > reason["have"]
    trained = {c["device"] for line in lines for c in line["clients"] if c["status"] == "trained"}
    assert trained == {"flagship-phone"}


def test_nobody_fits_is_status_3_with_the_needs_and_nothing_written(tmp_path):
    result = edgefl("simulate", "--profile", "micro-controller", "--on-shortfall=tier", "--out", str(tmp_path / "run"), *FLAGS)
    assert result.returncode == 3
    assert "no device of the fleet fits any tier" in result.stderr
    assert "micro-controller cannot take tier 0.25: memory needs" in result.stderr
    assert not (tmp_path / "run").exists()
    with pytest.raises(BudgetError):
        simulate(RunConfig.of({**SMALL, "profile": "micro-controller", "on_shortfall": ("tier",)}), tmp_path / "run")


def test_a_round_in_which_everybody_diverges_leaves_the_model_as_it_was(tmp_path):
    result = simulate(RunConfig.of({**SMALL, "rounds": 1, "lr": 1e30, "conditions": "ideal"}), tmp_path / "run")
    (line,) = lines_of(result.folder)
    assert {c["status"] for c in line["clients"]} == {"diverged"}
    assert line["upload_bytes"] == 0


def with_small_files(limit_bytes, *arguments, **environment):
    """Call the command line where no file can be longer than ``limit_bytes``, as on a full disk."""
    script = (
        f"import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}));"
        "sys.argv = ['edgefl', *sys.argv[1:]]; from edgefl.cli.main import main; main()"
    )
    command = [sys.executable, "-c", script, *map(str, arguments)]
    kept = {"PYTHONDONTWRITEBYTECODE": "1"}  # or Python leaves compiled files of libraries that are cut
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **kept, **environment})


def test_a_full_disk_is_one_message_and_keeps_what_was_there(tmp_path):
    result = with_small_files(100_000, "simulate", "--out", tmp_path / "run", *FLAGS)
    assert result.returncode == 2
    assert "no space left on the device" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "run").rglob(".*"))


@pytest.mark.parametrize("limit_bytes", [1, 16_000])
def test_an_export_without_space_for_temporary_files_names_their_folder(limit_bytes, finished, tmp_path):
    (tmp_path / "full").mkdir()
    result = with_small_files(limit_bytes, "export", finished.folder, "--out", tmp_path / "out", TMPDIR=str(tmp_path / "full"))
    assert (result.returncode, result.stdout) == (2, "")
    (message,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert message == (
        f"Error: {tmp_path / 'full'}: no space left on the device for temporary files; free some, or set TMPDIR to another folder"
    )
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
    assert not list((tmp_path / "full").glob("edgefl-*"))


BAD_INPUT = [
    (["--profile", "phnoe"], "unknown profile 'phnoe'; did you mean 'phone'"),
    (["--method", "fedhn"], "unknown method 'fedhn'; did you mean 'fedhm'"),
    (["--model", "resnet188"], "unknown model 'resnet188'; did you mean 'resnet18'"),
    (["--dataset", "digit"], "unknown dataset 'digit'; did you mean 'digits'"),
    (["--rounds", "0"], "rounds must be at least 1, got 0"),
    (["--clients", "-3"], "clients must be at least 1, got -3"),
    (["--lr", "nan"], "lr must be "),
    (["--tiers", "1,1.5"], "tiers: a tier lies in (0, 1], got 1.5"),
    (["--tiers", "1,0"], "tiers: a tier lies in (0, 1], got 0"),
    (["--tiers", "0.5,1"], "tiers: expected each tier once, largest first: 1,0.5"),
    (["--tiers", "a"], "is not a list of numbers"),
    (["--per-round", "21"], "per_round: got 21, expected at most the 20 clients"),
    (["--partition", "dirichlet:0"], "partition: got 'dirichlet:0'"),
    (["--clients", "2000", "--per-round", "5"], "2000 clients cannot share 1437 samples"),
    (["--dataset", "fashion-mnist", "--data-dir", "/nowhere"], "/nowhere: no such folder"),
    (["--method", "fedavg", "--tiers", "1,0.5"], "fedavg trains one size only"),
    (["--model", "cnn-fashion"], "takes channels x height x width with sides of at least 10"),
    (["--engine", "inline", "--workers", "2"], "engine: inline has one worker"),
    (["--tier-assignment", "random"], "tier_assignment must be 'auto', 'uniform' or 'dynamic'"),
    (["--resume"], "--resume needs --out"),
    (["--config", "missing.toml"], "missing.toml: no such file"),
]


@pytest.mark.parametrize(("flags", "message"), BAD_INPUT, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_status_2_with_one_message_and_nothing_written(flags, message, tmp_path):
    out = tmp_path / "run"
    arguments = flags if "--resume" in flags else [*flags, "--out", str(out)]
    result = edgefl("simulate", *arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = = 3\n", "run.toml, line 1: not valid TOML"),
        ("seed = 1\nround = 3\n", "run.toml: round: unknown key; did you mean 'rounds'"),
        ("seed = 'a'\n", "run.toml: seed must be a whole number"),
        (
            "[method_options]\nfrobenius = 1\n",
            "method_options.frobenius: fedhm has no such option; did you mean 'frobenius_decay'",
        ),
        ("[method_options]\nfrobenius_decay = -1\n", "method_options.frobenius_decay"),
    ],
)
def test_a_bad_configuration_file_names_file_and_key(text, message, tmp_path):
    (tmp_path / "run.toml").write_text(text)
    result = edgefl("simulate", "--config", "run.toml", "--out", str(tmp_path / "run"), cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_flags_win_over_the_file(tmp_path):
    (tmp_path / "run.toml").write_text("seed = 1\nrounds = 7\n")
    config = RunConfig.load(tmp_path / "run.toml", {"seed": 2})
    assert (config.seed, config.rounds) == (2, 7)


def test_help_is_quick_and_a_misspelt_command_is_named():
    in_a_process("--help")  # compiles what is not compiled yet
    started = time.perf_counter()
    result = in_a_process("--help")
    assert time.perf_counter() - started < 2  # the aim is 0.5 s on an idle machine; this catches an import of torch
    assert "simulate" in result.stdout
    result = edgefl("simulat")
    assert result.returncode == 2
    assert "did you mean 'simulate'" in result.stderr


def test_classes_that_fit_no_tier_are_named_in_the_terminal(called):
    status, out, _ = called(
        "simulate", "--method", "fedavg", "--deadline-s", "1", "--rounds", "1", "--eval-samples", "20", "--out", "run"
    )
    summary = json.loads(Path("run/summary.json").read_text())
    without = [item["title"] for item in summary["classes"] if item["tier"] is None]
    assert status == 0
    assert without
    line = next(line for line in out.splitlines() if "no tier" in line)
    assert all(title in line for title in without)
    assert line.startswith("Add a tier below 1, or a method that has smaller tiers")


def test_clients_that_diverge_are_named_in_the_terminal(called):
    status, out, _ = called("simulate", "--lr", "1e9", "--rounds", "1", "--eval-samples", "20", "--out", "run")
    assert status == 0
    assert "Lower the learning rate (--lr), or limit changes with --clip-norm" in out
