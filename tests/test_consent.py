"""Code that a file names runs only by consent: nobody's configuration and nobody's run folder runs anything by itself."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomlkit

import edgefl
from edgefl.config import RunConfig, admit_keys
from edgefl.consent import admit, distrust, receive, remember, sent, trust, trusted
from edgefl.errors import ConfigError, InputError, StorageError, WireError
from edgefl.registry import ALL
from edgefl.run.prepare import prepare
from edgefl.util.code_files import files_behind, read_code
from edgefl.util.files import sha256
from edgefl.util.modules import RAN, loaded
from edgefl.util.pinned import PINNED
from tests.command import told

EVIL = "from pathlib import Path\nPath({marker!r}).touch()\n"
NET = "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
SMALL = {"rounds": 1, "clients": 2, "local_epochs": 1, "data_share": 0.2, "conditions": "ideal", "method": "fedavg"}
KEYS: dict[str, Any] = {
    **dict.fromkeys(("model", "loss", "metric", "lr_schedule", "method", "dataset", "codec", "defence"), "{}:x"),
    **dict.fromkeys(("objective", "server_optimizer", "engine"), "{}:x"),
    "tier": {"1": "mlp", "0.5": "{}:x"}, "adversary": "{}:x:0.1",
    "log": ["{}:x"], "plugins": ["{}"], "stages": ["{}:x(a=1)"], "sampler": "{}:x(a=1)",
}  # fmt: skip
"""Every key that may name code → its value."""
FORMS = ("evil.py", "./evil.py", "sub/../evil.py", "{here}/evil.py", "link.py", "evil", "got.evil", "pack.evil", "sub.evil")
"""How code is named: by its path, through a link, and as a module of the working directory, of a folder in it, and of a package."""


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Forget what other tests have pinned, run and registered, and begin with an empty list."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    modules = set(sys.modules)
    stores: tuple[dict[Any, Any], ...] = (PINNED.by_path, PINNED.by_name, PINNED._folders, RAN)
    kept = [dict(one) for one in stores]
    monkeypatch.setattr(sys, "path", list(sys.path))
    for one in stores:
        one.clear()
    yield
    for one, before in zip(stores, kept, strict=True):
        one.clear()
        one.update(before)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    for registry in ALL:
        for name in list(registry.plugins()):
            for known in (registry._plugged, registry._loaded, registry._facts):
                known.pop(name, None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with code of a stranger under many names; it touches the file ``ran``."""
    folder = tmp_path / "here"
    for inner in ("got", "pack", "sub"):
        (folder / inner).mkdir(parents=True)
    code = EVIL.format(marker=str(tmp_path / "ran"))
    for path in ("evil.py", "got/evil.py", "pack/__init__.py", "pack/evil.py", "sub/evil.py"):
        (folder / path).write_text(code, encoding="utf-8")
    (folder / "link.py").symlink_to(folder / "evil.py")
    monkeypatch.chdir(folder)
    return folder


def ran(folder: Path) -> bool:
    """Whether the stranger's code has run."""
    return (folder.parent / "ran").exists()


def filled(value: Any, source: str) -> Any:
    """Return a key's value with the source of code in its place."""
    if isinstance(value, dict):
        return {name: filled(one, source) for name, one in value.items()}
    return [filled(one, source) for one in value] if isinstance(value, list) else value.format(source)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("key", KEYS)
def test_no_key_of_a_configuration_runs_code(key: str, form: str, here: Path) -> None:
    value = filled(KEYS[key], form.format(here=here))
    (here / "run.toml").write_text(tomlkit.dumps({key: value}), encoding="utf-8")
    status, output, errors = told("simulate", "--config", "run.toml", "--dry-run", "--out", "out")
    assert (status, output, ran(here), (here / "out").exists()) == (2, "", False, False), errors
    assert "run.toml" in errors
    if form.endswith(".py") or form == "{here}/evil.py":
        content = (here / "evil.py").read_bytes()
        assert f"{here}/evil.py  ({key}), SHA-256 {sha256(content)}" in errors
        assert "--trust-code" in errors
        assert f"edgefl trust add {here}/evil.py" in errors
    else:
        assert f"no module named '{form}' among the installed packages" in errors


VALUES = (
    *("evil.py", "evil.py:x", "./evil.py:x.y", "evil:x", "evil:x:0.1(a=1)", "evil.py:x:0.1", "evil.py:x.onnx", "hf:evil.py:x"),
    "digits+evil.py:x",
    *(["evil.py:x"], ["evil"], {"evil.py": ""}, {"evil": ""}, {"evil.py": 5}, {"evil.py": ["a"]}),
    *({"x": "evil.py:x"}, [{"evil.py": ""}], "a\0.py:x", " evil.py:x", ".evil:x"),
)  # fmt: skip


@pytest.mark.parametrize("key", [*RunConfig.model_fields, "no_such_key"])
def test_no_value_of_any_key_runs_code(key: str, here: Path) -> None:
    for value in VALUES:
        (here / "run.toml").write_text(tomlkit.dumps({key: value}), encoding="utf-8")
        with contextlib.suppress(InputError):
            prepare(RunConfig.load(here / "run.toml", {}))
        assert not ran(here), value


COMMANDS = {
    "simulate": ("simulate", "--out", "out"),
    "whatif": ("whatif", "--deadlines", "1"),
    "compare": ("compare", "--methods", "fedavg,fedhm", "--out", "out"),
    "flower": ("flower", "new", "app"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_that_reads_a_configuration_runs_code(command: str, here: Path) -> None:
    (here / "run.toml").write_text('rounds = "many"\nplugins."evil.py" = ""\nmodel = "got/evil.py:x"\n', encoding="utf-8")
    status, _, errors = told(*COMMANDS[command], "--config", "run.toml")
    assert (status, ran(here)) == (2, False)
    assert f"{here}/evil.py  (plugins)" in errors
    assert f"{here}/got/evil.py  (model)" in errors
    assert sorted(path.name for path in here.iterdir()) == ["evil.py", "got", "link.py", "pack", "run.toml", "sub"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run."""
    out = tmp_path_factory.mktemp("finished") / "run"
    edgefl.simulate(RunConfig(model="mlp", tiers=(1.0,), **SMALL), out)
    return out


def planted(run: Path, here: Path, changes: dict[str, Any]) -> Path:
    """Return a copy of a run with other keys and the right hashes, as a stranger would send it."""
    folder = here / "got-run"
    shutil.copytree(run, folder)
    shutil.copyfile(here / "evil.py", folder / "evil.py")
    values = tomlkit.parse((folder / "config.toml").read_text(encoding="utf-8")) | changes
    content = tomlkit.dumps(values).encode()
    (folder / "config.toml").write_bytes(content)
    hashes = json.loads((folder / "hashes.json").read_text(encoding="utf-8"))
    hashes["files"]["config.toml"] = [sha256(content)]
    (folder / "hashes.json").write_text(json.dumps(hashes), encoding="utf-8")
    return folder


READERS = {
    "resume": ("simulate", "--out", "{run}", "--resume", "--rounds", "2"),
    "export": ("export", "{run}", "--out", "out"),
    "audit": ("audit", "{run}"),
    "weights": ("export", "{run}", "--format", "weights", "--out", "out"),
    "fed-round": ("fed-round", "{run}/bundle", "--updates", "sub", "--out", "out"),
    "whatif": ("whatif", "--run", "{run}", "--method", "fedavg", "--model", "mlp", "--deadlines", "1", "--clients", "2"),
    "whatif of its configuration": ("whatif", "--config", "{run}/config.toml", "--deadlines", "1"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("source", ["got-run.evil", "got-run/evil.py", "evil"])
def test_no_run_folder_runs_code(reader: str, source: str, here: Path, finished: Path) -> None:
    folder = planted(finished, here, {"plugins": {source: ""}, "sources": {"root": str(here / "got-run")}})
    status, _, errors = told(*(word.format(run=folder) for word in READERS[reader]))
    assert (status, ran(here), (here / "out").exists()) == (2, False, False), errors
    assert f"{folder}/config.toml: " in errors


@pytest.mark.parametrize("where", ["config", "methods", "options", "settings"])
def test_no_comparison_runs_code(where: str, here: Path) -> None:
    (here / "cmp").mkdir()
    values: dict[str, Any] = {"methods": ["fedavg"], "seeds": [0], "config": {}, "options": {}}
    spec = f"{here}/evil.py:x"
    values |= {
        "config": {"config": {"loss": spec}},
        "methods": {"methods": [f"{spec}@0.5"]},
        "options": {"options": {spec: {}}},
        "settings": {"settings": {"fedavg": {"codec": spec}}},
    }[where]
    (here / "cmp/comparison.toml").write_text(tomlkit.dumps(values), encoding="utf-8")
    status, _, errors = told("compare", "--out", "cmp", "--resume")
    assert (status, ran(here)) == (2, False)
    assert f"{here}/evil.py" in errors


HARMLESS = (
    ("verify", "{run}"),
    ("verify", "{run}/bundle"),
    ("report", "{run}"),
    ("open", "{run}"),
    ("compare", "{run}", "{run}"),
    ("export", "{run}", "--format", "csv", "--out", "out"),
    ("inspect", "--data", "digits", "--clients", "2"),
    ("devices", "{run}/device.toml"),
)


@pytest.mark.parametrize("command", HARMLESS, ids=lambda command: " ".join(command[:2]))
def test_commands_that_only_read_run_nothing(command: tuple[str, ...], here: Path, finished: Path, monkeypatch: Any) -> None:
    names = {key: filled(value, f"{here}/evil.py") for key, value in KEYS.items() if key != "plugins"}
    folder = planted(finished, here, {**names, "plugins": {"got-run.evil": "", f"{here}/evil.py": ""}})
    text = (Path(edgefl.__file__).parents[1] / "profiles/devices/raspberry-pi-4.toml").read_text(encoding="utf-8")
    (folder / "device.toml").write_text(text, encoding="utf-8")
    monkeypatch.delenv("DISPLAY", raising=False)
    status, _, errors = told(*(word.format(run=folder) for word in command))
    assert not ran(here)
    assert status == 0 or "expected a run with real devices" in errors or (command[0], status) == ("compare", 2)


def forget(here: Path) -> None:
    """Forget the modules of a folder, as a new process has."""
    for name in [name for name, module in sys.modules.items() if str(here) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if str(here) not in entry]
    for known in (PINNED.by_path, PINNED.by_name, PINNED._folders, RAN):
        known.clear()  # type: ignore[attr-defined]


def test_what_the_user_types_runs_and_its_run_is_known_again(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = here / "net.py"
    net.write_text("import blocks\n" + NET, encoding="utf-8")
    (here / "blocks.py").write_text("NAME = 'blocks'\n", encoding="utf-8")
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    status, _, errors = told("simulate", "--model", "net.py:make", *flags, "--no-bundle", "--out", "out")
    assert status == 0, errors
    assert {Path(entry.path).name for entry in trusted().values()} == {"net.py", "blocks.py"}
    monkeypatch.chdir(here.parent)
    forget(here)
    resumed = ("simulate", "--out", str(here / "out"), "--resume", "--engine=pool", "--workers=2")
    status, _, errors = told(*resumed, "--rounds=2")
    assert status == 0, errors
    forget(here)
    (here / "blocks.py").write_text("NAME = 'others'\n", encoding="utf-8")
    status, _, errors = told(*resumed, "--rounds=3")
    assert status == 2
    assert f"{here}/blocks.py  (model), SHA-256 {sha256((here / 'blocks.py').read_bytes())}" in errors
    assert "net.py  (" not in errors


def test_a_module_that_the_user_typed_is_found_again_where_it_was(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = here / "lab_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "net.py").write_text(NET + "from .parts import WIDTH\n", encoding="utf-8")
    (package / "parts.py").write_text("WIDTH = 1\n", encoding="utf-8")
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in SMALL.items()]
    start = ("simulate", "--out", str(here / "out"))
    status, _, errors = told(*start, "--model", "lab_of_mine.net:make", *flags, "--no-bundle")
    assert status == 0, errors
    forget(here)
    monkeypatch.chdir(here.parent)
    status, _, errors = told(*start, "--resume", "--rounds=2")
    assert status == 0, errors
    forget(here)
    monkeypatch.chdir(here)
    shutil.rmtree(Path(os.environ["XDG_CONFIG_HOME"]) / "edgefl" / "trusted-code")
    status, _, errors = told(*start, "--resume", "--rounds=3")
    assert status == 2
    assert "no module named 'lab_of_mine.net' among the installed packages" in errors


def test_consent_is_for_a_call_or_for_a_content(here: Path) -> None:
    (here / "net.py").write_text(NET, encoding="utf-8")
    (here / "run.toml").write_text(tomlkit.dumps({"model": "net.py:make", **SMALL}), encoding="utf-8")
    dry = ("simulate", "--config", "run.toml", "--dry-run", "--out")
    assert told(*dry, "a")[0] == 2
    assert told(*dry, "b", "--trust-code")[0] == 0
    assert trusted() == {}
    RAN.clear()
    assert told(*dry, "c")[0] == 2
    assert told("trust", "add", "net.py")[:2] == (0, f"added: {sha256(NET.encode())}  {here}/net.py\n")
    assert told("trust", "list")[:2] == (0, f"{sha256(NET.encode())}  {here}/net.py\n")
    assert told(*dry, "d")[0] == 0
    RAN.clear()
    assert told("trust", "remove", "net.py")[0] == 0
    assert told(*dry, "e")[0] == 2
    assert told("trust", "remove", "net.py")[0] == 2
    with edgefl.trust_code():
        assert RunConfig.load(here / "run.toml", {}).model == f"{here}/net.py:make"


def test_a_flag_takes_the_place_of_code_in_a_file(here: Path) -> None:
    (here / "run.toml").write_text(tomlkit.dumps({"model": "evil.py:x", **SMALL}), encoding="utf-8")
    status, _, errors = told("simulate", "--config", "run.toml", "--model", "mlp", "--dry-run", "--out", "out")
    assert (status, ran(here)) == (0, False), errors


def test_the_bytes_that_were_shown_are_those_that_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = here / "net.py"
    net.write_text("WHO = 'trusted'\n", encoding="utf-8")
    trust(read_code(net))
    # Cached bytecode of other source, which Python would take for the file's.
    shutil.copyfile(here / "evil.py", here / "other.py")
    py_compile.compile(
        "other.py", importlib.util.cache_from_source("net.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
    )
    admit([("plugins", "net.py")], "run.toml")
    assert loaded(net, "plugins").WHO == "trusted"
    assert not ran(here)
    net.write_text((here / "evil.py").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(InputError, match="has changed since this process read it"):
        loaded(net, "plugins")
    assert not ran(here)


def test_a_trusted_file_does_not_bring_what_lies_beside_it(here: Path) -> None:
    copy = here / "got" / "net.py"
    copy.write_text("import evil\n", encoding="utf-8")
    trust(read_code(copy))
    with pytest.raises(ConfigError, match=r"got/evil\.py  \(model\), SHA-256"):
        admit([("model", str(copy))], "run.toml")
    # What a file imports by a name that it computes is not found there either.
    copy.write_text("import importlib\nimportlib.import_module('ev' + 'il')\n", encoding="utf-8")
    trust(read_code(copy))
    admit([("model", str(copy))], "run.toml")
    with pytest.raises(InputError, match="No module named 'evil'|no module"):
        loaded(copy, "model")
    assert not ran(here)


def test_a_trusted_package_does_not_bring_other_modules(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = here.parent / "root"
    (root / "own_lab").mkdir(parents=True)
    (root / "own_lab" / "__init__.py").write_text("", encoding="utf-8")
    (root / "own_lab" / "net.py").write_text("def late():\n    __import__('own_lab.' + 'evil')\n", encoding="utf-8")
    shutil.copyfile(here / "evil.py", root / "own_lab" / "evil.py")
    monkeypatch.syspath_prepend(root)
    for path in ("__init__.py", "net.py"):
        trust(read_code(root / "own_lab" / path))
    admit([("model", "own_lab.net")], "run.toml")
    net = importlib.import_module("own_lab.net")
    with pytest.raises(ModuleNotFoundError, match="No module named 'own_lab.evil' that you consented to"):
        net.late()
    assert not ran(here)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "missing", "huge", "loop"])
def test_what_is_no_python_file_is_refused(kind: str, here: Path) -> None:
    path = here / "odd.py"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("device", "loop"):
        path.symlink_to("/dev/zero" if kind == "device" else path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    (here / "run.toml").write_text('model = "odd.py:x"\n', encoding="utf-8")
    status, _, errors = told("simulate", "--config", "run.toml", "--dry-run", "--out", "out")
    assert (status, errors.count("\n")) == (2, 1)
    assert str(path) in errors or "/dev/zero" in errors


def test_a_list_that_cannot_be_written_stops_no_run(here: Path, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("", encoding="utf-8")  # where the folder should be
    with pytest.raises(StorageError, match="cannot be written"):
        trust(read_code(here / "evil.py"))
    remember({"plugins": {"evil.py": ""}})
    assert told("trust", "list")[0] == 0


def test_a_damaged_list_trusts_nothing(here: Path) -> None:
    entry = trust(read_code(here / "evil.py"))
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "edgefl" / "trusted-code"
    file = folder / f"{entry.sha256}.json"
    for content in (
        b"",
        b"[]",
        b'{"path": 1, "module": ""}',
        b'{"path": "/a.py", "module": "' + b"a." * 99 + b'"}',
        b"[" * 10**4,
    ):
        file.write_bytes(content)
        with pytest.raises(InputError, match="damaged, expected an entry of trusted code; delete it"):
            trusted()
    trust(read_code(here / "evil.py"))
    for path in (file, folder):
        path.chmod(path.stat().st_mode | 0o020)
        with pytest.raises(InputError, match="or others may change it"):
            trusted()
        path.chmod(path.stat().st_mode & ~0o020)
    assert list(trusted()) == [entry.sha256]
    with pytest.raises(InputError, match="not in your list"):
        distrust("none")


def test_workers_run_the_bytes_that_the_server_has_read(here: Path) -> None:
    trust(read_code(here / "evil.py"))
    admit([("plugins", "evil.py")], "run.toml")
    files = sent()
    PINNED.by_path.clear()
    receive(files)
    assert list(PINNED.by_path) == [here / "evil.py"]
    (here / "evil.py").write_text("", encoding="utf-8")
    with pytest.raises(WireError, match="has changed since the run read it"):
        receive(files)


def test_an_installed_module_needs_consent_and_is_not_taken_from_the_working_directory(here: Path) -> None:
    (here / "wave.py").write_text((here / "evil.py").read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"/wave\.py  \(model\)"):
        admit([("model", "wave")], "run.toml")
    sys.path.insert(0, str(here))  # as python -m does
    with edgefl.trust_code():
        admit([("model", "wave")], "run.toml")
    assert not ran(here)
    assert sys.modules["wave"].open


def test_python_m_runs_nothing_of_the_working_directory(here: Path) -> None:
    for name in ("click", "torch", "tomlkit", "pathlib", "rich"):
        shutil.copyfile(here / "evil.py", here / f"{name}.py")
    done = subprocess.run([sys.executable, "-m", "edgefl", "devices", "phone"], capture_output=True, text=True, check=False)
    assert (done.returncode, ran(here)) == (0, False), done.stderr


def test_a_server_names_no_code_of_a_device_without_its_owners_consent(here: Path) -> None:
    from edgefl.contrib.flower.torch_device import check_task

    fields: dict[str, Any] = {
        "architecture": {"model": "mlp"},
        "criterion": {"spec": None},
        "objective": ["none", 0.1],
        "codec": "fp32",
    }
    check_task(fields, "fedavg")
    spec = f"{here}/evil.py:x"
    for change in (
        {"architecture": {"model": "t", "spec": spec}}, {"architecture": {"model": spec}}, {"criterion": {"spec": spec}},
        {"objective": [spec, 0.1]}, {"codec": spec}, {"plugins": {spec[:-2]: ""}},
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=r"^the server's task: names code"):
            check_task(fields | change, "fedavg")
    with pytest.raises(ConfigError, match="the server's task"):
        check_task(fields, spec)
    with pytest.raises(InputError, match="the server's task: it simulates what clients do, and this device trains"):
        check_task(fields | {"conduct": ["adversaries", {"spec": f"{spec}:0.1", "clients": 2, "seed": 0}]}, "fedavg")
    assert not ran(here)


def test_files_beside_are_found_by_reading(tmp_path: Path) -> None:
    (tmp_path / "lab").mkdir()
    files = {
        "net.py": "import os, lab.a\ntry:\n    from lab import b as c, nothing\nexcept ImportError: pass\ndef f():\n    import late\n",
        "late.py": "", "unused.py": "", "lab/__init__.py": "from . import d\n", "lab/a.py": "from .. import x\n", "lab/b.py": "def (",
        "lab/d.py": "from lab.a import *\nimport edgefl, sys\n", "edgefl.py": "", "sys.py": "",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    found = files_behind(str(tmp_path / "net.py"), [])
    expected = {
        "net.py": "",
        "late.py": "late",
        "lab/__init__.py": "lab",
        "lab/a.py": "lab.a",
        "lab/b.py": "lab.b",
        "lab/d.py": "lab.d",
    }
    assert {str(file.path.relative_to(tmp_path)): file.module for file in found} == expected


def test_a_message_shows_no_control_characters_of_a_name(here: Path) -> None:
    (here / "a\x1b[2Jb.py").write_text("", encoding="utf-8")
    (here / "run.toml").write_text('plugins = ["a\\u001b[2Jb.py"]\n', encoding="utf-8")
    errors = told("simulate", "--config", "run.toml", "--dry-run", "--out", "out")[2]
    assert "\x1b" not in errors
    assert "SHA-256" in errors


def test_admit_keys_is_part_of_the_face_of_the_configuration() -> None:
    admit_keys({}, "nothing", {})
