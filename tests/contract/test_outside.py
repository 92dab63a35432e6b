"""Parts of every kind from outside of the package, as docs/extend.md has them: in files, and at entry points of an installed package."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

import edgefl
from edgefl.util.files import shared

ROOT = Path(edgefl.__file__).parents[1]
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "extend.md").read_text(encoding="utf-8")
ENTRY_POINTS = {
    "methods": "clipped = lab:Clipped", "datasets": "bars = lab:bars", "codecs": "bf16 = parts:BFloat16", "objectives": "l1 = parts:L1",
    "server_optimizers": "sign = parts:Sign", "models": "one-layer = parts:one_layer", "engines": "serial = parts:serial",
    "adversaries": "zeros = parts:Zeros", "defences": "middle = parts:Middle", "profiles": "lab = lab_profiles",
}  # fmt: skip
NAMES = ("clipped", "bars", "bf16", "l1", "sign", "zeros", "middle", "one-layer", "serial")
# The tests of an installed package find the contract's options at this entry point.
_PYTEST = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
CONTRACT = "[pytest11]\n" + "".join(f"{name} = {value}\n" for name, value in _PYTEST.items())
RUNNER = """
import json, sys
from edgefl.cli.main import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["edgefl", *arguments]
    try:
        main()
    except SystemExit as left:
        if left.code:
            raise
    print("\\f")
"""


@dataclass(frozen=True)
class Outside:
    """A folder to work in, what commands need to find the plug-ins, the name of a device, and where packages are installed."""

    folder: Path
    found_by: tuple[str, ...]
    device: str
    path: str

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python in the folder."""
        env = {**os.environ, "PYTHONPATH": self.path, "COLUMNS": "200"}
        command = [sys.executable, "-W", "ignore", *arguments]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", params=["path", "entry point"])
def outside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outside:
    folder, site = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("site")
    files = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))
    device = (shared("profiles") / "devices" / "raspberry-pi-4.toml").read_text(encoding="utf-8")
    device = device.replace('name = "raspberry-pi-4"', 'name = "my-board"')
    by_path = request.param == "path"
    groups = {}
    if not by_path:
        groups = {f"edgefl.{group}": value for group, value in ENTRY_POINTS.items()}
        (site / "lab_profiles" / "devices").mkdir(parents=True)
        (site / "lab_profiles" / "__init__.py").touch()
    (site / "lab-1.dist-info").mkdir()
    (site / "lab-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: lab\nVersion: 1\n", encoding="utf-8")
    points = CONTRACT + "".join(f"[{group}]\n{text}\n" for group, text in groups.items())
    (site / "lab-1.dist-info" / "entry_points.txt").write_text(points, encoding="utf-8")
    for name, text in files.items():
        ((folder if by_path else site) / name).write_text(text, encoding="utf-8")
    (folder / "my-board.toml" if by_path else site / "lab_profiles" / "devices" / "my-board.toml").write_text(
        device, encoding="utf-8"
    )
    found_by = ("--plugin=lab.py", "--plugin=parts.py") if by_path else ()
    return Outside(folder, found_by, "my-board.toml" if by_path else "my-board", os.pathsep.join((str(site), str(ROOT))))


def test_the_method_and_the_data_set_of_the_page_are_short() -> None:
    (text,) = re.findall(r"```python\n# lab\.py\n(.*?)```", PAGE, re.DOTALL)
    method, data = text[text.index("class Bound") :].split('@dataset("bars")')
    assert max(len([line for line in part.splitlines() if line.strip()]) for part in (method, data)) <= 30


def test_parts_are_known_to_help_and_to_every_command_and_run_together(outside: Outside) -> None:
    small = [
        "--rounds=1",
        "--clients=2",
        "--per-round=2",
        "--local-epochs=1",
        "--conditions=ideal",
        "--dataset=bars",
        "--no-bundle",
    ]
    own = [
        "--codec=bf16",
        "--objective=l1",
        "--server-optimizer=sign",
        "--adversary=zeros:0.5",
        "--defence=middle",
        "--model=one-layer",
        "--engine=serial",
        f"--profile={outside.device}",
    ]
    commands = [
        ["simulate", "--help"],
        ["methods"],
        ["devices", outside.device],
        ["simulate", "--method=clipped", *small, *own, "--out=run"],
        # In two workers, which find the plug-ins themselves.
        [
            "compare",
            "--methods=clipped,fedavg",
            *small,
            *(flag for flag in own if "engine" not in flag),
            "--workers=2",
            "--out=both",
        ],
        ["simulate", "--resume", "--out=run"],
    ]
    given = [[*command, *(() if command[0] == "devices" or "--resume" in command else outside.found_by)] for command in commands]
    done = outside.command("-c", RUNNER, json.dumps(given))
    assert done.returncode == 0, done.stderr
    help_, methods, device, *_ = done.stdout.split("\f")
    assert [name for name in NAMES if not re.search(rf"[ |]{name}[|,. \n]", help_)] == []
    assert "clipped: Clipped averaging (Sun et al. 2019)" in methods
    assert device.strip().startswith("my-board:")
    (line,) = (outside.folder / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    clients = json.loads(line)["clients"]
    assert [(client["status"], client["device"]) for client in clients] == [("trained", "my-board")] * 2
    # Two bytes less a value: 64·32 + 32 + 2·32 + 2 of them. The codec's name takes 32 bytes of the header.
    assert {client["download_bytes"] - client["upload_bytes"] for client in clients} == {2 * 2146 - 32}
    compared = json.loads((outside.folder / "both" / "compare.json").read_text(encoding="utf-8"))
    assert [row["label"] for row in compared["methods"]] == ["clipped", "fedavg"]
    recorded = tomllib.loads((outside.folder / "run" / "config.toml").read_text(encoding="utf-8"))["plugins"]
    assert sorted(Path(source).name for source in recorded) == ["lab.py", "parts.py"]


def test_the_contract_checks_every_kind_of_part(outside: Outside) -> None:
    kinds = ("dataset=bars", "codec=bf16", "objective=l1", "server-optimizer=sign", "model=one-layer", "engine=serial")
    parts = [f"--{kind}" for kind in ("method=clipped", *kinds, f"device={outside.device}")]
    # One rule of each kind, and a test of what the method says of itself.
    chosen = "exceptions or wins or changed_byte or terms or first_step or usual_network or any_job or narrow or name_is_that"
    done = checked(outside, *parts, "-k", chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("11 passed"), done.stdout


def checked(outside: Outside, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "pytest", "-q", "--pyargs", "edgefl.testing.contract", "-p", "no:cacheprovider")
    return outside.command(*command, *outside.found_by, *arguments)


WRONG = """
from edgefl.extend import *

@server_optimizer("away", needs=("server_step",))
class Away(ServerOptimizer):
    def change(self, delta, *slots):
        return (-delta,)
"""


def plugged(folder: Path, name: str, text: str) -> Outside:
    """Write a plug-in into an empty folder from which the contract finds it."""
    (folder / name).write_text(text, encoding="utf-8")
    files = {"METADATA": "Metadata-Version: 2.1\nName: lab\nVersion: 1\n", "entry_points.txt": CONTRACT}
    (folder / "lab-1.dist-info").mkdir()
    for file, content in files.items():
        (folder / "lab-1.dist-info" / file).write_text(content, encoding="utf-8")
    return Outside(folder, (f"--plugin={name}",), "", os.pathsep.join((str(folder), str(ROOT))))


def test_the_method_of_the_tutorial_passes_the_rules_that_it_names(tmp_path: Path) -> None:
    (text,) = re.findall(r"```python\n# lab\.py\n(.*?)```", (DOCS / "your-own.md").read_text(encoding="utf-8"), re.DOTALL)
    # The rules of aggregation, which the method replaces; what it inherits passes with the methods of the package.
    chosen = "mlp and (unchanged or wins or covered or order)"
    done = checked(plugged(tmp_path, "lab.py", text), "--method=short-steps", "-k", chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("5 passed"), done.stdout


def test_the_contract_says_which_rule_a_part_breaks(tmp_path: Path) -> None:
    outside = plugged(tmp_path, "wrong.py", WRONG)
    done = checked(outside, "--server-optimizer=away", "-k", "first_step or usual_rate")
    broken = done.stdout.partition("= broken rules =")[2].splitlines()[1:3]
    assert broken == [
        "server optimizer away breaks the rule: The first step goes in the direction of the aggregate, not away from it.",
        "    the clients moved by [0.5, -1.0, 0.25], the server by [-0.5, 1.0, -0.25]",
    ], done.stdout + done.stderr
