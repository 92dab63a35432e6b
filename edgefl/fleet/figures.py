"""One figure of a profile: a number in the unit of its key, its mark, and its source."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Record(BaseModel):
    """A frozen table of a profile; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Sourced(Record):
    """How something is known, and where it comes from."""

    mark: Literal["measured", "vendor", "derived", "assumed"]
    source: str = Field(min_length=1)
    note: str = ""


class Figure(Sourced):
    """One number in the unit of its key."""

    value: float = Field(ge=0, strict=True)


def _within(test: Callable[[float], bool], expected: str) -> AfterValidator:
    def check(figure: Figure) -> Figure:
        if not test(figure.value):
            raise ValueError(f"expected {expected}, got {figure.value:g}")
        return figure

    return AfterValidator(check)


Positive = Annotated[Figure, _within(lambda value: value > 0, "a value above 0")]
Share = Annotated[Figure, _within(lambda value: 0 < value <= 1, "a share in (0, 1]")]
LostShare = Annotated[Figure, _within(lambda value: value < 1, "a share in [0, 1)")]
Ratio = Annotated[Figure, _within(lambda value: value >= 1, "a ratio of at least 1")]
Hour = Annotated[Figure, _within(lambda value: value < 24, "an hour in [0, 24)")]


def figures_of(record: Record, prefix: str) -> dict[str, Figure]:
    """Return every figure of a record and of the records within it, by its dotted key after ``prefix``."""
    found = {}
    for key, value in record:
        if isinstance(value, Figure):
            found[prefix + key] = value
        elif isinstance(value, Record):
            found |= figures_of(value, f"{prefix}{key}.")
    return found
