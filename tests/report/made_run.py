"""A run of hand-made records: its summary, its rounds and its folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from client_records import client_record

from edgefl.records import RoundRecord, Shortfall, Tier, Timing, Totals

CLASSES = (
    ("flagship-phone", "Flagship phone", 0.15, 3, 1.0),
    ("mid-range-phone", "Mid-range phone", 0.45, 9, 0.5),
    ("low-end-phone", "Low-end phone", 0.3, 6, 0.25),
    ("micro-controller", "Micro-controller (Cortex-M4)", 0.1, 2, None),
)
SHORT = Shortfall("memory_bytes", 1_310_000, 640_000, "micro-controller", 0.25)
STAGES = {
    "server": {"wait": 30.0, "evaluate": 9.0, "report": 4.0, "<b>of a later version</b>": 1.0},
    "background": {"checkpoint": 2.0},
    "workers": {"1": {"train": 25.0}, "2": {"train": 24.0}},
}
SECTIONS = [
    "Accuracy",
    "Tiers and their costs",
    "Budgets of the device classes",
    "A round on the clock",
    "Who takes part",
    "Outcomes of clients",
    "Where this computer's time went",
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
        "params_inference": int(38_442 * tier),
        "macs_backward_input": int(1_106_000 * tier),
        "macs_backward_weight": int(1_204_000 * tier),
        "macs_drawn": None,
        "macs_inference": int(1_204_000 * tier),
        "elementwise_ops": 900,
        "elementwise_ops_backward": 700,
        "elementwise_ops_step": 100,
        "buffer_bytes": 0,
        "weights_bytes_inference": held["parameter_bytes"],
        "peak_gradient_bytes": held["gradient_bytes"],
        "peak_saved_bytes": peak,
        "peak_temporary_bytes": 0,
        "peak_layer_training": "conv1",
        "peak_layer_inference": "conv1",
        "batch_size": 32,
        "micro_batch": None,
        "measured_peak_activation_bytes_onnx": None,
        "macs_forward": int(1_204_000 * tier),
        "macs_backward": int(2_310_000 * tier),
        "macs_compose": 0 if tier == 1 else 48_000,
        "macs_train_step": int(32 * 3_514_000 * tier) + (0 if tier == 1 else 48_000),
        "peak_activation_bytes_inference": peak // 3,
        "peak_activation_bytes_training": peak,
        "measured_peak_activation_bytes_training": None if tier == 0.5 else peak - 61_000,
        "measured_training_memory_bytes": None if tier == 0.5 else sum(held.values()) + peak - 70_000,
        "measured_peak_activation_bytes_inference": peak // 3,
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
    refusals = [asdict(SHORT)] if tier is None else []
    if tier not in (None, 1.0):
        refusals = [asdict(Shortfall("deadline_s", 101.5, 80, device, 1.0))]
    return {
        "device": device,
        "title": title,
        "share": share,
        "clients": clients,
        "tier": tier,
        "micro_batch": None,
        "considered": [],
        "budgets": [] if tier is None else budgets,
        "refusals": refusals,
        "assumed": ["compute.training_gmacs_per_s", "memory.app_bytes", "power.idle_w"],
        "clock_error": 1.25,
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
        "objective": "none",
        "server_optimizer": "avg",
        "codec": "fp32",
        "permute_labels": False,
        "conditions": "fleet",
        "availability": "always",
        "start_hour": 0.0,
        "mode": "sync",
        "buffer": None,
        "enforce": "meter",
        "dynamic_devices": False,
        "over_selection": 1.3,
        "assumed": [],
        "accuracy_of": "global",
        "global_accuracy": 0.968,
        "simulated_s": 2136.0,
        "host_s": 41.7,
        "energy_j": 1204.2,
        "end_to_end_j": 1900.0,
        "waited_s": 0.0,
        "macs": 2_000_000_000,
        "download_bytes": 21_400_000,
        "upload_bytes": 20_900_000,
        "useful": {**asdict(Totals(280, 9, 20, 20, 1190.0, 1800.0, 900.0))},
        "wasted": {**asdict(Totals(2, 0, 0, 0, 14.2, 100.0, 12.0))},
        "edgefl_version": "0.1.0",
        "deadline_s": 80.0,
        "tiers": [tier_row(tier, device, title, n) for device, title, _, n, tier in CLASSES if tier is not None],
        "classes": [class_entry(*entry) for entry in CLASSES],
        "participation": [participation_entry(*entry) for entry in CLASSES],
        "host_stages": STAGES,
    }


def participation_entry(device: str, title: str, share: float, clients: int, tier: float | None) -> dict[str, Any]:
    trained = 0 if tier is None else 14 * clients
    return {
        "device": device,
        "title": title,
        "share": share,
        "clients": clients,
        "sessions": 15 * clients,
        "distinct": clients if trained else 0,
        "statuses": {"trained": trained, "refused": 15 * clients - trained},
        "useful": asdict(Totals(trained, 9, 20, 20, 10.0, 20.0, 30.0)),
        "wasted": asdict(Totals.of([])),
        "tier": tier,
        "accuracy": None if tier is None else 0.968 - 0.02 * (1 - tier),
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
                outcomes.append(client_record(client, device, "refused", samples=0, refusal=(SHORT,)))
                continue
            status = "diverged" if rng.random() < 0.02 else "trained"
            sent = int(155_392 * tier)
            timing = Timing(4.1, 60 * tier**0.1, 7.1, 5.0, 2.0)
            outcomes.append(
                client_record(client, device, status, Tier(tier), timing, macs=9, download_bytes=sent, upload_bytes=sent)
            )
        best = 0.97 - 0.75 * np.exp(-number / 5) + 0.008 * rng.standard_normal()
        accuracy = {"global": float(best)} | {f"{t:g}": float(best - 0.03 * (1 - t)) for t in (1, 0.5, 0.25)}
        record = RoundRecord(number, tuple(outcomes), 71.2, 71.2 * number, accuracy if number % 2 == 0 else {}, 1.4)
        records.append(json.loads(json.dumps(record.to_json())))
    return records


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(make_summary()))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in make_rounds()))
    return folder


ADDED = {
    "objective": "prox",
    "server_optimizer": "adam",
    "codec": "int8",
    "permute_labels": True,
    "macs": 9,
    "accuracy_of": "clients",
}
