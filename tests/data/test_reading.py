"""What a user's files mean is what is read, or is refused with its readings; what was done is recorded."""

import decimal
import io
import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from edgefl.config import RunConfig
from edgefl.data.given import Reading
from edgefl.data.mix import load
from edgefl.data.sources import Dataset
from edgefl.errors import DataError, InputError

N = 60
Y = [n % 2 for n in range(N)]
RNG = np.random.default_rng(0)


def pictures(folder: Path, make, ending: str = "png", count: int = 12, **save) -> Path:
    """Write images that ``make`` returns for the class numbers 0 and 1."""
    for number, name in enumerate("ab"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place in range(count):
            make(number).save(folder / name / f"{place:02}.{ending}", **save)
    return folder


def values(data: Dataset) -> list[np.ndarray]:
    """Return the samples of each class, as they were given."""
    x = np.concatenate([np.asarray(split.x.raw, np.float64) for split in (data.train, data.test)])
    y = np.concatenate([data.train.y, data.test.y])
    return [x[y == label] for label in range(data.classes)]


def grey16(number: int) -> Image.Image:
    return Image.fromarray((np.arange(64).reshape(8, 8) * 300 + number * 40000).astype(np.uint16))


@pytest.mark.parametrize("ending", ["png", "tif", "jp2"])
def test_grey_values_of_sixteen_bits_are_scaled_by_their_depth(tmp_path, ending):
    data = load(str(pictures(tmp_path, grey16, ending)))
    low, high = values(data)
    assert data.input_shape == (1, 8, 8)
    assert np.allclose(low[0, 0], np.arange(64).reshape(8, 8) * 300 / 257, atol=1e-4)
    assert np.allclose(high - low, 40000 / 257, atol=1e-4)
    assert data.record.images == ("I;16, 16 bits: 24",)
    assert data.preprocessing["scale"] == 1.0  # a device's pixels are in units of 8 bits, too


def test_order_of_bytes_white_and_unusual_depths_of_a_tiff_are_those_of_its_tags(tmp_path):
    def tiff(name: str, array: np.ndarray, mode: str, **tags) -> np.ndarray:
        for number in "ab":
            (tmp_path / name / number).mkdir(parents=True)
            for place in range(4):
                image = Image.frombytes(mode, array.shape[::-1], array.tobytes())
                image.save(
                    tmp_path / name / number / f"{place}.tif", tiffinfo={int(tag[1:]): value for tag, value in tags.items()}
                )
        return values(load(str(tmp_path / name)))[0][0, 0]

    ramp = (np.arange(64).reshape(8, 8) * 1000).astype("<u2")
    assert np.allclose(tiff("big", ramp.astype(">u2"), "I;16B"), ramp / 257, atol=1e-3)
    assert np.allclose(tiff("white", ramp, "I;16", t262=0), 255 - ramp / 257, atol=1e-3)
    with pytest.raises(DataError, match="integers of 32 bits, of which it is not known what is white; save them as 16 bits"):
        tiff("whole", ramp.astype("<i4"), "I")


def test_images_of_floats_are_floats(tmp_path):
    floats = pictures(tmp_path / "own", lambda k: Image.fromarray(np.full((8, 8), k + 0.25, np.float32)), "tif")
    assert [group.mean() for group in values(load(str(floats)))] == [0.25, 1.25]
    grey16(0).save(floats / "a" / "00.tif")
    with pytest.raises(DataError, match="images of floats beside images of I;16, 16 bits; give all the same type"):
        load(str(floats))


def test_colours_of_sixteen_bits_are_said_to_be_read_as_eight(tmp_path):
    content = own_files_png16()
    for name in "ab":
        (tmp_path / name).mkdir()
        for place in range(4):
            (tmp_path / name / f"{place}.png").write_bytes(content)
    data = load(str(tmp_path))
    assert (data.record.images, values(data)[0].max()) == (("RGB, 16 bits, read as 8: 8",), 200)


def own_files_png16() -> bytes:
    """Return a PNG of RGB with 16 bits a channel, which Pillow does not write."""
    import struct
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + np.full((4, 3), 200 * 256 + 7, ">u2").tobytes() for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["png", "tif", "webp"])
def test_photographs_are_upright(tmp_path, orientation, ending):
    upright = (np.arange(48).reshape(6, 8) * 5).astype(np.uint8)
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.T, 6: upright.T[::-1],
        7: upright.T[::-1, ::-1], 8: upright.T[:, ::-1],
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    more = {"lossless": True} if ending == "webp" else {}
    image = Image.fromarray(np.ascontiguousarray(stored)).convert("RGB")
    data = load(str(pictures(tmp_path, lambda _: image, ending, 3, exif=exif, **more)))
    assert np.array_equal(values(data)[0][0, 0], upright)


def test_any_ending_of_an_image_is_one_and_other_files_are_said_to_be_left_out(tmp_path):
    noise = lambda _: Image.fromarray(RNG.integers(0, 255, (8, 8, 3)).astype(np.uint8))  # noqa: E731
    folder = pictures(tmp_path, noise, "jpg", 6)
    for place, ending in enumerate(("jfif", "jpe", "JPG")):
        (folder / "a" / f"{place:02}.jpg").rename(folder / "a" / f"{place:02}.{ending}")
    (folder / "a" / "notes.txt").write_text("x")
    (folder / "labels.csv").write_text("a,b\n1,2\n")
    data = load(str(folder))
    assert len(data.train) + len(data.test) == 12
    assert data.record.left_out == ("1 file .csv: labels.csv", "1 file .txt: a/notes.txt")
    (folder / "b" / "00.heic").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(DataError, match="00.heic: no image that can be read .*; convert it to PNG or JPEG"):
        load(str(folder))


def test_images_are_grey_only_if_all_are(tmp_path):
    folder = pictures(tmp_path, lambda k: Image.new("RGB", (8, 8), (200, k, 0)))
    Image.new("L", (8, 8), 9).save(folder / "a" / "00.png")
    data = load(str(folder))
    assert (data.input_shape, data.record.images) == ((3, 8, 8), ("L, 8 bits: 1", "RGB, 8 bits: 23"))
    cells = [
        {"bytes": content, "path": None} for content in (png(Image.new("L", (4, 4), 7)), *[png(Image.new("RGB", (4, 4)))] * 19)
    ]
    parquet.write_table(pa.table({"img": cells, "label": [0, 1] * 10}), tmp_path / "own.parquet")
    assert load(str(tmp_path / "own.parquet")).input_shape == (3, 4, 4)


def png(image: Image.Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "png")
    return content.getvalue()


def cut_out(mode: str) -> Image.Image:
    """Return black with an opacity that is a picture."""
    image = Image.new("RGBA", (8, 8))
    image.putalpha(Image.fromarray(np.arange(64).reshape(8, 8).astype(np.uint8)))
    return image if mode == "RGBA" else image.convert(mode)


def test_transparent_pixels_are_refused_with_their_readings(tmp_path):
    folder = pictures(tmp_path / "cut", lambda _: cut_out("RGBA"))
    with pytest.raises(
        DataError, match=r"a.00.png: has transparent pixels; .*PATH:alpha=drop; .*alpha=white.*alpha=only reads the"
    ):
        load(str(folder))
    means = {}
    for alpha in ("drop", "white", "black", "only"):
        data = load(f"{folder}:alpha={alpha}")
        means[alpha] = (data.input_shape[0], values(data)[0].mean())
        assert any(f"as alpha={alpha} says" in text for text in data.record.left_out)
    assert means == {"drop": (3, 0.0), "white": (3, 255 - 31.5), "black": (3, 0.0), "only": (1, 31.5)}
    palette = Image.new("P", (8, 8), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    opaque = pictures(tmp_path / "opaque", lambda _: palette, transparency=0)
    assert values(load(str(opaque)))[0][0, :, 0, 0].tolist() == [255, 0, 0]  # no pixel has the transparent colour
    clear = pictures(tmp_path / "clear", lambda _: palette, transparency=1)
    with pytest.raises(DataError, match="has transparent pixels"):
        load(str(clear))
    with pytest.raises(InputError, match=r"alpha: got 'half', expected drop, white, black, only"):
        load(f"{folder}:alpha=half")
    with pytest.raises(InputError, match="unknown option 'alpa' of the data, expected channels, alpha, as"):
        load(f"{folder}:alpa=drop")


def test_only_the_first_frame_is_read_and_that_is_said(tmp_path):
    frames = [Image.new("L", (8, 8), shade) for shade in (10, 99)]
    folder = pictures(tmp_path, lambda _: frames[0], "gif", 4, save_all=True, append_images=frames[1:])
    data = load(str(folder))
    assert (values(data)[0].max(), data.record.left_out) == (10, ("frames after the first, of 8 images",))


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr"])
def test_other_modes_have_the_colours_that_are_seen(tmp_path, mode):
    image = Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode)
    ending = {"YCbCr": "jpg", "CMYK": "jpg"}.get(mode, "png")
    assert values(load(str(pictures(tmp_path, lambda _: image, ending))))[0].min() == 255


def hub_folder(folder: Path, column: str = "file_name", short: bool = False) -> Path:
    (folder / "images").mkdir(parents=True)
    rows = []
    for number in range(20):
        Image.new("L", (4, 4), 10 + number % 2).save(folder / "images" / f"p{number}.png")
        rows.append(f"{f'p{number}' if short else f'images/p{number}.png'},{'ab'[number % 2]},{number}")
    (folder / "metadata.csv").write_text(f"{column},label,age\n" + "\n".join(rows) + "\n")
    return folder


@pytest.mark.parametrize("short", [False, True])
def test_a_table_that_names_images_is_read_as_images(tmp_path, short):
    data = load(str(hub_folder(tmp_path / "own", "picture" if short else "file_name", short)))
    assert (data.input_shape, data.class_names) == ((1, 4, 4), ("a", "b"))
    assert [np.unique(group).tolist() for group in values(data)] == [[10], [11]]
    assert "column 'age': the samples are images" in data.record.left_out
    (tmp_path / "own" / "images" / "p0.png").unlink()
    with pytest.raises(DataError, match="names .*p0.*, which is not in"):
        load(str(tmp_path / "own"))


def test_a_class_that_is_called_like_a_picture_is_no_name_of_one(tmp_path):
    hub_folder(tmp_path / "photos")
    (table := tmp_path / "own.csv").write_text("a,b,label\n" + "".join(f"{n},{n % 3},{('p0', 'p1')[n % 2]}\n" for n in range(30)))
    assert load(str(table)).class_names == ("p0", "p1")


@pytest.mark.parametrize(("least", "kind"), [(2**53, "int64"), (2**63, "uint64"), (-(2**62), "int64")])
def test_whole_numbers_of_which_a_float_would_lose_digits_are_refused(tmp_path, least, kind):
    table = pa.table(
        {"a": pa.array([least + n for n in range(1, 41)], kind), "b": [float(n) for n in range(40)], "label": ["x", "y"] * 20}
    )
    parquet.write_table(table, tmp_path / "own.parquet")
    with pytest.raises(DataError, match="column 'a' has whole numbers beyond 2.53.*--features"):
        load(str(tmp_path / "own.parquet"))
    small = table.set_column(0, "a", pa.array([2**53 - n for n in range(40)], kind))
    parquet.write_table(small, tmp_path / "own.parquet")
    assert len(np.unique(np.asarray(load(str(tmp_path / "own.parquet")).train.x)[:, 0])) == 32


def test_owners_with_one_sample_are_said_with_their_column(tmp_path):
    (table := tmp_path / "own.csv").write_text("user_id,b,label\n" + "".join(f"{n},{n % 3},{'xy'[n % 2]}\n" for n in range(30)))
    with pytest.raises(DataError, match="own.csv: an owner of column 'user_id' has a single sample"):
        load(str(table))


def test_subfolders_and_a_table_that_both_have_classes_are_refused(tmp_path):
    folder = pictures(tmp_path / "own", lambda k: Image.new("L", (4, 4), 100 + k))
    names = [file.relative_to(folder).as_posix() for file in sorted(folder.rglob("*.png"))]
    (folder / "metadata.csv").write_text("file_name,label\n" + "".join(f"{name},{n % 2}\n" for n, name in enumerate(names)))
    with pytest.raises(
        DataError, match="a table names them too: as=images takes the names of the subfolders.*as=table takes a column"
    ):
        load(str(folder))
    assert load(f"{folder}:as=images").class_names == ("a", "b")
    assert load(f"{folder}:as=table").class_names == ("0", "1")


def test_channels_are_where_the_shape_says_or_it_is_refused(tmp_path, monkeypatch):
    for shape, expected in (
        ((8, 8, 4), (4, 8, 8)), ((8, 8, 2), (2, 8, 8)), ((4, 8, 8), (4, 8, 8)), ((6, 8, 3), (3, 6, 8)), ((64, 64, 13), (13, 64, 64)),
        ((13, 6, 6), (13, 6, 6)), ((3, 3, 32), (3, 3, 32)),
    ):  # fmt: skip
        for kind in (np.uint8, np.float32, np.float64):
            data = Dataset.from_arrays(RNG.integers(0, 255, (N, *shape)).astype(kind), Y)
            assert data.input_shape == expected
            assert "channels" in data.record.guessed[0]
    np.savez(tmp_path / "own.npz", x=RNG.integers(0, 255, (N, 3, 32, 3)).astype(np.uint8), y=Y)
    with pytest.raises(DataError, match=r"are 3 channels of 32×3, or 3 channels of 3×32: .*channels=first or PATH:channels=last"):
        load(str(tmp_path / "own.npz"))
    assert load(f"{tmp_path / 'own.npz'}:channels=last").input_shape == (3, 3, 32)
    assert load(f"{tmp_path / 'own.npz'}:channels=first").input_shape == (3, 32, 3)
    assert Dataset.from_arrays(np.zeros((N, 3, 8, 3), np.uint8), Y, channels="last").input_shape == (3, 3, 8)
    monkeypatch.chdir(tmp_path)
    assert RunConfig(dataset="own.npz:channels=last").dataset == f"{tmp_path / 'own.npz'}:channels=last"


@pytest.mark.parametrize("order", ["<", ">"])
def test_arrays_of_sixteen_bits_are_pixels_and_wider_integers_are_refused(tmp_path, order):
    pixels = (RNG.integers(0, 65535, (N, 8, 8))).astype(f"{order}u2")
    np.savez(tmp_path / "own.npz", x=pixels, y=Y)
    data = load(str(tmp_path / "own.npz"))
    assert np.allclose(np.sort(np.concatenate(values(data)).ravel()), np.sort(pixels.ravel()) / 257, atol=1e-3)
    assert "pixels of 16 bits / 257" in data.record.scaling[0]
    for kind, low, high in (("i2", -1000, 3000), ("i4", 0, 70000), ("u4", 0, 70000)):
        x = np.full((N, 8, 8), low, f"{order}{kind}")
        x[0] = high
        with pytest.raises(
            DataError, match=f"integers {low} to {high} of type .* as images, expected pixels from 0 to 255: give uint8"
        ):
            Dataset.from_arrays(x, Y)


def test_large_offsets_leave_the_differences():
    seconds = 1_700_000_000 + np.arange(N)
    data = Dataset.from_arrays(np.c_[seconds, np.arange(N)].astype(np.float64), Y)
    assert len(np.unique(np.concatenate([np.asarray(part.x)[:, 0] for part in (data.train, data.test)]))) == N
    assert (data.preprocessing["raw"], np.asarray(data.train.x).dtype) == ("float64", np.float32)
    assert Dataset.from_arrays(np.random.default_rng(0).normal(5, 3, (N, 2)), Y).preprocessing["raw"] == "float32"
    large = Dataset.from_arrays(np.linspace(-4e38, 4e38, N)[:, None], Y)
    assert np.allclose(np.asarray(large.train.x).std(), 1, atol=1e-3)
    with pytest.raises(DataError, match="targets 1700000000.5 to 1700000059.5 differ by less than float32 tells apart"):
        Dataset.from_arrays(np.zeros((N, 1), np.float32), seconds + 0.5)
    with pytest.raises(DataError, match="too large to be normalised"):
        Dataset.from_arrays(np.linspace(-1e300, 1e300, N)[:, None], Y)


def table(folder: Path, **columns) -> str:
    parquet.write_table(pa.table(columns), folder / "own.parquet")
    return str(folder / "own.parquet")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([decimal.Decimal(n) / 4 for n in range(N)]),
        pa.array([n / 4 for n in range(N)]).dictionary_encode(),
        pa.array([n / 4 for n in range(N)], pa.float64()).cast(pa.float32()),
        pa.array(np.arange(N, dtype=np.float16) / 4),
        pa.array(np.repeat(np.arange(N // 2) / 2, 2)).dictionary_encode(),
    ],
)
def test_numbers_of_any_encoding_are_features(tmp_path, column):
    data = load(table(tmp_path, age=[float(n) for n in range(N)], price=column, label=Y))
    assert (data.input_shape, data.record.features) == ((2,), ("age", "price"))
    assert np.unique(np.concatenate(values(data))[:, 1]).tolist() == np.unique(column.to_pylist()).astype(float).tolist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["ab"[n % 2] for n in range(N)]).dictionary_encode(),
        pa.array(["ab"[n % 2] for n in range(N)], pa.string_view()),
        pa.array(["ab"[n % 2] for n in range(N)], pa.large_string()),
        pa.array([date(2026, 1, 1 + n % 28) for n in range(N)]),
        pa.array(np.arange(N), pa.duration("s")),
        pa.array(np.arange(N), pa.timestamp("ns")),
        pa.array([{"a": 1}] * N),
    ],
)
def test_columns_that_are_no_numbers_are_refused_beside_numbers_and_used_as_labels(tmp_path, column):
    with pytest.raises(
        DataError, match="which columns are a sample.*numbers: age.*kind|which columns are a sample.*kind.*numbers: age"
    ):
        load(table(tmp_path, age=[float(n) for n in range(N)], kind=column, label=Y))
    path = table(tmp_path, age=[float(n) for n in range(N)], label=column)
    if pa.types.is_temporal(column.type) or pa.types.is_struct(column.type):
        with pytest.raises(DataError, match="the label 'label' is .*, expected numbers or texts"):
            load(path)
    else:
        assert load(path).class_names == ("a", "b")


def test_a_pandas_frame_keeps_its_meaning(tmp_path):
    frame = pd.DataFrame(
        {
            "v": np.arange(N) * 1.5,
            "label": pd.Categorical(["low", "high"] * (N // 2)),
            "owner": pd.Categorical(["NA", "EU"] * (N // 2)),
        }
    )
    frame[frame["v"] >= 0].to_parquet(tmp_path / "own.parquet")
    data = load(str(tmp_path / "own.parquet"))
    assert (data.class_names, data.input_shape, len(np.unique(data.train_owner))) == (("high", "low"), (1,), 2)
    frame.to_csv(tmp_path / "own.csv")  # with an index that has no name
    data = load(str(tmp_path / "own.csv"))
    assert (data.input_shape, data.record.left_out) == ((1,), ("column '': it numbers the rows",))


@pytest.mark.parametrize("words", [("NA", "EU"), ("null", "nan"), ("true", "false"), ("None", "n/a"), ("01", "x")])
def test_words_of_labels_and_owners_are_kept(tmp_path, words):
    (tmp_path / "own.csv").write_text("v,label,owner\n" + "".join(f"{n},{words[n % 2]},{words[n // 2 % 2]}\n" for n in range(N)))
    data = load(str(tmp_path / "own.csv"))
    assert (data.class_names, len(np.unique(data.train_owner))) == (tuple(sorted(words)), 2)


def test_na_beside_numbers_is_refused_and_truth_values_keep_their_names(tmp_path):
    (tmp_path / "own.csv").write_text("v,label\n" + "".join(f"{n},{(n % 3) if n % 3 < 2 else 'NA'}\n" for n in range(N)))
    with pytest.raises(DataError, match="'label': 20 of 60 are 'NA' beside numbers: a missing value, or a name.* fill them in"):
        load(str(tmp_path / "own.csv"))
    (tmp_path / "own.csv").write_text("v,label\n" + "".join(f"{n},{n % 12}\n" for n in range(N)))
    assert load(str(tmp_path / "own.csv")).class_names == tuple(map(str, range(12)))
    truth = np.arange(N) % 2 == 0
    for y in (truth, truth.tolist(), np.array(truth.tolist(), object)):
        assert Dataset.from_arrays(np.zeros((N, 1)), y).class_names == ("false", "true")
    assert load(table(tmp_path, v=[1.0] * N, label=truth)).class_names == ("false", "true")


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.float32, int, decimal.Decimal])
def test_labels_as_objects_are_the_numbers_that_they_are(kind):
    data = Dataset.from_arrays(np.zeros((N, 1)), np.array([kind(n % 12) for n in range(N)], object))
    assert data.class_names == tuple(map(str, range(12)))
    assert sorted(np.concatenate([data.train.y, data.test.y]).tolist()) == sorted(n % 12 for n in range(N))


def test_bytes_are_texts_if_they_are_utf8():
    data = Dataset.from_arrays(np.zeros((N, 1)), np.array(["é".encode(), b"a"] * 30), np.array([b"u", b"v"] * 30))
    assert (data.class_names, len(np.unique(data.train_owner))) == (("a", "é"), 2)
    for y, owner in ((np.array([b"\xe9", b"a"] * 30), None), (Y, np.array([b"\xe9", b"a"] * 30))):
        with pytest.raises(DataError, match="expected UTF-8; save the texts in that encoding"):
            Dataset.from_arrays(np.zeros((N, 1)), y, owner)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "id", "ID", "index", "__index_level_0__"])
def test_a_column_that_numbers_the_rows_is_left_out(tmp_path, name):
    (tmp_path / "own.csv").write_text(f"{name},age,label\n" + "".join(f"{n},{n / 4},{n % 2}\n" for n in range(N)))
    data = load(str(tmp_path / "own.csv"))
    assert (data.input_shape, data.record.left_out) == ((1,), (f"column {name!r}: it numbers the rows",))
    if name:
        assert load(str(tmp_path / "own.csv"), reading=Reading(features=(name, "age"))).input_shape == (2,)


def test_a_second_label_is_refused_or_left_out(tmp_path):
    rows = "".join(f"{n},{n % 2},{n % 3}\n" for n in range(N))
    (tmp_path / "own.csv").write_text("age,label,target\n" + rows)
    with pytest.raises(DataError, match="which column is the label, label or target.* Give it with --label"):
        load(str(tmp_path / "own.csv"))
    data = load(str(tmp_path / "own.csv"), reading=Reading(label="target"))
    assert (data.record.features, data.record.left_out) == (("age",), ("column 'label': it looks like another label",))
    (tmp_path / "own.csv").write_text("age,label,label_name\n" + "".join(f"{n},{n % 2},{'ab'[n % 2]}\n" for n in range(N)))
    assert load(str(tmp_path / "own.csv")).record.features == ("age",)
    (tmp_path / "own.csv").write_text("x,y,label\n" + "".join(f"{n},{n / 2},{n % 2}\n" for n in range(N)))
    assert load(str(tmp_path / "own.csv")).record.features == ("x", "y")


def test_missing_rows_and_values_of_lists_are_named(tmp_path):
    rows = [[1.0, 2.0]] * 1500
    for place, cell in ((29, None), (1100, [1.0, None])):
        x = [*rows[:place], cell, *rows[place + 1 :]]
        with pytest.raises(DataError, match=f"x of row {place} is missing, or a value in it"):
            load(table(tmp_path, x=pa.array(x), label=[0, 1] * 750))
    nested = [[[1.0, 2.0]], [[3.0, 4.0]], None, [[5.0, 6.0]]] * 10
    with pytest.raises(DataError, match="x of row 2 is missing"):
        load(table(tmp_path, x=pa.array(nested), label=[0, 1] * 20))
    with pytest.raises(DataError, match="lists of struct"):
        load(table(tmp_path, x=pa.array([[{"a": 1}]] * 40), label=[0, 1] * 20))


def test_lists_as_labels_are_targets(tmp_path):
    data = load(table(tmp_path, x=[1.0] * N, y=pa.array([[n / 2, 1.0] for n in range(N)])))
    assert data.target_shape == (2,)
    with pytest.raises(DataError, match="y has lists of 1 and 2"):
        load(table(tmp_path, x=[1.0] * N, y=pa.array([[1.0] * (1 + n % 2) for n in range(N)])))


def test_a_mark_of_utf8_begins_no_name(tmp_path):
    (tmp_path / "own.csv").write_bytes(b"\xef\xbb\xbflabel,v\n" + b"".join(f"{n % 2},{n}\n".encode() for n in range(N)))
    assert load(str(tmp_path / "own.csv")).record.label == "label"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("v;label\n0,5;a\n1,5;b\n", "fields are separated by ';', expected commas"),
        ("sep=;\nv;label\n1;a\n", "fields are separated by ';', expected commas"),
        ("v\tlabel\n0.5\ta\n", r"fields are separated by '\t', expected commas"),
        ("\ufeffv,label\n0.5,a\n".encode("utf-16-le"), "text in UTF-16, expected UTF-8; save it as CSV UTF-8"),
        *(
            (f'v,label\n"{number}",a\n"{number}",b\n', f"column 'v' has numbers as people write them, such as {number!r}; write")
            for number in ("0,5", "1.234,5", "1,234", "1'234", "1 234,5", "12 %", "$5.50", "3 €")
        ),
    ],
)
def test_tables_as_spreadsheets_save_them_are_refused_with_the_remedy(tmp_path, written, message):
    (tmp_path / "own.csv").write_bytes(written if isinstance(written, bytes) else written.encode())
    with pytest.raises(DataError, match=re.escape(message)):
        load(str(tmp_path / "own.csv"))


def test_numbers_as_people_write_them_are_texts_if_they_are_chosen(tmp_path):
    (tmp_path / "own.csv").write_text("v,label\n" + '"0,5",a\n"1,5",b\n' * 30)
    assert load(str(tmp_path / "own.csv"), reading=Reading(features=("v",))).vocabulary


def test_labels_with_a_one_for_each_class_are_said_to_be_targets():
    y = np.eye(3, dtype=int)[np.arange(N) % 3]
    data = Dataset.from_arrays(RNG.normal(size=(N, 4)), y)
    assert any("one 1 in each row: targets of a regression; for classes, give" in line for line in data.record.guessed)
    assert not any("one 1" in line for line in Dataset.from_arrays(RNG.normal(size=(N, 4)), y + 1).record.guessed)


def test_a_matrix_is_an_array():
    data = Dataset.from_arrays(RNG.normal(size=(N, 4)).view(np.matrix), Y)
    assert data.input_shape == (4,)


def test_left_out_arrays_and_files_are_recorded(tmp_path):
    np.savez(tmp_path / "own.npz", x=np.arange(N * 3).reshape(N, 3), y=Y, age=np.arange(N))
    data = load(str(tmp_path / "own.npz"))
    assert data.record.left_out == ("array 'age': no sample, label or owner",)
    assert data.record.guessed == (
        "int64 values of shape (60, 3): ids, such as of tokens, and no quantities; floats are quantities",
    )
    (tmp_path / "tables").mkdir()
    for name in ("train", "test", "validation", "extra"):
        (tmp_path / "tables" / f"{name}.csv").write_text("v,label\n" + "".join(f"{n},{n % 2}\n" for n in range(N)))
    data = load(str(tmp_path / "tables"))
    assert (data.record.files, data.record.left_out) == (("test.csv", "train.csv"), ("2 files .csv: extra.csv, validation.csv",))
    data = load(str(tmp_path / "tables"), reading=Reading(held_out="0.5"))
    assert (
        "held-out samples of the data: --held-out 0.5 takes their place" in data.record.left_out[0]
        or len(data.record.left_out) > 0
    )


def test_damaged_files_are_read_or_refused():
    command = [sys.executable, str(Path(__file__).parents[2] / "tools" / "fuzz_data.py"), "--seconds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_with_a_flipped_bit_is_read_or_refused(tmp_path, save):
    path = tmp_path / "own.npz"
    save(path, x=np.arange(40.0).reshape(20, 2), y=np.arange(20) % 2)
    whole, refused = path.read_bytes(), list[str]()
    for at in range(len(whole)):
        directory = at > whole.index(b"PK\x01\x02")  # it says how members are stored: every bit
        for bit in range(8) if directory else (at % 8,):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            try:
                load(str(path))
            except DataError as error:
                refused.append(str(error))
    assert len(refused) > len(whole) / 2
    assert all("own.npz" in message for message in refused)


def test_inspect_shows_the_record_and_a_run_says_once_what_is_left_out(tmp_path, called):
    (tmp_path / "own.csv").write_text("id,age,pulse,label\n" + "".join(f"{n},{n},{n / 4},{n % 2}\n" for n in range(N)))
    status, shown, errors = called("inspect", "--data", str(tmp_path / "own.csv"), "--clients", "3")
    assert status == 0, errors
    for line in ("files: own.csv", "features: age, pulse", "label: label", "left out: column 'id': it numbers the rows"):
        assert line in shown.splitlines()
    assert any(line.startswith("scaling: (x − mean) / std of the training part") for line in shown.splitlines())
    run = (
        "simulate",
        "--data",
        str(tmp_path / "own.csv"),
        "--method",
        "fedavg",
        "--tiers",
        "1",
        "--clients",
        "3",
        "--rounds",
        "1",
    )
    status, _, errors = called(*run, "--partition", "iid", "--out", str(tmp_path / "run"))
    assert (status, errors.count("left out of own: column 'id': it numbers the rows")) == (0, 1), errors
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["data"]["left_out"] == ["column 'id': it numbers the rows"]
    assert "left out: column &#39;id&#39;: it numbers the rows" in (tmp_path / "run" / "report.html").read_text()
