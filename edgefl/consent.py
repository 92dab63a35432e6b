"""Consent to code: what a file names is imported only if its user typed it, trusts its content, or says so for this call.

A configuration, a comparison and the folder of a run may name Python files and modules. :func:`admit` decides about all of them before
anything is imported, and pins what it admits: exactly the bytes that were consented to run, here and in worker processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import edgefl.plugins as plugins
from edgefl.errors import ConfigError, InputError, WireError
from edgefl.plugins import code_in
from edgefl.registry import ALL
from edgefl.util.code_files import CodeFile, files_behind, is_installed, read_code, root_of, search_path
from edgefl.util.files import json_bytes, read_at_most, storage_errors, user_config, whole_path, write_bytes
from edgefl.util.modules import RAN, imported
from edgefl.util.pinned import PINNED

_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 1 << 16
_everything: ContextVar[bool] = ContextVar("everything", default=False)


@contextlib.contextmanager
def trust_code() -> Iterator[None]:
    """Consent to all code that files name, such as a configuration or the folder of a run, within the block.

    Example:
        >>> with trust_code():
        ...     pass  # such as edgefl.export(folder, "bundle")
    """
    before = _everything.set(True)
    try:
        yield
    finally:
        _everything.reset(before)


@dataclass(frozen=True)
class Trusted:
    """An entry of the user's list.

    Attributes:
        sha256: of the content that is trusted, wherever it lies.
        path: of the file when it was added.
        module: the name under which it was imported then; empty: only by its path.
    """

    sha256: str
    path: str
    module: str

    @property
    def root(self) -> Path:
        """The folder from which the module is imported."""
        file = Path(self.path)
        return file.parents[self.module.count(".") + (file.name == "__init__.py")]


def _folder() -> Path:
    return user_config() / "trusted-code"


def trusted() -> dict[str, Trusted]:
    """Return the user's list, by hash, the newest entry first.

    Raises:
        InputError: an entry is damaged, or others may write to the list.
    """
    folder, dated = _folder(), list[tuple[float, Trusted]]()
    if not folder.exists():
        return {}
    for path in (folder, *sorted(folder.glob("*.json"))):
        if os.name == "posix" and (path.is_symlink() or path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise InputError(
                f"{path}: is a link, or others may change it: expected your own list of trusted code; chmod go-w {path}"
            )
        if path != folder:
            dated.append((path.stat().st_mtime, _entry(path)))
    return {entry.sha256: entry for _, entry in sorted(dated, key=lambda one: one[0], reverse=True)}


def _entry(path: Path) -> Trusted:
    try:
        values: Any = json.loads(read_at_most(path, _MOST_BYTES, InputError))
        entry = Trusted(path.stem, values["path"], values["module"])
        if not _HASH.fullmatch(path.stem) or not isinstance(entry.path, str) or not isinstance(entry.module, str):
            raise ValueError("not an entry")
        _ = entry.root
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise InputError(f"{path}: damaged, expected an entry of trusted code; delete it") from None
    return entry


def trust(file: CodeFile) -> Trusted:
    """Add the content of a file to the user's list; StorageError if that is not possible."""
    entry = Trusted(file.sha256, str(file.path), file.module or root_of(file.path)[1])
    content = json_bytes({"path": entry.path, "module": entry.module})
    with storage_errors(_folder()):
        _folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(_folder() / f"{entry.sha256}.json", content)
    return entry


def distrust(what: str) -> list[Trusted]:
    """Remove a hash, or all entries of a file's path, from the user's list, and return what was removed; InputError if there is none."""
    path = whole_path(what)
    entries = [entry for entry in trusted().values() if entry.sha256 == what or entry.path == path]
    if not entries:
        raise InputError(f"{what}: not in your list; expected a hash or a file of 'edgefl trust list'")
    for entry in entries:
        (_folder() / f"{entry.sha256}.json").unlink(missing_ok=True)
    return entries


def admit(
    named: Iterable[tuple[str, str]],
    where: str,
    typed: Iterable[tuple[str, str]] = (),
    before: Mapping[str, str] = MappingProxyType({}),
    hints: Collection[str] = (),
) -> None:
    """Decide whether code that a file names may be imported, before anything is, and pin it.

    Args:
        named: key and source of the code, see :func:`edgefl.plugins.code_in`.
        where: the file that names it, for messages.
        typed: code that the user has named too, by the command line or in Python.
        before: source → hash that a run has recorded; "": it has not.
        hints: folders in which the user's own run has found modules; they count only if the user's list has them.

    Raises:
        ConfigError: there is no such code, or nobody consented to it; the message names each file, its hash, and both ways.
    """
    typed_sources = {_whole(source) for _, source in typed}
    asked = dict.fromkeys((_whole(source), key) for key, source in named)
    entries = trusted() if asked else {}
    allowed: Callable[[CodeFile], bool] = partial(_allowed, entries, _everything.get())
    files, installed, problems, refused = (
        list[CodeFile](),
        list[tuple[str, str]](),
        list[str](),
        dict[Path, tuple[str, CodeFile]](),
    )
    for source, key in asked:
        if source in typed_sources or _of_entry_point(key, source):
            installed += [] if source in typed_sources or source.endswith(".py") else [(source, key)]
            continue
        try:
            code = files_behind(source, _roots(source, entries, hints))
        except InputError as error:
            problems.append(f"{where}: {key}: {error}")
            continue
        now = next(file for file in code if file.module in ("", source)).sha256
        if before.get(source) not in ("", None, now):
            problems.append(f"{where}: {plugins.changed(source, before[source], now)}")
        for file in code:
            if not allowed(file):
                refused.setdefault(file.path, (key, file))
        if code[0].module and is_installed(code[-1].path):
            installed.append((source, key))
        else:
            files += [file for file in code if not _runs(file)]
    if refused and not problems:
        problems.append(_refusal(where, refused))
    if problems:
        raise ConfigError("\n".join(problems))
    PINNED.pin(files, allowed)
    for source, key in installed:
        imported(source, key, here=False)


def remember(values: Mapping[str, Any]) -> None:
    """Add the code that the user has typed for a run of these keys to the user's list, so that the run can be resumed."""
    for _, source in code_in(values):
        with contextlib.suppress(InputError):  # a list that cannot be written only means that the user is asked later
            for file in files_behind(_whole(source), [*_imported_from(source), Path.cwd(), *search_path()]):
                if file.path not in PINNED.by_path and not is_installed(file.path):
                    trust(file)


def sent() -> list[tuple[str, str, str]]:
    """Return path, module and hash of all pinned files, for :func:`receive` in a worker process."""
    return [(str(file.path), file.module, file.sha256) for file in PINNED.by_path.values()]


def receive(files: Iterable[tuple[str, str, str]]) -> None:
    """Pin what the process of the server has pinned; WireError if a file has another content here."""
    read = [(read_code(Path(path), module), digest) for path, module, digest in files]
    for file, digest in read:
        if file.sha256 != digest:
            raise WireError(f"{file.path}: has changed since the run read it; restore it, or start again")
    PINNED.pin([file for file, _ in read if file != PINNED.by_path.get(file.path)])


def _whole(source: str) -> str:
    return whole_path(source) if source.endswith(".py") else source


def _roots(source: str, entries: Mapping[str, Trusted], hints: Collection[str]) -> list[Path]:
    """Return where a module is searched: where the user's own runs have found it, and among what is installed."""
    roots = list(dict.fromkeys(entry.root for entry in entries.values() if entry.module == source))
    return [*sorted(roots, key=lambda root: str(root) not in hints), *search_path()]


def _imported_from(source: str) -> list[Path]:
    """Return the folder from which this process has imported a module, if it has."""
    file = getattr(sys.modules.get(source), "__file__", None)
    return [Path(file).resolve().parents[source.count(".") + (Path(file).name == "__init__.py")]] if file else []


def _of_entry_point(key: str, source: str) -> bool:
    """Whether a plug-in is of an installed package that an entry point of edgefl names, and where Python finds that package."""
    tops = {name.partition(".")[0] for registry in ALL for name in registry.installed()} if key == "plugins" else set()
    if source.endswith(".py"):
        root, module = root_of(Path(source))
        return module.partition(".")[0] in tops and root in search_path()
    return source.partition(".")[0] in tops


def _allowed(entries: Mapping[str, Trusted], everything: bool, file: CodeFile) -> bool:
    return everything or file.sha256 in entries or _runs(file)


def _runs(file: CodeFile) -> bool:
    """Whether this process runs the content of a file already, so that nothing new would run."""
    if not file.module:
        main = getattr(sys.modules["__main__"], "__file__", None) or ""
        return RAN.get(file.path) == file.sha256 or (Path(main).resolve() == file.path and not is_installed(file.path))
    other = getattr(sys.modules.get(file.module), "__file__", None)
    return other is not None and Path(other).resolve() == file.path and not is_installed(file.path)


def _refusal(where: str, refused: Mapping[Path, tuple[str, CodeFile]]) -> str:
    lines = [f"  {path}  ({key}), SHA-256 {file.sha256}" for path, (key, file) in refused.items()]
    head = f"{where}: names code, and code that a file names runs only if you consent; nothing was imported:"
    both = "Read it. If you trust it, give --trust-code for this call (in Python: with edgefl.trust_code():), or put it on your list:"
    return "\n".join([head, *lines, both, f"  edgefl trust add {' '.join(shlex.quote(str(path)) for path in refused)}"])
