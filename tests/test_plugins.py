"""Plug-ins: parts of a run that are defined outside of the package, and what is said about wrong ones."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgefl.client.messages import error_fields
from edgefl.config import RunConfig, changed
from edgefl.errors import ConfigError, InputError
from edgefl.methods.create import create
from edgefl.plugins import load
from edgefl.registry import ALL, codecs, methods
from edgefl.run.simulate import simulate
from edgefl.util.modules import loaded

METHOD = """
from edgefl.extend import FedAvg, method

@method("{name}")
class Mine(FedAvg):
    title, paper = "Mine", "none"
"""
SMALL = (
    "--rounds=1",
    "--clients=2",
    "--per-round=2",
    "--local-epochs=1",
    "--data-share=0.2",
    "--conditions=ideal",
    "--no-bundle",
)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Forget what a test registers: the registries are the process's."""
    yield
    for registry in ALL:
        for name in list(registry.plugins()):
            for known in (registry._plugged, registry._loaded, registry._facts):
                del known[name]


def written(path: Path, name: str = "mine", content: str = METHOD) -> Path:
    path.write_text(content.format(name=name), encoding="utf-8")
    return path


BAD = {
    "syntax": ("def f(:\n", r"importing .*bad\.py raised SyntaxError: .*\(bad\.py, line 1\)"),
    "raises": ("\n\n1 / 0\n", r"importing .*bad\.py raised ZeroDivisionError: division by zero \(line 3\)"),
    "exits": ("raise SystemExit('usage')\n", r"bad\.py raised SystemExit: usage"),
    "incomplete method": (
        "from edgefl.extend import Method, method\n@method('mine')\nclass Mine(Method):\n    paper = 'none'\n",
        r"method 'mine', in .*bad\.py: lacks title, which every Method defines",
    ),
    "function of a capability": (
        "from edgefl.extend import FedAvg, method\n@method('mine')\nclass Mine(FedAvg):\n    def advance(self): ...\n",
        r"bad\.py raised TypeError: Mine defines advance, which belongs to edgefl.extend.Phased: derive from it, too",
    ),
    "function of a capability with other arguments": (
        "from edgefl.extend import FedAvg, Phased, method\n@method('mine')\nclass Mine(Phased, FedAvg):\n    def advance(self): ...\n",
        r"method 'mine', in .*bad\.py: advance cannot be called with \(state, round_, rng\)",
    ),
    "incomplete codec": (
        "from edgefl.extend import Codec, codec\n@codec('mine')\nclass Mine(Codec): ...\n",
        r"codec 'mine', in .*bad\.py: lacks parts, which every Codec defines",
    ),
    "incomplete optimizer": (
        "from edgefl.extend import ServerOptimizer, server_optimizer\n@server_optimizer('mine')\nclass Mine(ServerOptimizer): ...\n",
        "server optimizer 'mine', in .*: lacks change, which every ServerOptimizer defines",
    ),
    "incomplete objective": (
        "from edgefl.extend import Objective, objective\n@objective('mine')\nclass Mine(Objective):\n    remembers = True\n",
        "objective 'mine', in .*: lacks remembered, on_server, which every Objective defines",
    ),
    "other class": (
        "from edgefl.extend import method\n@method('mine')\nclass Mine: ...\n",
        "method 'mine', in .*: is Mine, expected a subclass of Method",
    ),
    "method with other arguments": (
        METHOD.format(name="mine") + "    def aggregate(self, state): ...\n",
        r"method 'mine', in .*: aggregate cannot be called with \(state, updates\): too many positional arguments",
    ),
    "function without arguments": (
        "from edgefl.extend import dataset\n@dataset('mine')\ndef mine(): ...\n",
        r"dataset 'mine', in .*: cannot be called with \(data_dir\): too many positional arguments",
    ),
    "model without its input": (
        "from edgefl.extend import model\n@model('mine')\ndef mine(input_shape, classes, width=1.0): ...\n",
        "model 'mine', in .*: its decorator lacks usual_input",
    ),
    "unknown fact": (
        "from edgefl.extend import engine\n@engine('mine', group=True)\ndef mine(clients, workers): ...\n",
        "engine 'mine', in .*: its decorator has no keyword 'group'; known: keeps_state, shares_memory, groups_clients, remote",
    ),
    "attribute of another type": (
        METHOD.format(name="mine") + "    default_tiers = 1.0\n",
        r"method 'mine', in .*: default_tiers is 1\.0, expected tuple\[float, \.\.\.\]",
    ),
    "tiers that no run may have": (
        METHOD.format(name="mine") + "    default_tiers = 0.5, 1.0\n",
        "method mine: default_tiers: expected each tier once, largest first: 1,0.5",
    ),
    "strange name": (METHOD.format(name="a+b"), r"method 'a\+b', in .*: expected a name of letters, digits"),
    "name of the package": (
        METHOD.format(name="fedavg"),
        r"method 'fedavg' is defined in edgefl\.methods\.fedavg and again in .*bad\.py; rename one of them",
    ),
    "twice in a file": (
        METHOD.format(name="mine") + METHOD.format(name="mine").replace("Mine(", "Other("),
        r"method 'mine' is defined in .*bad\.py and again in .*bad\.py",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_plugin_is_one_message_and_nothing_is_written(case: str, called: Any, tmp_path: Path) -> None:
    content, message = BAD[case]
    (tmp_path / "bad.py").write_text(content, encoding="utf-8")
    status, output, errors = called("simulate", "--plugin", str(tmp_path / "bad.py"), "--method=mine", "--out=run")
    assert (status, output, errors.count("\n")) == (2, "", 1)
    with pytest.raises(InputError, match=message):
        raise InputError(errors)
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plugin=none.py"], "{here}/none.py: cannot be read (No such file or directory)"),
        (["--plugin=no_package.module"], "no module named 'no_package.module' here or among the installed packages"),
        (["--method=one.py:Nothing"], "method one.py:Nothing: one.py has no 'Nothing'; give a method"),
        (["--method=one.py:Mine.title.x"], "method one.py:Mine.title.x: one.py has no 'Mine.title.x'; give a method"),
        (
            ["--codec=sparse:0.1"],
            "codec 'sparse:0.1': sparse takes nothing after a colon; give sparse, or your own as file.py:Class",
        ),
        (
            ["--codec=topk:0.1"],
            "no module named 'topk' here or among the installed packages; known by name: fp16, fp32, int8, sparse",
        ),
        (["--codec=one.py:Mine"], "codec 'Mine', in {here}/one.py: is Mine, expected a subclass of Codec"),
        (["--plugin=one.py", "--plugin=two.py"], "method 'mine' is defined in {here}/one.py and again in {here}/two.py"),
    ],
)
def test_a_plugin_that_is_missing_or_takes_a_name_is_one_message(arguments: list[str], message: str, called: Any) -> None:
    for name in ("one.py", "two.py"):
        written(Path(name))
    status, output, errors = called("simulate", *arguments, "--out=run")
    assert (status, output, errors.count("\n")) == (2, "", 1)
    assert message.format(here=Path.cwd()) in errors
    assert not Path("run").exists()


def test_a_run_records_its_plugins_and_resumes_only_with_the_same_content(called: Any) -> None:
    file = written(Path("mine.py"))
    status, _, errors = called("simulate", "--method=mine.py:Mine", *SMALL, "--rounds=2", "--workers=2", "--out=run")
    assert status == 0, errors
    stored = RunConfig.load(Path("run/config.toml"), {})
    assert (stored.method, list(stored.plugins or ())) == ("mine", [str(file.resolve())])
    state = Path("run/model.safetensors").read_bytes()
    for left in ("run/summary.json", "run/model.safetensors"):
        Path(left).unlink()
    content = file.read_text(encoding="utf-8")
    file.write_text(content + "# changed\n", encoding="utf-8")
    for more in ([], ["--plugin=mine.py"]):
        status, _, errors = called("simulate", "--resume", "--out=run", *more)
        assert status == 2
        assert f"plugins: {file.resolve()} has changed since this run began" in errors
        assert not Path("run/summary.json").exists()
    file.write_text(content, encoding="utf-8")
    status, _, errors = called("simulate", "--resume", "--out=run")
    assert status == 0, errors
    assert Path("run/model.safetensors").read_bytes() == state


def test_one_more_plugin_changes_no_run() -> None:
    plain, more = RunConfig(), RunConfig(plugins={})
    assert changed(plain, more) == []
    one, other = (plain.model_copy(update={"plugins": {"mine.py": sha}}) for sha in ("1", "2"))
    assert (changed(plain, one), changed(one, other)) == ([], ["plugins"])


def test_a_name_of_a_need_is_checked(called: Any) -> None:
    content = "from edgefl.extend import Codec, Part, codec\n@codec('mine', needs=('upload',))\nclass Mine(Codec):\n"
    written(
        Path("mine.py"), content=content + "    def parts(self, name, shape, count=None): return (Part(name, 'F32', shape),)\n"
    )
    status, _, errors = called("simulate", "--plugin=mine.py", "--codec=mine", "--out=run")
    assert (status, Path("run").exists()) == (2, False)
    assert "codec 'mine' needs 'upload'; did you mean 'uploads'?" in errors


SCRIPT = """
import edgefl
from edgefl.extend import FedAvg, method

@method("of-a-script")
class Mine(FedAvg):
    title, paper = "Mine", "none"

config = edgefl.RunConfig(plugins=[Mine], method="of-a-script", rounds=1, clients=2, workers=2, data_share=0.2, local_epochs=1)
{guard}
    print(edgefl.simulate(config, "run").folder)
"""


@pytest.mark.parametrize("guard", ["if __name__ == '__main__':", "if True:"])
def test_workers_import_what_a_script_defines(guard: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(guard=guard), encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    if guard == "if True:":
        assert "must call edgefl under if __name__ == '__main__'" in done.stderr
        return
    assert (done.returncode, done.stdout) == (0, "run\n"), done.stderr
    assert str(tmp_path / "script.py") in (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")


def test_what_a_notebook_defines_trains_in_its_process_only(called: Any) -> None:
    def cell(content: str) -> Any:
        known = {"__name__": "a_notebook"}
        exec(content.format(name="of-a-notebook"), known)
        return known["Mine"]

    small = {"rounds": 1, "clients": 2, "data_share": 0.2, "local_epochs": 1, "method": "of-a-notebook"}
    mine = RunConfig(plugins=[cell(METHOD)], **small)
    cell(METHOD)  # a cell may run again
    for elsewhere in ({"workers": 2}, {"enforce": "hard"}, {"engine": "auto"}):
        with pytest.raises(
            ConfigError, match="plugins: Mine was defined in a notebook .*, and worker processes cannot import it"
        ):
            simulate(mine.model_copy(update=elsewhere), "run")
        assert not Path("run").exists()
    assert simulate(mine, "run").summary["rounds"] == 1
    notebooks = methods._plugged.pop("of-a-notebook")
    with pytest.raises(
        ConfigError, match=r"run/config\.toml: plugins: Mine was defined in a notebook or at a prompt, and only that"
    ):
        RunConfig.load(Path("run/config.toml"), {})
    methods._plugged["of-a-notebook"] = notebooks


def test_an_error_of_a_plugin_in_a_round_names_its_line_and_function(called: Any) -> None:
    written(Path("mine.py"), content=METHOD + "    def aggregate(self, state, updates):\n        raise KeyError('lost')\n")
    status, _, errors = called("simulate", "--plugin=mine.py", "--method=mine", *SMALL, "--out=run")
    assert status == 1
    assert errors.splitlines()[-1] == f"Error: plug-in {Path.cwd()}/mine.py, line 8, in aggregate: KeyError: 'lost'"


RETURNED = {
    "None": "aggregation returned NoneType, expected a GlobalState, such as state.replace(tensors)",
    "state.replace({})": "aggregation returned a state with tensors missing or not expected: ",
    "state.replace({name: tensor[:1] for name, tensor in state.tensors.items()})": " as (1, ",
    "state.replace({name: tensor.double() for name, tensor in state.tensors.items()})": " torch.float64, expected (",
    "state.replace({name: tensor / 0 for name, tensor in state.tensors.items()})": " with NaN or infinity, expected finite values",
    "state.replace({name: tensor.tolist() for name, tensor in state.tensors.items()})": " as list, expected (",
}


@pytest.mark.parametrize("returned", RETURNED)
def test_what_aggregation_in_a_plugin_returns_is_checked(returned: str, called: Any) -> None:
    aggregate = f"    def aggregate(self, state, updates):\n        list(updates)\n        return {returned}\n"
    (Path.cwd() / "mine.py").write_text(METHOD.replace("{name}", "mine") + aggregate, encoding="utf-8")
    status, _, errors = called("simulate", "--plugin=mine.py", "--method=mine", *SMALL, "--out=run")
    last = errors.splitlines()[-1]
    assert (status, last.startswith("Error: method Mine: aggregation returned ")) == (1, True), last
    assert RETURNED[returned] in last


def test_a_function_of_a_plugin_that_cannot_take_its_arguments_is_named(called: Any) -> None:
    submodel = "    def submodel(self, state, tier, rng):\n        return super().submodel(state, tier, rng)\n"
    written(Path("mine.py"), content=METHOD + submodel)
    status, _, errors = called("simulate", "--plugin=mine.py", "--method=mine", *SMALL, "--out=run")
    told = f"Error: plug-in {Path.cwd()}/mine.py, in submodel: TypeError: Mine.submodel() takes 4 positional arguments but 5 were given"
    assert (status, errors.splitlines()[-1]) == (1, told)


OPTIMIZER = """
from edgefl.extend import ServerOptimizer, server_optimizer

@server_optimizer("mine", needs=("server_step",))
class Mine(ServerOptimizer):
    def change(self, delta, *slots):
        return {returned}
"""


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("None", "plug-in {here}/mine.py, in Mine: TypeError: cannot unpack non-iterable NoneType object"),
        ("(delta / 0,)", "server optimizer Mine: its step returned hidden.weight with NaN or infinity, expected finite values"),
        (
            "(delta.double(),)",
            "server optimizer Mine: its step returned hidden.weight as (256, 64) torch.float64, expected (256, 64)",
        ),
    ],
)
def test_what_a_server_optimizer_of_a_plugin_returns_is_checked(returned: str, message: str, called: Any) -> None:
    Path("mine.py").write_text(OPTIMIZER.format(returned=returned), encoding="utf-8")
    status, _, errors = called(
        "simulate", "--plugin=mine.py", "--server-optimizer=mine", "--method=fedavg", "--model=mlp", *SMALL, "--out=run"
    )
    assert status == 1
    assert errors.splitlines()[-1].startswith("Error: " + message.format(here=Path.cwd()))


def test_a_loss_of_a_plugin_that_fails_is_no_fault_of_the_network(called: Any) -> None:
    written(Path("mine.py"), content=METHOD + "    def local_loss(self, module, batch):\n        raise RuntimeError('no loss')\n")
    status, _, errors = called("simulate", "--plugin=mine.py", "--method=mine", *SMALL, "--out=run")
    assert (status, Path("run").exists()) == (2, False)
    assert "model cnn-digits cannot be trained with Mine: no loss (at mine.py:8: raise RuntimeError('no loss'))" in errors


def test_an_error_of_a_plugin_in_a_worker_names_its_line_and_function(tmp_path: Path) -> None:
    file = written(
        tmp_path / "mine.py", content=METHOD + "    def aggregate(self, state, updates):\n        raise KeyError('lost')\n"
    )
    load([file])
    with pytest.raises(KeyError) as raised:
        create("mine").aggregate(None, ())  # type: ignore[arg-type]
    assert error_fields(raised.value)["text"] == f"plug-in {file.resolve()}, line 8, in aggregate: KeyError: 'lost'"


def test_a_file_that_a_plugin_does_not_find_is_no_temporary_file(called: Any) -> None:
    content = "from edgefl.extend import dataset\n@dataset('mine')\ndef mine(data_dir=None):\n    raise OSError('no photos')\n"
    written(Path("mine.py"), content=content)
    status, _, errors = called("simulate", "--plugin=mine.py", "--data=mine", "--out=run")
    assert (status, errors) == (1, f"Error: plug-in {Path.cwd()}/mine.py, line 4, in mine: OSError: no photos\n")


def test_a_method_whose_option_has_no_default_is_named(called: Any) -> None:
    content = METHOD.replace("FedAvg, method", "FedAvg, MethodConfig, method") + "    config: Needed\n"
    written(Path("mine.py"), content=content.replace("@method", "class Needed(MethodConfig):\n    k: float\n\n@method"))
    status, output, errors = called("methods", "--plugin=mine.py")
    assert (status, output) == (2, "")
    assert errors == "Error: method mine: method_options.k: missing; give every option a default\n"


def test_an_option_may_be_infinite_in_every_file_of_runs(called: Any) -> None:
    content = METHOD.replace("FedAvg, method", "FedAvg, MethodConfig, method") + "    config: Options\n"
    written(Path("mine.py"), content=content.replace("@method", "class Options(MethodConfig):\n    k: float = 1.0\n\n@method"))
    arguments = ("--plugin=mine.py", "--method-option=mine.k=inf", "--model=mlp", *SMALL)
    status, _, errors = called("compare", "--methods=mine", *arguments, "--out=both")
    assert status == 0, errors
    assert json.loads(Path("both/compare.json").read_text(encoding="utf-8"))["methods"][0]["options"] == {"k": "Infinity"}
    assert RunConfig.load(Path("both/mine/seed-0/config.toml"), {}).method_options == {"k": float("inf")}


def test_a_definition_that_is_not_registered_is_no_plugin() -> None:
    with pytest.raises(ConfigError, match=r"plugins: int is not registered; decorate it, such as with @edgefl\.extend\.method"):
        RunConfig(plugins=[int])
    with pytest.raises(ConfigError, match="plugins: expected a list of files and modules, got 'mine.py'"):
        RunConfig(plugins="mine.py")


def test_a_part_of_an_imported_module_is_known_without_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lab_of_ours").mkdir()
    written(tmp_path / "lab_of_ours" / "ours.py", "ours")
    monkeypatch.syspath_prepend(tmp_path)
    import lab_of_ours.ours  # type: ignore[import-not-found]

    assert methods.load("ours") is lab_of_ours.ours.Mine
    assert list(RunConfig(method="ours").plugins or ()) == ["lab_of_ours.ours"]
    assert RunConfig(method="lab_of_ours.ours:Mine").method == "ours"
    assert RunConfig(plugins=["lab_of_ours.ours"]) == RunConfig(plugins=[lab_of_ours.ours.Mine])
    assert RunConfig(plugins=[lab_of_ours.ours]).plugins == RunConfig(plugins=["lab_of_ours.ours"]).plugins
    assert "ours" not in codecs.names()


def test_a_file_never_gets_a_module_of_the_name_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "beside", sys)  # so that what the test imports goes afterwards
    del sys.modules["beside"]
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside.py").write_text(f"NAME = {folder!r}\n")
        (tmp_path / folder / "part.py").write_text("def name():\n    import beside\n    return beside.NAME\n")
    assert loaded(tmp_path / "a" / "part.py", "plugins").name() == "a"
    with pytest.raises(
        InputError,
        match=r"^plugins: .*b/part\.py imports beside, and Python has another one first, .*a/beside\.py; rename the one in .*b$",
    ):
        loaded(tmp_path / "b" / "part.py", "plugins")
    monkeypatch.chdir(tmp_path / "a")  # where its modules go first
    assert loaded(tmp_path / "b" / "part.py", "plugins").name() == "a"
