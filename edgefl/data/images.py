"""Images in folders: in a subfolder per class, perhaps for training and for held-out samples apart, or named by a column of a table."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.cells import arrow, is_text, plain
from edgefl.data.given import Given, Reading
from edgefl.data.growing import Growing
from edgefl.data.pictures import Form, PixelFormat, decoded, form_of, look_at, record_of
from edgefl.errors import DataError
from edgefl.records import DataRecord
from edgefl.util.files import files_below

ENDINGS = {
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff", ".gif", ".apng", ".avif",
    ".jp2", ".j2k", ".tga", ".heic", ".heif", ".mpo",
}  # fmt: skip
TRAINING, HELD_OUT = ("train", "training"), ("test", "testing", "val", "valid", "validation", "dev")
_AT_ONCE = 256
Named = Iterable[tuple[str, bytes | Path]]
"""Images: a name for messages, and the content."""


def read(path: Path, reading: Reading) -> Given:
    """Return the images of a folder, (n, channels, height, width), labelled with the names of their subfolders.

    Images have one channel if all training images are grey, else three. A folder whose only subfolder has subfolders, such as ``train``,
    is read as that subfolder. DataError if a class has no image, if sizes differ, or if all subfolders are of held-out samples.
    """
    if reading.label or reading.owner or reading.features:
        raise DataError(f"{path}: images in folders have no columns; leave --label, --owner and --features out")
    train, test = _parts(path)
    if train is None:
        folders = _folders(path)
        nested = bool(folders) and all(map(_folders, folders))
        if nested and {folder.name.lower() for folder in folders} <= set(HELD_OUT):
            raise DataError(f"{path}: no folder train beside {folders[0].name}; to use these samples alone, give {folders[0]}")
        if nested and len(folders) == 1:
            return read(folders[0], reading)
        return _given(path, tuple(folder.name for folder in folders), reading)
    names = tuple(folder.name for folder in _folders(train))
    given = _given(train, names, reading)
    held_out = None if test is None else _given(test, names, reading, given.x.shape[1])
    return replace(given, where=str(path), test=held_out)


def has_classes(path: Path) -> bool:
    """Return whether a folder has a subfolder of images for each of several classes, perhaps in its folder for training."""
    train = _parts(path)[0]
    folders = _folders(path if train is None else train)
    return sum(bool(_images(folder)) for folder in folders if folder.name.lower() not in (*TRAINING, *HELD_OUT)) > 1


def grown(images: Callable[[], Named], where: str, channels: int = 0, alpha: str = "") -> tuple[np.ndarray, DataRecord]:
    """Return all ``images`` as (n, channels, height, width), uint8 or float32, and what was read of them.

    They are listed twice: first for what their files say, then for their pixels. 0 channels: 1 if all are grey, else 3.
    """
    looks = [look_at(content, name) for name, content in images()]
    form = form_of(Counter(looks), where, channels, alpha)
    rows = Growing(where)
    for block in _blocks(images(), looks, form, where):
        rows.add(block)
    return (rows.whole() if looks else np.zeros((0, 1, 1, 1), np.uint8)), record_of(Counter(looks), form)


def _blocks(images: Named, looks: list[PixelFormat], form: Form, where: str) -> Iterator[np.ndarray]:
    block, first = list[np.ndarray](), ""
    for (name, content), look in zip(images, looks, strict=True):
        image = decoded(content, name, look, form)
        if not first:
            first, shape = name, image.shape
        if image.shape != shape:
            sizes = " and ".join(f"{n} {s[2]}×{s[1]}" for n, s in ((first, shape), (name, image.shape)))
            raise DataError(f"{where}: images of mixed size: {sizes} pixels; bring all to one size")
        block.append(image)
        if len(block) == _AT_ONCE:
            yield np.stack(block)
            block.clear()
    if block:
        yield np.stack(block)


def _parts(path: Path) -> tuple[Path | None, Path | None]:
    """Return the folders for training and for held-out samples; both None unless there are both."""
    inside = {folder.name.lower(): folder for folder in _folders(path)}
    train = next((inside[name] for name in TRAINING if name in inside), None)
    test = next((inside[name] for name in HELD_OUT if name in inside), None)
    return (train, test) if train and test else (None, None)


def _given(folder: Path, names: tuple[str, ...], reading: Reading, channels: int = 0) -> Given:
    if not names:
        what = f"{folder}: no subfolder per class with images"
        raise DataError(f"{what}; expected one, or .npz, .npy, CSV, Parquet or Arrow files")
    if unknown := [of.name for of in _folders(folder) if of.name not in names]:
        raise DataError(f"{folder}: class {unknown[0]} is not among the training classes: {', '.join(names)}")
    by_class = [_images(folder / name) if (folder / name).is_dir() else [] for name in names]
    for name, own in zip(names, by_class, strict=True):
        if not own and not channels:
            raise DataError(
                f"{folder}: class {name!r} has no image ({', '.join(sorted(ENDINGS))}); add some, or remove the folder"
            )
    files = [file for own in by_class for file in own]
    if not files:
        raise DataError(f"{folder}: no images")
    named = [(str(file.relative_to(folder)), file) for file in files]
    x, record = grown(lambda: named, str(folder), channels or reading.channels, reading.alpha)
    y = np.repeat(np.arange(len(names)), list(map(len, by_class)))
    return Given(x, y, str(folder), class_names=names, files=tuple(files), record=replace(record, label="names of the folders"))


def _images(path: Path) -> list[Path]:
    return [inner for inner in files_below(path) if inner.suffix.lower() in ENDINGS]


def _folders(path: Path) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))


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
