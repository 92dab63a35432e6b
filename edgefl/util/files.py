"""Files that are whole or absent, and where the folders that ship beside the package are found."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgefl.errors import InputError, StorageError


def shared(folder: str) -> Path:
    """Return the folder ``profiles`` or ``export``: inside the package when installed from a wheel, beside it in a checkout.

    >>> (shared("profiles") / "devices").is_dir()
    True
    """
    package = Path(__file__).parents[1]
    installed = package / "_share" / folder
    return installed if installed.is_dir() else package.parent / folder


def user_cache() -> Path:
    """Return the folder for what can be fetched or measured again: ``edgefl`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "edgefl"


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a :class:`StorageError` that names ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StorageError(f"{path}: no space left on the device; free some, or give another folder") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EIO):
            raise StorageError(f"{path}: cannot be written ({error.strerror}); give another folder") from error
        raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write ``content`` to a temporary name beside ``path``, sync it, then rename: a reader sees all or nothing, also after an error."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
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


@contextlib.contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill, which takes the place of ``folder`` (absent or empty) at the end, or disappears after an error."""
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
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


def sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable, where the platform can."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically; NaN and infinities are refused because JSON has none."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def sha256(content: bytes) -> str:
    """Return the hexadecimal SHA-256 of ``content``.

    >>> sha256(b"")[:8]
    'e3b0c442'
    """
    return hashlib.sha256(content).hexdigest()


def read_toml(path: Path, error_class: type[InputError]) -> dict[str, Any]:
    """Return the content of a TOML file; an error of ``error_class`` names the file and line of a malformed one."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise error_class(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise error_class(f"{path}: cannot be read ({reason})") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise error_class(f"{path}, {f'line {line[1]}' if line else 'at its end'}: not valid TOML: {error}") from None
