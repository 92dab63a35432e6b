"""The parts of a key of a run's configuration: its type, its bounds, its flag on the command line."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from edgefl.errors import InputError, UnknownNameError
from edgefl.registry import Registry
from edgefl.util.spec import called
from edgefl.util.units import parse_amount

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
KeyValues = Mapping[str, Any]
"""Keys of a run with the values that a file or flags give them, not checked yet."""


def _seconds(value: Any) -> Any:
    try:
        return parse_amount(value, "s") if isinstance(value, str) else value
    except InputError as error:
        raise ValueError(str(error)) from None


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0)]
"""Seconds above 0, also as text with a unit: ``10min``."""


class Keys(BaseModel):
    """Some keys of a run. Unknown keys, empty text, NaN, infinity, and true or false for a number are errors."""

    # Options of a method may be infinite, which TOML has and JSON has not. Most of these classes are bases: no validator is built for them.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, str_min_length=1, ser_json_inf_nan="constants", defer_build=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        listed = value if isinstance(value, list | tuple) else (value,)
        if any(isinstance(one, bool) for one in listed):
            types = _types_in(cls.model_fields[info.field_name or ""].annotation)
            if bool not in types and types & {int, float}:
                if listed is value:
                    raise ValueError(f"expected numbers, got {value!r}")
                raise PydanticKnownError("float_type" if float in types else "int_type")
        return value


def _types_in(annotation: Any) -> set[Any]:
    """Return a type and all types that it is made of."""
    return {annotation}.union(*map(_types_in, get_args(annotation))) if isinstance(annotation, Hashable) else set()


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
        if name not in others:
            check_name(names, name)
        return name

    return AfterValidator(check)


def check_name(names: Registry, name: str) -> None:
    """Raise ValueError unless a registry has ``name``."""
    try:
        names.check(name)
    except UnknownNameError as error:
        raise ValueError(str(error)) from None


def known_call(names: Registry, text: str, example: str) -> str:
    """Return the name in ``NAME(option=value, …)``; ValueError if it has another form, or if the registry does not have the name."""
    try:
        name, _ = called(text)
    except ValueError:
        raise ValueError(f"got {text!r}, expected a name with options, such as {example}") from None
    check_name(names, name)
    return name
