"""Columns of a table: their kinds, whatever their encoding, and their cells as arrays: numbers, labels, lists, and texts for numbers."""

import re
from typing import Any

import numpy as np

from edgefl.errors import DataError


def arrow(where: str) -> Any:
    """Return pyarrow; DataError, which begins with ``where``, if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise DataError(f"{where}: reading tables needs pyarrow: pip install 'edgefl-sim[data]'") from None
    return pyarrow


def type_of(kind: Any) -> Any:
    """Return the type of a column's values, without extensions, and as if they were not encoded by a dictionary or by runs."""
    types = arrow("type").types
    kind = getattr(kind, "storage_type", kind)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return type_of(kind.value_type)
    return kind


def plain(column: Any) -> Any:
    """Return the values of a column, or of the lists in one, without extensions and encodings; decimals are float64."""
    pa, column = arrow("column"), getattr(column, "storage", column)
    kind = column.type
    if pa.types.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return plain(pa.compute.run_end_decode(column))
    for fits, target in (
        (pa.types.is_string_view, pa.string()), (pa.types.is_binary_view, pa.binary()), (pa.types.is_decimal, pa.float64()),
    ):  # fmt: skip
        if fits(kind):
            return column.cast(target)
    return column


def is_image(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are files of images."""
    types, kind = arrow(name).types, type_of(schema.field(name).type)
    binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return binary or (types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def is_list(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are lists, perhaps of lists."""
    return lists(type_of(schema.field(name).type))


def lists(kind: Any) -> bool:
    """Return whether a type is one of lists."""
    types = arrow("type").types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_text(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are texts."""
    types, kind = arrow(name).types, type_of(schema.field(name).type)
    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def is_number(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are numbers or truth values."""
    types, kind = arrow(name).types, type_of(schema.field(name).type)
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)


def kind_of(schema: Any, name: str) -> str:
    """Return what the cells of a column are: images, lists, texts or numbers; empty: no samples can be made of them."""
    return next((kind for kind, fits in KINDS.items() if fits(schema, name)), "")


KINDS = {"images": is_image, "lists": is_list, "texts": is_text, "numbers": is_number}


_WHOLE = re.compile(r"[+-]?\d{1,18}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)", re.IGNORECASE)
_MISSING = {"na", "n/a", "nan", "-nan", "null", "none", "<na>", "#n/a", "#na", "1.#qnan", "-1.#ind", "1.#ind"}


def numbers_in(column: Any, where: str, name: str) -> np.ndarray:
    """Return a column of numbers or truth values as float64 (rows,); NaN where one is missing.

    Raises:
        DataError: a whole number is beyond ±2⁵³, where float64 leaves some out.
    """
    pa, values = arrow(where), plain(column)
    whole = pa.types.is_integer(values.type)
    try:
        floats: np.ndarray = values.cast(pa.float64(), safe=whole).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        told = "whole numbers beyond 2^53, of which a float keeps the first 15 digits only"
        raise DataError(
            f"{where}: column {name!r} has {told}; subtract an offset, or leave the column out with --features"
        ) from None
    return floats


def rectangular(column: Any, where: str, name: str, before: int = 0) -> np.ndarray:
    """Return a column of lists, perhaps of lists, as an array (rows, …); DataError if sizes differ or a value is missing.

    ``before``: how many rows of the table are in other blocks.
    """
    pa = arrow(where)
    array, shape = plain(column), [len(column)]
    while lists(array.type):
        each = int(np.prod(shape[1:]))
        _check_whole(array, where, name, before, each)
        sizes = np.unique(pa.compute.list_value_length(array).to_numpy(zero_copy_only=False)).tolist()
        if len(sizes) != 1:
            listed = " and ".join(map(str, sizes[:2])) or "no values"
            raise DataError(f"{where}: samples of mixed size: {name} has lists of {listed}; bring all to one size")
        shape.append(sizes[0])
        array = plain(array.flatten())
    if pa.types.is_nested(array.type):
        raise DataError(f"{where}: {name} has lists of {array.type}, expected lists of numbers")
    _check_whole(array, where, name, before, int(np.prod(shape[1:])))
    values: np.ndarray = array.to_numpy(zero_copy_only=False).reshape(shape)
    return values


def _check_whole(array: Any, where: str, name: str, before: int, each: int) -> None:
    if array.null_count:
        row = before + int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0]) // max(1, each)
        raise DataError(f"{where}: {name} of row {row} is missing, or a value in it; fill it in, or leave the row out")


def values_of(column: Any, where: str, name: str) -> np.ndarray:
    """Return the values of a column; DataError if its texts are not UTF-8, which are bytes in a CSV file of another encoding."""
    values: np.ndarray = plain(column).to_numpy(zero_copy_only=False)
    for value in values.tolist() if values.dtype == object else ():
        try:
            _ = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            raise DataError(f"{where}: column {name!r} has {value!r}, expected UTF-8; save the file in that encoding") from None
    return values


def typed(values: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return texts that are all numbers as numbers, and any other values as they are.

    >>> typed(np.array(["1", "2"], object), "y", "own.csv"), typed(np.array(["NA", "EU"], object), "y", "own.csv")
    (array([1, 2]), array(['NA', 'EU'], dtype=object))

    Raises:
        DataError: one is NA or a word like it among numbers: it may be a name, or a missing number.
    """
    if values.dtype != object or not len(values) or not all(isinstance(value, str) for value in values):
        return values
    texts = [text.strip() for text in values]
    words = [text for text in texts if text.lower() in _MISSING]
    rest = [text for text in texts if text and text.lower() not in _MISSING]
    for pattern, of in ((_WHOLE, int), (_NUMBER, float)):
        if rest and all(map(pattern.fullmatch, rest)):
            if words:
                count, readings = (
                    f"{len(words):,} of {len(values):,} are {words[0]!r} beside numbers",
                    "a missing value, or a name",
                )
                remedy = "fill them in, leave these rows out, or give such a class or owner another name"
                raise DataError(f"{where}: column {name!r}: {count}: {readings}? {remedy}")
            return np.array(list(map(of, rest))) if len(rest) == len(texts) else values
    return values
