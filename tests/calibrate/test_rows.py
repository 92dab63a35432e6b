"""Profiles fitted to steps that were measured elsewhere: what the file may have, and one message for each fault."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from edgefl.cli.main import group
from edgefl.contrib.calibrate.rows import costs_of, read_rows, values_from
from edgefl.errors import ConfigError, InputError
from edgefl.fleet.load import load_device
from edgefl.records.work import KINDS

HEADER = "network,batch,seconds"


def written(folder, *lines):
    path = folder / "steps.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_counts_of_work_are_read_from_their_columns(tmp_path):
    path = written(tmp_path, "batch,seconds,product_macs,update_bytes", "8,0.5,1000,20", "8,0.25,400,")
    rows = read_rows(path)
    assert [(row.measured.work.product_macs, row.measured.work.update_bytes, row.measured.seconds) for row in rows] == [
        (1000, 20, 0.5),
        (400, 0, 0.25),
    ]


def test_with_rows_enough_each_kind_has_a_cost_of_its_own(tmp_path):
    # 2 ns a MAC and 1 ns a byte: 25, 70 and 143 ns.
    lines = "1,25e-9,10,5", "1,70e-9,10,50", "1,143e-9,70,3"
    path = written(tmp_path, "batch,seconds,product_macs,update_bytes", *lines)
    costs, mark, how = costs_of(read_rows(path), load_device("low-end-phone").model_copy(update=without_table()), path)
    assert mark == "measured"
    found = dict(zip(KINDS, costs, strict=True))
    assert (found["product_macs"], found["update_bytes"]) == pytest.approx((2e-9, 1e-9), rel=1e-6)
    assert how == "3 rows, a cost for each kind"


def without_table():
    compute = load_device("low-end-phone").compute
    return {"compute": compute.model_copy(update={"training_step": None})}


def test_fewer_rows_scale_the_costs_of_a_similar_device(tmp_path):
    pi = load_device("raspberry-pi-5")
    seconds = pi.compute.training_step.seconds
    macs, update = (seconds[KINDS.index(kind)] for kind in ("product_macs", "update_bytes"))
    path = written(tmp_path, "batch,seconds,product_macs,update_bytes", f"1,{2 * (1e9 * macs + 1e6 * update)},1000000000,1000000")
    costs, mark, how = costs_of(read_rows(path), pi, path)
    assert mark == "derived"
    assert costs == pytest.approx([2 * cost for cost in seconds], rel=1e-6)
    assert how == "1 rows, fewer than 2 kinds of work: raspberry-pi-5's costs, 0.5 times as fast"
    values = values_from(path, "x", "wifi-pi5", pi)
    assert values["compute"]["training_step"]["product_ps_per_mac"]["mark"] == "derived"
    assert values["compute"]["training_step"]["error"]["value"] >= pi.compute.training_step.error.value
    with pytest.raises(
        InputError, match=r"1 rows of steps, expected at least 2, one for each kind of work in them; or give --like"
    ):
        costs_of(read_rows(path), load_device("low-end-phone").model_copy(update=without_table()), path)


def test_the_share_that_remains_after_minutes_of_load_is_the_median(tmp_path):
    lines = "8,1,1.25,1000", "8,2,4,3000", "8,3,,9000", "8,4,4.4,20000"  # 0.8, 0.5 and 0.909
    path = written(tmp_path, "batch,seconds,sustained_seconds,product_macs", *lines)
    values = values_from(path, "x", "wifi-pi5", load_device("raspberry-pi-5"))
    assert values["thermal"]["sustained_share"]["value"] == 0.8
    assert values["thermal"]["sustained_share"]["mark"] == "measured"
    assert values["thermal"]["burst_s"]["mark"] == "assumed"


FAULTS = {
    "network,seconds\nmlp,1": "no column batch; got network, seconds",
    "x,y\n1,2": "no column network and no column batch and no column seconds; got x, y",
    "": "no column network and no column batch and no column seconds; got an empty file",
    HEADER: "no rows below the header",
    f"{HEADER}\nresnet81,8,1": "line 2: unknown model 'resnet81'; did you mean 'resnet18'",
    f"{HEADER}\nmlp,8,0": "line 2: seconds: expected a number above 0, got '0'",
    f"{HEADER}\nmlp,8,-1": "line 2: seconds: expected a number above 0, got '-1'",
    f"{HEADER}\nmlp,8,nan": "line 2: seconds: expected a number above 0, got 'nan'",
    f"{HEADER}\nmlp,2.5,1": "line 2: batch: expected a whole number, got '2.5'",
    f"{HEADER}\nmlp,8": "line 2: seconds: expected a number above 0, got ''",
    f"{HEADER}\n{'m' * 200_000},8,1": "steps.csv: cannot be read as a table: field larger than field limit",
    f"{HEADER},tier\nmlp,8,1,0": "line 2: a tier lies in (0, 1], got 0",
    f"{HEADER},tier\nmlp,8,1,2": "line 2: a tier lies in (0, 1], got 2",
    f"{HEADER},tier\nmlp,8,1,abc": "line 2: tier: expected a number of at least 0, got 'abc'",
    f"{HEADER},classes\nmlp,8,1,2.5": "line 2: classes: expected a whole number, got '2.5'",
    f"{HEADER}\n\n\nmlp,8,x": "line 4: seconds: expected a number above 0, got 'x'",
    f"{HEADER}\nmlp,8,9e14": "are seconds in seconds, and counts those of one step?\n  compute.training_gmacs_per_s: expected a value of",
    "batch,seconds,update_bytes\n8,1,1000": "no step has MACs, which give training_gmacs_per_s",
    "batch,seconds,packed_weights\n8,1,5": "line 2: raspberry-pi-5 spends no time on such work",
    f"{HEADER},phase\nmlp,8,1,backward": "line 2: phase: expected step or forward, got 'backward'",
    f"{HEADER},phase\nmlp,8,1,forward": "no row has the phase step: training cannot be fitted to inferences",
    f"{HEADER}\n,8,1": "line 2: no network and no work: fill in a column such as network or product_macs",
    f"{HEADER}\nmlp,8,1\nmlp,16,2\nmlp,8,3.1": "lines 2 and 4 contradict each other: mlp takes 1 s and 3.1 s, more than 3 times",
}


@pytest.mark.parametrize("content", FAULTS)
def test_a_fault_is_one_message(content, tmp_path):
    path = written(tmp_path, content) if content else tmp_path / "steps.csv"
    path.touch()
    done = CliRunner().invoke(
        group, ["calibrate", "--from", str(path), "--like", "raspberry-pi-5", "--out", str(tmp_path / "x.toml")]
    )
    assert isinstance(done.exception, InputError), done.output
    assert FAULTS[content] in str(done.exception)
    assert done.exception.exit_code == 2
    assert not (tmp_path / "x.toml").exists()


def test_a_file_of_steps_gives_a_profile_that_other_commands_take(tmp_path):
    path = written(tmp_path, HEADER, "mlp,16,0.05", "cnn-digits,16,0.5")
    out = tmp_path / "phone.toml"
    done = CliRunner().invoke(group, ["calibrate", "--from", str(path), "--like", "raspberry-pi-5", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert load_device(str(out)).compute.training_step is not None
    assert load_device(str(out)).link.name == load_device("raspberry-pi-5").link.name


def test_a_fitted_profile_has_the_title_that_is_given(tmp_path):
    path, out = tmp_path / "steps.csv", tmp_path / "meter.toml"
    path.write_text("product_macs,batch,seconds\n1000000000,1,2.0\n")
    words = ["calibrate", "--from", str(path), "--like", "raspberry-pi-4", "--out", str(out)]
    assert CliRunner().invoke(group, [*words, "--title", "Meter of the garage"]).exit_code == 0
    device = load_device(str(out))
    assert device.title == "Meter of the garage"
    assert (device.power_error, load_device("raspberry-pi-4").power_error) == (3.0, 1.5)
    refused = CliRunner().invoke(group, [*words, "--title", " "])
    assert isinstance(refused.exception, ConfigError)
    assert "title: got none, expected a device's name for people" in str(refused.exception)
