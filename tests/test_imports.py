"""The house's rules about who imports whom, and what a bare import costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import edgefl

PACKAGE = Path(edgefl.__file__).parent

# Room → rooms that it may import. Imports point one way: towards the top of this table.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "finite": set(),
    "units": {"errors"},
    "records": set(),
    "rng": set(),
    "tracing": set(),
    "files": {"errors"},
    "registry": {"errors"},
    "config": {"errors", "files"},
    "codecs": set(),
    "wire": {"errors", "finite", "codecs"},
    "factor": {"errors", "records", "tracing"},
    "planner": {"records", "factor", "fleet"},
    "models": {"errors", "registry"},
    "data": {"errors", "registry", "rng"},
    "fleet": {"config", "errors", "files", "records", "rng"},
    "cost": {"errors", "records"},
    "methods": {"errors", "finite", "records", "registry", "rng", "factor", "models", "tracing"},
    "local": {"errors", "finite", "records", "registry", "rng", "wire", "data", "models", "methods", "cost", "tracing"},
    "engine": {"errors", "records", "local", "tracing"},
    "server": {"errors", "files", "records", "rng", "wire", "data", "models", "fleet", "methods", "local", "engine", "tracing"},
    "onnxio": {"errors", "files", "records", "factor", "cost", "models", "methods", "local", "tracing"},
    "serve": {"errors", "files", "onnxio"},
    "updates": {"errors"},
    "report": {"codecs", "wire", "config", "errors", "files", "records", "units", "fleet", "server", "tracing", ""},
}
TOP = {
    "run",
    "prepare",
    "session",
    "stages",
    "costing",
    "outcome",
    "networks",
    "profiling",
    "planning",
    "lineup",
    "comparing",
    "rehearsal",
    "policies",
    "calibrating",
    "validating",
    "benchmarks",
    "machine",
    "deploy",
    "trainable",
    "fedround",
    "offer",
    "choosing",
    "runfolder",
    "cli",
    "",
}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts[0] == "__init__" else parts[0]


def imported_rooms(path: Path) -> set[str]:
    """Rooms imported at run time; names needed for annotations only do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and isinstance(test.test, ast.Name) and test.test.id == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    rooms = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "edgefl":
                rooms.add(parts[1] if len(parts) > 1 else "")
    return rooms


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    room = room_of(path)
    if room in TOP:
        assert room == "cli" or "cli" not in imported_rooms(path)
        return
    assert imported_rooms(path) - {room} <= ALLOWED[room]


def test_the_table_itself_has_no_cycle():
    done: set[str] = {""}
    remaining = dict(ALLOWED)
    while ready := [room for room, needs in remaining.items() if needs <= done]:
        done.update(ready)
        for room in ready:
            del remaining[room]
    assert not remaining


def test_a_method_knows_nothing_of_costs_fleets_engines_or_the_command_line():
    assert not ALLOWED["methods"] & {"cost", "fleet", "engine", "cli", "server"}


@pytest.mark.parametrize(
    "module",
    [
        "edgefl",
        "edgefl.cli.main",
        "edgefl.fleet.profile",
        "edgefl.onnxgrad.predict",
        "edgefl.report.html",
        "edgefl.engine.fork_server",
    ],
)
def test_importing_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_line_of_what_leaves_for_the_device_imports_torch_or_edgefl():
    from edgefl.util.files import shared

    for path in shared("export").rglob("*"):
        if path.suffix in (".py", ".mjs", ".js", ".html"):
            assert "import torch" not in path.read_text(encoding="utf-8")
            assert "import edgefl" not in path.read_text(encoding="utf-8")
