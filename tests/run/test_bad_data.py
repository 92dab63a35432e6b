"""Wrong data of a user, by the command line: one message with status 2 before a run begins, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import own_files
import pyarrow as pa
import pytest
from pyarrow import parquet

X, Y = own_files.images()


def arrays(**given: Any) -> Callable[[Path], Path]:
    """Return what writes arrays."""

    def write(folder: Path) -> Path:
        np.savez(folder / "wrong.npz", **given)
        return folder / "wrong.npz"

    return write


def table(**columns: Any) -> Callable[[Path], Path]:
    """Return what writes a table."""

    def write(folder: Path) -> Path:
        parquet.write_table(pa.table(columns), folder / "wrong.parquet")
        return folder / "wrong.parquet"

    return write


def mixed(folder: Path) -> Path:
    """Write images, one of which has another size."""
    pictures = own_files.image_folder(folder)
    own_files.Image.new("RGB", (9, 8)).save(pictures / "bee" / "odd.png")
    return pictures


def without_images(folder: Path) -> Path:
    """Write images, and the folder of a class without any."""
    pictures = own_files.image_folder(folder)
    (pictures / "dog").mkdir()
    return pictures


# Case → what is written, more flags, and the message.
WRONG: dict[str, tuple[Callable[[Path], Path], list[str], str]] = {
    "labels are missing": (arrays(x=X), [], "no array 'y', expected x and y; there are x"),
    "a label is missing": (
        arrays(x=X, y=np.array([np.nan, *Y[1:]])),
        [],
        "1 of 60 labels are missing, the first that of sample 0",
    ),
    "a row has no label": (table(v=[1.0] * 9, y=[None, *"ab" * 4]), [], "1 of 9 labels are missing, the first that of sample 0"),
    "labels are no integers": (arrays(x=X, y=Y + 0.5), [], "wrong has float32 targets, no labels; give a loss"),
    "labels are one-hot": (
        arrays(x=X, y=np.eye(3, dtype=np.float32)[Y % 3]),
        [],
        "wrong has one-hot targets; store labels instead",
    ),
    "labels are complex": (arrays(x=X, y=Y + 1j), [], "labels of type complex128, expected integers from 0, or texts"),
    "a class without samples": (arrays(x=X, y=np.where(Y == 1, 3, Y)), [], "no training sample of class '1'; number the classes"),
    "a class without images": (without_images, [], "class 'dog' has no image"),
    "images of mixed size": (mixed, [], "mixed size: ant/000.png 8×8 and bee/odd.png 9×8 pixels"),
    "a label that cannot be guessed": (
        own_files.owned_parquet,
        [],
        "which column is the label? Give it with --label; its columns are light0, light1, light2, light3, kind, user_id",
    ),
    "samples that cannot be guessed": (
        table(a=[1.0, 2.0], city=["x", "y"], y=[0, 1]),
        [],
        "which columns are a sample? Give them with --features; there are texts: city; numbers: a",
    ),
    "no owners": (own_files.npz, ["--partition", "natural"], "partition: natural needs samples with owners: give --owner"),
    "a partitioner that is not installed": (own_files.npz, ["--partition", "flwr:none"], "partition: flwr"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_data_are_one_message_and_nothing_is_written(case: str, tmp_path: Path, called: Any) -> None:
    write, more, message = WRONG[case]
    status, output, errors = called("simulate", "--data", str(write(tmp_path)), "--model=mlp", "--clients=3", "--out=run", *more)
    assert (status, output, errors.count("\n")) == (2, "", 1), errors
    assert re.search(re.escape(message), errors), errors
    assert list(Path().iterdir()) == []
