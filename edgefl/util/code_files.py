"""The Python files behind a name, found by reading and never by importing: the file itself, its packages, and what it imports beside it."""

import ast
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from edgefl.errors import InputError
from edgefl.util.files import sha256

_RUNNING = sys.stdlib_module_names | {__name__.partition(".")[0]}
"""Modules that nothing takes the place of: Python's own, and this package."""
_MOST_BYTES = 1 << 24
"""More than the source of any module."""


@dataclass(frozen=True)
class CodeFile:
    """A Python file as it was read.

    Attributes:
        path: of the file, with all links resolved.
        module: the name under which it is imported; empty for a file that is imported by its path.
        content: what is hashed, and what runs.
    """

    path: Path
    module: str
    content: bytes = field(repr=False)

    @property
    def sha256(self) -> str:
        """The hash of the content."""
        return sha256(self.content)

    @property
    def is_package(self) -> bool:
        """Whether the file is the ``__init__.py`` of the package ``module``."""
        return bool(self.module) and self.path.name == "__init__.py"


def read_code(path: Path, module: str = "") -> CodeFile:
    """Return the file at ``path``; InputError unless it is a regular file of at most 16 MiB whose name ends in .py."""
    try:
        path = path.resolve()
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{path}: cannot be read (not a regular file)")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:  # a name with a zero byte; a loop of links
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if len(content) > _MOST_BYTES or path.suffix != ".py":
        raise InputError(f"{path}: is no Python file, whose name ends in .py, of at most {_MOST_BYTES:,} bytes")
    return CodeFile(path, module, content)


def files_behind(source: str, roots: Iterable[Path]) -> tuple[CodeFile, ...]:
    """Return the files that importing ``source`` runs: of your own code all that it imports from its own folder or package.

    Args:
        source: the path of a file, which ends in .py, or the name of a module.
        roots: the folders in which a module is searched.

    Raises:
        InputError: there is no such file or module, or it has no source text.
    """
    if source.endswith(".py"):
        first = read_code(Path(source))
        return (first,) if is_installed(first.path) else (first, *_beside(first.path.parent, first))
    parts = source.split(".")
    for root in roots if all(part.isidentifier() for part in parts) else ():
        if (path := _in(root, parts)) is not None:
            first = read_code(path, source)
            if is_installed(first.path):
                return (first,)
            packages = (_in(root, parts[:end]) for end in range(1, len(parts)))
            around = [read_code(package, ".".join(parts[:end])) for end, package in enumerate(packages, 1) if package is not None]
            return tuple({file.path: file for one in (*around, first) for file in (one, *_beside(root, one))}.values())
    raise InputError(
        f"no module named {source!r} among the installed packages, with its source text; what a file names is not searched in the working "
        "directory: give the path of its file, or type the name on the command line"
    )


def search_path() -> list[Path]:
    """Return the folders of ``sys.path`` without the working directory."""
    here = Path.cwd()
    return [path for entry in sys.path if entry and (path := Path(entry).resolve()) != here and path.is_dir()]


@cache
def _installed() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(kind)).resolve() for kind in kinds})


def is_installed(path: Path) -> bool:
    """Whether a file belongs to Python or to an installed package.

    >>> is_installed(Path(ast.__file__).resolve()), is_installed(Path("net.py").resolve())
    (True, False)
    """
    return any(path.is_relative_to(folder) for folder in _installed())


def root_of(path: Path) -> tuple[Path, str]:
    """Return the folder from which a file is imported as a module, and the module's name, as its packages say."""
    names, folder = [path.stem] if path.name != "__init__.py" else [], path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        names, folder = [folder.name, *names], folder.parent
    return folder, ".".join(names)


def _in(root: Path, parts: list[str]) -> Path | None:
    """Return the file of a module in a folder, of a package its ``__init__.py``, if it has one there."""
    place = root.joinpath(*parts)
    return next((path for path in (place / "__init__.py", place.with_name(f"{place.name}.py")) if path.is_file()), None)


def _beside(root: Path, first: CodeFile) -> Iterator[CodeFile]:
    """Yield the files in ``root`` that ``first`` imports, and those that they import."""
    seen, waiting = {first.path}, [first]
    while waiting:
        for name in _imports(waiting.pop()):
            parts = name.split(".")
            path = None if parts[0] in _RUNNING else _in(root, parts)
            if path is not None and (path := path.resolve()) not in seen:
                seen.add(path)
                waiting.append(file := read_code(path, name))
                yield file


def _imports(file: CodeFile) -> Iterator[str]:
    """Yield the full names of the modules that a file may import, with the packages around them."""
    try:
        nodes = list(ast.walk(ast.parse(file.content)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # importing the file says so
        return
    package = file.module.split(".")[: None if file.is_package else -1] if file.module else []
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            around = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else []
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)) if parts[end] != "*")
