"""Reads samples and labels: from a file of arrays, from a table, or from images in folders that are named like the classes."""

from __future__ import annotations

import csv
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from edgefl_bundle import InputError, Table, Tensors, first_line, inputs_of

Samples = np.ndarray | dict[str, np.ndarray]
"""Samples (n, …), or name → samples of each of several inputs."""

PIXELS = (np.dtype(np.uint8), np.dtype(np.uint16))
"""Types of raw pixels. Those of 16 bits are divided by 257, so that a pixel is always in units of 8 bits."""
LABELS = ("y", "label", "labels", "target", "class")
"""Names of a table's column of labels or targets."""
FILES = "a file .npz, .npy or .csv, an image, or a folder of images"
_IMAGES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", "")
_DAMAGED = (
    ValueError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    AttributeError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged archive or array raises; RuntimeError if a flipped bit says that a member is encrypted."""
_LARGE_BYTES, _MOST_RATIO = 1 << 28, 200
"""A file of samples that grows more is no data set, but made to fill the memory."""


def read_data(path: Path, manifest: Table, labels: bool) -> tuple[Samples, np.ndarray | None]:
    """Return prepared samples (n, …) and labels (n,) int64 (None: there are none); InputError if wrong, or if ``labels`` are missing.

    The arrays of an .npz file are called x and y, or of several inputs as these and y. An .npy file has x, and y.npy beside it the labels.
    A column of a CSV is a feature; that which :data:`LABELS` names has the names or numbers of classes, or targets.
    """
    names = [name.removeprefix("x.") for name in inputs_of(manifest)]
    several = bool(manifest.get("inputs"))
    given, y = _read(path, names, manifest)
    found = by_input(manifest, given if several else given["x"], f"{path}: ", raw=True)
    x = dict(zip(names, found.values(), strict=True)) if several else found["x"]
    if y is None:
        if labels:
            raise InputError(f"{path}: y: no labels, expected one per sample: training needs them")
        return x, None
    return x, targets(manifest, y, count_of(found), f"{path}: ")


def _read(path: Path, names: list[str], manifest: Table) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return the samples of each input, and labels if there are any; InputError if no file of such an ending is read."""
    ending = path.suffix.lower()
    if path.is_dir() or ending in _IMAGES:
        return _read_images(path, manifest)
    if ending == ".npz":
        return _read_npz(path, names)
    if ending not in (".npy", ".csv"):
        raise InputError(f"{path}: files {ending} are not read; expected {FILES}")
    if len(names) > 1:
        raise InputError(f"{path}: has one input, the network takes {', '.join(names)}; expected an .npz file with these arrays")
    if ending == ".csv":
        return _read_csv(path, names[0], manifest)
    beside = path.with_name("y.npy")
    return {names[0]: _read_npy(path)}, _read_npy(beside) if beside != path and beside.exists() else None


def _read_npy(path: Path) -> np.ndarray:
    try:
        found: np.ndarray = np.load(path, allow_pickle=False)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected {FILES}") from None
    except (ValueError, EOFError, MemoryError) as error:
        raise InputError(f"{path}: not an .npy file of a plain array ({first_line(error)})") from None
    return found


def _read_csv(path: Path, name: str, manifest: Table) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return the columns of a table as samples of the network's shape, and the column of labels."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head, *rows = csv.reader(file) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise InputError(f"{path}: not a CSV with a line of names first ({getattr(error, 'strerror', None) or error})") from None
    rows, shape = [row for row in rows if row], next(iter(inputs_of(manifest).values()))["shape"]
    labels = [place for place, title in enumerate(head) if title.strip().lower() in LABELS]
    if len(labels) > 1:
        raise InputError(f"{path}: columns {', '.join(head[place] for place in labels)}; expected one of labels")
    features = [place for place in range(len(head)) if place not in labels]
    if len(features) != math.prod(shape) or not rows:
        raise InputError(
            f"{path}: {len(rows)} rows of {len(features)} features, expected rows of {math.prod(shape)} without a label"
        )
    whole = next(iter(inputs_of(manifest).values()))["dtype"] == "int64"
    x = np.array([[_value(path, head, row, line, at, whole) for at in features] for line, row in enumerate(rows, 2)])
    if not whole and "raw" not in manifest["preprocessing"]:
        x = x.astype(np.float32)
    if labels and (count := math.prod(manifest.get("target_shape") or ())) != 1:
        raise InputError(f"{path}: has one target, the network has {count}; expected an .npz file with y")
    y = [_label(path, head, row, line, labels[0], manifest) for line, row in enumerate(rows, 2)] if labels else None
    return {name: x.reshape(len(rows), *shape)}, None if y is None else np.array(y).reshape(
        len(y), *(manifest.get("target_shape") or ())
    )


def _value(path: Path, head: list[str], row: list[str], line: int, place: int, whole: bool) -> float:
    try:
        return int(row[place]) if whole else float(row[place])
    except (ValueError, IndexError):
        text = repr(row[place]) if place < len(row) else "nothing"
        raise InputError(
            f"{path}: line {line}, column {head[place]!r}: got {text}, expected a {'whole ' * whole}number"
        ) from None


def _label(path: Path, head: list[str], row: list[str], line: int, place: int, manifest: Table) -> float:
    """Return the number of the class that a row names, or its target."""
    if manifest.get("target_shape") is not None:
        return _value(path, head, row, line, place, False)
    names, text = manifest["class_names"], row[place].strip() if place < len(row) else ""
    if text in names:
        return int(names.index(text))
    if not re.fullmatch(r"[0-9]{1,18}", text):
        known = ", ".join(names[:5])
        raise InputError(
            f"{path}: line {line}, column {head[place]!r}: got {text!r}, expected a class, such as {known}, or its number"
        )
    return int(text)


def by_input(manifest: Table, x: Samples, where: str = "", raw: bool = False) -> Tensors:
    """Return samples (n, …), or name → samples of each of several inputs, by the inputs of the graphs.

    Whole numbers of any type may stand for token ids. ``raw`` values, such as pixels, are prepared as the manifest says.

    Raises:
        InputError: a name, shape, type or value is wrong, or one input has other samples than another; it begins with ``where``.
    """
    inputs = inputs_of(manifest)
    given = {f"x.{name}": value for name, value in x.items()} if isinstance(x, Mapping) else {"x": x}
    if given.keys() != inputs.keys():
        got, expected = (", ".join(name.removeprefix("x.") for name in names) for names in (given, inputs))
        raise InputError(f"{where}x: got {got}, expected {expected}")
    found = {name: _samples(f"{where}{name.removeprefix('x.')}", given[name], entry, raw) for name, entry in inputs.items()}
    count = count_of(found)
    for name, other in found.items():
        if len(other) != count:
            first = next(iter(found)).removeprefix("x.")
            raise InputError(f"{where}{name.removeprefix('x.')}: {len(other)} samples, expected {count}, as many as of {first}")
    return found


def count_of(samples: Tensors) -> int:
    """Return the number of samples."""
    return len(next(iter(samples.values())))


def _samples(where: str, x: np.ndarray, entry: Table, raw: bool) -> np.ndarray:
    """Return the samples of one input as the graphs read them; InputError if they are wrong."""
    shape, dtype, how = tuple(entry["shape"]), entry["dtype"], entry["preprocessing"]
    if x.shape[1:] != shape or not x.ndim:
        raise InputError(f"{where}: got shape {x.shape}, expected (samples, {', '.join(map(str, shape))})")
    if not len(x):
        raise InputError(f"{where}: no sample, expected at least one")
    if raw and dtype == "float32" and (x.dtype in PIXELS or ("raw" in how and x.dtype.kind == "f")):
        x = _prepared(where, x, how)
    elif dtype == "int64" and x.dtype.kind in "iub":
        words = how.get("words")
        ids = len(how.get("alphabet", "")) or (len(words) + 1 if words else None)
        if x.min() < 0 or (ids is not None and x.max() >= ids):
            raise InputError(f"{where}: token ids {x.min()} to {x.max()}, expected 0 to {'any' if ids is None else ids - 1}")
        x = x.astype(np.int64, copy=False)
    if x.dtype != dtype:
        pixels = ", or uint8 where they are raw pixels" if raw and dtype != "int64" else ""
        raise InputError(f"{where}: got {x.dtype}, expected {dtype}, what the network takes{pixels}")
    if x.dtype == np.float32 and not np.isfinite(x).all():
        raise InputError(f"{where} holds NaN or infinity, expected finite values")
    return x


def targets(manifest: Table, y: np.ndarray, count: int, where: str = "") -> np.ndarray:
    """Return labels (count,) int64, or float32 targets (count, …) of a regression.

    Raises:
        InputError: ``y`` has another shape, type or range; it begins with ``where``.
    """
    if (target := manifest.get("target_shape")) is not None:
        if y.shape != (count, *target) or y.dtype.kind not in "fiub" or not np.isfinite(y).all():
            raise InputError(f"{where}y: got {y.dtype} of shape {y.shape}, expected finite numbers of shape {(count, *target)}")
        return y.astype(np.float32, copy=False)
    classes = manifest["classes"]
    if y.shape != (count,) or y.dtype.kind not in "iu":
        raise InputError(f"{where}y: got {y.dtype} of shape {y.shape}, expected integers of shape ({count},)")
    if y.min() < 0 or y.max() >= classes:
        raise InputError(f"{where}y: labels {y.min()} to {y.max()}, expected 0 to {classes - 1}")
    return y.astype(np.int64, copy=False)


def _read_npz(path: Path, names: list[str]) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            inflated = sum(entry.file_size for entry in entries)
            if odd := {entry.compress_type for entry in entries} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise ValueError(f"compressed in way {odd.pop()}, not as NumPy does")
        if inflated > _LARGE_BYTES and inflated > _MOST_RATIO * path.stat().st_size:
            times = inflated // path.stat().st_size
            raise InputError(
                f"{path}: grows to {inflated:,} bytes, {times} times its size; save it with numpy.savez, uncompressed"
            )
        with np.load(path, allow_pickle=False) as file:
            if missing := [name for name in names if name not in file]:
                expected = f"{', '.join(names)} and y"
                raise InputError(f"{path}: {missing[0]}: missing, expected arrays {expected}; it has {', '.join(file) or 'none'}")
            return {name: file[name] for name in names}, file.get("y")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected {FILES}") from None
    except _DAMAGED as error:
        raise InputError(f"{path}: not an .npz file of plain arrays ({first_line(error)})") from None


def _prepared(where: str, pixels: np.ndarray, how: Mapping[str, Any]) -> np.ndarray:
    """Return (pixel · scale − mean) / std as float32; mean and std are one for all channels or one for each."""
    if not {"scale", "mean", "std"} <= how.keys():
        raise InputError(f"{where}: raw pixels (uint8), but the manifest has no scale, mean and std: expected prepared float32")
    mean, std = (np.asarray(how[key], np.float64).reshape(-1, *[1] * (pixels.ndim - 2)) for key in ("mean", "std"))
    for key, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, *pixels.shape[1:2]):
            raise InputError(f"{where}: {len(values)} values of {key} in the manifest, expected one, or one for each channel")
    unit = np.float64(how["scale"]) * (255 / 65535 if pixels.dtype == np.uint16 else 1)
    return ((pixels * unit - mean) / std).astype(np.float32)


def _read_images(path: Path, manifest: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """Return images as float32 (n, channels, height, width), scaled to [0, 1] before mean and std; labels if there are subfolders."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; expected {FILES}")
    try:
        from PIL import Image
    except ImportError:
        raise InputError(f"{path}: reading images needs the package Pillow: pip install Pillow, or give an .npz file") from None
    shape, names = manifest["input_shape"], manifest["class_names"]
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise InputError(f"{path}: images cannot be {shape}, what the network takes; give an .npz file")
    inside = _visible(path) if path.is_dir() else [path]
    folders = [p for p in inside if p != path and p.is_dir()]
    if unknown := [p for p in folders if p.name not in names]:
        raise InputError(f"{unknown[0]}: no class of that name; expected one subfolder per class: {', '.join(names)}")
    found = [(p, names.index(folder.name)) for folder in folders for p in _visible(folder)]
    found = found or [(p, -1) for p in inside]
    pixels = []
    for file, _ in found:
        try:
            with Image.open(file) as image:
                one = _upright(image, "L" if shape[0] == 1 else "RGB").resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise InputError(f"{file}: not an image ({first_line(error)})") from None
        pixels.append(np.asarray(one, np.float32).reshape(shape[1], shape[2], -1).transpose(2, 0, 1) / 255)
    how = manifest["preprocessing"]
    unit = np.float32(255 * how.get("scale", 1.0) if "raw" in how else 1.0)  # with raw floats, scale is of pixels from 0 to 255
    x = _prepared(path, np.stack(pixels) * unit if pixels else np.empty((0, *shape)), {**how, "scale": 1.0})
    return {"x": x}, np.array([label for _, label in found], np.int64) if folders else None


def _upright(image: Any, mode: str) -> Any:
    """Return an image as EXIF turns it, grey or in colours; grey values of 16 bits in units of 8."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) * (255 / 65535)).astype(np.float32))
        return image if mode == "L" else image.convert("L").convert(mode)
    return image.convert(mode)


def _visible(folder: Path) -> list[Path]:
    """Return what is in a folder, except hidden files such as .DS_Store, by name."""
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))
