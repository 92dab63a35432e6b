"""Samples that the Python client reads: raw pixels, features, images and token ids, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import edgefl_client
import numpy as np
import pytest
from edgefl_client import InputError, read_bundle, read_data
from handmade import PREPROCESSING, Regression, changed, samples
from python_client import called
from spoiled_bundles import WRONG_DATA, bomb
from torch_free import CLIENT, client


def test_raw_pixels_are_prepared_as_the_manifest_says(bundle, tmp_path):
    pixels = np.array([[[[0, 4, 8], [12, 16, 2]]]], np.uint8)
    np.savez(tmp_path / "x.npz", x=pixels)
    x, y = read_data(tmp_path / "x.npz", read_bundle(bundle).manifest, labels=False)
    assert (x.dtype, y) == (np.float32, None)
    np.testing.assert_allclose(x, [[[[-0.5, 0.0, 0.5], [1.0, 1.5, -0.25]]]])


def test_pixels_of_channels_have_each_their_own_mean(tmp_path):
    folder = Regression(shape=(3, 1, 1)).write(tmp_path / "b")
    changed(folder, preprocessing={"scale": 1.0, "mean": [1, 2, 3], "std": [1, 2, 4]})
    np.savez(tmp_path / "x.npz", x=np.array([[[[5]], [[6]], [[7]]]], np.uint8))
    assert read_data(tmp_path / "x.npz", read_bundle(folder).manifest, labels=False)[0].ravel().tolist() == [4, 2, 1]


def test_raw_features_are_prepared_as_the_manifest_says(tmp_path):
    folder = Regression(shape=(2,)).write(tmp_path / "b")
    changed(folder, preprocessing={"scale": 1.0, "raw": "float32", "mean": [1, 2], "std": [2, 4]})
    np.savez(tmp_path / "x.npz", x=np.array([[5, 0], [1, 2]], np.float32))
    assert read_data(tmp_path / "x.npz", read_bundle(folder).manifest, labels=False)[0].tolist() == [[2, -0.5], [0, 0]]


@pytest.mark.parametrize("kind", ["int64", "uint8", "bool", "float64"])
def test_targets_of_a_regression_may_be_any_numbers(kind, tmp_path):
    """As in a run, whose loss gets them as float32: a class for each pixel is an integer."""
    manifest = read_bundle(Regression().write(tmp_path / "b", target_shape=[2])).manifest
    x, _ = samples(3)
    np.savez(tmp_path / "d.npz", x=x, y=np.array([[0, 1], [1, 0], [1, 1]], kind))
    y = read_data(tmp_path / "d.npz", manifest, labels=True)[1]
    assert (y.dtype, y.tolist()) == (np.float32, [[0, 1], [1, 0], [1, 1]])
    for wrong in (np.full((3, 2), np.nan), np.full((3, 2), "a"), np.zeros((3, 1), np.int64)):
        np.savez(tmp_path / "d.npz", x=x, y=wrong)
        with pytest.raises(edgefl_client.InputError, match=r"y: got .*, expected finite numbers of shape \(3, 2\)"):
            read_data(tmp_path / "d.npz", manifest, labels=True)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_with_a_flipped_bit_is_read_or_refused(tmp_path, save):
    manifest = read_bundle(Regression().write(tmp_path / "bundle")).manifest
    path, (x, y) = tmp_path / "own.npz", samples(8)
    save(path, x=x, y=y)
    whole, refused = path.read_bytes(), 0
    for at in range(len(whole)):
        directory = at > whole.index(b"PK\x01\x02")  # it says how members are stored: every bit
        for bit in range(8) if directory else (at % 8,):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            try:
                read_data(path, manifest, labels=True)
            except InputError:
                refused += 1
    assert refused > len(whole) / 2


def test_images_in_folders_named_like_classes(bundle, tmp_path, python):
    """Greymaps are written here by hand; the last one is twice as large as what the network takes."""
    for name, rows in (("bee", [[0, 51, 102], [153, 204, 255]]), ("ant", [[255] * 6] * 4)):
        (tmp_path / "images" / name).mkdir(parents=True)
        image = np.array(rows, np.uint8)
        (tmp_path / "images" / name / ".DS_Store").write_bytes(b"hidden")
        (tmp_path / "images" / name / "1.pgm").write_bytes(b"P5 %d %d 255 " % image.shape[::-1] + image.tobytes())
    code = (
        f"import sys, json; sys.path.insert(0, {str(CLIENT.parent)!r}); from pathlib import Path; from edgefl_client import *;"
        f"x, y = read_data(Path({str(tmp_path / 'images')!r}), read_bundle(Path({str(bundle)!r})).manifest, True);"
        "print(json.dumps([x.tolist(), y.tolist()]))"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    x, y = json.loads(done.stdout)
    assert y == [0, 1]
    mean, std = PREPROCESSING["mean"], PREPROCESSING["std"]
    expected = (np.array([[[[1.0] * 3] * 2], [[[0, 0.2, 0.4], [0.6, 0.8, 1.0]]]]) - mean) / std
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    trained = client(python, "train", bundle, "0.5", tmp_path / "images", "--out", tmp_path / "state", "--allow-unsigned")
    assert trained.returncode == 0, trained.stderr
    (tmp_path / "images" / "dog").mkdir()
    refused = client(python, "train", bundle, "0.5", tmp_path / "images", "--out", tmp_path / "other", "--allow-unsigned")
    assert refused.returncode == 2
    assert "no class of that name; expected one subfolder per class: ant, bee, cat" in refused.stderr


@pytest.mark.parametrize(("given", "message"), WRONG_DATA)
def test_wrong_data_are_refused_in_one_message(given, message, bundle, tmp_path, capsys):
    np.savez(tmp_path / "d.npz", **given)
    status, output, errors = called(capsys, "train", bundle, "0.5", tmp_path / "d.npz", "--out", tmp_path / "state")
    assert (status, output) == (2, "")
    assert errors.startswith(f"Error: {tmp_path / 'd.npz'}: ")
    assert message in errors
    assert not (tmp_path / "state").exists()


def test_other_files_than_data_are_refused(bundle, tmp_path, capsys, monkeypatch):
    (tmp_path / "a.npz").write_bytes(b"text")
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as file:
        file.writestr("x.npy", b"\x93NUMPY")
    for path, message in ((tmp_path / "a.npz", "not an .npz file"), (tmp_path / "b.npz", "not an .npz file")):
        status, _, errors = called(capsys, "infer", bundle, "0.5", path)
        assert (status, message in errors) == (2, True), errors
    assert "No such file" in called(capsys, "infer", bundle, "0.5", tmp_path / "none.npz")[2]
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "needs the package Pillow" in called(capsys, "infer", bundle, "0.5", tmp_path)[2]


def test_token_ids_stay_below_the_vocabulary(tmp_path):
    folder = Regression().write(tmp_path / "b")
    changed(folder, input_dtype="int64", input_shape=[4], preprocessing={"alphabet": "abc"})
    manifest = read_bundle(folder).manifest
    np.savez(tmp_path / "x.npz", x=np.array([[0, 1, 2, 2]], np.int32))
    assert read_data(tmp_path / "x.npz", manifest, labels=False)[0].dtype == np.int64
    for wrong in (np.array([[0, 1, 2, 3]]), np.array([[0, -1, 2, 2]])):
        np.savez(tmp_path / "x.npz", x=wrong)
        with pytest.raises(edgefl_client.InputError, match=r"token ids -?\d to \d, expected 0 to 2"):
            read_data(tmp_path / "x.npz", manifest, labels=False)


def test_samples_that_grow_to_gigabytes_are_refused(bundle, tmp_path, capsys):
    status, _, errors = called(capsys, "infer", bundle, "0.5", bomb(tmp_path / "bomb.npz"))
    assert (status, "times its size" in errors) == (2, True)


@pytest.fixture
def features(tmp_path):
    """The manifest of a network of two raw features, with three classes."""
    folder = Regression(shape=(2,)).write(tmp_path / "b")
    changed(
        folder, preprocessing={"scale": 1.0, "raw": "float32", "mean": [1, 2], "std": [2, 4]}, class_names=["red", "blue", "7"]
    )
    return read_bundle(folder).manifest


def test_a_table_has_features_and_the_names_or_numbers_of_classes(features, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("width,label,height\n5,blue,0\n1,0,2\n1,7,2\n", encoding="utf-8-sig")
    x, y = read_data(path, features, labels=True)
    assert (x.tolist(), y.tolist()) == ([[2, -0.5], [0, 0], [0, 0]], [1, 0, 2])
    path.write_text("width,height\n5,0\n")
    assert read_data(path, features, labels=False)[1] is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,y\n1,x,0\n", r"line 2, column 'b': got 'x', expected a number"),
        ("a,b,y\n1,2,green\n", r"line 2, column 'y': got 'green', expected a class, such as red, blue, 7, or its number"),
        ("a,b,c,y\n1,2,3,0\n", "1 rows of 3 features, expected rows of 2 without a label"),
        ("y,label,a,b\n0,0,1,2\n", "columns y, label; expected one of labels"),
        ("a,b,y\n", "0 rows of 2 features"),
        ("", "not a CSV with a line of names first"),
        ("a,b,y\n1,2,9\n", "y: labels 9 to 9, expected 0 to 2"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(features, tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_data(path, features, labels=True)


def test_an_array_of_numpy_has_its_labels_beside_it(features, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[5, 0], [1, 2]], np.float32))
    assert read_data(tmp_path / "x.npy", features, labels=False)[1] is None
    np.save(tmp_path / "y.npy", np.array([2, 0]))
    x, y = read_data(tmp_path / "x.npy", features, labels=True)
    assert (x.tolist(), y.tolist()) == ([[2, -0.5], [0, 0]], [2, 0])
    (tmp_path / "x.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"not an \.npy file of a plain array"):
        read_data(tmp_path / "x.npy", features, labels=True)


def test_another_kind_of_file_is_refused_as_itself(features, tmp_path):
    (tmp_path / "mine.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"files \.parquet are not read; expected a file \.npz, \.npy or \.csv"):
        read_data(tmp_path / "mine.parquet", features, labels=True)


def test_options_are_written_out(bundle, tmp_path, capsys):
    status, _, errors = called(capsys, "train", bundle, "0.5", tmp_path / "x.npz", "--out", tmp_path / "s", "--memory", 60)
    assert status == 2
    assert "unrecognized arguments: --memory 60" in errors


def test_labels_give_the_error_of_a_regression(tmp_path, capsys):
    folder = Regression(shape=(2,)).write(tmp_path / "b")
    changed(folder, target_shape=[3])
    x = np.zeros((4, 2), np.float32)
    np.savez(tmp_path / "own.npz", x=x, y=np.ones((4, 3), np.float32))
    _, out, _ = called(capsys, "infer", folder, "0.5", tmp_path / "own.npz")
    assert "mean squared error: " in out
