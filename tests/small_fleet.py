"""Fleets written for a test, in which every figure can be chosen and the others are round, and small runs of them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgefl import RunConfig
from edgefl.engine.inline import InlineEngine
from edgefl.records import Expected, RoundRecord
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.server.client_store import ClientStore
from edgefl.server.forecast import Asked
from edgefl.server.state import ServerState

_DEVICE = {
    "total_bytes": 2e9, "training_bytes": 1e9, "inference": 2, "inference_single_thread": 1, "training": 0.5,
    "idle_w": 0.25, "load_w": 3, "energy_pj_per_mac": 400,
}  # fmt: skip
_LINK = {
    "download_mbps": 8, "upload_mbps": 4, "rtt_ms": 50, "download_nj_per_byte": 100, "upload_nj_per_byte": 300, "spread_sigma": 0,
}  # fmt: skip
_BEHAVIOUR = {
    "eligible_share": 0.25, "day_night_ratio": 4, "peak_hour": 3, "drop_out": 0, "interrupted": 0, "response_sigma": 0,
    "over_selection": 1,
}  # fmt: skip


def _figure(key: str, value: float) -> str:
    return f'{key} = {{ value = {value!r}, mark = "assumed", source = "made for a test" }}\n'


def write_device(folder: Path, name: str, **figures: Any) -> Path:
    """Write a device with a link of its own; keys of both, and ``battery_wh``, ``burst_s``, ``sustained_share``, may be given.

    A key that is None is left out.
    """
    values = {key: value for key, value in {**_DEVICE, **_LINK, **figures}.items() if value is not None}

    def table(*keys: str) -> str:
        return "".join(_figure(key, values[key]) for key in keys if key in values)

    rates = "".join(_figure(f"{key}_gmacs_per_s", values[key]) for key in ("inference", "inference_single_thread", "training"))
    thermal = f"[thermal]\n{table('burst_s', 'sustained_share')}" if "burst_s" in values else ""
    power = table("idle_w", "load_w", "energy_pj_per_mac", "battery_wh")
    power = power and f"[power]\n{power}"
    path = folder / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\ntitle = "{name}"\nreference_hardware = "none"\n'
        f"[memory]\n{table('total_bytes', 'training_bytes')}[compute]\n{rates}"
        f"{power}{thermal}"
        f'[link]\nname = "{name} link"\ntitle = "its link"\n{table(*_LINK, "session_sigma", "network_nj_per_byte")}'
    )
    return path


WITHOUT_ENERGY = dict.fromkeys(("idle_w", "load_w", "energy_pj_per_mac"))


def write_fleet(
    folder: Path,
    devices: dict[str, float],
    budget: str = "",
    behaviour: dict[str, float] | None = None,
    states: tuple[tuple[str, float, float, float], ...] = (),
) -> str:
    """Write a fleet of devices (file name → share) that are in ``folder``; states are name, chance, memory share, speed share."""
    classes = "".join(f'[[class]]\ndevice = "{name}.toml"\nshare = {share!r}\n' for name, share in devices.items())
    table = ""
    if behaviour is not None:
        table = "[behaviour]\n" + "".join(_figure(key, value) for key, value in {**_BEHAVIOUR, **behaviour}.items())
    for name, chance, memory, speed in states:
        table += f'[[state]]\nname = "{name}"\nchance = {chance!r}\nmemory_share = {memory!r}\nspeed_share = {speed!r}\n'
        table += 'mark = "assumed"\nsource = "made for a test"\n'
    path = folder / "fleet.toml"
    mix = '[mix]\nmark = "assumed"\nsource = "made for a test"\n'
    path.write_text(f'name = "small"\ntitle = "Small"\n{mix}[budget]\n{budget}\n{classes}{table}')
    return str(path)


def small(profile: str, **keys: Any) -> Run:
    """Return a run of a small network on the digits that is ready to start."""
    chosen = {
        "method": "fedavg", "model": "mlp", "clients": 12, "per_round": 4, "local_epochs": 1, "rounds": 1, "partition": "dirichlet:2",
    }  # fmt: skip
    return prepare(RunConfig.of({**chosen, "profile": profile, **keys}))


def play(
    run: Run, state: ServerState | None = None, engine: bool = True, store: ClientStore | None = None
) -> tuple[ServerState, RoundRecord]:
    """Return what the server has after a round, and its record; without ``engine`` nobody trains."""
    inline = InlineEngine(run.clients) if engine else None
    return run.round(state or run.start(), inline, store or ClientStore(Path(tempfile.mkdtemp()) / "clients.sqlite"))


def expected(
    run: Run,
    clients: Iterable[int] = range(12),
    turn: int = 1,
    start_s: float = 0.0,
    drained_j: Mapping[int, float] | None = None,
) -> list[Expected]:
    """Return what is expected of each of ``clients`` in round ``turn``."""
    asked = Asked(np.array(list(clients), np.int64), turn, start_s)
    return list(run.forecast.expected(asked, drained_j or {}))


def expected_by_client(run: Run, *asked: Any, **options: Any) -> dict[int, Expected]:
    """Return the same by client."""
    return {session.client: session for session in expected(run, *asked, **options)}
