"""Permuted labels, little data, draws that keep label shares, and several domains at once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from requirements import needs

from edgefl.data.digits import digits
from edgefl.data.fashion_mnist import SYSTEM_FOLDER
from edgefl.data.mix import check, load, mixed, resized
from edgefl.data.scenario import permutation, permuted, share, validating
from edgefl.data.sources import Dataset
from edgefl.data.split import Split, apportion, drawn, stratified
from edgefl.errors import ConfigError, DataError, UnknownNameError
from edgefl.rng import generator


def images(name: str, shape: tuple[int, ...], classes: int, samples: int = 12, **more) -> Dataset:
    rng = np.random.default_rng(classes)

    def part(n: int) -> Split:
        return Split(rng.standard_normal((n, *shape)).astype(np.float32), np.arange(n, dtype=np.int64) % classes)

    names = tuple(f"class {n}" for n in range(classes))
    defaults = {"default_model": f"cnn-{name}", "preprocessing": {"mean": 0.5}}
    return Dataset(name, name.title(), part(samples), part(samples), names, **{**defaults, **more})


@given(st.integers(0, 2**32 - 1), st.integers(0, 1000), st.integers(1, 40))
def test_a_permutation_has_every_label_once(seed, client, classes):
    assert np.array_equal(np.sort(permutation(seed, client, classes)), np.arange(classes))


def test_every_client_has_a_permutation_of_its_own_and_always_the_same():
    orders = [permutation(3, client, 10).tolist() for client in range(20)]
    assert orders == [permutation(3, client, 10).tolist() for client in range(20)]
    assert len({tuple(order) for order in orders}) == 20
    assert permutation(4, 0, 10).tolist() != orders[0]


def test_labels_of_other_domains_stay():
    order = permutation(0, 2, 20, labels=np.arange(10, 20))
    assert order[:10].tolist() == list(range(10))
    assert order[10:].tolist() != list(range(10, 20))
    assert sorted(order[10:]) == list(range(10, 20))


def test_permuted_renames_each_label():
    assert permuted(np.array([0, 2, 2, 1]), np.array([2, 0, 1]), 3, client=0).tolist() == [2, 1, 1, 0]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1], "client 7: a permutation of 2 labels, but the data have 3"),
        ([0, 1, 1], r"client 7: \[0, 1, 1\] is not a permutation of the 3 labels: 2 is missing and 1 is there 2 times"),
        ([0, 1, 3], r"2 is missing and 3 is there 1 times"),
        ([-1, 1, 2], r"0 is missing and -1 is there 1 times"),
    ],
)
def test_what_is_no_permutation_is_refused(order, message):
    with pytest.raises(DataError, match=message):
        permuted(np.array([0]), np.array(order), 3, client=7)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any), st.data())
def test_apportion_is_exact_and_within_one_of_proportional(sizes, data):
    count = data.draw(st.integers(0, sum(sizes)))
    parts = apportion(np.array(sizes), count)
    assert parts.sum() == count
    assert (np.abs(parts - np.array(sizes) * count / sum(sizes)) < 1).all()
    assert (parts <= np.array(sizes)).all()


def test_stratified_keeps_shares():
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    chosen = stratified(labels, 20, np.random.default_rng(0))
    assert np.bincount(labels[chosen]).tolist() == [12, 6, 2]
    assert len(np.unique(chosen)) == 20


def test_a_label_that_runs_out_gives_all_it_has():
    labels = np.repeat([0, 1], [3, 9])
    chosen = drawn(labels, {0: 5, 1: 4, 2: 6}, np.random.default_rng(0))
    assert np.bincount(labels[chosen]).tolist() == [3, 4]
    assert len(drawn(labels, {}, np.random.default_rng(0))) == 0


@pytest.mark.parametrize(("samples", "kept", "expected"), [(100, 0.2, 20), (13, 0.5, 7), (3, 0.01, 1), (1, 0.2, 1), (9, 1.0, 9)])
def test_share_keeps_the_nearest_number_and_at_least_one(samples, kept, expected):
    assert len(share(np.arange(samples) % 3, kept, np.random.default_rng(0))) == expected


def test_share_of_one_draws_nothing():
    rng = generator(0, "share")
    assert np.array_equal(share(np.zeros(5, np.int64), 1.0, rng), np.arange(5))
    assert rng.integers(2**32) == generator(0, "share").integers(2**32)


@pytest.mark.parametrize("kept", [0.0, -0.2, 1.01, float("nan")])
def test_a_share_out_of_range_is_refused(kept):
    with pytest.raises(ConfigError, match="data_share: got .*, expected more than 0 and at most 1"):
        share(np.zeros(5, np.int64), kept, np.random.default_rng(0))


@pytest.mark.parametrize(("have", "want"), [((8, 8), (28, 28)), ((8, 11), (8, 32)), ((1, 1), (3, 2)), ((5, 7), (5, 7))])
def test_resizing_is_what_torch_calls_bilinear(have, want):
    x = np.random.default_rng(0).standard_normal((3, 2, *have)).astype(np.float32)
    expected = torch.nn.functional.interpolate(torch.from_numpy(x), size=want, mode="bilinear", align_corners=False).numpy()
    assert np.abs(resized(x, *want) - expected).max() < 1e-5


def test_resizing_by_hand():
    """Two pixels to four: at −¼, ¼, ¾ and 1¼ of their distance; what lies beyond the border is the border's pixel."""
    row = resized(np.array([[[[0.0, 4.0]]]], np.float32), 2, 4)
    assert row[0, 0].tolist() == [[0.0, 1.0, 3.0, 4.0]] * 2
    same = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)
    assert resized(same, 4, 4) is same


def test_a_mix_lays_label_spaces_side_by_side_and_brings_images_to_one_size():
    small, wide = images("small", (1, 4, 6), 3), images("wide", (3, 8, 5), 4, samples=20, default_local_epochs=2)
    data = mixed("small+wide", [small, wide])
    assert (data.input_shape, data.classes, len(data.train), data.domain_names) == ((3, 8, 6), 7, 32, ("small", "wide"))
    assert data.train.y[:12].max() == 2
    assert data.train.y[12:].min() == 3
    assert (data.class_names[2], data.class_names[3]) == ("small: class 2", "wide: class 0")
    assert np.bincount(data.train_domain).tolist() == np.bincount(data.test_domain).tolist() == [12, 20]
    grey = data.train.x[:12]
    assert np.array_equal(grey[:, 0], grey[:, 2])
    assert np.array_equal(grey[:, :1], resized(small.train.x, 8, 6))
    assert (data.default_model, data.default_local_epochs) == ("cnn-wide", 1)
    notes = data.preprocessing["domains"]
    assert notes["small"]["mean"] == 0.5
    assert notes["small"]["resize"]["from"] == [4, 6]
    assert (notes["small"]["repeat_channels"], notes["wide"]["first_label"]) == (3, 3)
    assert "repeat_channels" not in notes["wide"]


def test_channels_that_cannot_be_repeated_are_refused():
    with pytest.raises(DataError, match="a has 2 channels, expected 1 or 3"):
        mixed("a+b", [images("a", (2, 4, 4), 3), images("b", (3, 4, 4), 3)])


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("digitz", UnknownNameError, "unknown dataset 'digitz'; did you mean 'digits'"),
        ("digits+fashion", UnknownNameError, "unknown dataset 'fashion'"),
        ("digits+", UnknownNameError, "unknown dataset ''"),
        ("", UnknownNameError, "unknown dataset ''"),
        ("digits+digits", ConfigError, "'digits.digits' has digits 2 times, expected different data sets"),
    ],
)
def test_wrong_names_are_refused(name, error, message):
    for refuse in (check, load):
        with pytest.raises(error, match=message):
            refuse(name)


def test_text_is_not_mixed_with_images(tmp_path):
    (tmp_path / "play_gut.txt").write_text("ACT I\n\nKING.\n" + "x" * 500)
    with pytest.raises(ConfigError, match="only images can be mixed, shakespeare has int64 samples of shape"):
        load("digits+shakespeare", str(tmp_path))


def test_a_plain_name_is_the_data_set_itself():
    assert np.array_equal(load("digits").train.x, digits().train.x)
    assert load("digits").train_domain is None


@needs("Fashion-MNIST")
def test_fashion_mnist_and_digits(tmp_path):
    (tmp_path / "fashion-mnist").symlink_to(SYSTEM_FOLDER)
    for data_dir in (None, str(SYSTEM_FOLDER), str(tmp_path)):
        data = load("fashion-mnist+digits", data_dir)
        assert (data.input_shape, data.classes, len(data.train), len(data.test)) == ((1, 28, 28), 20, 61437, 10360)
        assert np.array_equal(np.unique(data.train.y[data.train_domain == 1]), np.arange(10, 20))
    assert data.default_model == "cnn-fashion"


def test_validation_samples_are_training_samples_that_no_client_has():
    data, held_out = digits(), validating(digits(), 0.1)
    assert (len(held_out.train), len(held_out.test)) == (1437 - 142, 142)
    both = np.concatenate([held_out.train.x, held_out.test.x]).reshape(1437, -1)
    assert np.array_equal(np.unique(both, axis=0), np.unique(data.train.x.reshape(1437, -1), axis=0)), "no test sample among them"
    assert np.array_equal(np.bincount(held_out.test.y), np.rint(np.bincount(data.train.y) * 0.1)), "every class gives its share"
    assert np.array_equal(held_out.test.y, load("digits", None, 0.1).test.y), "the same ones in every run"
    assert validating(data, 0.0) is data


def test_validation_samples_keep_their_domain_and_owner():
    domains = validating(mixed("a+b", [images("a", (1, 4, 4), 3, 30), images("b", (1, 4, 4), 2, 20)]), 0.2)
    assert np.bincount(domains.test_domain).tolist() == [6, 4]
    assert np.bincount(domains.train.y).tolist() == [8, 8, 8, 8, 8]
    owners = np.arange(12, dtype=np.int64) % 4
    owned = validating(images("a", (1, 4, 4), 3, train_owner=owners, test_owner=owners), 0.3)
    assert np.bincount(owned.test_owner).tolist() == [1, 1, 1, 1]
    alone = np.array([9] + [5] * 11, np.int64)
    with pytest.raises(DataError, match="owner 9 has samples only in one of train and test"):
        validating(images("a", (1, 4, 4), 3, train_owner=alone, test_owner=alone), 0.3)
