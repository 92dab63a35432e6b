"""Keys of the fleet, its conditions, and of this computer."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from edgefl.config.field import Count, Keys, Seconds, key, known, known_call
from edgefl.registry import engines, loggers, samplers
from edgefl.util.datasets import data_spec

FLEET = "Fleet and conditions"
HOST = "This computer"
"""Headings of these keys in the command line's help."""


def _once(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or len(set(words)) != len(words):
        raise ValueError(f"expected some of idle, charging, unmetered, each once, got {', '.join(words) or 'none'}")
    return words


def _trace(value: Any) -> Any:
    return data_spec(value, ["always", "daily"]) if isinstance(value, (str, Path)) else value


Remedy = Literal["micro-batch", "recompute", "tier", "refuse", "send"]


def _steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    if not steps or len(set(steps)) != len(steps) or {"send", "refuse"} & set(steps[:-1]):
        raise ValueError(f"expected each step once, and refuse or send last, got {', '.join(steps) or 'none'}")
    return steps


def _sampler(text: str) -> str:
    known_call(samplers, text, "power-of-choice(candidates=20)")
    return text


def _distinct(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names and len(set(names)) != len(names):
        raise ValueError(f"expected each name once, got {', '.join(names)}")
    return names


def _hardware(device: Any) -> Any:
    if device not in ("cpu", "cuda"):
        raise ValueError(
            f"got {device!r}, expected cpu or cuda, the hardware of this computer; to simulate a device, use --profile"
        )
    return device


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
        "Whom the server asks, of the eligible clients: uniform, fresh (each once before any twice), power-of-choice, oort, tifl or "
        "reserved (places of classes), with options such as power-of-choice(candidates=20).",
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
    rounds_per_day: float | None = key(
        None,
        FLEET,
        "Rounds that begin on a day, evenly over its hours; what-if then shows a month of each class. [the fleet's calendar, else one "
        "after the other]",
        ge=0.001,
        le=86_400,
    )
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


class HostKeys(Keys):
    """Keys of this computer: they change no result."""

    cpu_limit_s: Seconds = key(600.0, HOST, "Processor seconds per client under --enforce hard.", "TIME")
    engine: Annotated[str | None, known(engines, "auto", None)] = key(
        None,
        HOST,
        "Where clients train. inline: in this process; pool: in --workers processes, to the same bits; group: clients of a tier together, "
        "equal to within rounding; auto: the fastest of this computer in a short trial; others: on a cluster. [inline; pool with several "
        "--workers, or if none are given and training is long]",
        "auto|NAME",
        engines,
    )
    workers: int = key(
        1,
        HOST,
        "Number of processes that train clients; 0: one for every core, or every slot of a cluster. Engine auto uses every core. "
        "[1; on a cluster: 0]",
        ge=0,
    )
    mixed_nodes: bool = key(
        False, HOST, "Use nodes of a cluster that compute other bits than this computer; the summary says so. [no]"
    )
    log: Annotated[tuple[Annotated[str, known(loggers)], ...] | None, AfterValidator(_distinct)] = key(
        None,
        HOST,
        "Where to show the run while it trains. A logger that fails ends, and the run continues. [nowhere]",
        "tensorboard,mlflow",
        loggers,
    )
    bundle: bool = key(
        True,
        HOST,
        "Write the bundle of the finished run: the graphs of every tier, for devices. Each takes seconds; 'edgefl export' can write it "
        "later. [yes]",
    )
    device: Annotated[Literal["cpu", "cuda"], BeforeValidator(_hardware)] = key(
        "cpu", HOST, "This computer's hardware that trains clients; simulated devices are --profile.", "cpu|cuda"
    )
