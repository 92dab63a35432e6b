"""The queue of the papers' runs: what is due, what is stored, and what a kill, a full disk or a cut line leave behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from paper_entries import TABLES, entry_of, figures_of, queue_in, stored, table_at
from tool_modules import TOOLS, on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

from edgefl.errors import StorageError


def store():
    return tool_of("papers.store")


def named(name, scale, cell):
    """Return the run of a cell."""
    (run,) = (run for run in table_at(name, scale).runs if run.name(name) == cell)
    return run


def job_of(folder, run, table="factorized", **changes):
    (job,) = queue_in(folder, **changes).jobs(table, [run])
    return job


DIGITS = "factorized/FedAvg/IID, permuted/0"


def shortened(rounds):
    """Return a run with personal classifiers, so that clients keep something between rounds."""
    run = named("factorized", "quick", DIGITS)
    return replace(run, settings={**run.settings, "rounds": rounds, "eval_every": rounds, "local_epochs": 1, "data_share": 0.3})


@pytest.fixture
def short():
    return shortened(3)


def test_finished_runs_are_not_trained_again_and_changed_ones_are(tmp_path):
    runs = table_at("spectral", "quick").runs
    entries = stored("spectral", "quick")
    queue = queue_in(tmp_path)
    store().save(tmp_path / "spectral.jsonl", {"quick": entries})
    assert queue.runs("spectral") == []
    first = next(place for place, entry in enumerate(entries) if runs[0].is_stored_as(entry))
    entries[first]["settings"]["rounds"] += 1
    store().save(tmp_path / "spectral.jsonl", {"quick": entries})
    assert [job.run for job in queue.runs("spectral")] == [runs[0]]
    entries[first] = {**entry_of(runs[0]), "inputs": "0" * 16}
    store().save(tmp_path / "spectral.jsonl", {"quick": entries})
    assert [job.run for job in queue.runs("spectral")] == [runs[0]]
    assert len(store().load(tmp_path / "spectral.jsonl")["quick"]) == len(runs), "stale runs stay until they are repeated"


def test_runs_begin_when_their_trials_are_there(tmp_path):
    queue = queue_in(tmp_path, "smoke")
    table = table_at("pfedpara", "smoke")
    assert queue.runs("pfedpara") == []
    trials = [job.run for job in queue.trials("pfedpara")]
    assert len(trials) == 2 * len(table.runs)
    entries = [entry_of(trial) for trial in trials if (trial.row, trial.column) == ("FedPer", "2 classes")]
    store().save(tmp_path / "pfedpara.jsonl", {"smoke": entries})
    assert [job.run.name("pfedpara") for job in queue.runs("pfedpara")] == ["pfedpara/FedPer/2 classes/0"]
    assert len(queue.trials("pfedpara")) == len(trials) - 2


def test_other_seeds_are_added_beside_the_stored_ones(tmp_path):
    path = tmp_path / "spectral.jsonl"
    store().save(path, {"quick": stored("spectral", "quick")})
    more = queue_in(tmp_path, seeds=(0, 7)).runs("spectral")
    rows = sorted({run.row for run in table_at("spectral", "quick").runs})
    assert sorted((job.run.row, job.run.seed) for job in more) == [(row, 7) for row in rows]
    for job in more:
        store().add(path, "quick", entry_of(job.run))
    assert "seeds 0, 1, 2, 7" in tool_of("paper_tables").rendered("spectral", store().load(path))


def test_a_seed_of_all_rows_is_finished_before_the_next_and_the_longest_runs_start_first(tmp_path):
    for name in TABLES:
        runs = [job.run for job in queue_in(tmp_path).runs(name)]
        assert runs == sorted(runs, key=lambda run: (run.seed, -run.work))


def test_only_selects_runs_by_name_and_the_trials_they_need(tmp_path):
    queue = queue_in(tmp_path, "smoke", only=("pfedpara/FedPer/2 classes/0",))
    assert {(job.run.row, job.run.column) for job in queue.trials("pfedpara")} == {("FedPer", "2 classes")}
    queue = queue_in(tmp_path, "smoke", only=("flanc/FLANC/3 classes a client/0",))
    assert {(job.run.row, job.run.column) for job in queue.trials("flanc")} == {("FLANC", "IID")}, "tuned on another column"
    queue = queue_in(tmp_path, only=("spectral/uniform/*/2", "spectral/spectral/IID/0"))
    names = [job.run.name("spectral") for job in queue.runs("spectral")]
    assert names == ["spectral/spectral/IID/0", "spectral/uniform/IID/2"]
    store().save(tmp_path / "spectral.jsonl", {"quick": stored("spectral", "quick")})
    assert queue.runs("spectral") == []
    assert [job.run.name("spectral") for job in replace(queue, repeat=True).runs("spectral")] == names


def test_a_cell_that_shares_the_run_of_another_row_is_selected_by_either_name(tmp_path):
    queue = queue_in(
        tmp_path, "full", only=("flanc/HeteroFL, unmasked loss/IID/0", "flanc/HeteroFL, unmasked loss/3 classes a client/1")
    )
    assert queue.of_known_runs().only == ("flanc/HeteroFL/IID/0", "flanc/HeteroFL, unmasked loss/3 classes a client/1")


def test_files_do_not_depend_on_which_run_ended_first(tmp_path):
    entries = stored("prism", "smoke")
    store().save(tmp_path / "a.jsonl", {"smoke": entries})
    store().save(tmp_path / "b.jsonl", {"smoke": entries[::-1]})
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


def test_a_run_replaces_the_older_one_of_its_cell_and_a_trial_only_itself(tmp_path):
    path = tmp_path / "pfedpara.jsonl"
    entries = stored("pfedpara", "smoke")
    store().save(path, {"smoke": entries})
    for entry in (entries[0], entries[-1]):
        store().add(path, "smoke", {**entry, "commit": "new"})
    found = store().load(path)["smoke"]
    assert len(found) == len(entries)
    assert sum(entry.get("commit") == "new" for entry in found) == 2


def add_many(path, first):
    run = table_at("spectral", "quick").runs[0]
    for seed in range(first, first + 20):
        store().add(path, "quick", entry_of(run.at_seed(seed)))


def test_processes_that_add_at_the_same_time_lose_nothing(tmp_path):
    path = tmp_path / "spectral.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_many, args=(path, first)) for first in (0, 100)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(store().load(path)["quick"]) == 40


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda line: line[: len(line) // 2],
            r"t\.jsonl, line 2: not a whole line of JSON .*; delete the line, and the queue repeats",
        ),
        (lambda line: "[1]", r"t\.jsonl, line 2: got '\[1\]', expected a JSON object"),
        (lambda line: line.replace('"quick"', '"slow"'), r"line 2: scale: got 'slow', expected one of full, quick, smoke"),
        (lambda line: line.replace('"seed": ', '"seed_": ', 1), r"line 2: seed: got None, expected a int"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, damage, message):
    path = tmp_path / "t.jsonl"
    store().save(path, {"quick": stored("spectral", "quick")[:3]})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], damage(lines[1]), lines[2]]))
    with pytest.raises(store().ResultsError, match=message):
        store().load(path)


def test_a_run_gives_every_figure_that_tables_read(tmp_path):
    run = named("factorized", "smoke", "factorized/FedAvg/IID/0")
    found = tool_of("papers.training").figures({**run.settings, "lr": 0.02}, run.local, tmp_path)
    expected = figures_of(run)
    assert found.keys() == expected.keys()
    assert found["tiers"]["1"].keys() == expected["tiers"]["1"].keys()
    clients, rounds = run.config.clients, run.config.rounds
    costs = found["tiers"]["1"]
    assert found["total"]["download_bytes"] == costs["download_bytes"] * clients * rounds
    assert 0 <= found["local_accuracy"] <= 1
    assert 0 <= found["local_accuracy_after"] <= 1  # FedAvg's clients too, each with the model that it has trained
    assert found["evaluated"] == 360
    assert json.loads(json.dumps(found)) == found


def test_trials_are_evaluated_on_validation_samples(tmp_path):
    trial = table_at("factorized", "smoke").trials([])[0]
    assert tool_of("papers.training").figures(trial.settings, trial.local, tmp_path)["evaluated"] == 142


def test_a_client_that_did_not_train_stops_the_run_and_is_the_result_of_a_trial(tmp_path):
    run = table_at("factorized", "smoke").trials([])[0]
    settings = {**run.settings, "lr": 1e30, "batch_size": 2}
    with pytest.raises(RuntimeError, match=r"round 1, client 0: diverged: its loss is not finite"):
        tool_of("papers.training").figures(settings, False, tmp_path / "run")
    ended = tool_of("papers.jobs").finish(job_of(tmp_path, replace(run, settings=settings), scale="smoke"))
    assert ended.status == "stored"
    assert ended.entry["figures"] == {"score": None, "diverged": "round 1, client 0: diverged: its loss is not finite"}
    ended = tool_of("papers.jobs").finish(job_of(tmp_path, replace(run, settings=settings, kind="run"), scale="smoke"))
    assert (ended.status, ended.job.folder.exists()) == ("failed", False)


def test_settings_with_which_a_whole_run_diverges_give_way_to_the_next_best(tmp_path, monkeypatch):
    jobs, table = tool_of("papers.jobs"), table_at("pfedpara", "full")
    first = table.runs[0]

    begun = []

    def diverges(job):
        begun.append(job.run.seed)
        raise tool_of("papers.training").DivergedError("round 2, client 3: diverged")

    monkeypatch.setattr(jobs, "_probed", diverges)
    for trial, score in zip(table.tuning.trials(first), (0.8, 0.7, 0.9), strict=True):
        entry = entry_of(trial)
        entry["figures"]["score"] = score
        store().add(tmp_path / "pfedpara.jsonl", "full", entry)

    def chosen():
        entries = store().load(tmp_path / "pfedpara.jsonl")["full"]
        return table.resolved(entries)[first.row, first.column]

    assert chosen().settings["lr"] == 0.1
    for rate in (0.03, 0.01):
        run = chosen()
        for seed in (0, 1):  # the second is not begun
            ended = jobs.finish(job_of(tmp_path, run.at_seed(seed), scale="full", table="pfedpara"))
            assert (ended.status, ended.job.folder.exists()) == ("diverged", False)
        assert chosen().settings["lr"] == rate
    assert begun == [0, 0]
    assert chosen().chosen["validation"][2] == {"lr": 0.1, "accuracy": None}
    assert jobs.finish(job_of(tmp_path, first, scale="full", table="pfedpara")).status == "failed", "its settings were not chosen"


def test_a_run_stops_when_time_is_over_and_resumes_to_the_same_figures(tmp_path, short):
    jobs, training = tool_of("papers.jobs"), tool_of("papers.training")
    late, ready = job_of(tmp_path / "a", short, until=1.0), job_of(tmp_path / "a", short)
    for round_ in (1, 2):
        with pytest.raises(training.OutOfTimeError, match=f"stopped after round {round_} of 3"):
            training.figures(short.settings, short.local, late.folder / "run", late.until)
    ended = jobs.finish(late)
    assert (ended.status, ended.text) == ("out of time", "not begun")
    ended, whole = jobs.finish(ready), jobs.finish(job_of(tmp_path / "b", short))
    assert ended.status == whole.status == "stored"
    assert ended.entry["figures"] == whole.entry["figures"]
    assert ended.cpu_s > 0
    assert not ended.job.folder.exists()
    (entry,) = store().load(tmp_path / "a" / "factorized.jsonl")["quick"]
    assert {key: entry[key] for key in ("commit", "host")} == {"commit": "0000000", "host": {"processor": "none"}}
    assert entry["inputs"] == late.inputs
    assert entry["cpu_s"] > 0


def test_a_full_disk_leaves_what_a_run_has(tmp_path, short, monkeypatch):
    jobs = tool_of("papers.jobs")
    job = job_of(tmp_path, short)

    def full(*_):
        raise StorageError("x: no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr(jobs.store, "add", full)
        assert jobs.finish(job).status == "full disk"
    assert (job.folder / "run" / "checkpoints").is_dir()
    assert jobs.finish(job).status == "stored"


def test_a_queue_without_time_says_what_is_left(tmp_path, monkeypatch, capsys):
    module, jobs = tool_of("papers.queue"), tool_of("papers.jobs")
    monkeypatch.setattr(module, "train_all", lambda due, at_once, nice: map(jobs.finish, due))
    assert module.train(queue_in(tmp_path, until=1.0), ["spectral", "factorized"])
    assert capsys.readouterr().out == "spectral: time is over, and 12 of 12 runs are left; the same command resumes\n"


def test_a_queue_trains_the_trials_of_a_grown_grid_before_the_runs(tmp_path, monkeypatch):
    module, jobs, rates = tool_of("papers.queue"), tool_of("papers.jobs"), []

    def ends(due, at_once, nice):
        for job in due:
            entry = entry_of(job.run)
            if job.run.kind == "trial":
                rates.append(job.run.settings["lr"])
                entry["figures"]["score"] = 1 - abs(job.run.settings["lr"] - 1)
            else:
                assert job.run.settings["lr"] == 1.0
            store().add(job.results / f"{job.table}.jsonl", job.scale, entry)
            yield jobs.Ended(job, "stored", "50.0 %", 1.0, entry)

    monkeypatch.setattr(module, "train_all", ends)
    only = ("fedpara-pooled/FedPara/IID/0",)
    assert module.train(queue_in(tmp_path, "full", only=only), ["fedpara-pooled"])
    assert rates == [0.1, 0.03, 0.3, 0.01, 1.0, 3.0]
    assert [entry["kind"] for entry in store().load(tmp_path / "fedpara-pooled.jsonl")["full"]].count("run") == 1


def test_two_queues_do_not_train_the_same_run(tmp_path, short):
    jobs = tool_of("papers.jobs")
    job = job_of(tmp_path, short)
    with store().claimed(job.folder) as ours:
        assert ours
        assert jobs.finish(job).status == "elsewhere"
    assert jobs.finish(job).status == "stored"


def test_failures_are_said_and_the_others_stored(tmp_path, monkeypatch, capsys):
    queue, module = queue_in(tmp_path), tool_of("papers.queue")
    jobs = tool_of("papers.jobs")

    def ends(due, at_once, nice):
        first, second, *_ = due
        store().add(first.results / f"{first.table}.jsonl", first.scale, entry_of(first.run))
        yield jobs.Ended(first, "stored", "50.0 %", 1.0, entry_of(first.run))
        yield jobs.Ended(second, "failed", "NotTrainedError: diverged")

    monkeypatch.setattr(module, "train_all", ends)
    assert not module.train(queue, ["spectral"])
    assert len(store().load(tmp_path / "spectral.jsonl")["quick"]) == 1
    said = capsys.readouterr()
    assert "/0: NotTrainedError: diverged" in said.err
    assert "/0: 50.0 %, 1 processor seconds" in said.out


QUEUE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_paper_queue import job_of, shortened
from papers.jobs import train_all
for ended in train_all([job_of(Path(sys.argv[1]), shortened(12))], 1, True):
    print(ended.status, ended.text)
"""


def command(folder):
    return [sys.executable, "-c", QUEUE, str(folder), str(TOOLS), str(Path(__file__).parent)]


def wait_until(met, seconds=120.0):
    end = time.monotonic() + seconds
    while not met() and time.monotonic() < end:
        time.sleep(0.05)
    assert met()


def test_a_killed_queue_leaves_no_process_and_resumes_to_the_same_figures(tmp_path):
    queue = subprocess.Popen(command(tmp_path), start_new_session=True, stdout=subprocess.DEVNULL)
    wait_until(lambda: sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("work/*/run/rounds.jsonl")) >= 2)
    os.kill(queue.pid, signal.SIGKILL)
    queue.wait()

    def no_process_is_left():
        try:
            os.killpg(queue.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(no_process_is_left)
    assert not (tmp_path / "factorized.jsonl").exists()
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == "stored", done.stdout
    (resumed,) = store().load(tmp_path / "factorized.jsonl")["quick"]
    run = shortened(12)
    assert tool_of("papers.training").figures(run.settings, run.local, tmp_path / "whole") == resumed["figures"]


def test_a_repeated_run_says_whether_its_figures_are_the_same(tmp_path):
    said, jobs = tool_of("papers.queue")._said, tool_of("papers.jobs")
    run = table_at("spectral", "quick").runs[0]
    before, job = entry_of(run), job_of(tmp_path, run, "spectral")
    ended = jobs.Ended(job, "stored", "50.0 %", 2.0, before)
    assert said(ended, []) == f"{run.name('spectral')}: 50.0 %, 2 processor seconds"
    assert said(ended, [before]).endswith("; the same figures as stored")
    other = {**before, "figures": {**before["figures"], "samples": 61}}
    assert said(ended, [other]).endswith("; other figures than stored before")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--only", "flanc/FLANC/IID"), "--only: got 'flanc/FLANC/IID', expected table/row/column/seed"),
        (("--table", "flanc,nothing"), "no table nothing; there are flanc, "),
        (("--smoke", "--write"), "--smoke gives no figures for a page"),
        (("--engine", "auto"), "give inline, pool or group"),
        (("--max-hours", "0"), "--at-once and --max-hours must be positive"),
        (("--max-hours", "nan"), "--at-once and --max-hours must be positive"),
        (("--seeds", "0,x"), "argument --seeds: got '0,x', expected whole numbers separated by commas"),
        (("--before", "."), "--before: got ., expected a checkout of this repository, and --confirm beside it"),
        (("--confirm", "--before", "nowhere"), "--before: got nowhere, expected a checkout"),
        (
            ("--only", "fedpara/FedAvg, equal byte/IID/0"),
            "no run 'fedpara/FedAvg, equal byte/IID/0'; did you mean 'fedpara/FedAvg, equal bytes/IID/0'?\nrows of fedpara: ",
        ),
        (("--only", "fedpara/*/IID/9", "--list"), "\ncolumns of fedpara: IID\nseeds of fedpara: 0; 1; 2\n"),
    ],
)
def test_wrong_options_are_refused(options, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["paper_tables.py", *options])
    with pytest.raises(SystemExit) as stopped:
        tool_of("paper_tables").main()
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
