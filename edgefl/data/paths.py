"""Columns of a table that name files of images, such as ``file_name`` of the Hugging Face hub's image folders."""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from edgefl.data.cells import arrow, is_text, plain
from edgefl.data.images import ENDINGS
from edgefl.errors import DataError
from edgefl.util.files import files_below

_LOOKED_AT = 100


class Pictures:
    """Images in the folder of the table ``file``, which the table may name by path, by name or by name without ending."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @functools.cached_property
    def _places(self) -> dict[str, Path]:
        folder = self._file.parent
        images = [file for file in files_below(folder) if file.suffix.lower() in ENDINGS]
        by_name: dict[str, Path] = {}
        for key in ("stem", "name"):
            count = Counter(getattr(image, key) for image in images)
            by_name |= {name: image for image in images if count[name := getattr(image, key)] == 1}
        return by_name | {image.relative_to(folder).as_posix(): image for image in images}

    def columns(self, schema: Any, batches: Iterable[Any]) -> list[str]:
        """Return the columns of which one of the first cells names an image; DataError if all look so, and there is none.

        Names without an ending may be other words by chance, such as classes: most rows must have such a name of their own.
        """
        names: list[str] = []
        texts = [name for name in schema.names if is_text(schema, name)]
        first: Any = next(iter(batches), None) if texts else None
        for name in texts if first is not None else ():
            some = [text for text in plain(first.column(name)[:_LOOKED_AT]).to_pylist() if text]
            there = {text for text in some if self._place(text) is not None}
            if 2 * len(there) > len(some) or any(Path(text).suffix.lower() in ENDINGS for text in there):
                names.append(name)
            elif some and all(" " not in text and Path(text).suffix.lower() in ENDINGS for text in some):
                where = f"which is not in {self._file.parent}; put the table there"
                raise DataError(f"{self._file}: column {name!r} names {some[0]!r}, {where}")
        return names

    def named(self, like: Any, own: Any, name: str) -> bool:
        """Return whether a text column of this file names images, as that of the first file does."""
        return is_text(own, name) and arrow(name).types.is_struct(like.field(name).type)

    def schema(self, schema: Any, columns: list[str]) -> Any:
        """Return a schema in which ``columns`` are images, as ``datasets`` stores them."""
        pa = arrow(str(self._file))
        for name in columns:
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
        return schema

    def batches(self, batches: Iterable[Any], columns: list[str]) -> Iterator[Any]:
        """Return the rows with the paths of images in ``columns``."""
        pa = arrow(str(self._file))
        for batch in batches:
            for name in columns:
                cells = [{"bytes": None, "path": self._path(text, name)} for text in plain(batch.column(name)).to_pylist()]
                column = pa.array(cells, self.schema(batch.schema, [name]).field(name).type)
                batch = batch.set_column(batch.schema.get_field_index(name), name, column)
            yield batch

    def _place(self, text: str) -> Path | None:
        own = self._file.parent / text if text else None
        try:
            exists = own is not None and own.suffix.lower() in ENDINGS and own.is_file()
        except (OSError, ValueError):
            exists = False
        return own if exists else self._places.get(text)

    def _path(self, text: str | None, name: str) -> str | None:
        if text and self._place(text) is None:
            raise DataError(f"{self._file}: column {name!r} names {text!r}, which is not in {self._file.parent}")
        return str(self._place(text)) if text else None
