"""The IDX format of MNIST-like data sets: a magic number, big-endian sizes, then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from edgefl.errors import DataError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """Read a gzip-compressed IDX file of unsigned bytes with ``dimensions`` dimensions.

    Raises:
        DataError: the file is missing, not gzip, cut, or has another magic number, element type, number of dimensions or length.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except OSError as error:  # gzip.BadGzipFile is one
        reason = error.strerror or str(error)
        raise DataError(f"{path}: cannot be read ({reason}), expected a gzip-compressed IDX file") from None
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path}: the compressed data are cut or damaged ({error}); fetch the file again") from None
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path}: {len(content)} bytes, expected at least a header of {header}")
    expected = (_UNSIGNED_BYTE << 8) | dimensions
    (magic,) = struct.unpack(">I", content[:4])
    if magic != expected:
        raise DataError(
            f"{path}: magic number 0x{magic:08x}, expected 0x{expected:08x} (unsigned bytes, {dimensions} dimensions)"
        )
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        sizes = " × ".join(map(str, shape))
        raise DataError(f"{path}: {len(content) - header} data bytes, expected {math.prod(shape)} for {sizes}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
