"""A folder with a subfolder of images per class, or with such folders for training and for held-out samples."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.given import Given, Reading
from edgefl.data.growing import Growing
from edgefl.errors import DataError, first_line

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
TRAINING, HELD_OUT = ("train", "training"), ("test", "testing", "val", "valid", "validation", "dev")
_GREY = ("1", "L", "I", "I;16", "F", "LA")
_AT_ONCE = 256


def read(path: Path, reading: Reading) -> Given:
    """Return the images of a folder, uint8 (n, channels, height, width), labelled with the names of their subfolders.

    Images have one channel if the first one is grey, else three. A folder whose only subfolder has subfolders, such as ``train``, is read
    as that subfolder. DataError if a class has no image, if sizes differ, or if all subfolders are of held-out samples.
    """
    if reading.label or reading.owner or reading.features:
        raise DataError(f"{path}: images in folders have no columns; leave --label, --owner and --features out")
    folders = _folders(path)
    inside = {folder.name.lower(): folder for folder in folders}
    train = next((inside[name] for name in TRAINING if name in inside), None)
    test = next((inside[name] for name in HELD_OUT if name in inside), None)
    if train is None or test is None:
        nested = all(map(_folders, folders))
        if nested and folders and inside.keys() <= set(HELD_OUT):
            raise DataError(f"{path}: no folder train beside {folders[0].name}; to use these samples alone, give {folders[0]}")
        if nested and len(folders) == 1:
            return read(folders[0], reading)
        return _given(path, tuple(folder.name for folder in folders))
    names = tuple(folder.name for folder in _folders(train))
    given = _given(train, names)
    held_out = _given(test, names, given.x.shape[1])
    return Given(given.x, given.y, str(path), class_names=names, test=held_out)


def decoded(content: bytes | Path, where: str, channels: int = 0) -> np.ndarray:
    """Return an image as uint8 (channels, height, width); 0 channels: those that it has, 1 or 3. DataError if it is no image."""
    pillow = _pillow(where)
    try:
        with pillow.open(content if isinstance(content, Path) else io.BytesIO(content)) as image:
            channels = channels or (1 if image.mode in _GREY else 3)
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise DataError(f"{where}: no image that can be read ({first_line(error)})") from None
    return pixels.reshape(*pixels.shape[:2], channels).transpose(2, 0, 1)


def grown(images: Iterator[tuple[str, bytes | Path]], where: str, channels: int = 0) -> np.ndarray:
    """Return all ``images``, pairs of a name for messages and the content, as uint8 (n, channels, height, width)."""
    rows, block, first = Growing(where), list[np.ndarray](), ""
    for name, content in images:
        image = decoded(content, name, channels)
        if not first:
            first, shape = name, image.shape
            channels = len(image)
        if image.shape != shape:
            sizes = " and ".join(f"{n} {s[2]}×{s[1]}" for n, s in ((first, shape), (name, image.shape)))
            raise DataError(f"{where}: images of mixed size: {sizes} pixels; bring all to one size")
        block.append(image)
        if len(block) == _AT_ONCE:
            rows.add(np.stack(block))
            block.clear()
    rows.add(np.stack(block) if block else np.zeros((0, 1, 1, 1), np.uint8))
    return rows.whole()


def _given(folder: Path, names: tuple[str, ...], channels: int = 0) -> Given:
    if not names:
        what = f"{folder}: no subfolder per class with images"
        raise DataError(f"{what}; expected one, or .npz, .npy, CSV, Parquet or Arrow files")
    if unknown := [of.name for of in _folders(folder) if of.name not in names]:
        raise DataError(f"{folder}: class {unknown[0]} is not among the training classes: {', '.join(names)}")
    found: list[Path] = []
    y: list[int] = []
    for label, name in enumerate(names):
        own = _images(folder / name) if (folder / name).is_dir() else []
        if not own and not channels:
            raise DataError(
                f"{folder}: class {name!r} has no image ({', '.join(sorted(ENDINGS))}); add some, or remove the folder"
            )
        found += own
        y += [label] * len(own)
    if not found:
        raise DataError(f"{folder}: no images")
    x = grown(((str(file.relative_to(folder)), file) for file in found), str(folder), channels)
    return Given(x, np.array(y, np.int64), str(folder), class_names=names)


def _images(path: Path) -> list[Path]:
    """Return the images in a folder and its subfolders; hidden ones, such as ``._1.png`` of macOS, are not images."""
    found = (inner for inner in path.rglob("*") if inner.suffix.lower() in ENDINGS)
    return sorted(inner for inner in found if not any(part.startswith(".") for part in inner.relative_to(path).parts))


def _folders(path: Path) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _pillow(where: str) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"{where}: reading images needs Pillow: pip install 'edgefl-sim[data]'") from None
    return Image
