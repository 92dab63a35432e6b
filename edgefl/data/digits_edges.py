"""Handwritten digits with their edges: three channels that differ in their content, as those of photographs do."""

import numpy as np

from edgefl.data.digits import digits
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.registry import dataset


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
