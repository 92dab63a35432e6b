"""Handwritten digits: 1,797 real 8×8 images that the package contains (``digits.npz``; licence: ``digits-licence.md``)."""

from pathlib import Path

import numpy as np

from edgefl.data.draws import stratified
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.registry import dataset
from edgefl.rng import generator

HELD_OUT_SHARE = 0.2
_SPLIT_SEED = 1797  # not the run's seed: all runs are evaluated on the same images


@dataset("digits")
def digits(data_dir: str | None = None) -> Dataset:
    """Return 1,437 training and 360 held-out images, with the same share of every digit; ``data_dir`` is not used.

    >>> data = digits()
    >>> len(data.train), len(data.test), data.input_shape
    (1437, 360, (1, 8, 8))
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as stored:
        images, labels = stored["images"], stored["labels"].astype(np.int64)  # pixels from 0 to 16, (1797, 8, 8) uint8
    pixels = images.astype(np.float32)[:, None] / np.float32(16.0)
    held_out = stratified(labels, round(HELD_OUT_SHARE * len(labels) + 0.5), generator(_SPLIT_SEED, "held out"))
    train = np.setdiff1d(np.arange(len(labels)), held_out)
    mean, std = float(pixels[train].mean()), float(pixels[train].std())
    x = ((pixels - np.float32(mean)) / np.float32(std)).astype(np.float32)
    return Dataset(
        name="digits",
        title="Handwritten digits, 8×8 (UCI, test part)",
        train=Split(x[train], labels[train]),
        test=Split(x[held_out], labels[held_out]),
        class_names=tuple(str(n) for n in range(10)),
        preprocessing={"scale": 1 / 16, "mean": mean, "std": std},
        default_model="cnn-digits",
        default_local_epochs=5,  # a client has about seventy images, so one pass makes only a few steps
    )
