"""How samples are prepared if not by their own figures: as the network expects that given weights belong to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefl.errors import DataError, first_line
from edgefl.util.files import ending_of, require_plain

NONE, FROM_WEIGHTS = "none", "from-weights"
METADATA = "preprocessing"
"""The key of a safetensors file's metadata that has it as JSON."""
_AS_GIVEN = {"mean": 0.0, "scale": 1.0, "std": 1.0}
_MOST_BYTES = 1 << 20


def prescribed(given: str | None, weights: str | None = None) -> str:
    """Return the JSON text of ``scale``, ``mean`` and ``std`` that a run's ``preprocessing`` names; "" if it names none.

    Args:
        given: ``none`` (samples stay as they are), ``from-weights`` (the metadata of the file ``weights``), a JSON file, or its content.
        weights: the file of the run's weights.

    Raises:
        DataError: there is no such file, or it lacks a figure.

    >>> prescribed("none")
    '{"mean": 0.0, "scale": 1.0, "std": 1.0}'
    """
    if given is None:
        return ""
    if given == NONE:
        return json.dumps(_AS_GIVEN)
    if given == FROM_WEIGHTS:
        return _text(_of_weights(weights), f"preprocessing: {weights}")
    content, where = (given, "preprocessing") if given.startswith("{") else (_read(Path(given)), f"preprocessing: {given}")
    try:
        return _text(json.loads(content), where)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({first_line(error)})") from None


def _read(path: Path) -> str:
    try:
        require_plain(path, DataError)
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"preprocessing: {path}: cannot be read ({getattr(error, 'strerror', None) or 'it is no text'})"
        ) from None


def _of_weights(path: str | None) -> Any:
    """Return what the metadata of a safetensors file says."""
    own = "give a JSON file with scale, mean and std, or none"
    if path is None:
        raise DataError(f"preprocessing: from-weights, but there are no weights; {own}")
    try:
        require_plain(Path(path), DataError)
        with Path(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= _MOST_BYTES * 100 and ending_of(Path(path)) == ".safetensors" else {}
        return json.loads(header["__metadata__"][METADATA])
    except OSError as error:
        raise DataError(f"preprocessing: {path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(
            f"preprocessing: {path}: its metadata have no {METADATA!r}, which edgefl's own weights have; {own}"
        ) from None


def _text(how: Any, where: str) -> str:
    """Return checked figures as JSON; those of an image processor of the Hugging Face hub have other names."""
    if not isinstance(how, Mapping):
        raise DataError(f"{where}: expected a table with scale, mean and std, got {type(how).__name__}")
    if "image_mean" in how or "do_normalize" in how:
        scale = how.get("rescale_factor", 1 / 255) if how.get("do_rescale", True) else 1.0
        mean, std = (how.get("image_mean"), how.get("image_std")) if how.get("do_normalize", True) else (0.0, 1.0)
        how = {"scale": scale, "mean": mean, "std": std}
    figures = {key: how[key] for key in _AS_GIVEN if how.get(key) is not None}
    if missing := sorted(_AS_GIVEN.keys() - figures.keys()):
        raise DataError(f"{where}: no {', '.join(missing)}; expected scale, mean and std of (value · scale − mean) / std")
    for key, value in figures.items():
        numbers = value if isinstance(value, list) and key != "scale" else [value]
        right = all(
            isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) < 1e30 for number in numbers
        )
        if not numbers or not right or (key != "mean" and 0 in numbers):
            zero = "" if key == "mean" else ", none of them 0"
            raise DataError(
                f"{where}: {key}: got {value!r}, expected a number{'' if key == 'scale' else ' or one for each channel'}{zero}"
            )
    return json.dumps(figures, sort_keys=True)
