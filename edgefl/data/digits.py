"""Handwritten digits: the 1,797 real 8×8 images that scikit-learn carries."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from edgefl.data.sources import Dataset, Split
from edgefl.data.strata import stratified
from edgefl.registry import dataset
from edgefl.rng import generator

HELD_OUT_SHARE = 0.2
_SPLIT_SEED = 1797  # the split belongs to the data set, not to a run: runs with other seeds are compared on the same images


@dataset("digits")
def digits(data_dir: str | None = None) -> Dataset:
    """Return 1,437 training and 360 held-out images, the same share of every digit in both; ``data_dir`` is not needed.

    >>> data = digits()
    >>> len(data.train), len(data.test), data.input_shape
    (1437, 360, (1, 8, 8))
    """
    images, labels = _read()
    pixels = images.astype(np.float32)[:, None] / np.float32(16.0)
    held_out = stratified(labels, round(HELD_OUT_SHARE * len(labels) + 0.5), generator(_SPLIT_SEED, "held out"))
    train = np.setdiff1d(np.arange(len(labels)), held_out)
    mean, std = float(pixels[train].mean()), float(pixels[train].std())
    x = ((pixels - np.float32(mean)) / np.float32(std)).astype(np.float32)
    return Dataset(
        name="digits",
        title="Handwritten digits, 8×8 (UCI, test part, as scikit-learn carries it)",
        train=Split(x[train], labels[train]),
        test=Split(x[held_out], labels[held_out]),
        class_names=tuple(str(n) for n in range(10)),
        preprocessing={"scale": 1 / 16, "mean": mean, "std": std},
        default_model="cnn-digits",
        default_local_epochs=5,  # a client has some seventy images: fewer passes are hardly a step
    )


def _read() -> tuple[np.ndarray, np.ndarray]:
    """Return images (1797, 8, 8) and labels (1797,), int64: from scikit-learn's file, a second sooner than through its package."""
    package = find_spec("sklearn")
    folders = package.submodule_search_locations if package else None
    path = Path(next(iter(folders or ()), "")) / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        table = np.loadtxt(path, delimiter=",", dtype=np.int64)
        return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images.astype(np.int64), bunch.target.astype(np.int64)
