"""Keys of this computer: they change no result."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator

from edgefl.config.field import Keys, Seconds, key, known
from edgefl.registry import engines, loggers

HOST = "This computer"
"""Heading of these keys in the command line's help."""


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


class HostKeys(Keys):
    """Keys of this computer: they change no result."""

    cpu_limit_s: Seconds = key(600.0, HOST, "Processor seconds per client under --enforce hard.", "TIME")
    engine: Annotated[str | None, known(engines, "auto", None)] = key(
        None,
        HOST,
        "Where clients train. inline: in this process; pool: in --workers processes, to the same bits; ray: on the nodes of a cluster, to "
        "the same bits if they are alike; group, ray-group: clients of a tier together, equal to within rounding; auto: the fastest of "
        "this computer in a short trial. [inline; with several --workers: pool]",
        "auto|NAME",
        engines,
    )
    workers: int = key(
        1,
        HOST,
        "Number of processes that train clients; 0: one for every core, or every slot of the Ray cluster. Engine auto uses every core. "
        "[1; engine ray: 0]",
        ge=0,
    )
    ray_address: str = key(
        "auto",
        HOST,
        "Ray cluster of engine ray; auto: the one that this computer belongs to; local: one that is started here for the run.",
        "auto|HOST:PORT|local",
    )
    ray_auth: bool = key(True, HOST, "Connect to the Ray cluster with its token. [yes]")
    mixed_nodes: bool = key(
        False, HOST, "Use nodes of the Ray cluster that compute other bits than this computer; the summary says so. [no]"
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
