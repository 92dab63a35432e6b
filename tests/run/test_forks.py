"""Calls in forked processes: the results of calls in this process, and a sentence if a process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from edgefl.errors import EdgeflError, UnknownNameError
from edgefl.run import forks
from edgefl.run.forks import in_forks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "usable_threads", lambda: 2)


def test_results_come_in_order_from_two_other_processes():
    held = np.arange(5.0)
    found = list(in_forks([lambda n=n: (n, held * n, os.getpid()) for n in range(6)]))
    assert [number for number, _, _ in found] == list(range(6))
    assert all(np.array_equal(values, held * number) for number, values, _ in found)
    assert os.getpid() not in (used := {process for *_, process in found})
    assert len(used) <= 2


@pytest.mark.parametrize(("calls", "worth"), [(1, True), (3, False)])
def test_a_single_call_or_little_work_is_done_here(calls, worth):
    assert set(in_forks([os.getpid] * calls, worth)) == {os.getpid()}


def test_an_error_is_raised_here_as_it_was_there():
    def fails() -> int:
        raise UnknownNameError("method", "fedhn", ["fedhm"])

    with pytest.raises(UnknownNameError, match="did you mean 'fedhm'"):
        list(in_forks([lambda: 1, fails]))


def test_a_killed_process_is_said():
    with pytest.raises(EdgeflError, match="a process was killed from outside, or this computer ran out of memory"):
        list(in_forks([lambda: 1, lambda: os.kill(os.getpid(), signal.SIGKILL)]))
    assert list(in_forks([lambda: 1, lambda: 2])) == [1, 2]


LEFT_ALONE = """
import os, time
from edgefl.run import forks
forks.usable_threads = lambda: 2

def wait():
    print(os.getpid(), flush=True)
    time.sleep(600)

list(forks.in_forks([wait] * 2))
"""


def is_alive(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_processes_end_with_the_one_that_forked():
    with subprocess.Popen([sys.executable, "-c", LEFT_ALONE], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        forked = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    for _ in range(500):
        if not any(map(is_alive, forked)):
            return
        time.sleep(0.02)
    pytest.fail(f"{forked} are left")
