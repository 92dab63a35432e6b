"""Data sources: the bundled digits, and Fashion-MNIST's files, whole and damaged."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from requirements import needs

import edgefl.data.digits
from edgefl.data.digits import digits, digits_edges, with_edges
from edgefl.data.fashion_mnist import fashion_mnist, read_idx
from edgefl.data.scaled import Scaled
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import DataError

NAMES = [
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
]


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    magic = (0x0800 | array.ndim) if magic is None else magic
    return struct.pack(f">I{array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(rng.integers(256, size=(6, 28, 28)))))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(rng.integers(10, size=6))))
    return tmp_path


def test_digits_are_real_and_split_evenly():
    data = digits()
    assert (len(data.train), len(data.test), data.input_shape, data.classes) == (1437, 360, (1, 8, 8), 10)
    counts = np.bincount(data.test.y), np.bincount(data.train.y)
    assert np.abs(counts[0] - 0.2 * (counts[0] + counts[1])).max() < 1
    assert abs(data.train.x.mean()) < 1e-4
    assert abs(data.train.x.std() - 1) < 1e-4
    # No image is in both parts.
    assert not {x.tobytes() for x in data.test.x} & {x.tobytes() for x in data.train.x}


def test_digits_are_those_of_scikit_learn_in_the_same_order():
    """Every golden figure depends on them: hash of ``load_digits()``'s images and targets as int64, scikit-learn 1.9.1."""
    with np.load(Path(edgefl.data.digits.__file__).with_name("digits.npz"), allow_pickle=False) as stored:
        content = b"".join(stored[name].astype(np.int64).tobytes() for name in ("images", "labels"))
    assert hashlib.sha256(content).hexdigest() == "267f86e03ae0481efa68bbcf4dcd04133dbc88a3145b0551cb2221500a4881e0"


def test_edges_are_differences_of_neighbours_and_no_multiples_of_the_image():
    x = np.random.default_rng(0).standard_normal((2, 1, 4, 5)).astype(np.float32)
    found = with_edges(x)
    assert found.dtype == np.float32
    for sample, row, column in np.ndindex(2, 4, 5):
        image = x[sample, 0]
        across = image[row, min(column + 1, 4)] - image[row, max(column - 1, 0)]
        down = image[min(row + 1, 3), column] - image[max(row - 1, 0), column]
        assert found[sample, :, row, column] == pytest.approx([image[row, column], across, down], abs=1e-6)
    data = digits_edges()
    assert data.input_shape == (3, 8, 8)
    assert np.array_equal(data.train.x[:, :1], digits().train.x)
    assert np.array_equal(data.test.y, digits().test.y)
    assert data.train.x.std(axis=(0, 2, 3)) == pytest.approx([1, 1, 1], rel=1e-4)
    across, down = data.preprocessing["differences"]["std"]
    assert np.allclose(
        data.test.x * np.array([1, across, down], np.float32)[:, None, None], with_edges(digits().test.x), atol=1e-5
    )
    channels = data.train.x.transpose(1, 0, 2, 3).reshape(3, -1)
    assert np.linalg.svd(channels / np.linalg.norm(channels, axis=1, keepdims=True), compute_uv=False).min() > 0.5


def test_samples_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="read-only"):
        digits().train.x[0] = 0


@needs("Fashion-MNIST")
def test_fashion_mnist_is_whole():
    data = fashion_mnist()
    assert (len(data.train), len(data.test), data.input_shape) == (60000, 10000, (1, 28, 28))
    assert np.bincount(data.train.y).tolist() == [6000] * 10
    assert abs(np.asarray(data.train.x).mean()) < 1e-2


@pytest.mark.parametrize("index", [slice(None), slice(3, 250), np.array([5, 0, 299]), np.arange(300) % 2 == 0, slice(9, 9)])
def test_pixels_become_what_the_formula_says_whatever_is_taken(index):
    raw = np.random.default_rng(0).integers(256, size=(300, 1, 4, 5), dtype=np.uint8)
    images = Scaled(raw, 0.2860, 0.3530)
    whole = (raw.astype(np.float32) / np.float32(255) - np.float32(0.2860)) / np.float32(0.3530)
    assert (images.shape, images.ndim, len(images), images.dtype) == (whole.shape, 4, 300, whole.dtype)
    taken = images[index]
    assert taken.dtype == np.float32
    assert taken.flags.writeable
    assert np.array_equal(taken, whole[index])
    assert np.array_equal(np.asarray(images), whole)


def test_stored_pixels_are_read_only():
    raw = np.zeros((2, 1, 2, 2), np.uint8)
    split = Split(Scaled(raw, 0.5, 0.5), np.array([0, 1]))
    Dataset("two", "Two", split, split, ("a", "b"), {}, "mlp")
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = 1


def test_fashion_mnist_from_a_folder(folder):
    data = fashion_mnist(str(folder))
    raw = read_idx(folder / NAMES[0], 3)
    assert np.allclose(data.train.x[:, 0], (raw / 255 - 0.2860) / 0.3530, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named_with_what_to_do(folder, name):
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name}: no such file; .*--data-dir, or install Debian's package"):
        fashion_mnist(str(folder))


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such folder"):
        fashion_mnist(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda raw: gzip.compress(raw)[:-30], "incomplete or damaged|cannot be read"),
        (lambda raw: b"plain text", "cannot be read"),
        (lambda raw: gzip.compress(raw[:-1]), "4703 data bytes, expected 4704 for 6 × 28 × 28"),
        (lambda raw: gzip.compress(raw + b"x"), "4705 data bytes, expected 4704"),
        (lambda raw: gzip.compress(raw[:7]), "7 bytes, expected at least a header of 16"),
        (lambda raw: gzip.compress(b"\0\0\x0d\x03" + raw[4:]), "magic number 0x00000d03, expected 0x00000803"),
    ],
)
def test_a_damaged_file_says_what_was_found(folder, content, message):
    path = folder / NAMES[0]
    path.write_bytes(content(gzip.decompress(path.read_bytes())))
    with pytest.raises(DataError, match=message) as error:
        fashion_mnist(str(folder))
    assert NAMES[0] in str(error.value)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (NAMES[1], np.zeros(5), "6 images, but .* has 5 labels"),
        (NAMES[3], np.full(6, 10), "label 10, expected 0 to 9"),
        (NAMES[2], np.zeros((6, 14, 28)), "images of 14×28, expected 28×28"),
    ],
)
def test_files_that_do_not_fit_each_other(folder, name, array, message):
    (folder / name).write_bytes(gzip.compress(idx(array)))
    with pytest.raises(DataError, match=message):
        fashion_mnist(str(folder))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (
            np.zeros((2, 1, 1, 1)),
            np.array([0, 1]),
            "expected float32 samples or int64 token ids, got float64",
        ),
        (np.array([[0], [3]]), np.array([0, 1]), "token ids 0 to 3, expected 0 to -1 .vocabulary 0."),
        (np.zeros((2, 1, 1, 1), np.float32), np.array([0]), "2 samples but 1 labels"),
        (np.zeros((2, 1, 1, 1), np.float32), np.array([0, 2]), "labels 0 to 2, expected 0 to 1"),
        (np.full((2, 1, 1, 1), np.nan, np.float32), np.array([0, 1]), "NaN or infinity"),
    ],
)
def test_a_dataset_checks_itself(x, y, message):
    with pytest.raises(DataError, match=message):
        Dataset("d", "D", Split(x, y), Split(x, y), ("a", "b"), {}, "mlp")


def dataset(**more) -> Dataset:
    ids, y = np.array([[0, 1], [2, 2]]), np.array([0, 1])
    return Dataset("d", "D", Split(ids, y), Split(ids.copy(), y.copy()), ("a", "b"), {}, "lstm", **{"vocabulary": 3, **more})


def test_token_ids_owners_and_domains():
    groups = {name: np.array([0, 1]) for name in ("train_owner", "test_owner", "train_domain", "test_domain")}
    data = dataset(**groups, domain_names=("x", "y"))
    assert (data.input_shape, data.vocabulary) == ((2,), 3)
    with pytest.raises(ValueError, match="read-only"):
        data.train_owner[0] = 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"vocabulary": 2}, r"token ids 0 to 2, expected 0 to 1 \(vocabulary 2\)"),
        ({"test_owner": np.array([0, 1])}, "train_owner is missing: give both or neither"),
        (
            {"train_owner": np.array([0, 1, 1]), "test_owner": np.array([0, 1])},
            r"train_owner is int64 \(3,\), expected int64 \(2,\)",
        ),
        ({"train_owner": np.array([0, 1]), "test_owner": np.array([0.0, 1.0])}, "test_owner is float64"),
        ({"train_owner": np.array([0, 4]), "test_owner": np.array([0, 0])}, "owner 4 has samples only in one of train and test"),
        ({"train_domain": np.array([0, 1]), "test_domain": np.array([0, 1])}, "domains and domain_names are given together"),
        ({"domain_names": ("x",)}, "domains and domain_names are given together"),
        (
            {"train_domain": np.array([0, 2]), "test_domain": np.array([0, 2]), "domain_names": ("x", "y")},
            r"domains \[0, 2\] for 2 names: x, y",
        ),
    ],
)
def test_a_dataset_checks_ids_owners_and_domains(more, message):
    with pytest.raises(DataError, match=message):
        dataset(**more)


def test_training_and_held_out_samples_have_one_shape():
    y = np.array([0, 1])
    with pytest.raises(DataError, match=r"training samples are int64 \(2,\), held-out ones int64 \(3,\)"):
        Dataset(
            "d",
            "D",
            Split(np.zeros((2, 2), np.int64), y),
            Split(np.zeros((2, 3), np.int64), y),
            ("a", "b"),
            {},
            "m",
            vocabulary=1,
        )
