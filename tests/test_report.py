"""The report room: tables in every format and the page of a run, whole, escaped, and sensible when there is little to show."""

import copy
import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs
from rich.console import Console
from rich.table import Table

from edgefl.errors import InputError, UnknownNameError
from edgefl.records import Outcome, RoundRecord, Shortfall, Tier, Timing
from edgefl.report import charts, html
from edgefl.report.tables import COST_COLUMNS, cost_table, tier_table, to_plain, to_rich

CLASSES = (
    ("flagship-phone", "Flagship phone", 0.15, 3, 1.0),
    ("mid-range-phone", "Mid-range phone", 0.45, 9, 0.5),
    ("low-end-phone", "Low-end phone", 0.3, 6, 0.25),
    ("micro-controller", "Micro-controller (Cortex-M4)", 0.1, 2, None),
)
SHORT = Shortfall("memory_bytes", 1_310_000, 640_000, "micro-controller", 0.25)
SECTIONS = [
    "Tiers and their costs",
    "Accuracy",
    "Cost per tier",
    "Budgets of the device classes",
    "Outcomes of clients",
    "Refusals",
    "Assumed figures",
]


def tier_row(tier: float, device: str, title: str, clients: int) -> dict[str, Any]:
    held = {"parameter_bytes": 154_000, "gradient_bytes": 154_000, "optimizer_bytes": 154_000}
    held = {key: int(value * tier) for key, value in held.items()}
    peak = int(1_920_000 * tier**0.7)
    return {
        "tier": Tier(tier).number,
        "device": device,
        "device_title": title,
        "clients": clients,
        "accuracy": 0.968 - 0.02 * (1 - tier),
        "torch_accuracy": 0.968 - 0.02 * (1 - tier),
        "params": int(38_442 * tier),
        "macs_forward": int(1_204_000 * tier),
        "macs_backward": int(2_310_000 * tier),
        "macs_compose": 0 if tier == 1 else 48_000,
        "macs_train_step": int(32 * 3_514_000 * tier) + (0 if tier == 1 else 48_000),
        "peak_activation_bytes_inference": peak // 3,
        "peak_activation_bytes_training": peak,
        "measured_peak_activation_bytes_training": None if tier == 0.5 else peak - 61_000,
        **held,
        "training_memory_bytes": sum(held.values()) + peak,
        "inference_memory_bytes": held["parameter_bytes"] + peak // 3,
        "download_bytes": int(155_392 * tier),
        "upload_bytes": int(155_392 * tier),
        "round_seconds": 71.2 * tier**0.1,
        "round_joules": 8.51 * tier,
        "budget_share": 0.62 + 0.3 * tier,
        "limiting_budget": "deadline_s",
        "uncounted_ops": [],
    }


def class_entry(device: str, title: str, share: float, clients: int, tier: float | None) -> dict[str, Any]:
    used = 0.2 if tier is None else 0.62 + 0.3 * tier
    budgets = [
        {"budget": "memory_bytes", "need": 6.4e5, "have": 2.56e7, "share": 0.025},
        {"budget": "deadline_s", "need": 80 * used, "have": 80.0, "share": used},
    ]
    refusals = [vars(SHORT)] if tier is None else []
    if tier not in (None, 1.0):
        refusals = [vars(Shortfall("deadline_s", 101.5, 80, device, 1.0))]
    return {
        "device": device,
        "title": title,
        "share": share,
        "clients": clients,
        "tier": tier,
        "budgets": [] if tier is None else budgets,
        "refusals": refusals,
        "assumed": ["compute.training_gmacs_per_s", "memory.app_bytes", "power.idle_w"],
    }


def make_summary() -> dict[str, Any]:
    return {
        "format": 1,
        "method": "fedhm",
        "model": "cnn-digits",
        "dataset": "digits",
        "fleet": "phone",
        "partition": "dirichlet:0.5",
        "seed": 0,
        "rounds": 30,
        "clients": 20,
        "per_round": 10,
        "batch_size": 32,
        "local_epochs": 2,
        "tier_assignment": "auto",
        "global_accuracy": 0.968,
        "simulated_s": 2136.0,
        "host_s": 41.7,
        "energy_j": 1204.2,
        "download_bytes": 21_400_000,
        "upload_bytes": 20_900_000,
        "edgefl_version": "0.1.0",
        "deadline_s": 80.0,
        "tiers": [tier_row(tier, device, title, n) for device, title, _, n, tier in CLASSES if tier is not None],
        "classes": [class_entry(*entry) for entry in CLASSES],
    }


def make_rounds(count: int = 30) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    devices = [(device, tier) for device, _, _, n, tier in CLASSES for _ in range(n)]
    records = []
    for number in range(1, count + 1):
        outcomes = []
        for client in sorted(rng.choice(len(devices), 10, replace=False).tolist()):
            device, tier = devices[client]
            if tier is None:
                outcomes.append(Outcome(client, device, "refused", refusal=(SHORT,)))
                continue
            status = "diverged" if rng.random() < 0.02 else "trained"
            sent = int(155_392 * tier)
            timing = Timing(4.1, 60 * tier**0.1, 7.1, 5.0, 2.0)
            outcomes.append(
                Outcome(client, device, status, Tier(tier), 70, 6, 0.3, timing, 9, sent, sent, None)  # type: ignore[arg-type]
            )
        best = 0.97 - 0.75 * np.exp(-number / 5) + 0.008 * rng.standard_normal()
        accuracy = {"global": float(best)} | {f"{t:g}": float(best - 0.03 * (1 - t)) for t in (1, 0.5, 0.25)}
        record = RoundRecord(number, tuple(outcomes), 71.2, 71.2 * number, accuracy if number % 2 == 0 else {}, 1.4)
        records.append(record.to_json())
    return records


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(make_summary()))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in make_rounds()))
    return folder
