"""Handwritten digits: 1,797 real 8×8 images that the package contains (``digits.npz``; licence: ``digits-licence.md``), also with edges."""

from pathlib import Path

import numpy as np

from edgefl.data.sources import Dataset
from edgefl.data.split import Split, stratified
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


@dataset("digits-edges")
def digits_edges(data_dir: str | None = None) -> Dataset:
    """Return the digits with three channels: the image, and its differences from left to right and from top to bottom.

    One filter makes three different maps of them, but of a tinted image's colours it would make one map three times. Differences are
    divided by their standard deviation over the training images. Do not mirror them with ``--augment flip``: the differences across would
    keep their sign. ``data_dir`` is not used.

    >>> data = digits_edges()
    >>> len(data.train), len(data.test), data.input_shape
    (1437, 360, (3, 8, 8))
    """
    plain = digits()
    train, test = (with_edges(np.asarray(split.x)) for split in (plain.train, plain.test))
    deviations = train.std(axis=(0, 2, 3), keepdims=True)
    deviations[:, 0] = 1  # the image itself is normalised already
    return Dataset(
        name="digits-edges",
        title="Handwritten digits with edges, 3×8×8",
        train=Split(train / deviations, plain.train.y.copy()),
        test=Split(test / deviations, plain.test.y.copy()),
        class_names=plain.class_names,
        preprocessing={
            **plain.preprocessing,
            "differences": {"axes": ["width", "height"], "std": deviations[0, 1:, 0, 0].tolist()},
        },
        default_model=plain.default_model,
        default_local_epochs=plain.default_local_epochs,
    )


def with_edges(x: np.ndarray) -> np.ndarray:
    """Return images (n, 3, h, w) float32 from ``x`` (n, 1, h, w): x, x right − x left, and x below − x above; border pixels repeat.

    >>> with_edges(np.array([[[[0.0, 1.0, 5.0]]]], np.float32))[0].tolist()
    [[[0.0, 1.0, 5.0]], [[1.0, 5.0, 4.0]], [[0.0, 0.0, 0.0]]]
    """
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
    across = wide[:, :, 1:-1, 2:] - wide[:, :, 1:-1, :-2]
    down = wide[:, :, 2:, 1:-1] - wide[:, :, :-2, 1:-1]
    return np.concatenate([x, across, down], axis=1).astype(np.float32)
