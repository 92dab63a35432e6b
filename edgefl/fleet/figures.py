"""One figure of a profile: a number in the unit of its key, its mark, and its source."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Mark = Literal["measured", "vendor", "derived", "assumed"]


class Record(BaseModel):
    """A frozen table of a profile; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Figure(Record):
    """One number: in the unit of its key, with how it is known and where it comes from."""

    value: float = Field(ge=0, strict=True)
    mark: Mark
    source: str = Field(min_length=10)
    note: str = ""


def _positive(figure: Figure) -> Figure:
    if figure.value <= 0:
        raise ValueError(f"expected a value above 0, got {figure.value:g}")
    return figure


def _share(figure: Figure) -> Figure:
    if not 0 < figure.value <= 1:
        raise ValueError(f"expected a share in (0, 1], got {figure.value:g}")
    return figure


def _lost_share(figure: Figure) -> Figure:
    if figure.value >= 1:
        raise ValueError(f"expected a share in [0, 1), got {figure.value:g}")
    return figure


def _at_least_1(figure: Figure) -> Figure:
    if figure.value < 1:
        raise ValueError(f"expected a ratio of at least 1, got {figure.value:g}")
    return figure


def _hour(figure: Figure) -> Figure:
    if figure.value >= 24:
        raise ValueError(f"expected an hour in [0, 24), got {figure.value:g}")
    return figure


Positive = Annotated[Figure, AfterValidator(_positive)]
Share = Annotated[Figure, AfterValidator(_share)]
LostShare = Annotated[Figure, AfterValidator(_lost_share)]
Ratio = Annotated[Figure, AfterValidator(_at_least_1)]
Hour = Annotated[Figure, AfterValidator(_hour)]


def figures_of(record: Record, prefix: str) -> dict[str, Figure]:
    """Return every figure of a record and of the records within it, by its dotted key after ``prefix``."""
    found = {}
    for key in type(record).model_fields:
        value = getattr(record, key)
        if isinstance(value, Figure):
            found[prefix + key] = value
        elif isinstance(value, Record):
            found |= figures_of(value, f"{prefix}{key}.")
    return found
