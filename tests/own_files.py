"""Small data sets of a user's own, in every form that is read: three classes of 8×8 images that differ in their light."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

COUNT, CLASSES = 60, ("ant", "bee", "cat")


def images(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Return images (n, 8, 8, 3) uint8 and labels (n,)."""
    y = np.arange(count) % len(CLASSES)
    light = np.random.default_rng(0).integers(0, 80, (count, 8, 8, 3)) + 60 * y[:, None, None, None]
    return light.astype(np.uint8), y


def png(image: np.ndarray) -> bytes:
    """Return an image as the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png")
    return file.getvalue()


def npz(folder: Path) -> Path:
    """Write arrays."""
    x, y = images()
    np.savez(folder / "own.npz", x=x, y=y)
    return folder / "own.npz"


def image_folder(folder: Path) -> Path:
    """Write a subfolder of images per class."""
    for number, (image, label) in enumerate(zip(*images(), strict=True)):
        path = folder / "pictures" / CLASSES[label] / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(image))
    return folder / "pictures"


def owned_parquet(folder: Path) -> Path:
    """Write a table of numbers, with texts as labels and five owners."""
    x, y = images()
    columns: dict[str, Any] = {f"light{k}": x[:, k, k, 0] for k in range(4)}
    columns |= {"kind": [CLASSES[label] for label in y], "user_id": [f"u{n // 3 % 5}" for n in range(COUNT)]}
    parquet.write_table(pa.table(columns), folder / "own.parquet")
    return folder / "own.parquet"


def cifar_schema(classes: tuple[str, ...] = CLASSES, image: str = "img", label: str = "label") -> pa.Schema:
    """Return the schema of CIFAR-10 as ``datasets`` stores it."""
    features = {image: {"_type": "Image"}, label: {"names": list(classes), "_type": "ClassLabel"}}
    kinds = [(image, pa.struct([("bytes", pa.binary()), ("path", pa.string())])), (label, pa.int64())]
    return pa.schema(kinds, {"huggingface": json.dumps({"info": {"features": features}})})


def arrow_folder(folder: Path, schema: pa.Schema | None = None, x: np.ndarray | None = None, y: np.ndarray | None = None) -> Path:
    """Write a data set as ``save_to_disk`` does: Arrow streams of PNG images for training and test."""
    schema = schema or cifar_schema()
    given, labels = images() if x is None or y is None else (x, y)
    for part, rows in (("train", slice(15, None)), ("test", slice(15))):
        path = folder / "saved" / part / "data-00000-of-00001.arrow"
        path.parent.mkdir(parents=True)
        cells = [{"bytes": png(image), "path": None} for image in given[rows]]
        table = pa.table([cells, labels[rows]], schema=schema)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            stream.write_table(table, max_chunksize=20)
    return folder / "saved"
