"""What is measured of edgefl's speed: bare loops that do the same work, rounds, growth, peers, and the pages made of it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from unittest.mock import patch
from xml.etree import ElementTree

import pytest
import torch
from tool_modules import TOOLS, on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

from edgefl.models.base import Architecture


def same_as_reference(model, shape):
    """The chain of layers of the bare loops with the weights of edgefl's own network, and that network."""
    network = Architecture(model, shape, 10, "none").build()
    chain = tool_of("speed.loops").sequential_network(model, shape, 10)
    with torch.no_grad():
        for ours, theirs in zip(chain.parameters(), network.parameters(), strict=True):
            ours.copy_(theirs)
    return chain, network


@pytest.mark.parametrize(("model", "shape"), [("cnn-tiny", (1, 28, 28)), ("cnn-5x5", (1, 28, 28)), ("cnn-digits", (1, 8, 8))])
def test_bare_loops_train_the_networks_of_edgefl(model, shape):
    chain, network = same_as_reference(model, shape)
    x = torch.randn(3, *shape)
    torch.testing.assert_close(chain(x), network(x))


@pytest.mark.parametrize(("model", "shape"), [("cnn-tiny", (1, 28, 28)), ("cnn-5x5", (1, 28, 28)), ("cnn-digits", (1, 8, 8))])
def test_bare_loops_do_the_same_steps(model, shape):
    """Flat buffers and grouped clients are other ways to write the plain loop; partial batches and odd numbers of clients included."""
    loops = tool_of("speed.loops")
    chain, _ = same_as_reference(model, shape)
    clients = [(torch.randn(40, *shape), torch.randint(10, (40,))) for _ in range(3)]
    found = {}
    for kind in ("sequential", "flat", "grouped"):
        loop = loops.LOOPS[kind](copy.deepcopy(chain))
        loop.at_once = 2
        weights = loop.weights()
        sums = [torch.full_like(w, 7.0) for w in weights]
        with patch.object(torch, "randperm", lambda n: torch.arange(n).flip(0)):
            assert loop.train(clients, weights, sums) == 120
        found[kind] = torch.cat([part.flatten() for part in sums]) / 120
    start = torch.cat([p.detach().flatten() for p in chain.parameters()])
    assert (found["sequential"] - start).abs().max() > 1e-3
    for kind in ("flat", "grouped"):
        torch.testing.assert_close(found[kind], found["sequential"], rtol=1e-4, atol=1e-5)


def test_rounds_are_measured_against_bare_loops_of_the_same_work(tmp_path, monkeypatch):
    """Figures are not judged: tests are not timed. On digits, where all of it works without any file."""
    tool, out = tool_of("rounds"), tmp_path / "rounds.json"
    monkeypatch.setattr(tool, "LOOP_KINDS", ("processes",))
    monkeypatch.setattr(tool, "WARM_UP", 1)  # the rounds of which memory is sampled
    options = ["--work", "T", "--runs", "1", "--rounds", "1", "--data-dir", str(tmp_path), "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["rounds.py", *options])
    tool.main()
    found = json.loads(out.read_text())
    (work,) = found["works"]
    assert [entry["contestant"] for entry in work["contestants"]] == ["processes", "fedavg"]
    for entry in work["contestants"]:
        (run,) = entry["runs"]
        assert run["dataset"] == "digits"
        assert run["samples"] == [6_000]
        assert len(run["rounds_s"]) == 1
        assert min(run["startup_s"], run["first_s"], entry["server_bytes"]) > 0
        assert run["accuracy"] > 0.2
    (row,) = found["rows"]
    assert row["case"] == "T: edgefl ÷ processes"
    assert row["figure"] > 0
    assert "| T, two processes |" in tool_of("speed.tables").rounds_markdown(found)


def test_growth_is_of_the_networks_that_it_says():
    growth = tool_of("growth")
    for params, model in growth.MODELS.items():
        work, changes = growth.point_of("parameters", params)
        skeleton = Architecture(work.model, (1, 28, 28), 10, changes["norm"]).skeleton()
        assert (model, params) == (work.model, sum(p.numel() for p in skeleton.parameters()))
    assert set(growth.AXES["parameters"].full) == set(growth.MODELS)
    assert growth.point_of("tiers", 8)[1]["tiers"][-1] == 0.76


def grown(axis, *points):
    sizes = {"server_bytes": 10**8, "worker_bytes": 0, "workers": 0, "macs": 10**9}
    return [{"axis": axis, "value": value, "seconds": s, "server_s": own, **sizes} for value, s, own in points]


def test_growth_is_held_to_its_bars():
    rows_of = tool_of("growth").rows_of
    linear = rows_of(grown("clients", (10, 0.5, 0.1), (100, 1.0, 0.2), (1000, 12.0, 2.0)))
    assert [(row["figure"], row["bar"]) for row in linear] == [(1.2, 1.1)]
    flat = rows_of(grown("population", (10**3, 1.0, 0.1), (10**6, 1.05, 0.1)))
    assert [row["figure"] for row in flat] == [1.05, 1.0]
    network = rows_of(grown("parameters", (20_490, 0.1, 0.01), (582_026, 9.0, 0.1), (11_172_810, 99.0, 1.0)))
    assert [row["figure"] for row in network] == [pytest.approx(10 * 582_026 / 11_172_810, abs=1e-6)]
    assert rows_of(grown("tiers", (1, 1.0, None), (2, 1.5, None)))[0]["case"].endswith("adds to seconds")
    assert rows_of(grown("tiers", (1, 1.0, 1.0))) == []


def rounds_found(ours_s=1.2, others=0.0):
    def entry(name, s):
        run = {"dataset": "fashion-mnist", "rounds_s": [s] * 10, "first_s": s, "startup_s": 1, "others": others, "accuracy": 0.8}
        return {
            "contestant": name,
            "runs": [{**run, "macs": [10**9] * 13}] * 2,
            "server_bytes": 10**8,
            "worker_bytes": 5 * 10**7,
            "workers": 2,
        }

    loops = [entry("sequential", 2.0), entry("processes", 1.0), entry("flat", 0.9), entry("grouped", 0.8)]
    here = {"cores": 2, "system": "Linux x86_64", "python": "3.11.7", "torch": "2.13.0+cpu"}
    return {"commit": "abc", "machine": here, "works": [{"work": "T", "contestants": [*loops, entry("fedavg", ours_s)]}]}


def peer_line(name, seconds, foreign_s=0.0, **more):
    fields = {"contestant": name, "scenario": "T", "round_med": seconds, "wall_s": 10.0, "foreign_s": foreign_s}
    return json.dumps({**fields, "mem_run": False, "startup_s": 1.0, **more})


def test_peers_are_compared_within_their_own_runs(tmp_path):
    peers, tables = tool_of("speed.peers"), tool_of("speed.tables")
    path = tmp_path / "peers.jsonl"
    lines = [peer_line("floor-2proc", 0.1), peer_line("pfl-2p", 0.5), peer_line("flower", 0.4), peer_line("edgefl", 0.4)]
    lines += [
        peer_line("pfl-2p", 9.0, foreign_s=9.0),
        peer_line("fluke", 0.01, failed=True),
        peer_line("pfl-2p", 0.01, mem_run=True),
    ]
    path.write_text("\n".join(lines))
    runs = peers.load_peers(path)
    text = tables.speed_markdown(rounds_found(), runs)
    ratios = "**1.50 (two, grouped, ≤ 1.05)** | 0.500 (pfl-2p) | 0.400 | 0.80 (≤ 0.8) | 0.20 (floor-2proc)"
    assert text.splitlines()[-1].endswith(f"| 2 | 1 | 0.900 | 0.800 | 1.2 | {ratios} |")
    without = [run for run in runs if run["contestant"] != "edgefl"]
    assert tables.speed_markdown(rounds_found(), without).endswith("| 0.500 (pfl-2p) | 0.400 | – | 0.20 (floor-2proc) |")
    assert tables.speed_markdown(rounds_found(), []).endswith("| – | – | – | – |")
    assert peers.load_peers(tmp_path / "none.jsonl") == []
    path.write_text(f'{lines[0]}\n{{"contestant": "pfl"}}\n')
    with pytest.raises(ValueError, match=r"peers.jsonl, line 2: not a run of peerbench"):
        peers.load_peers(path)


def test_what_a_method_takes_for_a_mac():
    tables, found = tool_of("speed.tables"), rounds_found(ours_s=1.0)
    plain = found["works"][0]["contestants"][-1]
    slower = [{**run, "rounds_s": [0.6] * 10, "macs": [5 * 10**8] * 13} for run in plain["runs"]]
    found["works"][0]["contestants"] = [plain, {**plain, "contestant": "fedhm", "runs": slower}]
    assert "| fedhm | 100.0 | 0.600 | 0.5 | **1.20** |" in tables.methods_markdown(found)
    rows = tool_of("speed.ratios").rows_of(found)
    assert [(row["case"], row["figure"], row["bar"]) for row in rows] == [
        ("T, fedhm: seconds a MAC ÷ FedAvg's", pytest.approx(1.2), 1.15)
    ]


@pytest.fixture
def pages(tmp_path):
    """Copies of the pages, and an empty folder of results."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "docs/speed.md").write_text((TOOLS.parent / "docs/speed.md").read_text())
    return tmp_path


def bench_on(pages, *options):
    command = [sys.executable, str(TOOLS / "bench.py"), "--no-run", "--pages", str(pages), "--results", str(pages / "results")]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_pages_are_written_from_stored_figures_and_held_to_them(pages):
    results, stored = pages / "results", tool_of("speed.stored")
    assert bench_on(pages, "--write").returncode == 0
    assert (pages / "docs/speed.md").read_text().count("Not measured yet") == 7
    stored.write(results / "rounds.jsonl", rounds_found())
    points = [*grown("clients", (10, 0.5, 0.1), (100, 1.0, None)), *grown("tiers", (1, 1.0, 1.0), (2, 1.0, 1.0))]
    grown_found = {**rounds_found(), "points": points, "rows": tool_of("growth").rows_of(points)}
    stored.write(results / "growth.jsonl", grown_found)
    slow = {"rows": [{"case": "1, 0.5: later rounds", "seconds": 0.4, "ratio": 90.0}]}
    stored.write(results / "factorization.jsonl", slow)
    peers = pages / "peerbench.jsonl"
    peers.write_text(peer_line("pfl-2p", 0.5))
    stopped = bench_on(pages, "--check", "--peers", str(peers))
    assert "not what the stored figures give; --write replaces it" in stopped.stderr
    assert bench_on(pages, "--write").returncode == 0
    assert "≤ 1.05)** | 0.500 (pfl-2p) |" in (pages / "docs/speed.md").read_text()
    speed = (pages / "docs/speed.md").read_text()
    assert "| 1, 0.5: later rounds, s | 0.40 | ≤ 0.5 |" in speed
    assert "| 1, 0.5: later rounds, times as fast | **90.00** | ≥ 100 |" in speed
    assert "| clients: 100 | 1 | – | 1.0 | 100 | – |" in speed
    assert speed.count("Not measured yet") == 3
    plot = ElementTree.parse(pages / "docs/growth.svg").getroot()
    assert len(plot.findall("{http://www.w3.org/2000/svg}g")) == 2
    assert bench_on(pages, "--check").returncode == 0
    (pages / "docs/growth.svg").unlink()
    assert "growth.svg: not what the stored figures give" in bench_on(pages, "--check").stderr


def test_figures_are_shown_as_shares_of_their_bars():
    rows = [
        {"case": "a", "figure": 1.2, "bar": 2},
        {"case": "b", "figure": 0.5, "bar": 1, "at_least": True},
        {"case": "c", "figure": 9},
    ]
    assert tool_of("speed.cases").bar_shares({"rows": rows}) == {"a": 0.6, "b": 2.0}
    case = tool_of("speed.cases").SPEED["growth"]
    assert case.verdict(1, 1, {"a": 0.6, "b": 2.0}) == "≤ 1: **met by 1 of 2**, at most 2.00 (b)"
    assert case.verdict(1, 1, {}) == ""


def test_processor_time_is_a_target_of_its_own():
    case = tool_of("speed.cases").COMMANDS["export-resnet18"]
    assert (case.verdict(99, 1, {}, 13.9), case.verdict(1, 1, {}, 14.1)) == ("< 14 CPU s: met", "< 14 CPU s: **missed**")


def test_peers_that_are_none_are_refused(pages):
    empty = pages / "empty.jsonl"
    empty.write_text("")
    assert "--peers: " in bench_on(pages, "--write", "--peers", str(pages / "absent.jsonl")).stderr
    assert "no run that came to its end" in bench_on(pages, "--write", "--peers", str(empty)).stderr
    assert not (pages / "results" / "peers.jsonl").exists()


def test_the_pages_are_what_the_stored_figures_give():
    done = subprocess.run(
        [sys.executable, str(TOOLS / "bench.py"), "--no-run", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_contestant_that_fails_says_why():
    with pytest.raises(RuntimeError, match="--point nothing:1.*status 2\n(.|\n)*nothing"):
        tool_of("speed.child").run_child(["growth.py", "--point", "nothing:1", "--rounds", "1"])


def test_a_case_that_fails_leaves_the_others(tmp_path, capsys, monkeypatch):
    bench, cases = tool_of("bench"), tool_of("speed.cases")
    run = tool_of("speed.process").Run(1, 1, 10**8)
    monkeypatch.setitem(cases.CASES, bench.BASELINE, cases.Case("torch", lambda: run))
    monkeypatch.setitem(cases.CASES, "growth", cases.Case("fails", cases.Rows("no_such_tool.py"), figure_target=1))
    found = bench.measure(["growth"], 2, tmp_path)
    assert {name: len(done) for name, done in found.items()} == {bench.BASELINE: 2}
    assert "no_such_tool.py" in capsys.readouterr().err


def test_a_whole_job_is_held_to_its_bars(monkeypatch):
    """The first run of each fills caches and does not count; figures are medians of turns."""
    tool, played = tool_of("whole_job"), []
    times = iter([(9.0, 9.0)] * 3 + [(2.0, 1.0), (3.0, 2.0), (2.5, 4.0)] * 3)
    monkeypatch.setattr(tool, "import_torch", lambda: tool.Run(seconds=2.0, cpu_s=2.0, peak_bytes=0))
    monkeypatch.setattr(tool, "around", lambda changes, data_dir: played.append(changes) or next(times))
    rows = list(tool.starts_and_ends(3, None))
    assert [(row["figure"], row["bar"]) for row in rows] == [(1.25, 1.4), (1.0, 1.5), (2.0, 2.7), (4.0, pytest.approx(5.1))]
    assert [changes.get("bundle") for changes in played[:3]] == [False, None, None]
    jobs = iter([(20.0, 25.0), (12.0, 20.0), (30.0, 30.0), (15.0, 20.0), (22.0, 20.0), (10.0, 25.0)])
    monkeypatch.setattr(tool, "job", lambda command, folder, home: tool.Run(*next(jobs), peak_bytes=0))
    rows = list(tool.first_run(3))
    assert [row["figure"] for row in rows] == [25.0, 1.0, 20.0, 0.6]


def test_a_run_says_when_its_rounds_began_and_ended(tmp_path):
    """A real run, on digits: the processes' start is before its first round, and its end after the last one."""
    start_s, end_s = tool_of("whole_job").around({"bundle": False, "eval_samples": 50}, str(tmp_path))
    assert start_s > 0.1
    assert end_s > 0
