"""Keys of simulated attacks."""

from typing import Annotated

from pydantic import AfterValidator

from edgefl.config.field import Keys, key
from edgefl.errors import InputError
from edgefl.registry import adversaries
from edgefl.util.spec import shared

ATTACK = "Simulated attacks"
"""Heading of these keys in the command line's help."""


def _canonical(spec: str) -> str | None:
    if spec == "none":
        return None
    try:
        parts = shared(spec)
    except ValueError:
        form = "NAME:SHARE or NAME:SHARE(option=value, …), such as sign-flip:0.1(scale=10), with a share above 0 and below 1"
        raise ValueError(f"expected {form}, got {spec!r}") from None
    try:
        adversaries.load(parts.name).of(parts.options)
    except InputError as error:
        raise ValueError(f"{parts.name}: {error}" if parts.name in adversaries.names() else str(error)) from None
    return str(parts)


class AttackKeys(Keys):
    """Keys of simulated attacks."""

    adversary: Annotated[str | None, AfterValidator(lambda spec: None if spec is None else _canonical(spec))] = key(
        None,
        ATTACK,
        "What some clients do to harm the run, their share, and options, such as sign-flip:0.1(scale=10). [none]",
        "NAME:SHARE",
        names=adversaries,
    )
