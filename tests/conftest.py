"""Shared pieces of the tests."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from edgefl.cli.main import main

settings.register_profile("edgefl", deadline=None, max_examples=40)
settings.load_profile("edgefl")


@pytest.fixture(autouse=True)
def _one_thread():
    """As in a run: sums come out to the same bits whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line, called in an empty folder: arguments → exit status, standard output, standard error."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edgefl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        output, errors = capsys.readouterr()
        return int(left.value.code or 0), output, errors

    return call
