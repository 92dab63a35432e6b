"""Hand-made costs of tiers and of their layers, on two devices."""

from dataclasses import replace
from typing import Any

from edgefl.records import LayerCost
from edgefl.report.cost_rows import ProfileRow, TensorBytes


def layer(name: str, kind: str, params: int, macs: tuple[int, int, int, int], held: tuple[int, int]) -> LayerCost:
    return LayerCost(
        layer=name,
        kind=kind,
        params=params,
        parameter_bytes=4 * params,
        macs_forward=macs[0],
        macs_backward_input=macs[1],
        macs_backward_weight=macs[2],
        macs_compose=macs[3],
        elementwise_ops=64,
        elementwise_ops_backward=32,
        elementwise_ops_step=params,
        saved_bytes_at_peak=held[0],
        temporary_bytes_at_peak=held[1],
    )


def tier_row(tier: float, layers: list[LayerCost] | None = None, **more: Any) -> ProfileRow:
    """Return the costs of a tier whose totals are the sums over its layers, as those of a counted network are."""
    if layers is None:
        size = int(1000 * tier)
        layers = [
            layer("body", "Block", 0, (0, 0, 0, 0), (4096, 0)),
            layer("body.conv", "Conv2d", size, (9 * size, 0, 9 * size, 0), (8192, 2048)),
            layer("body.conv.v", "Conv2d", size, (4 * size, 4 * size, 4 * size, 0), (1024, 0)),
            layer("fc", "Linear", 50, (50, 50, 50, 0), (0, 0)),
            layer("(loss)", "", 0, (0, 0, 0, 777), (0, 128)),
        ]
    keys = [key for key in vars(layers[0]) if key not in ("layer", "kind", "work")]
    total = {key: sum(getattr(item, key) for item in layers) for key in keys}
    saved, temporary = total.pop("saved_bytes_at_peak"), total.pop("temporary_bytes_at_peak")
    weights = total["parameter_bytes"]
    tensors = [
        TensorBytes(f"{item.layer}.weight", (item.params,), 4 * item.params, item.params) for item in layers if item.params
    ]
    back = total["macs_backward_input"] + total["macs_backward_weight"]
    figures = {
        "tier": tier,
        "method": "fedhm",
        "model": "cnn",
        "batch_size": 32,
        "micro_batch": 8,
        "optimizer": "momentum",
        "codec": "fp32",
        **total,
        "params_inference": total["params"],
        "macs_inference": total["macs_forward"],
        "macs_backward": back,
        "macs_train_step": 32 * (total["macs_forward"] + back) + 4 * total["macs_compose"],
        "peak_activation_bytes_inference": 6144,
        "peak_activation_bytes_training": saved + temporary,
        "buffer_bytes": 16,
        "gradient_bytes": weights,
        "optimizer_bytes": weights,
        "training_memory_bytes": 3 * weights + 16 + saved + temporary,
        "weights_bytes_inference": weights + 16,
        "inference_memory_bytes": weights + 16 + 6144,
        "peak_gradient_bytes": weights,
        "peak_saved_bytes": saved,
        "peak_temporary_bytes": temporary,
        "peak_layer_training": "body.conv",
        "peak_layer_inference": "body",
        "download_bytes": weights + 200,
        "upload_bytes": weights // 4 + 200,
        "header_bytes": 200,
        "upload_header_bytes": 200,
        "formula_bytes": weights,
        "layers": tuple(layers),
        "tensors": tuple(tensors),
    }
    return ProfileRow(**figures | more)


def make_rows() -> list[ProfileRow]:
    return [tier_row(1), tier_row(0.5, uncounted_ops=("Erf", "Einsum")), tier_row(0.25)]


def on_devices() -> list[ProfileRow]:
    """Return rows on two devices: a board that takes the middle tier, and a chip that takes none."""
    times = {"inference": 0.021, "train_step": 5.3, "epoch": 80.2, "round": 92.0}
    figures: dict[str, Any] = {f"{name}_{unit}": value for name, value in times.items() for unit in ("seconds", "joules")}
    figures |= {"round_seconds_low": 76.0, "round_seconds_high": 112.0, "clock_error": 1.25, "inference_by_macs": True}
    rows = []
    for device, title in (("pi-4", "Raspberry Pi 4"), ("chip", "Micro-controller")):
        for row in make_rows():
            fits = device == "pi-4" and row.tier < 1
            budget = {"limiting_budget": "deadline_s" if device == "pi-4" else "memory_bytes", "budget_share": 1.2 * row.tier}
            found = {"samples": 250, "local_epochs": 2, "fits": fits, **budget, "takes": fits and row.tier == 0.5}
            rows.append(replace(row, device=device, device_title=title, **figures | found))
    return rows
