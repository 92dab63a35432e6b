"""The parts of the records of a bundle's manifest, and the small records."""

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from edgefl.records import Preparation


def _inside(path: str) -> str:
    """Return ``path``; ValueError if it could lead out of the bundle, or if platforms or terminals read it differently."""
    parts = PurePosixPath(path).parts
    plain = path.isprintable() and not re.search(r"[\\:]", path) and all(part == part.strip(" ") for part in parts)
    if not parts or path.startswith("/") or ".." in parts or not plain or str(PurePosixPath(path)) != path:
        raise ValueError(f"expected a relative path inside the bundle, got {path!r}")
    return path


def printable_name(name: str) -> str:
    """Return ``name``; ValueError if it is empty, too long or not printable."""
    if not name or not name.isprintable() or len(name) > 500:
        raise ValueError(f"expected a tensor's name: 1 to 500 printable characters, got {name[:500]!r}")
    return name


def preparation(how: Preparation) -> Preparation:
    """Return how samples are prepared; ValueError if they cannot be. Every key may be missing."""
    for key in ("mean", "scale", "std"):
        figure = how.get(key, 1)
        values = figure if isinstance(figure, list) and key != "scale" else [figure]
        if not values or not all(_is_number(value) and (value != 0 or key != "std") for value in values):
            form = "a finite number" if key == "scale" else "finite numbers, one or a list,"
            nonzero = ", and none of std is 0" if key == "std" else ""
            raise ValueError(f"{key}: got {repr(figure)[:100]}, expected {form} of at most {LARGEST:.2g}{nonzero}")
    for key in ("alphabet", "raw"):
        if not isinstance(how.get(key, ""), str):
            raise ValueError(f"{key}: got {repr(how[key])[:100]}, expected text")
    if not isinstance(words := how.get("words") or [], list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"words: got {repr(words)[:100]}, expected a list of texts")
    for name, rule in how.get("domains", {}).items() if isinstance(how.get("domains", {}), Mapping) else [("domains", None)]:
        if not isinstance(rule, dict):
            raise ValueError(f"domains: got {repr(rule)[:100]} for {name!r}, expected a table for each")
        preparation(rule)
    return how


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


LARGEST = 1 << 62
"""No number of a manifest is larger: every whole number up to it fits a register."""
InnerPath = Annotated[str, AfterValidator(_inside)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Size = Annotated[int, Field(ge=1, lt=1 << 31)]
Preprocessing = Annotated[Preparation, AfterValidator(preparation)]
Share = Annotated[float, Field(ge=0, le=1)]
Shape = tuple[Annotated[int, Field(ge=1)], ...]
Shapes = dict[Annotated[str, AfterValidator(printable_name)], Shape]


class ManifestRecord(BaseModel):
    """Base of the manifest's tables: frozen; an unknown key, NaN and infinity are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class FileEntry(ManifestRecord):
    """The SHA-256 (64 hexadecimal digits) and the length of a file."""

    sha256: Sha256
    bytes: Count


class OtherFormat(ManifestRecord):
    """A tier's inference for another runtime than onnxruntime, in the file ``file``. It takes one sample at a time.

    Attributes:
        tier: label of the tier.
        format: name of the export format, such as ``executorch``.
        inputs: its arguments in order: ``x``, or ``x.NAME`` for each of several.
        made_with: name and version of the converter.
        parity_max_abs_error: largest difference between its runtime and torch on the reference inputs at the export.
    """

    tier: str
    format: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    file: InnerPath
    bytes: Count
    inputs: tuple[Annotated[str, AfterValidator(printable_name)], ...] = Field(min_length=1)
    made_with: Annotated[str, AfterValidator(printable_name)]
    parity_max_abs_error: float = Field(ge=0)
