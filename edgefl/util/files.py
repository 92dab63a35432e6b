"""Atomic writes of files and folders, and the places of the folders that ship with the package."""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgefl.errors import EdgeflError, InputError, StorageError
from edgefl.util.claims import make_folder

TomlTable = dict[str, Any]
"""A table of a TOML file: as it was read, not checked yet, or as it is written."""
_IN_USE_S = 600.0
"""A temporary folder older than this belongs to nobody: it is filled in seconds."""
UNWRITABLE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EIO, errno.ENOENT, errno.ENAMETOOLONG,
    errno.ELOOP,
}  # fmt: skip
"""Numbers of the errors of a path that cannot be used."""
_MOST_TOML_BYTES = 1 << 28
"""More than the keys of a million devices."""


def shared(folder: str) -> Path:
    """Return the path of folder ``profiles`` or ``export``: inside an installed package, beside the package in a checkout.

    >>> (shared("profiles") / "devices").is_dir()
    True
    """
    package = Path(__file__).parents[1]
    installed = package / "_share" / folder
    return installed if installed.is_dir() else package.parent / folder


def module_command(module: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """Return command and environment to run a module of this package, without the working directory, whose files could shadow modules."""
    paths = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH"))))
    return [sys.executable, "-P", "-m", module, *arguments], {**os.environ, "PYTHONPATH": paths}


def user_cache() -> Path:
    """Return ``edgefl`` in the user's cache folder, for files that can be fetched or measured again."""
    return _of_user("XDG_CACHE_HOME", ".cache")


def user_config() -> Path:
    """Return ``edgefl`` in the user's configuration folder, for keys."""
    return _of_user("XDG_CONFIG_HOME", ".config")


def _of_user(variable: str, usual: str) -> Path:
    """Return ``edgefl`` in the folder that a variable names, else in that of the user's home; InputError if there is none."""
    try:
        base = os.environ.get(variable, "")
        return (Path(base) if Path(base).is_absolute() else Path.home() / usual) / "edgefl"
    except RuntimeError:
        raise InputError(f"HOME is not set, and the user has no home; set it, or {variable}, to a folder") from None


def exists(path: Path) -> bool:
    """Return whether ``path`` exists; False also for a name that no file can have, or a folder that cannot be searched.

    >>> exists(Path("a" * 5000)), exists(Path())
    (False, True)
    """
    try:
        return path.exists()
    except OSError:
        return False


def whole_path(path: str | Path) -> str:
    r"""Return the whole path of a file without links; of a name that no file can have, such as a loop of links, as it is given.

    >>> whole_path("a\0b")
    'a\x00b'
    """
    try:
        return str(Path(path).resolve())
    except (OSError, RuntimeError, ValueError):
        return str(path)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the error of a full or unwritable disk, or of an impossible path, into a :class:`StorageError` that names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(f"{path}: no space left on the device; free some, or give another folder") from error
        if error.errno in UNWRITABLE:
            raise StorageError(f"{path}: cannot be written ({error.strerror}); give another folder") from error
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to a temporary file beside ``path``, sync it, then rename it: a reader never sees a part of the content."""
    with storage_errors(path):
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: is no file, but a folder or a device, which would be replaced; give another path")
        make_folder(path.parent)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def check_free(folder: Path, error: type[EdgeflError]) -> None:
    """Raise ``error`` unless ``folder`` is absent or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise error(f"{folder}: exists and is not an empty folder; give another")


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill. At the end it replaces ``folder``, which is absent or empty; after an error it is removed."""
    with storage_errors(folder):
        make_folder(folder.parent)
        _sweep(folder)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            yield temporary
            for inner in (temporary, *(path for path in temporary.rglob("*") if path.is_dir())):
                sync_folder(inner)
            temporary.chmod(0o755)
            if folder.exists():
                folder.rmdir()
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(folder.parent)


def _sweep(folder: Path) -> None:
    """Remove the temporary folders of ``folder`` that a killed process left beside it; a new one may be in use."""
    for left in folder.parent.iterdir():
        with contextlib.suppress(OSError):
            if left.name.startswith(f".{folder.name}.") and left.is_dir() and time.time() - left.stat().st_mtime > _IN_USE_S:
                shutil.rmtree(left, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Sync ``folder`` to the disk, so that a rename in it survives a power failure, if the system can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def json_bytes(content: Any) -> bytes:
    """Return ``content`` as indented JSON; raise ValueError for NaN and infinity, which JSON lacks."""
    return (json.dumps(content, indent=2, allow_nan=False) + "\n").encode()


def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a table of JSON, as ``object_pairs_hook``; ValueError if a key comes twice, of which readers may take either value.

    >>> json.loads('{"round": 1, "round": 2}', object_pairs_hook=no_key_twice)
    Traceback (most recent call last):
        ...
    ValueError: the key 'round' comes twice
    """
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} comes twice")
        table[key] = value
    return table


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically; see :func:`json_bytes`."""
    write_bytes(path, json_bytes(content))


def sha256(content: bytes) -> str:
    """Return the hexadecimal SHA-256 of ``content``.

    >>> sha256(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


def read_at_most(path: Path, limit_bytes: int, error_class: type[InputError], plain: bool = True) -> bytes:
    """Return the content of a file; an ``error_class`` names ``path`` if it cannot be read or holds more than ``limit_bytes``.

    It must be a ``plain`` file: a pipe could make the reader wait for ever.
    """
    try:
        if plain:
            require_plain(path, error_class)
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise error_class(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > limit_bytes:
        size_bytes = max(len(content), path.stat().st_size)  # a device has no size
        raise error_class(f"{path}: {size_bytes:,} bytes, expected at most {limit_bytes:,}")
    return content


def files_below(path: Path) -> list[Path]:
    """Return the files in a folder and its subfolders, sorted; hidden ones, such as ``._1.png`` of macOS, are left out."""
    files = (inner for inner in path.rglob("*") if inner.is_file())
    return sorted(inner for inner in files if not any(part.startswith(".") for part in inner.relative_to(path).parts))


def is_plain(path: Path) -> bool:
    """Whether ``path`` is a regular file or a folder, not a pipe, a socket or a device; OSError if there is nothing."""
    mode = path.stat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def require_plain(path: Path, error_class: type[InputError]) -> None:
    """Raise an ``error_class`` that names ``path`` if it is a pipe, a socket or a device, which may never end; OSError if it is missing."""
    if not is_plain(path):
        raise error_class(f"{path}: cannot be read (not a regular file)")


def ending_of(path: Path) -> str:
    """Return how the name of a file ends, in small letters.

    >>> ending_of(Path("OWN.NPZ"))
    '.npz'
    """
    return path.suffix.lower()


def is_profile_path(name: str) -> bool:
    """Whether the profile of a fleet, device or link is given by the path of its file, not by its name.

    >>> is_profile_path("my.toml"), is_profile_path("lab/my"), is_profile_path("phone")
    (True, True, False)
    """
    return name.endswith(".toml") or "/" in name


def read_toml(path: Path, error_class: type[InputError]) -> TomlTable:
    """Return the content of a TOML file; raise ``error_class``, with file and line, if it is missing, unreadable or malformed."""
    try:
        path.stat()
    except FileNotFoundError:
        raise error_class(f"{path}: no such file") from None
    except OSError as error:
        raise error_class(f"{path}: cannot be read ({error.strerror})") from None
    return toml_in(read_at_most(path, _MOST_TOML_BYTES, error_class, plain=False), path, error_class)


def toml_in(content: bytes, path: Path, error_class: type[InputError]) -> TomlTable:
    """Return what the ``content`` of the TOML file ``path`` says; raise ``error_class``, with file and line, if it is malformed."""
    try:
        return tomllib.loads(content.decode("utf-8-sig"))  # editors on Windows begin files with a mark
    except UnicodeDecodeError:
        raise error_class(f"{path}: cannot be read (it is not UTF-8 text)") from None
    except RecursionError:
        raise error_class(f"{path}: not valid TOML for edgefl: tables or arrays are nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise error_class(f"{path}, {f'line {line[1]}' if line else 'at its end'}: not valid TOML: {error}") from None
