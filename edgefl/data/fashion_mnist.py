"""Fashion-MNIST: 70,000 grey 28×28 images of ten kinds of clothing (Xiao et al. 2017), read from its four files."""

import gzip
import math
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from edgefl.data.scaled import Scaled
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import DataError
from edgefl.registry import dataset

SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
MEAN, STD = 0.2860, 0.3530  # of the training pixels, the customary values
CLASS_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_UNSIGNED_BYTE = 0x08
_HOW = "give its folder with --data-dir, or install Debian's package dataset-fashion-mnist"


@dataset("fashion-mnist")
def fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Return 60,000 training and 10,000 held-out images, normalised, from ``data_dir`` or :data:`SYSTEM_FOLDER`; DataError if damaged."""
    folder = Path(data_dir) if data_dir is not None else SYSTEM_FOLDER
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; fashion-mnist is read from four .gz files: {_HOW}")
    with ThreadPoolExecutor() as pool:
        train, test = pool.map(partial(_read, folder), ("train", "t10k"))
    return Dataset(
        name="fashion-mnist",
        title="Fashion-MNIST, 28×28",
        train=train,
        test=test,
        class_names=CLASS_NAMES,
        preprocessing={"scale": 1 / 255, "mean": MEAN, "std": STD},
        default_model="cnn-fashion",
    )


def _read(folder: Path, part: str) -> Split:
    images_path, labels_path = (folder / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
    for path in (images_path, labels_path):
        if not path.is_file():
            raise DataError(f"{path}: no such file; fashion-mnist needs all four of its files: {_HOW}")
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{images_path}: images of {images.shape[1]}×{images.shape[2]}, expected 28×28")
    if len(images) != len(labels):
        raise DataError(f"{images_path}: {len(images)} images, but {labels_path.name} has {len(labels)} labels")
    if len(labels) and labels.max() >= len(CLASS_NAMES):
        raise DataError(f"{labels_path}: label {labels.max()}, expected 0 to {len(CLASS_NAMES) - 1}")
    return Split(Scaled(images[:, None], MEAN, STD), labels.astype(np.int64))


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Return the uint8 array of a gzip-compressed IDX file with ``dimensions`` dimensions; DataError if it cannot be read as one."""
    try:
        content = gzip.decompress(path.read_bytes())
    except OSError as error:  # gzip.BadGzipFile is one
        reason = error.strerror or str(error)
        raise DataError(f"{path}: cannot be read ({reason}), expected a gzip-compressed IDX file") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the compressed data are incomplete or damaged ({error}); fetch the file again") from None
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path}: {len(content)} bytes, expected at least a header of {header}")
    expected = (_UNSIGNED_BYTE << 8) | dimensions
    (magic,) = struct.unpack(">I", content[:4])
    if magic != expected:
        kind = f"unsigned bytes, {dimensions} dimensions"
        raise DataError(f"{path}: magic number 0x{magic:08x}, expected 0x{expected:08x} ({kind})")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        sizes = " × ".join(map(str, shape))
        raise DataError(f"{path}: {len(content) - header} data bytes, expected {math.prod(shape)} for {sizes}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
