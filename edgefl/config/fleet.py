"""Keys of the fleet, its conditions, and what a client that lacks memory does."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from edgefl.config.field import Count, Keys, Seconds, key, known_call
from edgefl.registry import samplers
from edgefl.util.datasets import data_spec

FLEET = "Fleet and conditions"
"""Heading of these keys in the command line's help."""


def _once(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or len(set(words)) != len(words):
        raise ValueError(f"expected some of idle, charging, unmetered, each once, got {', '.join(words) or 'none'}")
    return words


def _trace(given: Any) -> Any:
    return data_spec(given, ["always", "daily"]) if isinstance(given, (str, Path)) else given


Remedy = Literal["micro-batch", "recompute", "tier", "refuse", "send"]


def _steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    if not steps or len(set(steps)) != len(steps) or {"send", "refuse"} & set(steps[:-1]):
        raise ValueError(f"expected each step once, and refuse or send last, got {', '.join(steps) or 'none'}")
    return steps


def _sampler(text: str) -> str:
    known_call(samplers, text, "power-of-choice(candidates=20)")
    return text


class FleetKeys(Keys):
    """Keys of the fleet, its conditions, and what a client that lacks memory does."""

    conditions: Literal["fleet", "ideal"] = key(
        "fleet", FLEET, "fleet: links vary and sessions are lost; ideal: no losses, delays or batteries."
    )
    over_selection: float | None = key(
        None, FLEET, "Clients selected per wanted update. [the profile's own; ideal: 1]", ge=1, le=10
    )
    sampler: Annotated[str, AfterValidator(_sampler)] = key(
        "uniform",
        "",
        "Whom the server asks, of the eligible clients: uniform, fresh (each once before any twice), power-of-choice, oort or tifl, with "
        "options such as power-of-choice(candidates=20).",
        "NAME(option=X)",
    )
    deadline_s: Seconds | None = key(
        None,
        FLEET,
        "Longest session, such as 2min, or simulated seconds; also a budget of the tiers. [the profile's own]",
        "TIME",
    )
    clock_margin: float = key(
        1.0,
        FLEET,
        "Assign tiers as if training took X times the predicted seconds; the simulated clock does not change.",
        ge=1,
        le=100,
    )
    availability: Annotated[str, BeforeValidator(_trace)] = key(
        "always",
        FLEET,
        "When clients are eligible: always, by the hour of the day, or by a trace (CSV, Parquet: client, from, to, state).",
        "always|daily|FILE",
    )
    eligible_when: Annotated[tuple[Literal["idle", "charging", "unmetered"], ...], AfterValidator(_once)] = key(
        ("idle", "charging", "unmetered"),
        FLEET,
        "Device states that a trace must show for a client to be eligible; for daily, only charging counts.",
        "idle,charging",
    )
    start_hour: float = key(0.0, FLEET, "Hour of the day at which the simulated clock starts.", ge=0, lt=24)
    dynamic_devices: bool = key(
        False, FLEET, "Free memory, speed and tiers of devices change each round. [static]", switch="--static-devices"
    )
    mode: Literal["sync", "async"] = key(
        "sync", FLEET, "The server steps after each round, or (async, FedBuff) after --buffer updates."
    )
    buffer: Count | None = key(None, FLEET, "Updates per server step in mode async. [half of --per-round]")
    staleness_power: float = key(0.5, FLEET, "In mode async, updates s steps old weigh 1/(1 + s)^X.", ge=0)
    enforce: Literal["plan", "meter", "hard"] = key(
        "meter", FLEET, "Memory is predicted (plan), metered in training (meter), or limited in a process per client (hard)."
    )
    on_shortfall: Annotated[tuple[Remedy, ...], AfterValidator(_steps)] = key(
        ("micro-batch", "tier"),
        FLEET,
        "Remedies to try if a tier does not fit: micro-batch (smaller passes), recompute (activations again, in the backward pass), tier "
        "(a smaller one). Last: refuse (the default) or send (train anyway).",
        "micro-batch,tier",
    )
