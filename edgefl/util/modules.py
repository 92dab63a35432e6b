"""A user's Python code: modules from files and import paths, where a definition comes from, and a hash of its source."""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from edgefl.errors import EdgeflError, InputError, first_line, nearest
from edgefl.util.code_files import CodeFile, read_code
from edgefl.util.files import sha256
from edgefl.util.pinned import PINNED, spec_of, without_here

OBJECT = "object:"
"""Begins the name of an object that cannot be imported: a lambda, a local function, or what a notebook defines."""
BY_PATH = "_edgefl_"
"""Begins the names of modules that :func:`loaded` makes."""
RAN: dict[Path, str] = {}
"""File that :func:`loaded` has run in this process → SHA-256 of the content that ran."""


def is_file(spec: str) -> bool:
    """Whether ``spec`` is of the form ``file.py:name``."""
    return spec.rpartition(":")[0].endswith(".py")


def object_in(spec: str, title: str, what: str, here: bool = True) -> Any:
    """Return the object that ``spec`` names, ``package.module:name`` or ``file.py:name``.

    Args:
        spec: the name.
        title: how messages begin.
        what: it is expected to be, for messages.
        here: whether its module may be in the working directory.

    Raises:
        InputError: there is no such object, or importing its module raised an error.
    """
    where, _, attribute = spec.rpartition(":")
    definition: Any = loaded(Path(where), title) if is_file(spec) else imported(where, title, here)
    for part in attribute.split("."):
        if not hasattr(definition, part):
            members = getattr(definition, "__dict__", {})  # a number or a text has none
            names = [name for name in members if not name.startswith("_") and callable(getattr(definition, name))]
            raise InputError(f"{title}: {Path(where).name} has no {attribute!r};{nearest(attribute, names)} give {what}")
        definition = getattr(definition, part)
    return definition


def imported(name: str, title: str, here: bool = True) -> ModuleType:
    """Return the module ``name``, also one in the working directory if it may be ``here``.

    InputError, which begins with ``title``, if there is no such module, or it raises an error.
    """
    if here:
        _find_here()
    try:
        with contextlib.nullcontext() if here else without_here():
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"{title}: no module named {error.name!r} here or among the installed packages") from None
    except EdgeflError:
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise InputError(f"{title}: importing {name} raised {said(error)}") from error


def loaded(path: Path, title: str) -> ModuleType:
    """Return the module in the file at ``path``, under a name that is the same in all processes as long as the file does not change.

    The file of the main script is not run again. InputError, which begins with ``title``, if the file cannot be read, raises an error, or
    would get another module than the one beside it.
    """
    try:
        file = read_code(path)
    except InputError as error:
        raise InputError(f"{title}: {error}") from None
    path, pinned = file.path, PINNED.by_path.get(file.path)
    if pinned is not None and pinned.content != file.content:
        problem = "has changed since this process read it, and only what was read then may run"
        raise InputError(f"{title}: {path} {problem}; restore it, or start again")
    main = sys.modules["__main__"]
    if path == _file_of(main):
        return main
    name = f"{BY_PATH}{path.stem.replace('.', '_')}_{sha256(str(path).encode() + file.content)[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    for other in [other for other, module in sys.modules.items() if other.startswith(BY_PATH) and _file_of(module) == path]:
        del sys.modules[other]  # a version of the file that may come back, and is run again then
    if pinned is None:
        if (folder := str(path.parent)) not in sys.path:
            sys.path.append(folder)  # for modules beside the file
        _check_beside(path, file.content, title)
    RAN[path] = file.sha256
    return _run(name, file, title, apart=pinned is not None)


def _run(name: str, file: CodeFile, title: str, apart: bool) -> ModuleType:
    spec, path = spec_of(name, file, apart), str(file.path)
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except EdgeflError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f" (line {lines[-1]})" if lines else ""  # a syntax error's message has the line
        raise InputError(f"{title}: importing {path} raised {said(error)}{where}") from error
    return module


def _check_beside(path: Path, content: bytes, title: str) -> None:
    """Raise InputError if a module that the file at ``path`` imports lies beside it, and Python has one of another place by that name.

    One in the working directory goes first, as everywhere.
    """
    try:
        tree = ast.walk(ast.parse(content))
    except (SyntaxError, ValueError):  # importing the file says so
        return
    named = [node for node in tree if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)]
    modules = {n.module or "" for n in named if isinstance(n, ast.ImportFrom)}
    modules |= {alias.name for n in named if isinstance(n, ast.Import) for alias in n.names}
    for name in sorted({module.partition(".")[0] for module in modules} - sys.stdlib_module_names):
        beside = [file for file in (path.parent / name / "__init__.py", path.parent / f"{name}.py") if file.is_file()]
        if not beside:
            continue
        other = _file_of(sys.modules[name]) if name in sys.modules else Path(_origin(name)).resolve()
        if other is not None and other != beside[0] and Path.cwd() not in other.parents:
            raise InputError(
                f"{title}: {path} imports {name}, and Python has another one first, {other}; rename the one in {path.parent}"
            )


def said(error: BaseException) -> str:
    """Return the type and the first line of the message of an error that a user's code raised."""
    return f"{type(error).__name__}: {first_line(error) if str(error).strip() else 'no message'}"


def source_of(definition: Any) -> str:
    """Return where other processes find a class or function: the path of its file, the module of its package, or ``object:`` and its name.

    >>> source_of(source_of), source_of(7)
    ('edgefl.util.modules', 'object:int')
    """
    module = sys.modules.get(str(getattr(definition, "__module__", "")))
    if module is None or _file_of(module) is None:
        return f"{OBJECT}{getattr(definition, '__qualname__', type(definition).__name__)}"
    return source_of_module(module)


def source_of_module(module: ModuleType) -> str:
    """Return where other processes find a module: its name if it is in a package, else the path of its file.

    >>> import edgefl.util.modules, textwrap
    >>> source_of_module(edgefl.util.modules), Path(source_of_module(textwrap)).name
    ('edgefl.util.modules', 'textwrap.py')
    """
    if module.__package__:
        return module.__spec__.name if module.__spec__ else module.__name__  # of a package's main module: not __main__
    return str(_file_of(module) or module.__name__)


def source_named(name: str) -> str:
    """Return the :func:`source_of` the definitions in the installed module ``name``; InputError if there is none."""
    origin = Path(_origin(name, here=False))
    return name if "." in name or origin.stem == "__init__" else str(origin.resolve())


def source_sha256(source: str, definition: Any = None) -> str:
    """Return a hash of the file of a :func:`source_of`, or of the source text of ``definition`` if that is in no file.

    Raises:
        InputError: there is no such file or module here.
    """
    if source.startswith(OBJECT):
        return content_sha256(definition)
    if (pinned := PINNED.by_path.get(Path(source)) or PINNED.by_name.get(source)) is not None:
        return pinned.sha256
    try:
        return sha256(Path(source if source.endswith(".py") else _origin(source)).read_bytes())
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})") from None


def content_sha256(definition: Any) -> str:
    """Return a hash of the source text of a class or function, and of the values that it captured."""
    try:
        text = inspect.getsource(definition)
    except (OSError, TypeError):
        text = repr(definition)
    parts = [text, *(repr(cell.cell_contents) for cell in getattr(definition, "__closure__", None) or ())]
    return sha256("\0".join(parts).encode())


def _origin(name: str, here: bool = True) -> str:
    """Return the file of the module ``name``, without importing more than the packages around it."""
    if here:
        _find_here()
    try:
        with contextlib.nullcontext() if here else without_here():
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # no such package, or a name such as "."
        spec = None
    if spec is None or not spec.has_location:
        raise InputError(f"no module named {name!r} here or among the installed packages, and no file; a file's name ends in .py")
    return str(spec.origin)


def _find_here() -> None:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file and str(file).endswith(".py") else None
