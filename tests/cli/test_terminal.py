"""The command line in a terminal of 80 columns: a real pseudo-terminal, read back. Takes about six seconds, two of them another Python."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from client_records import client_record

from edgefl.cli.console import busy, console_of, show
from edgefl.cli.names import check_given
from edgefl.cli.progress import Progress
from edgefl.errors import InputError
from edgefl.records import RoundRecord
from edgefl.report.tables import ALWAYS, Column, PlainTable
from edgefl.timing.spans import span

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MISSPELT = {
    "simulate --method fedhn --profile phnoe --model resnet81 --dataset digit": [
        "unknown method 'fedhn'; did you mean 'fedhm'",
        "unknown model 'resnet81'",
        "unknown dataset 'digit'",
        "unknown profile 'phnoe'; did you mean 'phone'",
    ],
    "compare --methods fedhn,fedavgg@0.5 --out x": ["unknown method 'fedhn'", "unknown method 'fedavgg'"],
    "whatif --method fedhn": ["unknown method 'fedhn'"],
    "profile resnet81 --method fedhn --device rasp --profile phnoe": [
        "unknown method 'fedhn'",
        "unknown model 'resnet81'",
        "unknown device 'rasp'",
        "unknown profile 'phnoe'",
    ],
    "plan resnet81 --device rasp --macs 1M": ["unknown model 'resnet81'", "unknown device 'rasp'"],
    "inspect --model resnet81": ["unknown model 'resnet81'"],
    "inspect --data digit": ["unknown dataset 'digit'"],
    "profile --data digit": ["unknown dataset 'digit'"],
    "export --model resnet81 --out b": ["unknown model 'resnet81'"],
    "calibrate --like lap": ["unknown device 'lap'"],
    "methods fedhn": ["unknown method 'fedhn'"],
    "devices phnoe": ["unknown profile 'phnoe'"],
    "flower new app --method fedhn": ["unknown method 'fedhn'"],
}


Shown = Callable[[Callable[[], object]], str]


HEAVY = ("torch", "numpy", "pydantic")


@pytest.mark.parametrize("asked", ["simulate --method fedhn", "whatif --model=resnet81", "profile --data digit"])
def test_a_misspelt_name_is_refused_before_the_options_of_a_command_are_imported(asked: str) -> None:
    code = f"""
import sys
from edgefl.cli.main import group
try:
    group.main({asked.split()!r}, standalone_mode=False)
except Exception as error:
    print(error)
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.match("unknown (method|model|dataset)", done.stdout)
    assert done.stdout.endswith("[]\n")


def test_names_that_only_the_command_knows_are_left_to_it() -> None:
    for args in (
        ["--method", "mine", "--plugin", "mine.py"],
        ["--method=mine", "--config", "run.toml"],
        ["--model", "net.py:make"],
    ):
        check_given(args)
    with pytest.raises(InputError, match="unknown method 'mine'"):
        check_given(["--method", "mine"])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What a function prints if standard output and error are a terminal of 80 columns."""
    for name in ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def shown(action: Callable[[], object]) -> str:
        above, below = os.openpty()
        fcntl.ioctl(below, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        written: list[bytes] = []

        def read() -> None:
            try:
                while part := os.read(above, 1 << 16):
                    written.append(part)
            except OSError:  # the terminal is closed
                pass

        reader = threading.Thread(target=read)
        reader.start()
        with open(below, "w", encoding="utf-8") as stream, monkeypatch.context() as patched:  # noqa: PTH123 - a descriptor
            patched.setattr(sys, "stdout", stream)
            patched.setattr(sys, "stderr", stream)
            action()
        reader.join()
        os.close(above)
        return b"".join(written).decode()

    return shown


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in re.split(r"[\r\n]+", CODES.sub("", text)) if line.strip()]


def record(number: int) -> RoundRecord:
    clients = tuple(client_record(client, "phone", "trained") for client in range(10))
    accuracy = {"global": 0.591, "1": 0.591, "0.5": 0.55, "0.25": 0.5}
    return RoundRecord(number, clients, round_s=1.0, clock_s=3_723.0, accuracy=accuracy, host_s=1.0)


def test_a_misspelt_name_is_refused_before_torch_is_imported() -> None:
    code = f"""
import json, sys
from click.testing import CliRunner
from edgefl.cli.main import group
said = {{a: [r.exit_code, f"{{r.output}}{{r.exception}}"] for a in {list(MISSPELT)!r} for r in [CliRunner().invoke(group, a.split())]}}
print(json.dumps({{"torch": "torch" in sys.modules, "said": said}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert not found["torch"]
    for asked, expected in MISSPELT.items():
        text = found["said"][asked][1]
        assert [one for one in expected if one not in text] == [], (asked, text)


def test_the_round_the_bar_and_the_accuracy_come_first(terminal: Shown) -> None:
    def run() -> None:
        with Progress(30, quiet=False) as progress:
            for number in (1, 2, 3):
                progress.show(record(number))
            time.sleep(0.5)
            with span("bundle", tier="0.5", number=2, of=3):
                time.sleep(0.5)
            progress.say("a note of the run")

    text = lines(terminal(run))
    assert max(map(len, text)) <= 80
    assert any(
        re.match(r"round 3/30 [━╸╺ ]+ (-|\d+):(--|\d\d) 59\.1 %  clock 1 h 02 min  trained 10/10", line) for line in text
    ), text
    assert any("exporting tier 0.5, 2 of 3" in line for line in text), text
    assert "a note of the run" in text


def test_elsewhere_a_round_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(30, quiet=False) as progress:
        progress.show(record(3))
        with span("bundle", tier="0.5", number=2, of=3):
            pass
    assert capsys.readouterr().err.splitlines() == [
        "round 3/30  global 59.1 % (tiers 1: 59.1 %, 0.5: 55.0 %, 0.25: 50.0 %)  clock 1 h 02 min  trained 10/10",
        "exporting tier 0.5, 2 of 3",
    ]


def test_what_takes_long_says_what_it_does(terminal: Shown) -> None:
    def work() -> None:
        with busy("loading torch"):
            time.sleep(0.3)

    assert any("loading torch …" in line for line in lines(terminal(work)))


def table(columns: Sequence[Column]) -> PlainTable:
    row = {"name": "raspberry-pi-zero-2w", "about": LONG, "size": "258 MB", "fits": "no"}
    return PlainTable.of(columns, [row])


NAME = Column("device", "", lambda row: row["name"], numeric=False)
ABOUT = Column("about", "", lambda row: row["about"], numeric=False)
LONG = "a small board with little memory, for sensors"
SIZES = [Column(f"size {n}", "", lambda row: row["size"]) for n in range(9)]
FITS = Column("fits", "", lambda row: row["fits"], numeric=False, keep=ALWAYS)


def test_a_table_breaks_between_words_only(terminal: Shown) -> None:
    text = lines(terminal(lambda: show(table([NAME, ABOUT, *SIZES[:2], FITS]))))
    assert max(map(len, text)) <= 80
    assert sum("raspberry-pi-zero-2w" in line for line in text) == 1
    assert sum("258 MB" in line for line in text) == 1
    words = {word for line in text for word in line.split() if set(word) != {"─"}}
    assert words <= {*f"device about size 0 1 fits raspberry-pi-zero-2w 258 MB no {LONG}".split()}


def test_columns_without_room_are_left_out_and_named(terminal: Shown) -> None:
    text = terminal(lambda: show(table([NAME, *SIZES, FITS])))
    assert max(map(len, lines(text))) <= 80
    assert "No room for: size 7, size 8. A wider terminal shows them." in " ".join(lines(text))
    assert "\x1b[31mno" in text, "what does not fit is red"


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"CLICOLOR": "0"}, False), ({"NO_COLOR": ""}, True)]
)
def test_colours_are_as_the_environment_says(
    environment: dict[str, str], coloured: bool, terminal: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[31m" in terminal(lambda: show(table([NAME, FITS])))) == coloured


def test_clicolor_force_colours_what_is_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    show(table([NAME, FITS]))
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert console_of(sys.stdout).width == 200
    show(table([NAME, FITS]))
    assert "\x1b[31m" in capsys.readouterr().out


def test_python_m_edgefl_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "edgefl", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("edgefl, version ")


def test_messages_cannot_change_a_terminal(called):
    """A name that somebody else chose, such as that of a folder that was unpacked."""
    status, _, errors = called("verify", "a\x1b[2Jb\u202ec")
    assert status == 2
    assert "a\\x1b[2Jb\\u202ec" in errors
