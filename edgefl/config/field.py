"""What a key of a run's configuration is made of: its type, its bounds, its flag on the command line."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from edgefl.errors import InputError, UnknownNameError
from edgefl.registry import Registry
from edgefl.util.units import parse_amount

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


def _seconds(given: Any) -> Any:
    try:
        return parse_amount(given, "s") if isinstance(given, str) else given
    except InputError as error:
        raise ValueError(str(error)) from None


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""Seconds above 0, also as text with a unit: ``10min``."""


class Keys(BaseModel):
    """Some keys of a run. Unknown keys, empty text, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_min_length=1)


@dataclass(frozen=True)
class Flag:
    """How the command line shows a key; type, choices and default come from the key itself.

    Attributes:
        section: the heading in the help; empty for a key without a flag.
        text: what the key means, with its unit. A default that depends on other keys is in brackets at the end.
        metavar: placeholder of the value in the help; empty: that of the key's type.
        names: registry whose names the help lists.
        switch: the flag that turns a yes/no key off; empty: ``--no-`` and the key.
        also: another name of the flag.
    """

    section: str
    text: str
    metavar: str = ""
    names: Registry | None = None
    switch: str = ""
    also: str = ""


def key(
    default: Any,
    section: str,
    text: str,
    metavar: str = "",
    names: Registry | None = None,
    switch: str = "",
    also: str = "",
    **bounds: Any,
) -> Any:
    """Return the pydantic field of a key: its default, its :class:`Flag`, and pydantic's ``bounds`` of its value, such as ``ge=1``."""
    extra: Any = {"flag": Flag(section, text, metavar, names, switch, also)}  # typed as JSON by pydantic, which stores any object
    return Field(default, json_schema_extra=extra, **bounds)


def known(names: Registry, *others: str | None) -> AfterValidator:
    """Return the check that a key is a name of a registry, or one of ``others``."""

    def check(name: str) -> str:
        if name in others:
            return name
        try:
            names.check(name)
        except UnknownNameError as error:
            raise ValueError(str(error)) from None
        return name

    return AfterValidator(check)
