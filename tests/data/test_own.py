"""Data sets of a user's own: every form is read to the same samples, and wrong ones are refused with what to do."""

import json
import mmap
import shutil
import subprocess
from pathlib import Path

import numpy as np
import own_files
import pyarrow as pa
import pytest
import regression
import torch
from command import edgefl
from pyarrow import csv, feather, parquet
from requirements import needs

from edgefl import Dataset, RunConfig, inspect_data
from edgefl.data.given import Reading
from edgefl.data.growing import Growing
from edgefl.data.mix import load
from edgefl.data.npz import array_in
from edgefl.data.scaled import Scaled
from edgefl.data.shards import Shards
from edgefl.data.words import ids_of
from edgefl.engine.shared_memory import share, shared
from edgefl.errors import ConfigError, DataError, InputError


def test_pixels_are_normalised_by_the_training_part_channel_by_channel():
    x, y = own_files.images()
    data = Dataset.from_arrays(x, y, class_names=own_files.CLASSES)
    assert (len(data.train), len(data.test), data.input_shape, data.class_names) == (48, 12, (3, 8, 8), own_files.CLASSES)
    assert np.bincount(data.test.y).tolist() == [4, 4, 4]
    train = np.asarray(data.train.x, np.float64)
    assert np.abs(train.mean((0, 2, 3))).max() < 1e-6
    assert np.abs(train.std((0, 2, 3)) - 1).max() < 1e-6
    assert abs(np.asarray(data.test.x).mean()) > 1e-4  # not by its own mean
    note = data.preprocessing
    assert note["scale"] == 1 / 255
    raw = (np.asarray(data.train.x) * np.reshape(note["std"], (3, 1, 1)) + np.reshape(note["mean"], (3, 1, 1))) * 255
    assert np.abs(raw - np.rint(raw)).max() < 1e-3


def test_floats_texts_and_ids_become_what_networks_take():
    rng = np.random.default_rng(0)
    features = Dataset.from_arrays(rng.normal(5, 3, (40, 2)), ["no", "yes"] * 20)
    assert (features.class_names, features.default_model, features.preprocessing["raw"]) == (("no", "yes"), "mlp", "float32")
    assert np.abs(np.asarray(features.train.x).mean(0)).max() < 1e-6
    ids = Dataset.from_arrays(rng.integers(0, 9, (40, 5)), np.arange(40) % 2)
    assert (ids.vocabulary, ids.train.x.dtype, ids.input_shape) == (9, np.int64, (5,))
    texts = Dataset.from_arrays(np.array(["bad film", "a good film"] * 10, object), np.arange(20) % 2)
    assert texts.preprocessing == {"words": ["film", "a", "bad", "good"], "window": 500}
    assert texts.test.x[0, -3:].tolist() in ([0, 3, 1], [2, 4, 1])


@needs("node")
def test_the_page_encodes_words_like_the_data_set():
    vocabulary, text = ("film", "it's", "größe"), "It's<br />a GRÖSSE film; größe, it's"
    manifest = {"input_shape": [4], "preprocessing": {"words": vocabulary, "window": 4}}
    script = Path(__file__).parents[2] / "export/web/preprocess.js"
    code = f"import {{encoded}} from {json.dumps(str(script))}; console.log(encoded({json.dumps(text)}, {json.dumps(manifest)}).join())"
    said = subprocess.run(["node", "--input-type=module", "-e", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == ",".join(map(str, ids_of([text], vocabulary, 4)[0]))


def test_the_division_is_shown_before_anything_runs(tmp_path):
    path = own_files.owned_parquet(tmp_path)
    shown = edgefl("inspect", "--data", str(path), "--label", "kind", "--clients", "3", "--partition", "classes:1", cwd=tmp_path)
    assert (shown.returncode, sorted(tmp_path.iterdir())) == (0, [path])
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "own: 50 for training and 10 held out, samples of 4, 3 classes, 5 owners"
    counts = [line.split()[1:3] for line in lines if line.startswith(own_files.CLASSES)]
    assert [sum(map(int, part)) for part in zip(*counts, strict=True)] == [50, 10]
    assert sorted(line.partition("|")[2] for line in lines[-3:]) == ["  █|", " █ |", "█  |"]
    for arguments, message in (
        (("mlp", "--data", str(path), "--clients", "3"), "--clients: is about the clients of a data set, which is shown alone"),
        (("--data", str(path), "--method", "fedhm"), "--method: is about a network, and there is none"),
    ):
        wrong = edgefl("inspect", *arguments)
        assert (wrong.returncode, message in wrong.stderr) == (2, True)


def test_the_division_of_a_regression_has_no_classes():
    found = inspect_data(RunConfig(dataset=regression.line(), partition="iid", clients=4))  # 90 for training, 30 held out
    assert (found.train, found.test, found.class_names) == ((90,), (30,), ())
    assert [(client.samples, client.by_class) for client in found.clients] == [(23, {}), (23, {}), (22, {}), (22, {})]
    lines = str(found).splitlines()
    assert lines[0] == "Line: 90 for training and 30 held out, samples of 6, targets of a regression"
    assert lines[2:5] == [
        "clients 0 to 3 of 4, partition iid; 22 to 23 samples each, mean 22",
        "client  samples",
        "     0       23",
    ]


def test_sizes_are_those_of_all_clients_also_of_unlisted_ones():
    found = inspect_data(RunConfig(clients=1400, partition="iid"))  # 1,437 samples: 37 clients have two
    assert (found.smallest, found.largest, len(found.clients)) == (1, 2, 1000)
    assert found.mean == pytest.approx(1437 / 1400)


def test_profile_and_plan_take_sample_and_classes_from_the_data(tmp_path, called):
    path = str(own_files.npz(tmp_path))
    for network, params in ((["mlp"], 193 * 256 + 257 * 3), ([], 59_555)):  # without one, the usual network of such samples
        status, output, errors = called("profile", *network, "--data", path, "--format", "json")
        assert (status, json.loads(output)["rows"][0]["params"]) == (0, params), errors
    table = str(own_files.owned_parquet(tmp_path))
    status, output, errors = called("plan", "mlp", "--data", table, "--label", "kind", "--macs", "1M", "--json")
    assert (status, json.loads(output)[0]["params"]) == (0, 5 * 256 + 257 * 3), errors
    for wrong, message in (
        (["--classes", "3", "--data", path], "leave --input and --classes out"),
        (["--label", "y"], "give --data too"),
    ):
        status, _, errors = called("profile", "mlp", *wrong)
        assert (status, message in " ".join(errors.split())) == (2, True), errors


def test_every_form_has_the_same_samples(tmp_path):
    x, y = own_files.images()
    paths = [own_files.npz(tmp_path), own_files.image_folder(tmp_path)]
    found = [load(RunConfig(dataset=path).dataset) for path in paths]
    for data in found:
        assert len(data.sha256) == 64
        raw = np.concatenate([split.x.raw for split in (data.train, data.test)])
        assert sorted(image.tobytes() for image in raw) == sorted(image.tobytes() for image in x.transpose(0, 3, 1, 2))
    assert found[1].class_names == own_files.CLASSES
    saved = load(str(own_files.arrow_folder(tmp_path)))
    assert (saved.class_names, len(saved.train), len(saved.test)) == (own_files.CLASSES, 45, 15)
    assert np.array_equal(saved.test.x.raw, x[:15].transpose(0, 3, 1, 2))
    assert np.array_equal(saved.test.y, y[:15])


def test_a_table_has_owners_and_texts_as_labels(tmp_path):
    data = load(str(own_files.owned_parquet(tmp_path)), reading=Reading(label="kind", features=("light0", "light2")))
    assert (data.class_names, data.input_shape, len(np.unique(data.train_owner))) == (own_files.CLASSES, (2,), 5)
    assert np.array_equal(np.unique(data.train_owner), np.unique(data.test_owner))
    table = pa.table({"a": [*range(30)], "b": [0.5] * 30, "y": [0, 1] * 15})
    csv.write_csv(table, tmp_path / "own.csv")
    data = load(str(tmp_path / "own.csv"), reading=Reading(held_out="0.4"))
    assert (data.input_shape, len(data.test), data.preprocessing["std"][1]) == ((2,), 12, 1.0)
    held_out = load(str(tmp_path / "own.csv"), reading=Reading(held_out=str(tmp_path / "own.csv")))
    assert (len(held_out.train), len(held_out.test)) == (30, 30)


def test_held_out_files_have_the_classes_of_the_training_part(tmp_path):
    (tmp_path / "few").mkdir()
    train, few = own_files.image_folder(tmp_path), own_files.image_folder(tmp_path / "few")
    shutil.rmtree(few / "ant")  # so that bee is the first class there
    data = load(str(train), reading=Reading(held_out=str(few)))
    assert np.array_equal(data.test.y, np.repeat([1, 2], 20))
    (few / "bee").rename(few / "wasp")
    with pytest.raises(DataError, match="class 'wasp' is not one of the training classes ant, bee, cat"):
        load(str(train), reading=Reading(held_out=str(few)))


def test_held_out_rows_may_be_of_other_owners():
    x, y = own_files.images()
    owner = np.arange(60) // 3 % 5
    for theirs, known in ((owner, True), (owner + 1, False)):
        data = Dataset.from_arrays(x, y, owner, test=(x, y, theirs))
        assert (len(data.train), data.train_owner is None, data.test_owner is None) == (60, False, not known)
        assert len(Shards(data, 5, "natural", seed=0).test(0)) > 0


def test_a_torch_data_set_is_given_from_python():
    x, y = own_files.images()
    pairs = torch.utils.data.TensorDataset(torch.tensor(x.transpose(0, 3, 1, 2)), torch.tensor(y))
    first, second = RunConfig(dataset=pairs), RunConfig(dataset=pairs)
    assert first.dataset == second.dataset
    data = load(first.dataset, reading=Reading(held_out="0.5"))
    assert (data.name, len(data.train), data.input_shape) == ("TensorDataset", 30, (3, 8, 8))
    own = Dataset.from_arrays(x, y, name="lights")
    assert load(RunConfig(dataset=own).dataset) is own
    for given, reading, keys in (
        (own, Reading(held_out="0.5", label="y"), "label, held_out"),
        (pairs, Reading(held_out="own.npz"), "held_out"),
        (pairs, Reading(held_out="0.5", owner="user"), "owner"),
    ):
        with pytest.raises(ConfigError, match=f"^{keys}: .* was given as an object from Python; they are for data in files"):
            load(RunConfig(dataset=given).dataset, reading=reading)
    broken = torch.utils.data.ConcatDataset([pairs, pairs])
    broken.datasets = [pairs]
    with pytest.raises(InputError, match="sample 60 of ConcatDataset raised IndexError"):
        RunConfig(dataset=broken)
    with pytest.raises(ConfigError, match="dataset"):
        RunConfig(dataset=[1, 2])
    with pytest.raises(DataError, match="lights was given as an object from Python"):
        load("object:lights-0123")


def test_a_large_array_stays_in_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.data.npz.MAPPED_BYTES", 1000)
    x, y = own_files.images()
    for file in (own_files.npz(tmp_path), tmp_path / "x.npy"):
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", y)
        data, small = load(str(file)), Dataset.from_arrays(x, y)
        assert data.train.x.mapped
        assert np.array_equal(np.asarray(data.train.x), np.asarray(small.train.x))
        twin = shared(*share(data))
        assert np.array_equal(twin.test.x[3:5], small.test.x[3:5])
        assert twin.test.x.at(np.array([2, 1])).mapped
        assert np.array_equal(twin.test.x.at(np.array([2, 1]))[:], small.test.x[[2, 1]])
    rows = Growing("x", most_bytes=1000)
    for start in range(0, len(x), 7):
        rows.add(x[start : start + 7])
    assert isinstance(rows.whole(), np.memmap)
    assert np.array_equal(rows.whole(), x)


def test_changes_of_a_copy_on_write_map_are_part_of_the_data(tmp_path):
    x, y = own_files.images()
    np.save(tmp_path / "x.npy", np.zeros_like(x))
    changed = np.load(tmp_path / "x.npy", mmap_mode="c")
    changed[:] = x
    data, same = Dataset.from_arrays(changed, y), Dataset.from_arrays(x, y)
    twin = shared(*share(data))
    for samples in (data.train.x, data.test.x, twin.train.x):
        samples[:]  # what is read may leave the memory
    assert np.array_equal(changed, x)
    assert np.array_equal(np.asarray(data.train.x), np.asarray(same.train.x))
    assert np.array_equal(np.asarray(twin.train.x), np.asarray(same.train.x))


def test_only_pages_of_files_leave_the_memory_when_they_were_read():
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # forgets what leaves
    raw = np.ndarray((8, 1, 32, 32), np.uint8, pages)
    raw[:] = 7
    assert (Scaled(raw, 0.0, 1.0)[:] == np.float32(7) / np.float32(255)).all()
    assert (raw == 7).all()


def _refused(match, x=None, y=None, **more):
    images, labels = own_files.images()
    with pytest.raises(DataError, match=match):
        Dataset.from_arrays(images if x is None else x, labels if y is None else y, **more)


def test_wrong_labels_and_samples_are_refused():
    y = own_files.images()[1]
    _refused("60 samples and labels of shape", y=y[:5])
    _refused("1 of 60 labels are missing, the first that of sample 0", y=np.array([np.nan, *y[1:]]))
    _refused("2 of 60 labels are missing", y=np.array([None, "", *["a", "b"] * 29], object))
    _refused("no training sample of class '0'; number the classes", y=y + 1)
    _refused("labels -1 to 1, expected integers from 0", y=y - 1)
    _refused("labels 0 to 2, expected integers from 0 to 1", class_names="ab")
    _refused("no training sample of class 'd'", class_names="abcd")
    for row in range(60):  # also those that are held out
        _refused(f"sample {row} has NaN or infinity", x=np.where(np.arange(60)[:, None] == row, np.inf, 1.0))
    _refused("samples of type complex128", x=np.ones((60, 2), complex))
    _refused("60 samples and labels of shape \\(\\), expected one label each", y=np.float64(0.5))
    _refused("type <U1 and shape \\(60, 2\\), expected a text each", x=np.full((60, 2), "a"))
    _refused("type object and shape \\(60,\\), expected a text each", x=np.array(["a", None] * 30, object))
    _refused("type float64 and shape \\(9, 2\\), expected a text each", x=["a"] * 60, test=(np.ones((9, 2)), y[:9]))
    pixels = own_files.images()[0]
    _refused("training samples are uint8, held-out ones float32; give both the same type", test=(pixels / np.float32(1), y))
    _refused("an owner has a single sample", owner=np.arange(60))
    _refused("30 of 60 owners are missing, the first that of sample 1; fill them in", owner=np.array(["a", None] * 30, object))
    _refused("2 classes are called 'ant', expected different names", class_names=("ant", "bee", "ant"))
    _refused(
        "labels 0 to 18446744073709551615, expected integers from 0 to 1", y=np.uint64([2**64 - 1, *y[1:] % 2]), class_names="ab"
    )
    _refused("x is no array .*; bring all samples to one size", x=[[1.0], [1.0, 2.0]] * 30)
    _refused("y has 1 masked values; fill them", y=np.ma.masked_equal(np.arange(60), 7))
    _refused("x has 60 masked values", x=np.ma.masked_less(np.ones((60, 2)), [0, 2]))
    _refused("got 1, expected a share", held_out=1)
    with pytest.raises(DataError, match="pairs"):
        Dataset.from_samples([1, 2])


def test_tensors_with_gradients_and_of_sixteen_bits_and_arrays_with_an_empty_mask_are_samples():
    x, y = np.arange(120, dtype=np.float32).reshape(60, 2) / 128, np.arange(60) % 2
    expected = Dataset.from_arrays(x, y).train
    tensor = torch.tensor(x)
    for samples in (tensor.requires_grad_(), tensor.detach().bfloat16(), np.ma.array(x, mask=False)):
        found = Dataset.from_arrays(samples, torch.tensor(y)).train
        assert np.allclose(found.taken().x, expected.taken().x, atol=0.02)
        assert np.array_equal(found.y, expected.y)


def test_endings_in_capitals_are_those_in_small_letters(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    x, y = np.arange(120, dtype=np.float32).reshape(60, 2), np.arange(60) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y)
    for name, array in (("x", x), ("y", y)):
        np.save(tmp_path / "small" / f"{name}.npy", array)
    pa_table = pa.table({"a": x[:, 0], "label": y})
    csv.write_csv(pa_table, tmp_path / "own.csv")
    parquet.write_table(pa_table, tmp_path / "own.parquet")
    feather.write_feather(pa_table, tmp_path / "own.feather")
    for name in ("own.npz", "own.csv", "own.parquet", "own.feather"):
        shutil.copy(tmp_path / name, tmp_path / name.upper())
        assert np.array_equal(*(load(str(tmp_path / of)).train.taken().x for of in (name, name.upper())))
    for name in ("x", "y"):
        shutil.copy(tmp_path / "small" / f"{name}.npy", tmp_path / "large" / f"{name}.NPY")
    folders = [load(str(tmp_path / name)) for name in ("small", "large", "small/x.npy", "large/x.NPY")]
    assert all(np.array_equal(folders[0].train.taken().x, of.train.taken().x) for of in folders[1:])
    (tmp_path / "tables").mkdir()
    shutil.copy(tmp_path / "own.feather", tmp_path / "tables" / "TRAIN.FEATHER")
    assert load(str(tmp_path / "tables")).class_names == ("0", "1")


def test_wrong_files_are_refused(tmp_path):
    def refused(path, match, **reading):
        with pytest.raises(DataError, match=match):
            load(str(path), reading=Reading(**reading))

    refused(tmp_path / "none.npz", "no such file or folder")
    (tmp_path / "x.txt").write_text("x")
    refused(tmp_path / "x.txt", r"unknown ending, expected \.npz")
    whole = own_files.npz(tmp_path)
    refused(whole, "no array 'kind', expected x and y; there are x, y", label="kind")
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole.read_bytes()[:-200])
    refused(cut, "not an .npz file, or an incomplete one")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object), y=np.zeros(1))
    refused(tmp_path / "objects.npz", "arrays of Python objects are not read")
    folder = own_files.image_folder(tmp_path)
    own_files.Image.new("RGB", (9, 8)).save(folder / "bee" / "odd.png")
    refused(folder, r"mixed size: ant/000.png 8×8 and bee/odd.png 9×8 pixels")
    (folder / "bee" / "odd.png").write_bytes(b"no image")
    refused(folder, "odd.png: no image that can be read")
    (folder / "bee" / "odd.png").rename(folder / "bee" / "._odd.png")
    assert load(str(folder)).input_shape == (3, 8, 8)  # hidden files are no images
    (folder / "dog").mkdir()
    refused(folder, "class 'dog' has no image")
    table = own_files.owned_parquet(tmp_path)
    refused(table, "which column is the label.* its columns are light0, light1, light2, light3, kind, user_id")
    refused(table, "no column 'kinds'; did you mean 'kind'", label="kinds")
    parquet.write_table(pa.table({"a": [1.0, 2.0], "city": ["x", "y"], "y": [0, 1]}), tmp_path / "mixed.parquet")
    refused(tmp_path / "mixed.parquet", "which columns are a sample.*texts: city; numbers: a")
    parquet.write_table(pa.table({"a": [[1, 2], [3]], "y": [0, 1]}), tmp_path / "lists.parquet")
    refused(tmp_path / "lists.parquet", "mixed size: a has lists of 1 and 2")
    (tmp_path / "twice.csv").write_text("u,u,label\n1,1,0\n2,3,1\n")
    refused(tmp_path / "twice.csv", "twice.csv: 2 columns are called 'u', expected different names")
    (tmp_path / "latin.csv").write_text("u,label\n1,café\n2,thé\n", encoding="latin-1")
    refused(tmp_path / "latin.csv", r"latin.csv: column 'label' has .*caf.xe9.*, expected UTF-8; save the file in that encoding")
    np.savez(tmp_path / "empty.npz", x=np.zeros((0, 4)), y=np.zeros(0))
    refused(tmp_path / "empty.npz", "empty.npz: y is empty, expected a label for each sample")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    refused(tmp_path / "bad.parquet", "no .parquet file that can be read")
    with pytest.raises(ConfigError, match="digits has its own"):
        load("digits", reading=Reading(label="y"))
    assert array_in(tmp_path / "own.npz", "y").shape == (60,)


def test_a_folder_for_training_alone_has_the_classes(tmp_path):
    (tmp_path / "own").mkdir()
    own_files.image_folder(tmp_path).rename(tmp_path / "own" / "train")
    data = load(str(tmp_path / "own"))
    assert (data.class_names, len(data.train), len(data.test)) == (own_files.CLASSES, 48, 12)
    (tmp_path / "own" / "train").rename(tmp_path / "own" / "test")
    with pytest.raises(DataError, match="own: no folder train beside test; to use these samples alone, give .*test$"):
        load(str(tmp_path / "own"))
    own_files.image_folder(tmp_path).rename(tmp_path / "own" / "train")
    assert len(load(str(tmp_path / "own")).train) == 60


def test_the_files_of_a_folder_have_the_same_columns(tmp_path):
    def refused(match, **reading):
        with pytest.raises(DataError, match=match):
            load(str(tmp_path), reading=Reading(**reading))

    rows = [f"{i},{i / 4},{i % 2}\n" for i in range(10)]
    (tmp_path / "a.csv").write_text("u,v,label\n" + "".join(rows))
    (tmp_path / "b.csv").write_text("label,u\n" + "0,1\n1,0\n" * 5)
    refused("b.csv: no column 'v', which a.csv has; give all files the same columns")
    refused("b.csv: no column 'v', which a.csv has", features=("u", "v"))
    assert len(load(str(tmp_path), reading=Reading(features=("u",))).train) == 16
    (tmp_path / "b.csv").write_text("u,v,w,label\n" + "0,1,2,1\n" * 10)
    refused("a.csv: no column 'w', which b.csv has")
    (tmp_path / "b.csv").unlink()
    texts = pa.table({"u": ["a"] * 10, "v": [0.0] * 10, "label": [0, 1] * 5})
    parquet.write_table(texts, tmp_path / "b.parquet")
    refused("b.parquet: column 'u' is string, but int64 in a.csv; give it the same type in all files")


def test_texts_that_look_like_numbers_in_a_later_file_are_texts(tmp_path):
    (tmp_path / "a.csv").write_text("said,label\n" + "yes,0\nno,1\n" * 5)
    (tmp_path / "b.csv").write_text("said,label\n" + "12,0\n7,1\n" * 5)
    assert load(str(tmp_path)).vocabulary == 5  # four words, and 0 for others


def test_a_csv_file_may_have_columns_of_truth_values(tmp_path):
    (tmp_path / "own.csv").write_text("old,age,label\n" + "true,70,0\nfalse,20,1\n" * 10)
    data = load(str(tmp_path / "own.csv"))
    assert data.preprocessing["mean"] == [0.5, 45.0]
