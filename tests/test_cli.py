"""The command line's edges: exit statuses, and failures that no command foresees."""

from __future__ import annotations

import errno

import click
import pytest
from click.testing import CliRunner

from edgefl.cli.console import show
from edgefl.cli.main import group, main
from edgefl.errors import AggregationError, BudgetError, ConfigError


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ConfigError("a wrong key"), 2, "Error: a wrong key"),
        (BudgetError("too small"), 3, "Error: too small"),
        (AggregationError("nothing"), 1, "Error: nothing"),
        (click.UsageError("wrong flag"), 2, "Error: wrong flag"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), 2, "Error: /tmp/x: No space left on device"),
        (OSError(errno.EIO, "Input/output error"), 1, "Error: a temporary file: Input/output error"),
        (KeyboardInterrupt(), 130, "continues with --resume"),
    ],
)
def test_every_failure_is_one_message_and_its_status(error, status, message, monkeypatch, capsys):
    def fail(**_):
        raise error

    monkeypatch.setattr(group, "main", fail)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == status
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", group.list_commands(None))
def test_help_shows_each_example_on_a_line_of_its_own(name):
    text = CliRunner().invoke(group, [name, "--help"], terminal_width=200, max_content_width=200).output
    assert "\\b" not in text
    assert not any(line.count("edgefl ") > 1 and line.strip().startswith("edgefl ") for line in text.splitlines())


def test_a_reader_that_leaves_is_no_failure(monkeypatch):
    def leave(*_, **__):
        raise SystemExit(1)  # what rich does when the pipe is broken

    monkeypatch.setattr("rich.console.Console.print", leave)
    with pytest.raises(BrokenPipeError):
        show("a table")
