"""What all commands have: completion, JSON, one message for wrong arguments, and the command that continues a run. Takes ten seconds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from edgefl.cli import doctor
from edgefl.cli.doctor import Check
from edgefl.cli.main import group, main
from edgefl.config import RunConfig
from edgefl.registry import datasets, methods

COMMANDS = [
    (name,) if not isinstance(command := group.get_command(None, name), click.Group) else (name, sub)  # type: ignore[arg-type]
    for name in group.list_commands(None)  # type: ignore[arg-type]
    for sub in (getattr(group.get_command(None, name), "commands", None) or [""])  # type: ignore[arg-type]
]


def command_at(path: tuple[str, ...]) -> click.Command:
    found: click.Command = group
    for name in path:
        assert isinstance(found, click.Group)
        found = found.get_command(None, name)  # type: ignore[arg-type,assignment]
    return found


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_json_and_refuses_an_unknown_option_in_one_message(path: tuple[str, ...], called: Any) -> None:
    assert [p.opts for p in command_at(path).params if p.name == "as_json"] == [["--json"]]
    code, output, errors = called(*path, "--no-such-option")
    assert (code, output) == (2, "")
    assert errors.count("Error: ") == 1
    assert "Traceback" not in errors
    code, output, errors = called(*path, "--no-such-option", "--json")
    assert (code, output) == (2, "")
    assert json.loads(errors)["exit_status"] == 2
    assert "no-such-option" in json.loads(errors)["error"]


WRONG = {
    "simulate --rounds 0": "rounds must be at least 1, got 0",
    "simulate extra": "unexpected extra argument",
    "simulate --resume": "--resume needs --out",
    "compare": "give --out",
    "compare --out x": "give --methods",
    "sweep --methods fedhm --grid lr --out x": "'lr' is not of the form KEY=V1,V2",
    "whatif --deadlines soon": "is not a list of times such as 10,30,2min",
    "simulate --device raspberry-pi-4": "got 'raspberry-pi-4', expected cpu or cuda, the hardware of this computer",
    "simulate --dataset photos/": "unknown dataset 'photos/'; no such file or folder",
    "profile net.py": "name the file's function too, such as net.py:make",
    "profile resnet18.pt": "it looks like a file of weights: give the network",
    "profile resnet18 --device pi4": "unknown device 'pi4'; did you mean 'raspberry-pi-4'?",
    "export nowhere --out b": "nowhere: holds no config.toml: there is no such folder",
    "methods fedhn": "unknown method 'fedhn'",
    "profile": "give one network",
    "profile resnet18 --format json --layers --codec zip": "unknown codec 'zip'",
    "inspect": "give one network",
    "inspect mlp --data digits --clients 3": "--clients: is about the clients of a data set, which is shown alone",
    "inspect --data digits --input 1x8x8": "--input: is about a network",
    "inspect --data digits --method-option rank=2": "--method-option: is about a network",
    "plan": "give one network",
    "plan mlp --macs 100MB": "'100MB' is in bytes",
    "devices phnoe": "unknown profile 'phnoe'",
    "calibrate --seconds 0": "'0' is not a time above 0",
    "audit nowhere": "nowhere: holds no summary.json: there is no such folder",
    "export --out b": "give either the folder of a run or --model",
    "export run --out /": "/: exists and is not an empty folder",
    "verify nowhere": "nowhere: no such folder",
    "verify nowhere --memory 1s": "is a time, expected a number of bytes",
    "serve nowhere": "nowhere: no such folder",
    "open nowhere": "nowhere: has no report.html",
    "report nowhere": "nowhere/summary.json",
    "fed-round nowhere": "Missing option '--updates'",
    "enroll --keys nowhere.toml": "nowhere.toml",
    "revoke phone --keys nowhere.toml": "nowhere.toml",
    "keys show nowhere": "nowhere",
    "trust add nowhere.py": "nowhere.py",
    "trace import nowhere.csv --id device --out trace.csv": "nowhere.csv: cannot be read as CSV",
    "flower new app --clients 0": "clients must be at least 1, got 0",
    "completion tcsh": "'tcsh' is not one of",
    "doctor extra": "unexpected extra argument",
}


def test_wrong_arguments_are_there_for_every_command() -> None:
    assert {asked.split()[0] for asked in WRONG} == set(group.list_commands(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("asked", WRONG)
def test_a_wrong_argument_is_one_message_and_status_2(asked: str, called: Any) -> None:
    code, output, errors = called(*asked.split())
    assert (code, output) == (2, "")
    assert errors.count("Error: ") == 1
    assert "Traceback" not in errors
    assert WRONG[asked].lower() in errors.lower()
    code, output, errors = called(*asked.split(), "--json")
    assert (code, output) == (2, "")
    assert json.loads(errors.splitlines()[-1])["error"]


def completed(line: str) -> set[str]:
    *before, incomplete = line.split(" ")[1:]
    found = BashComplete(group, {}, "edgefl", "_EDGEFL_COMPLETE").get_completions(before, incomplete)
    return {item.value for item in found if item.type == "plain"}


def test_names_choices_and_runs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "0001-fedhm-digits").mkdir(parents=True)
    (tmp_path / "runs" / "0001-fedhm-digits" / "summary.json").write_text("{}")
    (tmp_path / "runs" / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    assert completed("edgefl sim") == {"simulate"}
    assert completed("edgefl simulate --method ") == set(methods.names())
    assert completed("edgefl simulate --data ") == set(datasets.names())
    assert completed("edgefl methods fedh") == {"fedhm"}
    assert completed("edgefl compare --methods fedhm,fedav") == {"fedhm,fedavg"}
    assert completed("edgefl profile resnet1") == completed("edgefl plan --model resnet1") == {"resnet18"}
    assert completed("edgefl devices raspberry-pi-z") == {"raspberry-pi-zero-2w"}
    assert completed("edgefl simulate --profile pho") == {"phone", "phone-flash-2020"}
    assert completed("edgefl plan --device wat") == {"watch"}
    assert completed("edgefl simulate --optimizer ") == {"momentum", "sgd", "adam"}
    assert completed("edgefl report ") == completed("edgefl open runs/") == {"runs/0001-fedhm-digits"}
    assert completed("edgefl simulate --out runs/") == {"runs/0001-fedhm-digits"}
    assert completed("edgefl completion f") == {"fish"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str, called: Any) -> None:
    code, script, _ = called("completion", shell)
    assert code == 0
    assert f"_EDGEFL_COMPLETE={shell}_complete" in script
    code, found, _ = called("completion", shell, "--json")
    assert json.loads(found)["script"] == script.removesuffix("\n")
    if shell == "bash" and shutil.which("bash"):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_doctor_finds_this_installation_whole(called: Any) -> None:
    code, output, _ = called("doctor", "--json")
    found = json.loads(output)
    states = {check["what"]: check["state"] for check in found["checks"]}
    assert (code, found["ok"]) == (0, True)
    assert states["torch"] == states["onnxruntime"] == states["temporary folder"] == "ok"
    assert {"extra ray", "extra flower", "processor", "memory", "limits (cgroup)", "browser runtime"} <= states.keys()
    assert any("torch uses" in check["about"] for check in found["checks"])


def test_doctor_fails_if_what_is_needed_is_broken(called: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_packages", lambda: iter([Check("torch", "broken", "does not load: OSError")]))
    code, output, _ = called("doctor")
    assert code == 1
    assert "torch: broken: does not load: OSError" in output
    assert output.endswith("broken: torch\n")
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert doctor._package("torch") == Check("torch", "broken", "not installed; run pip install torch")


def test_open_writes_a_missing_report_and_prints_its_path_without_a_browser(
    called: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "summary.json").write_text("{}")
    monkeypatch.setattr("edgefl.report.html.write", lambda run: (run / "report.html").write_text("a page"))
    code, output, errors = called("open", str(tmp_path))
    assert (code, output.strip()) == (0, str(tmp_path / "report.html"))
    assert "no browser was found" in errors
    opened: list[str] = []
    monkeypatch.setenv("BROWSER", sys.executable)
    monkeypatch.setattr("webbrowser.open", lambda url: bool(opened.append(url) or True))
    monkeypatch.setattr("webbrowser.get", lambda: object())
    code, output, _ = called("open", str(tmp_path), "--json")
    assert json.loads(output) == {"report": str(tmp_path / "report.html"), "opened": True}
    assert opened == [(tmp_path / "report.html").as_uri()]


def test_an_interrupted_run_says_the_command_that_continues_it(
    called: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    quick = ["--model=mlp", "--clients=2", "--rounds=1", "--local-epochs=1", "--data-share=0.1", "--tiers=1"]
    with monkeypatch.context() as patched:
        patched.setattr("edgefl.cli.progress.Progress.show", interrupted)
        code, _, errors = called("simulate", *quick, "--out", str(tmp_path / "my run"))
    assert code == 130
    (told,) = [line for line in errors.splitlines() if line.startswith("Interrupted")]
    assert told == f"Interrupted. Continue with: edgefl simulate --out '{tmp_path / 'my run'}' --resume"
    assert (tmp_path / "my run" / "config.toml").is_file()


def test_resume_without_a_run_says_that_a_new_one_begins(called: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def simulate(config: RunConfig, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("edgefl.run.simulate.simulate", simulate)
    code, _, errors = called("simulate", "--resume", "--out", "nowhere")
    assert "nowhere: has no run to continue; a new one begins\n" in errors
    assert re.search(r"^Interrupted\.$", errors, re.MULTILINE)
    assert code == 130


def test_resume_in_a_folder_of_something_else_is_one_message(called: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    code, _, errors = called("simulate", "--resume", "--out", str(tmp_path))
    assert code == 2
    assert errors == f"Error: {tmp_path}: holds no config.toml: not a run folder, or a run that is not complete\n"


def test_help_says_what_json_is() -> None:
    text = CliRunner().invoke(group, ["verify", "--help"]).output
    assert "--json" in text
    assert callable(main)
