"""Processes of the pool: scripts that start them, and what is left when a script ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")

IMPORTS = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from dataclasses import replace
from edgefl.data.digits import digits
from edgefl.engine.contract import in_order
from edgefl.engine.pool import PoolEngine
from pool_jobs import jobs_of, task_of
"""
RUN = "task = task_of(epochs={epochs})\nwith PoolEngine(task, 2, data=digits()) as engine:\n    list(in_order(engine, jobs_of(task, 4)))\n"


def script(code: str, tmp_path: Path, **options) -> subprocess.Popen:
    path = tmp_path / "script.py"
    path.write_text(IMPORTS + code)
    return subprocess.Popen([sys.executable, *options.pop("how", [str(path)])], stderr=subprocess.PIPE, text=True, **options)


def test_a_script_needs_no_guard_nor_a_file(tmp_path):
    script(RUN.format(epochs=1), tmp_path, how=["-c", ""]).communicate()
    with (tmp_path / "script.py").open() as file:
        done = subprocess.run([sys.executable, "-"], check=False, stdin=file, stderr=subprocess.PIPE, text=True)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_script_that_defines_a_method_needs_a_guard(tmp_path):
    own = (
        "from edgefl.methods.heterofl import HeteroFL\n"
        "class Own(HeteroFL):\n    pass\n"
        "def jobs(task):\n    return [replace(job, method=Own(job.method.config)) for job in jobs_of(task, 2)]\n"
    )
    run = RUN.format(epochs=1).replace("jobs_of(task, 4)", "jobs(task)")
    with script(own + run, tmp_path) as bare:
        assert "must call edgefl under if __name__ == '__main__'" in bare.communicate()[1]
    guarded = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in run.splitlines())
    with script(own + guarded, tmp_path) as good:
        assert (good.communicate()[1], good.returncode) == ("", 0)


def running(run: subprocess.Popen) -> list[psutil.Process]:
    """Return the fork server and two workers at work of a script."""
    given_up_s = time.monotonic() + 60
    while time.monotonic() < given_up_s:
        family = psutil.Process(run.pid).children(recursive=True)
        if len(family) == 3 and sum(process.cpu_times().user > 0.5 for process in family) == 3:
            return family
        time.sleep(0.1)
    raise AssertionError("no workers")


def test_when_the_server_is_killed_nothing_stays(tmp_path):
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    with script(RUN.format(epochs=100_000), tmp_path) as run:
        family = running(run)
        run.kill()
        assert run.communicate()[1] == ""
    assert psutil.wait_procs(family, timeout=30)[1] == []
    if before:
        assert {path for path in Path("/dev/shm").iterdir() if path.name.startswith(("psm_", "edgefl"))} <= before


def test_ctrl_c_ends_the_run_and_only_the_server_says_so(tmp_path):
    # What a shell starts in the background ignores the signal, and so does what that starts.
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    with script(heard + RUN.format(epochs=100_000), tmp_path, start_new_session=True) as run:
        family = running(run)
        os.killpg(run.pid, signal.SIGINT)
        errors = run.communicate()[1]
    assert errors.count("KeyboardInterrupt") == errors.count("Traceback") == 1
    assert psutil.wait_procs(family, timeout=30)[1] == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system pins nobody")
def test_workers_are_pinned_where_each_has_a_core():
    code = (
        "import os\nfrom edgefl.client.isolation.limits import keep_freed_memory, pin\n"
        "cores = sorted(os.sched_getaffinity(0))\n"
        "assert pin(1, len(cores) + 1) is None and sorted(os.sched_getaffinity(0)) == cores\n"
        "assert pin(len(cores), len(cores)) == cores[-1] and os.sched_getaffinity(0) == {cores[-1]}\n"
        "print(keep_freed_memory())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() in ("True", "False")
