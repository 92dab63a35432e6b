"""The house's rules about who imports whom, and what a bare import costs."""

import ast
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import edgefl
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.run.resolved import training_of

PACKAGE = Path(edgefl.__file__).parent
CONTRIB = "contrib"
"""The room that may import all others, and that none imports."""

# Room → rooms that it may import, the ground first: a room imports only rooms that stand above it in this table.
ROOMS: dict[str, set[str]] = {
    "version": set(),
    "onnxgrad": set(),
    "errors": {"onnxgrad"},
    "util": {"errors", "onnxgrad"},
    "records": {"util"},
    "rng": set(),
    "registry": {"errors", "util"},
    "plugins": {"errors", "registry", "util"},
    "consent": {"errors", "registry", "plugins", "util"},
    "config": {"errors", "registry", "plugins", "consent", "util"},
    "timing": {"errors", "util"},
    "wire": {"errors", "registry", "util"},
    "factor": {"onnxgrad", "errors", "records", "timing", "util"},
    "models": {"errors", "registry", "util", "onnxgrad"},
    "data": {"errors", "records", "registry", "rng", "util"},
    "cost": {"errors", "records", "util"},
    "fleet": {"errors", "records", "rng", "util"},
    "methods": {"errors", "records", "rng", "registry", "util", "timing", "factor", "models"},
    "client": {
        *(
            "errors",
            "records",
            "rng",
            "registry",
            "plugins",
            "consent",
            "util",
            "timing",
            "wire",
            "data",
            "models",
            "cost",
            "methods",
        ),
        "onnxgrad",
    },
    "bundle": {
        "errors",
        "records",
        "rng",
        "registry",
        "util",
        "wire",
        "factor",
        "models",
        "cost",
        "methods",
        "onnxgrad",
        "client",
    },
    "engine": {"errors", "records", "registry", "util", "timing", "wire", "data", "client"},
    "server": {
        "errors",
        "records",
        "rng",
        "registry",
        "util",
        "timing",
        "wire",
        "data",
        "models",
        "fleet",
        "methods",
        "client",
        "engine",
    },
    "log": {"errors", "records", "registry", "util"},
    "extend": {"errors", "records", "log", "rng", "registry", "wire", "factor", "data", "methods", "client", "engine", "server"},
    "report": {"errors", "records", "registry", "util", "timing", "wire", "fleet", "server"},
    "planning": {
        *("errors", "records", "rng", "registry", "util", "wire", "factor", "models", "cost", "fleet", "methods"),
        *("onnxgrad", "client", "bundle", "server", "report"),
    },
    "run": {
        *(
            "log",
            "errors",
            "records",
            "rng",
            "registry",
            "plugins",
            "consent",
            "config",
            "util",
            "timing",
            "wire",
            "models",
            "data",
            "fleet",
            "methods",
        ),
        *("onnxgrad", "client", "bundle", "engine", "server", "report", "planning"),
    },
    "cli": {
        *(
            "onnxgrad",
            "errors",
            "records",
            "registry",
            "plugins",
            "consent",
            "config",
            "util",
            "timing",
            "fleet",
            "methods",
            "client",
            "bundle",
            "engine",
            "report",
        ),
        *("planning", "run"),
    },
    "__main__": {"cli"},
    "testing": {
        *("errors", "records", "rng", "registry", "plugins", "util", "wire", "data", "models", "methods", "onnxgrad", "client"),
        *("bundle", "planning", "fleet", "engine", "server"),
    },
}

# The same among the modules of run/: from what a run consists of to the commands.
RUN: dict[str, set[str]] = {
    "feature": set(),
    "resolved": {"feature"},
    "network": set(),
    "sources": set(),
    "checks": {"resolved"},
    "guarded": {"resolved"},
    "run": {"feature", "resolved", "network", "checks"},
    "folder": set(),
    "checkpoint_writer": {"folder"},
    "enroll": set(),
    "verify": {"folder"},
    "auto_tiers": {"feature", "resolved"},
    "prepare": {"feature", "run", "resolved", "checks", "auto_tiers", "network", "sources"},
    "trained": {"feature", "run"},
    "calendar_rounds": {"run", "prepare", "trained"},
    "final_scores": {"trained"},
    "inspect_data": {"prepare", "network"},
    "engine_choice": {"run"},
    "bundle": {"feature", "run", "trained"},
    "finished": {"folder", "prepare", "trained"},
    "result": {"finished"},
    "line": {"run", "folder", "prepare", "trained", "bundle"},
    "export": {"folder", "trained", "finished", "bundle", "line"},
    "export_network": {"folder", "checks", "bundle", "line"},
    "simulate": {
        *(
            "feature",
            "run",
            "folder",
            "checkpoint_writer",
            "checks",
            "result",
            "prepare",
            "trained",
            "final_scores",
            "engine_choice",
            "bundle",
            "calendar_rounds",
        )
    },
    "offered": {"run", "folder"},
    "device_round": {"feature", "guarded", "run", "folder", "prepare", "line", "offered", "trained", "bundle"},
    "dry_run": {"feature", "run", "folder", "result", "prepare", "trained", "calendar_rounds"},
    "forks": set(),
    "policy_clock": {"dry_run", "forks"},
    "policy_reach": {"run", "trained", "dry_run", "calendar_rounds"},
    "whatif": {"run", "folder", "auto_tiers", "prepare", "dry_run", "policy_clock", "policy_reach", "forks"},
    "compare_entries": {"prepare", "calendar_rounds"},
    "paragraph": {"folder", "compare_entries"},
    "comparison_result": {"paragraph"},
    "parallel": {"folder", "simulate", "compare_entries"},
    "compare": {"run", "folder", "parallel", "compare_entries", "comparison_result"},
    "compare_finished": {"folder", "comparison_result"},
    "sweep": {"folder", "parallel", "compare", "compare_entries", "comparison_result"},
}


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts[0] == "__init__" else parts[0]


def imported(path: Path) -> set[tuple[str, ...]]:
    """The modules of edgefl imported at run time, without "edgefl"; names needed for annotations only do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and isinstance(test.test, ast.Name) and test.test.id == "TYPE_CHECKING"
        for node in ast.walk(test)
    }
    names = sources_of(tree, typing_only)
    return {tuple(name.split(".")[1:]) for name in names if name.split(".")[0] == "edgefl"}


def sources_of(tree: ast.AST, without: set[int] = frozenset()) -> set[str]:
    """The full names of what a module imports, apart from the nodes ``without``."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in without:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import) and id(node) not in without:
            names |= {alias.name for alias in node.names}
    return names


def rooms_of(modules: set[tuple[str, ...]]) -> set[str]:
    """The rooms of imported modules; names of the package's face are in none."""
    return {module[0] for module in modules if module and module[0] in ROOMS}


def parts_of(modules: set[tuple[str, ...]]) -> set[str]:
    """The parts of contrib that imported modules are in."""
    return {module[1] for module in modules if module[:1] == (CONTRIB,) and module[1:]}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    room, modules = room_of(path), imported(path)
    if room in ("", CONTRIB):
        return
    assert rooms_of(modules) - {room, "version"} <= ROOMS[room]
    assert all(module[:1] and module[0] in ROOMS for module in modules), "a file imports the package, which stands above it"
    if room == "run" and path.stem != "__init__":
        assert {module[1] for module in modules if module[0] == "run" and module[1] in RUN} <= RUN[path.stem]


def test_no_files_import_each_other_in_a_circle():
    """Imports for annotations, and those inside functions, count too."""
    files = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py") if path.stem != "__init__"}
    imports = {}
    for name, path in files.items():
        modules = [tuple(full.split(".")) for full in sources_of(ast.parse(path.read_text(encoding="utf-8")))]
        own = [module[1:] for module in modules if module[0] == "edgefl"]
        imports[name] = {found for module in own for found in (module, module[:-1]) if found in files} - {name}
    assert len(list(TopologicalSorter(imports).static_order())) == len(files)  # it raises CycleError, with the files


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_imports_nothing_of_contrib_and_its_parts_nothing_of_each_other(path):
    own = set(path.relative_to(PACKAGE).parts[1:2]) if room_of(path) == CONTRIB else set()
    assert parts_of(imported(path)) <= own


FEATURES = re.compile(r"secagg|secure|privacy|attack|adversar(?!ially)|(?<!over)flower|\bray\b", re.IGNORECASE)
NAMED = {
    "server/database.py": {"secure_delete"},  # a setting of SQLite
    "client/client.py": {"privacy"},  # the purpose of a generator, which decides bits
    "cli/main.py": {"flower"},  # the order of commands in the help
    "cli/whatif.py": {"Largest ε of the run, with --privacy. [the run's own]"},
}


def code_of(tree: ast.AST) -> set[str]:
    """The names and the texts in a module, without its docstrings."""
    found = {value for node in ast.walk(tree) for _, value in ast.iter_fields(node) if isinstance(value, str)}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    alone = {node.value.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    return found - docs - alone


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_the_core_names_no_feature_of_contrib(path):
    """Those who look for secure sums, privacy, attacks, Ray or Flower find them in contrib only, apart from what plug-ins import."""
    if room_of(path) in (CONTRIB, "extend", "testing"):
        return
    name = path.relative_to(PACKAGE).as_posix()
    assert {text for text in code_of(ast.parse(path.read_text(encoding="utf-8"))) if FEATURES.search(text)} == NAMED.get(
        name, set()
    )


@pytest.mark.parametrize("table", [ROOMS, RUN], ids=["rooms", "modules of run"])
def test_whatever_is_imported_stands_above_in_the_table(table):
    above: set[str] = set()
    for room, needs in table.items():
        assert needs <= above
        above.add(room)


def test_every_room_has_a_rule():
    assert {room_of(path) for path in PACKAGE.rglob("*.py")} - {"", CONTRIB} == set(ROOMS)
    assert {path.stem for path in (PACKAGE / "run").glob("*.py")} - {"__init__"} == set(RUN)


def test_the_keys_of_a_run_are_known_to_run_and_the_command_line_only():
    """Rooms below run/ take settings of their own, which run/ makes from the keys: one more key changes no signature there."""
    assert {room for room, others in ROOMS.items() if "config" in others} == {"run", "cli"}


def test_defaults_of_local_training_are_those_of_a_run():
    usual = training_of(RunConfig())
    assert Training(usual.epochs, usual.batch_size) == usual


def test_a_method_knows_nothing_of_costs_fleets_engines_or_the_command_line():
    assert not ROOMS["methods"] & {"cost", "fleet", "engine", "cli", "server"}


@pytest.mark.parametrize(
    "module",
    [
        "edgefl",
        "edgefl.contrib.calibrate.device",
        "edgefl.contrib.calibrate.command",
        "edgefl.cli.devices",
        "edgefl.cli.main",
        "edgefl.fleet.profile",
        "edgefl.onnxgrad.predict",
        "edgefl.report.html",
        "edgefl.engine.fork_server",
        "edgefl.util.machine",
    ],
)
def test_importing_does_not_import_torch(module):
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "multiprocessing.reduction"}
CHANNELS = {"Process", "Pool", "Queue", "SimpleQueue", "Manager"}


def pickling(tree: ast.AST, sources: set[str]) -> list[str]:
    """What a module uses that pickles: modules, multiprocessing's channels of objects, and ``send(object)`` or ``recv()`` of a connection.

    A socket's ``recv`` takes the number of bytes. Its ``send`` looks the same, but may send a part: ``sendall`` is used. The ``send`` of
    h11 returns bytes: a module that imports h11, and nothing of multiprocessing, may call it.
    """
    by_h11 = "h11" in sources and not any(source.startswith("multiprocessing") for source in sources)
    objects = {("recv", 0)} if by_h11 else {("send", 1), ("recv", 0)}
    found = sorted(f"import {source}" for source in sources if any(f"{source}.".startswith(f"{name}.") for name in PICKLING))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name | ast.Attribute)
            and (name := node.id if isinstance(node, ast.Name) else node.attr) == "ForkingPickler"
        ):
            found.append(name)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = ast.unparse(node.func.value), node.func.attr
            if (name in CHANNELS and "multiprocessing" in owner) or (name, len(node.args)) in objects:
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_nothing_is_pickled(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert pickling(tree, sources_of(tree)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from multiprocessing.reduction import ForkingPickler", "from multiprocessing import reduction",
        "connection.send(answer)", "answer = connection.recv()", "multiprocessing.Process(target=work)",
        "multiprocessing.get_context('spawn').Process(target=work)", "reduction.ForkingPickler.dumps(answer)",
    ],
)  # fmt: skip
def test_what_pickles_is_found(code):
    tree = ast.parse(code)
    assert pickling(tree, sources_of(tree)) != []


def test_what_sends_bytes_is_no_pickling():
    tree = ast.parse("import h11\nh11.Connection(h11.SERVER).send(event)")
    assert pickling(tree, sources_of(tree)) == []
    tree = ast.parse("socket.recv(4)\nconnection.send_bytes(b'')\nconnection.recv_bytes()\norders.sendall(b'.')")
    assert pickling(tree, sources_of(tree)) == []


def test_no_line_of_what_leaves_for_the_device_imports_torch_or_edgefl():
    from edgefl.util.files import shared

    for path in shared("export").rglob("*"):
        if path.suffix in (".py", ".mjs", ".js", ".html"):
            assert "import torch" not in path.read_text(encoding="utf-8")
            assert "import edgefl" not in path.read_text(encoding="utf-8")
