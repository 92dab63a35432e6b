"""Short runs of fleets that are made up: late clients, nights, batteries, traces and tiny devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runs import lines_of

from edgefl import RunConfig
from edgefl.util.files import shared

SMALL: dict[str, Any] = {
    "method": "fedavg", "model": "mlp", "rounds": 3, "clients": 8, "per_round": 3, "local_epochs": 1, "data_share": 0.25, "eval_every": 3,
    "seed": 1,
}  # fmt: skip
ASYNC: dict[str, Any] = {"mode": "async", "per_round": 4, "buffer": 2}
TIERS = {"tiers": (1.0, 0.5)}
# A session of this network takes a phone about 0.2 s: some clients leave in the midst of one, and then all wait for half an hour.
_STRETCHES = [(c, begin, end) for c in range(8) for begin, end in ((0, 0.17 + 0.05 * c), (1800, 3000))]
TRACE = (
    "client,from,to,state\n" + "".join(f"{c},{begin},{end:g},eligible\n" for c, begin, end in _STRETCHES) + "0,3600,3601,none\n"
)


def figure(value: float) -> str:
    return f'{{ value = {value}, mark = "assumed", source = "made up for a test" }}'


def device(folder: Path, name: str, like: str, **changed: float) -> str:
    """Write a device as ``like``, some figures changed, and return its path beside the fleet."""
    text = (shared("profiles") / "devices" / f"{like}.toml").read_text(encoding="utf-8")
    lines = [f'name = "{name}"' if line.startswith("name =") else line for line in text.splitlines()]
    for key, value in changed.items():
        (place,) = [i for i, line in enumerate(lines) if line.startswith(f"{key} =")]
        lines[place] = f"{key} = {figure(value)}"
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"./{name}.toml"


def fleet(folder: Path, name: str, *classes: tuple[str, float], more: str = "") -> str:
    """Write a fleet of (device, share) and return its path."""
    parts = [f'name = "{name}"\ntitle = "{name}"\n[mix]\nmark = "assumed"\nsource = "made up for a test"\n']
    parts += [f'[[class]]\ndevice = "{path}"\nshare = {share}\n' for path, share in classes]
    (folder / f"{name}.toml").write_text("\n".join(parts) + more, encoding="utf-8")
    return str(folder / f"{name}.toml")


def sessions_of(folder: Path) -> list[dict[str, Any]]:
    return [client for line in lines_of(folder) for client in line["clients"]]


def battery_fleet(folder: Path) -> str:
    # A session takes about 0.02 J: of 0.1 J a client gives away from nothing to 0.08 J a day.
    return fleet(folder, "weak", (device(folder, "weak-phone", "low-end-phone", battery_wh=0.1 / 3600), 1.0))


def trace_file(folder: Path) -> str:
    (folder / "trace.csv").write_text(TRACE, encoding="utf-8")
    return str(folder / "trace.csv")


STOPPED: dict[str, dict[str, Any]] = {
    "a buffer, two sizes": {**ASYNC, **TIERS, "method": "heterofl"},
    "a buffer, personal factors": {**ASYNC, "method": "pfedpara", "rounds": 4},
    "a buffer, networks drawn for each client": {**ASYNC, "method": "splitmix", "tiers": (1.0, 0.25)},
    "a buffer, server momentum": {**ASYNC, "server_optimizer": "avgm", "objective": "prox"},
    "a buffer, changes of factors": {
        **ASYNC,
        "method": "fedhm",
        "model": "cnn-digits",
        "method_options": {"aggregation": "residual"},
    },
    "a buffer and nights": {**ASYNC, "availability": "daily", "start_hour": 22, "clients": 30, "deadline_s": 1},
    "a buffer and a trace": {**ASYNC, "availability": trace_file, "rounds": 5},
    "nights": {"availability": "daily", "start_hour": 12, "per_round": 4},
    "a trace": {"availability": trace_file, "rounds": 4},
    "devices that change": {**TIERS, "method": "heterofl", "dynamic_devices": True, "tier_assignment": "dynamic"},
    "batteries": {"profile": battery_fleet, "rounds": 5, "over_selection": 1, "per_round": 5},
    "late clients": {"over_selection": 2.5, "rounds": 4},
}


def config_of(values: dict[str, Any], folder: Path) -> RunConfig:
    return RunConfig.of({**SMALL, **{key: value(folder) if callable(value) else value for key, value in values.items()}})
