"""Option types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from edgefl.registry import models

F = TypeVar("F", bound=Callable[..., Any])
_COUNT = click.IntRange(1)


class Numbers(click.ParamType[tuple[float, ...] | str]):
    """Comma-separated numbers; ``such_as`` is the example that a message gives."""

    name = "X,X,…"

    def __init__(self, such_as: str) -> None:
        self.such_as = such_as

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...] | str:
        """Return the numbers; their range and order are checked with the rest of the configuration."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as {self.such_as}", param, ctx)


class Tiers(Numbers):
    """Comma-separated ratios, ``1,0.5,0.25``; where ``auto`` is meant, also that word."""

    def __init__(self, auto: bool = False) -> None:
        super().__init__("1,0.5,0.25")
        self.auto = auto
        self.name = "R,R,…|auto" if auto else "R,R,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...] | str:
        """Return the ratios, or the word."""
        return "auto" if self.auto and value == "auto" else super().convert(value, param, ctx)


class Words(click.ParamType[tuple[str, ...]]):
    """Comma-separated words."""

    name = "WORD,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the words; which there are is checked with the rest of the configuration."""
        return value if isinstance(value, tuple) else tuple(part.strip() for part in str(value).split(","))


class Amount(click.ParamType[float]):
    """A positive number with an optional decimal prefix and unit: ``64MB``, ``100M``, ``30``."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number in whole units."""
        if isinstance(value, (int, float)):
            return float(value)
        from edgefl.errors import InputError
        from edgefl.util.units import parse_amount

        try:
            return parse_amount(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


def network_options(command: F) -> F:
    """Add NETWORK and what says what it is and takes: ``network``, ``model``, ``inputs``, ``classes``; see :func:`one_network`."""
    own = "[a reference network's own]"
    for option in (
        click.option("--classes", type=_COUNT, metavar="N", help="Number of labels. [the network's own, mostly 10]"),
        click.option(
            "--input",
            "inputs",
            multiple=True,
            metavar="[NAME=][TYPE:]SHAPE",
            help=f"One sample: 3x32x32, or ids=int64:80; may repeat. {own}",
        ),
        click.option("--model", metavar="NAME", help=f"Instead of NETWORK: {', '.join(models.names())}."),
        click.argument("network", required=False),
    ):
        command = option(command)
    return command


def one_network(network: str | None, model: str | None) -> str:
    """Return the network that was given; a usage error unless it is exactly one."""
    if (network is None) == (model is None):
        raise click.UsageError("give one network: NETWORK, or --model NAME")
    return network or str(model)


def training_options(command: F) -> F:
    """Add how a client trains and sends: batches, optimizer, codec, local samples and epochs, normalisation."""
    for option in (
        click.option("--norm", metavar="POLICY", help="group, static, batch or none. [the model's own]"),
        click.option("--local-epochs", type=_COUNT, default=1, show_default=True, metavar="N", help="Epochs of a round."),
        click.option("--samples", type=_COUNT, default=500, show_default=True, metavar="N", help="Local samples of a client."),
        click.option("--codec", default="fp32", show_default=True, metavar="NAME", help="Of updates: fp32, fp16, int8, sparse."),
        click.option("--optimizer", type=click.Choice(("momentum", "sgd", "adam")), default="momentum", show_default=True),
        click.option("--micro-batch", type=_COUNT, metavar="N", help="Samples at once; gradients are accumulated. [the batch]"),
        click.option("--batch-size", type=_COUNT, default=32, show_default=True, metavar="N", help="Samples of a step."),
    ):
        command = option(command)
    return command
