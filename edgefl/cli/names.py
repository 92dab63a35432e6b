"""Checks the names that a command was given before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from edgefl.errors import InputError
from edgefl.registry import datasets, methods, models
from edgefl.util import datasets as data_names
from edgefl.util import networks

if TYPE_CHECKING:
    from edgefl.config import RunConfig


_FOR_THE_COMMAND = {"--plugin", "--config", "--resume", "--device", "-h", "--help"}
"""Flags with which the command itself checks the names: those of plug-ins, in a file or given before, and those beside devices."""


def check_given(args: Sequence[str]) -> None:
    """Raise InputError for an unknown method, network or data set in a command line, before the command's options are imported.

    Those take pydantic and numpy, and most of the time until an answer. All names are checked again by the command, a fleet's too.
    """
    values: dict[str, list[str]] = {}
    for place, arg in enumerate(args):
        flag, equals, value = arg.partition("=")
        values.setdefault(flag, []).append(value if equals else "".join(args[place + 1 : place + 2]))
    if _FOR_THE_COMMAND & values.keys() or not "".join(args[:1]).startswith("-"):
        return
    registered = datasets.names()
    data = [data_names.data_spec(name, registered) for flag in ("--data", "--dataset") for name in values.get(flag, ()) if name]
    names = {
        "method": [name for name in values.get("--method", ()) if name],
        "model": [name for name in values.get("--model", ()) if name],
        "dataset": [part for name in data if not data_names.is_own(name) for part in name.split("+")],
    }
    try:
        check_names(**names)
    except InputError:
        # One answer names all that is wrong; of NETWORK and devices, the command says so.
        check_names(**names, fleet=values.get("--profile", ()))


def check_run(config: RunConfig, *, method: bool = True) -> None:
    """Raise InputError with a line for each name of a run that is unknown: its method, network, data set, fleet or device."""
    check_names(
        method=[config.method] if method else [],
        model=[config.model, *(config.tier or {}).values()],
        dataset=config.dataset.split("+") if not data_names.is_own(config.dataset) else [],
        fleet=[config.profile],
    )


def check_names(
    *,
    method: Iterable[str | None] = (),
    model: Iterable[str | None] = (),
    dataset: Iterable[str] = (),
    device: Iterable[str | None] = (),
    fleet: Iterable[str | None] = (),
) -> None:
    """Raise InputError with a line for each name that is unknown or, of a file, wrong; None is no name."""
    lines = [*_unknown(methods.check, method)]
    lines += _unknown(models.check, (name for name in model if name is not None and not networks.is_own(name)))
    lines += _unknown(datasets.check, dataset)
    if (devices := list(filter(None, device))) or any(fleet := list(filter(None, fleet))):
        from edgefl.fleet.load import load_device, load_fleet

        lines += [*_unknown(load_device, devices), *_unknown(load_fleet, fleet)]
    if lines:
        raise InputError("\n".join(lines))


def _unknown(check: Callable[[str], object], names: Iterable[str | None]) -> list[str]:
    problems = []
    for name in names:
        try:
            if name is not None:
                check(name)
        except InputError as error:
            problems.append(str(error))
    return problems
