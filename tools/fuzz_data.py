"""Reads damaged files of a user's data for some seconds: arrays, tables and images. Each is read or refused; anything else is a bug.

Usage: python tools/fuzz_data.py --seconds 60 --seed 1
"""

import argparse
import io
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import feather, parquet

from edgefl.data.given import Reading
from edgefl.data.own import load_own
from edgefl.errors import EdgeflError

ROWS = 24
IMAGES = ("png", "jpg", "gif", "tif", "webp", "bmp", "tga", "ppm")
FEATURES: tuple[tuple[str, ...], ...] = ((), ("age",), ("marks",), ("age", "marks"))


def whole_files() -> dict[str, bytes]:
    """Return a small file of each form, by its ending; a grey image of 16 bits is ``deep.ENDING``."""
    rng, y = np.random.default_rng(0), [row % 2 for row in range(ROWS)]
    table = pa.table({
        "id": list(range(ROWS)), "age": [row / 4 for row in range(ROWS)], "marks": [[1.0, float(row)] for row in range(ROWS)],
        "kind": pa.array(["ab"[label] for label in y]).dictionary_encode(), "label": y,
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        found = {}
        for ending, write in (
            ("npz", lambda: np.savez(path.open("wb"), x=rng.normal(size=(ROWS, 3)), y=y)),
            ("parquet", lambda: parquet.write_table(table, path, compression="none")),
            ("feather", lambda: feather.write_feather(table, path, compression="uncompressed")),
            (
                "csv",
                lambda: path.write_text("id,age,label\n" + "".join(f"{row},{row / 4},{'ab'[y[row]]}\n" for row in range(ROWS))),
            ),
        ):
            write()
            found[ending] = path.read_bytes()
    colours = Image.fromarray(rng.integers(0, 255, (8, 8, 3)).astype(np.uint8))
    deep = Image.fromarray(rng.integers(0, 65535, (8, 8)).astype(np.uint16))
    for name, image in [*((ending, colours) for ending in IMAGES), ("deep.png", deep), ("deep.tif", deep)]:
        content = io.BytesIO()
        image.save(content, Image.registered_extensions()[f".{name.rpartition('.')[2]}"])
        found[name] = content.getvalue()
    return found


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return ``content`` with a few bits, bytes or stretches changed."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        place, kind = int(rng.integers(len(changed))), rng.integers(5)
        if kind < 2:
            changed[place] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            changed[place] = int(rng.integers(256))
        elif kind == 3:
            changed[place:place] = changed[int(rng.integers(len(changed))) :][:9]
        else:
            del changed[place : place + int(rng.integers(1, 9))]
        changed = changed or bytearray(b"x")
    return bytes(changed)


def lay_out(folder: Path, name: str, content: bytes, whole: bytes) -> Path:
    """Write a file into ``folder``, an image among others of two classes, and return the path of the data set."""
    ending = name.rpartition(".")[2]
    if ending not in IMAGES:
        (folder / f"own.{ending}").write_bytes(content)
        return folder / f"own.{ending}"
    for kind in "ab":
        (folder / kind).mkdir()
        for place in range(3):
            (folder / kind / f"{place}.{ending}").write_bytes(content if (kind, place) == ("a", 1) else whole)
    return folder


def main() -> int:
    """Return 1 if a file was neither read nor refused, and print the first traceback of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, files, found = np.random.default_rng(given.seed), whole_files(), Counter[str]()
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        name = str(rng.choice(list(files)))
        features = FEATURES[rng.integers(len(FEATURES))] if name in ("parquet", "feather") else ()
        with tempfile.TemporaryDirectory() as folder:
            path = lay_out(Path(folder), name, damaged(files[name], rng), files[name])
            try:
                load_own(str(path), Reading(features=features))
                found["read"] += 1
            except EdgeflError:
                found["refused"] += 1
            except Exception as error:  # noqa: BLE001 - what this tool looks for
                kind = f"{name}: {type(error).__name__} {traceback.extract_tb(error.__traceback__)[-1]}"
                if kind not in found:
                    traceback.print_exc()
                found[kind] += 1
    sys.stdout.write("".join(f"{count:6,} {kind}\n" for kind, count in found.most_common()))
    return int(bool(found.keys() - {"read", "refused"}))


if __name__ == "__main__":
    sys.exit(main())
