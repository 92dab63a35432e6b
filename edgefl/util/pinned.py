"""Modules that run from bytes that were read before: what was hashed and consented to is what runs, whatever the file says later.

No cached bytecode is read, and the working directory is not searched while such a module runs.
"""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from edgefl.errors import InputError
from edgefl.util.code_files import CodeFile, read_code, search_path


class _Read(SourceFileLoader):
    """Runs the content of a file as it was read."""

    def __init__(self, name: str, file: CodeFile, apart: bool) -> None:
        super().__init__(name, str(file.path))
        self._file, self._apart = file, apart

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._file.content, str(self._file.path))

    def get_data(self, path: str) -> bytes:
        return self._file.content

    def exec_module(self, module: ModuleType) -> None:
        with without_here() if self._apart else contextlib.nullcontext():
            super().exec_module(module)


def spec_of(name: str, file: CodeFile, apart: bool = True) -> ModuleSpec:
    """Return how the module ``name`` runs the content of ``file``; ``apart``: from modules in the working directory."""
    folder = [str(file.path.parent)] if file.is_package else None
    spec = importlib.util.spec_from_file_location(
        name, file.path, loader=_Read(name, file, apart), submodule_search_locations=folder
    )
    assert spec is not None  # it has a loader
    return spec


@contextlib.contextmanager
def without_here() -> Iterator[None]:
    """Leave the working directory out of ``sys.path`` within the block."""
    here = Path.cwd()
    before = [(place, entry) for place, entry in enumerate(sys.path) if not entry or Path(entry).resolve() == here]
    sys.path[:] = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    try:
        yield
    finally:
        for place, entry in before:
            sys.path.insert(place, entry)


class Pinned:
    """The files that were pinned in this process, as a finder of modules."""

    def __init__(self) -> None:
        self.by_path: dict[Path, CodeFile] = {}
        self.by_name: dict[str, CodeFile] = {}
        self._folders: dict[str, str] = {}  # package without a file → its folder
        self._more: Callable[[CodeFile], bool] = lambda file: False

    def pin(self, files: Sequence[CodeFile], more: Callable[[CodeFile], bool] = lambda file: False) -> None:
        """Let ``files`` run as they were read, and modules of their packages if they are among ``more``.

        Raises:
            InputError: Python already has another module of such a name.
        """
        self._more = more
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        for file in files:
            if file.module:
                self._check_name(file)
            self.by_path[file.path] = file
        for file in filter(lambda file: file.module, files):
            self.by_name[file.module] = file
            folder = file.path.parent
            for package in ([file.module] if file.is_package else []) + list(_packages(file.module)):
                self._folders[package], folder = str(folder), folder.parent

    def _check_name(self, file: CodeFile) -> None:
        """Raise :class:`InputError` if Python has another module of the name of ``file``."""
        top, depth = file.module.partition(".")[0], file.module.count(".") + file.is_package
        if (module := sys.modules.get(file.module)) is not None:
            other = getattr(module, "__file__", None)
        else:
            root = file.path.parents[depth]
            spec = PathFinder.find_spec(top, [str(folder) for folder in search_path() if folder != root])
            other = spec.origin if spec is not None and spec.has_location else None
        if (module is not None or other) and (not other or Path(other).resolve() != file.path):
            raise InputError(f"{file.path}: Python has another module {file.module} first, {other}; rename one of them")

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how a pinned module is imported; ModuleNotFoundError for one of its package that nobody has consented to."""
        if (file := self.by_name.get(name)) is not None:
            return spec_of(name, file)
        if (folder := self._folders.get(name)) is not None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [folder]
            return spec
        package, _, last = name.rpartition(".")
        if package not in self._folders:
            return None
        parent = Path(self._folders[package])
        beside = next((one for one in (parent / last / "__init__.py", parent / f"{last}.py") if one.is_file()), None)
        read = None if beside is None else read_code(beside, name)
        if read is not None and self._more(read):
            self.pin([read], self._more)
            return spec_of(name, read)
        raise ModuleNotFoundError(f"No module named {name!r} that you consented to ({beside or parent})", name=name)


def _packages(module: str) -> Iterator[str]:
    """Yield the packages around a module, the inmost first.

    >>> list(_packages("a.b.c"))
    ['a.b', 'a']
    """
    while module := module.rpartition(".")[0]:
        yield module


PINNED = Pinned()
"""The modules that a file named, and that were consented to, in this process."""
