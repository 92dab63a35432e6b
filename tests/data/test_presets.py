"""Well-known data sets, read from Arrow files of the hub's schemas that these tests write."""

import numpy as np
import own_files
import pyarrow as pa
import pytest
from pyarrow import parquet

from edgefl.data.mix import load
from edgefl.errors import DataError
from edgefl.registry import datasets

IMAGES = {
    "cifar10": (32, 3, 10, "img", "label", (0.4914, 0.2470)),
    "cifar100": (32, 3, 100, "img", "fine_label", (0.5071, 0.2673)),
    "svhn": (32, 3, 10, "image", "label", (0.4377, 0.1980)),
    "mnist": (28, 1, 10, "image", "label", (0.1307, 0.3081)),
    "cinic10": (32, 3, 10, "image", "label", (0.47889522, 0.24205776)),
    "tiny-imagenet": (64, 3, 200, "image", "label", (0.4802, 0.2770)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_are_normalised_as_in_the_papers(tmp_path, name):
    side, channels, classes, image, label, (mean, std) = IMAGES[name]
    shape = (15 + classes, side, side, *[channels] * (channels > 1))
    x = np.random.default_rng(0).integers(256, size=shape).astype(np.uint8)
    y = np.arange(len(x)) % classes
    schema = own_files.cifar_schema(tuple(f"class {n}" for n in range(classes)), image, label)
    folder = own_files.arrow_folder(tmp_path, schema, x, y)
    if name == "svhn":
        (folder / "train").rename(folder / "extra")  # which is not for training
        own_files.arrow_folder(tmp_path / "again", schema, x, y).joinpath("train").rename(folder / "train")
    data = load(name, str(folder))
    assert (data.name, data.input_shape, data.classes, len(data.train), len(data.test)) == (
        name,
        (channels, side, side),
        classes,
        classes,
        15,
    )
    first = x[15].reshape(side, side, -1)[:, :, 0].astype(np.float64)
    np.testing.assert_allclose(data.train.x[:1][0, 0], (first / 255 - mean) / std, atol=1e-5)
    assert np.array_equal(data.train.y, y[15:])
    assert data.class_names[1] == "class 1"


def test_femnist_has_writers(tmp_path):
    x = np.random.default_rng(0).integers(256, size=(186, 28, 28)).astype(np.uint8)
    # The first image is stored in colour, and all are read in grey.
    stored = [np.repeat(x[0, :, :, None], 3, 2), *x[1:]]
    cells = [{"bytes": own_files.png(image), "path": None} for image in stored]
    writers = [f"f{n % 3:04}" for n in range(186)]
    table = pa.table({"image": cells, "writer_id": writers, "hsf_id": [0] * 186, "character": np.arange(186) // 3 % 62})
    (tmp_path / "data").mkdir()
    parquet.write_table(table, tmp_path / "data" / "train-00000-of-00001.parquet")
    data = load("femnist", str(tmp_path))
    assert (data.classes, data.input_shape, len(np.unique(data.train_owner)), len(data.test)) == (62, (1, 28, 28), 3, 36)


def test_texts_become_ids(tmp_path):
    reviews = {"text": ["A good film", "bad, bad film"] * 4, "label": [1, 0] * 4}
    for part in ("train", "test", "unsupervised"):
        parquet.write_table(pa.table(reviews), tmp_path / f"{part}-0.parquet")
    data = load("imdb", str(tmp_path))
    assert (data.input_shape, len(data.train), data.test.x[1, -3:].tolist()) == ((500,), 8, [1, 1, 2])
    assert data.preprocessing["words"] == ["bad", "film", "a", "good"]


def test_leafs_shakespeare_holds_the_end_of_each_role_out(tmp_path):
    text = "To be, or not to be: that is the question"
    rows = [(text[k : k + 4], text[k + 4], role) for role, many in (("A", 10), ("B", 5), ("C", 1)) for k in range(many)]
    columns = dict(zip(("x", "y", "character_id"), map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pa.table(columns), tmp_path / "train.parquet")
    data = load("shakespeare-leaf", str(tmp_path))
    assert (len(data.train), len(data.test), data.test_owner.tolist()) == (12, 3, [0, 0, 1])
    alphabet = data.preprocessing["alphabet"]
    assert "".join(alphabet[k] for k in data.test.x[0]) == text[8:12]
    assert alphabet[data.test.y[0]] == text[12]
    for wrong in ("To €", "To", "To~b"):
        parquet.write_table(pa.table(columns | {"x": [wrong, *columns["x"][1:]]}), tmp_path / "train.parquet")
        with pytest.raises(DataError, match="expected windows of one length in the 80 characters of LEAF's alphabet"):
            load("shakespeare-leaf", str(tmp_path))


def test_without_a_network_the_error_says_what_to_fetch_and_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.data.hub._reachable", lambda: False)
    for folder in (None, str(tmp_path / "none")):
        with pytest.raises(
            DataError, match="hf download --repo-type dataset uoft-cs/cifar10 .* give --dataset cifar10 --data-dir DIR"
        ):
            load("cifar10", folder)
    with pytest.raises(DataError, match="no training rows"):
        load("svhn", str(tmp_path))
    assert {*IMAGES, "femnist", "imdb", "shakespeare-leaf"} <= set(datasets.names())
