"""The key of simulated attacks."""

from typing import Annotated

from pydantic import AfterValidator

from edgefl.config.field import Keys, key
from edgefl.config.group import KeyGroup
from edgefl.contrib.attacks.kinds import adversaries
from edgefl.errors import InputError
from edgefl.registry import key_group
from edgefl.util.spec import shared


def _canonical(spec: str | None) -> str | None:
    if spec is None or spec == "none":
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
    """Which clients attack the run, and how."""

    adversary: Annotated[str | None, AfterValidator(_canonical)] = key(
        None,
        "Simulated attacks",
        "What some clients do to harm the run, their share, and options, such as sign-flip:0.1(scale=10). [none]",
        "NAME:SHARE",
        names=adversaries,
    )


@key_group("attacks", after="FleetKeys", place=0, of_policies=("adversary",), compared=("adversary",))
class AttackGroup(KeyGroup):
    """The key of simulated attacks."""

    keys = AttackKeys
