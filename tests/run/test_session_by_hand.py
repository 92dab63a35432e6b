"""Seconds and joules of three sessions and of their months, worked out here from the text of profiles alone, and as commands print them."""

from __future__ import annotations

import html
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from made_whatif import outcome_with, whatif_with
from small_fleet import write_device, write_fleet

from edgefl.report.month_table import month_table

SAMPLE_MACS = (64 * 256 + 256 * 10) + (64 * 256 + 256 * 10) + 256 * 10
"""Of an MLP of 64, 256 and 10 units: forward, to the weights, and to the hidden units; the input needs no gradient."""
EPOCHS = 5
_OTHER_MACS = (
    "convolution", "pointwise", "grouped", "recurrent", "convolution_backward", "pointwise_backward", "grouped_backward",
)  # fmt: skip


def by_hand(profile: dict[str, Any], samples: int, down_bytes: int, up_bytes: int) -> dict[str, float]:
    """Return the seconds and joules of a session; the arithmetic is that of docs/fleet.md and docs/energy.md, and nothing else."""
    link, power = profile["link"], profile["power"]
    macs = EPOCHS * samples * SAMPLE_MACS
    costs = profile["compute"].get("training_step")
    full_rate_s = (
        macs * costs["product_ps_per_mac"]["value"] / 1e12
        if costs
        else macs / (profile["compute"]["training_gmacs_per_s"]["value"] * 1e9)
    )
    train_s = full_rate_s
    if "thermal" in profile and full_rate_s > profile["thermal"]["burst_s"]["value"]:
        burst_s = profile["thermal"]["burst_s"]["value"]
        train_s = burst_s + (full_rate_s - burst_s) / profile["thermal"]["sustained_share"]["value"]
    download_s = link["rtt_ms"]["value"] / 1000 + 8 * down_bytes / (link["download_mbps"]["value"] * 1e6)
    upload_s = link["rtt_ms"]["value"] / 1000 + 8 * up_bytes / (link["upload_mbps"]["value"] * 1e6)
    idle_w = power["idle_w"]["value"]
    if "load_w" in power:
        train_j = power["load_w"]["value"] * train_s
    else:
        train_j = macs * power["energy_pj_per_mac"]["value"] / 1e12 + idle_w * train_s
    radio_j = down_bytes * link["download_nj_per_byte"]["value"] / 1e9 + up_bytes * link["upload_nj_per_byte"]["value"] / 1e9
    if "tail_s" in link:
        radio_j += link["tail_w"]["value"] * (min(link["tail_s"]["value"], train_s) + link["tail_s"]["value"])
    return {
        "download_s": download_s,
        "train_s": train_s,
        "upload_s": upload_s,
        "total_s": download_s + train_s + upload_s,
        "energy_j": train_j + idle_w * (download_s + upload_s) + radio_j,
    }


def write_three(folder: Path) -> Path:
    """Write a hot phone, a board with costs by kind and a radio that stays on, and a sensor without watts of training."""
    write_device(folder, "phone", training=0.05, load_w=5, burst_s=0.2, sustained_share=0.6)
    board = write_device(folder, "board", idle_w=1.5, load_w=6.25, upload_mbps=1.5)
    figure = '{{ value = {}, mark = "assumed", source = "made for a test" }}\n'.format
    zero = [f"{kind}_ps_per_mac" for kind in _OTHER_MACS]
    zero += [f"{kind}_ps_per_byte" for kind in ("grouped", "product", "normalization", "elementwise", "update", "input")]
    costs = "".join(f"{key} = {figure(0)}" for key in (*zero, "kernel_ns", "operation_us"))
    table = f"[compute.training_step]\nproduct_ps_per_mac = {figure(7000)}error = {figure(2)}{costs}"
    text = board.read_text().replace("[power]", f"{table}[power]")
    board.write_text(f"{text}tail_s = {figure(0.75)}tail_w = {figure(1.25)}")
    write_device(folder, "sensor", training=0.02, load_w=None, energy_pj_per_mac=60_000)
    return write_fleet(folder, {"phone": 0.3, "board": 0.4, "sensor": 0.3}, behaviour={})


def test_three_sessions_are_those_worked_out_by_hand_to_the_printed_digit(tmp_path, called):
    fleet = write_three(tmp_path)
    asked = {
        "--model": "mlp", "--method": "fedavg", "--clients": 3, "--per-round": 3, "--rounds": 1, "--conditions": "ideal", "--out": "run",
        "--local-epochs": EPOCHS, "--profile": fleet,
    }  # fmt: skip
    status, output, error = called("simulate", "--dry-run", *(str(word) for pair in asked.items() for word in pair))
    assert status == 0, error
    (line,) = (json.loads(text) for text in Path("run/rounds.jsonl").read_text().splitlines())
    assert {client["device"] for client in line["clients"]} == {"phone", "board", "sensor"}
    for client in line["clients"]:
        profile = tomllib.loads((tmp_path / f"{client['device']}.toml").read_text())
        expected = by_hand(profile, client["samples"], client["download_bytes"], client["upload_bytes"])
        assert {key: client[key] for key in expected} == pytest.approx(expected, rel=1e-12)
        assert f" {expected['energy_j']:.3g} J" in output, client["device"]


def test_a_month_of_rounds_is_that_of_the_sessions_by_hand_to_the_printed_digit(tmp_path, called):
    """Everybody takes part in each of 12 rounds a day: 360 sessions in 30 days, each with the bytes of the network and its header."""
    fleet = write_three(tmp_path)
    asked = {
        "--model": "mlp", "--method": "fedavg", "--clients": 3, "--per-round": 3, "--rounds": 24, "--conditions": "ideal",
        "--local-epochs": EPOCHS, "--profile": fleet,
    }  # fmt: skip
    words = [str(word) for pair in asked.items() for word in pair]
    assert called("simulate", "--dry-run", *words, "--out", "run")[0] == 0
    line = json.loads(Path("run/rounds.jsonl").read_text().splitlines()[0])
    status, output, error = called("whatif", *words, "--rounds-per-day", "12", "--json", "--out", "page.html")
    assert status == 0, error
    result, page = json.loads(output), html.unescape(Path("page.html").read_text()).replace("\xa0", " ")
    (row,) = result["rows"]
    table = month_table(whatif_with([outcome_with(**row)], titles=result["titles"]))
    assert table is not None
    printed = {cells[1]: cells for cells in table.rows}
    assert row["days"] == 2
    weights = 4 * (64 * 256 + 256 + 256 * 10 + 10)
    for client in line["clients"]:
        device = client["device"]
        profile = tomllib.loads((tmp_path / f"{device}.toml").read_text())
        down, up = client["download_bytes"], client["upload_bytes"]
        assert weights <= min(down, up) <= max(down, up) < 1.02 * weights
        session_j = by_hand(profile, client["samples"], down, up)["energy_j"]
        use = row["uses"][device]
        assert (use["sessions"], use["download_bytes"] + use["upload_bytes"]) == (24, 24 * (down + up))
        assert use["energy_j"] == pytest.approx(24 * session_j, rel=1e-12)
        # The page: the bytes of 360 sessions, and the joules of the twelve of a day.
        # Three figures, without the point of a whole number.
        told = [f"{figure:#.3g}".rstrip(".") for figure in (360 * (down + up) / 1e6, 12 * session_j)]
        told = [f"{figure} {unit}" for figure, unit in zip(told, ("MB", "J"), strict=True)]
        assert set(told) <= set(printed[device])
        assert all(f">{text}<" in page for text in told)
