"""The kinds of cells that the columns of a table have, whatever their encoding."""

from typing import Any

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
