"""One figure of a profile: a number in the unit of its key, its mark, and its source."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

Name = Annotated[str, Field(min_length=1)]
LEAST, MOST = 1e-9, 1e15
"""No figure above 0 of a device or a link is outside; beyond, seconds and joules would overflow."""


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

    value: float = Field(ge=0, le=MOST, strict=True)


def _within(test: Callable[[float], bool], expected: str) -> WrapValidator:
    """Return the check of a figure's value. It also explains a negative value, which no figure may have, by what is ``expected``."""

    def check(value: object, validated: ValidatorFunctionWrapHandler) -> Figure:
        try:
            figure: Figure = validated(value)
        except ValidationError as error:
            negative = [problem for problem in error.errors() if problem["type"] == "greater_than_equal"]
            if len(negative) < error.error_count():
                raise
            raise ValueError(f"expected {expected}, got {negative[0]['input']:g}") from None
        if not test(figure.value):
            raise ValueError(f"expected {expected}, got {figure.value:g}")
        return figure

    return WrapValidator(check)


_large = _within(lambda value: value >= LEAST, f"a value of at least {LEAST:g}")
Positive = Annotated[Figure, _within(lambda value: value > 0, "a value above 0"), _large]
Share = Annotated[Figure, _within(lambda value: 0 < value <= 1, "a share in (0, 1]"), _large]
Sigma = Annotated[Figure, _within(lambda value: value <= 3, "a sigma of at most 3")]
LostShare = Annotated[Figure, _within(lambda value: value < 1, "a share in [0, 1)")]
Ratio = Annotated[Figure, _within(lambda value: value >= 1, "a ratio of at least 1")]
Hour = Annotated[Figure, _within(lambda value: value < 24, "an hour in [0, 24)")]


def figures_of(record: Record, prefix: str) -> dict[str, Figure]:
    """Return every figure of a record and of the records within it, by its dotted key after ``prefix``."""
    figures = {}
    for key, value in record:
        if isinstance(value, Figure):
            figures[prefix + key] = value
        elif isinstance(value, Record):
            figures |= figures_of(value, f"{prefix}{key}.")
    return figures


def at_most(**pair: Figure) -> None:
    """Raise ValueError unless the first of two figures is at most the second, by their keys."""
    (key, small), (other, large) = pair.items()
    if small.value > large.value:
        raise ValueError(f"{key}: expected at most {other} ({large.value:,.10g}), got {small.value:,.10g}")
