"""Whatever is run of a bundle runs in a process that is stopped when it takes too much memory or time."""

import json
import subprocess
import sys

import pytest
from hostile_graphs import ENDLESS, GREEDY
from small_bundle import contents, manifest, tier, written

from edgefl.bundle.sandbox import SandboxLimits, _lines, default_memory_bytes
from edgefl.bundle.verify import verify
from edgefl.bundle.write import write
from edgefl.errors import BundleError, InputError

GIB = 1 << 30


def test_graphs_that_ask_for_too_much_memory_or_time_are_stopped(tmp_path):
    graphs = {0.9: GREEDY["constant"], 0.8: GREEDY["expand"], 0.7: GREEDY["loop"], 0.6: ENDLESS}
    files = {}
    for ratio, graph in graphs.items():
        files |= {
            f"{ratio:g}/forward.onnx": graph.SerializeToString(),
            f"{ratio:g}/reference.safetensors": contents()["1/reference.safetensors"],
        }
    write(tmp_path / "bundle", manifest(*(tier(ratio) for ratio in graphs)), files)
    with pytest.raises(BundleError) as caught:
        verify(tmp_path / "bundle", limits=SandboxLimits(memory_bytes=300 << 20, file_s=2))
    folder = tmp_path / "bundle"
    short = "needs more than 314,572,800 bytes of memory; --memory allows more"
    lines = [f"{folder}: tier {label}: {label}/forward.onnx: {short}" for label in ("0.9", "0.8", "0.7")]
    assert str(caught.value).splitlines() == [*lines, f"{folder}: 0.6/forward.onnx: did not end in 2 s; --timeout allows more"]


def _child(code):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_process_that_holds_too_much_is_killed_where_the_system_does_not_refuse_it():
    with _child("much = b'x' * (200 << 20); import time; time.sleep(60)") as child:
        assert list(_lines(child, 30, 100 << 20)) == [
            json.dumps({"killed": "needs more than 104,857,600 bytes of memory; --memory allows more"})
        ]
        child.kill()


def test_every_line_gives_the_next_file_its_time():
    with _child("import time\nfor i in range(4): print(i, flush=True); time.sleep(0.3)") as child:
        assert list(_lines(child, 5, GIB)) == [f"{i}\n" for i in range(4)]


def test_a_process_that_never_answers_is_said_to_have_had_the_time_to_start(monkeypatch):
    monkeypatch.setattr("edgefl.bundle.sandbox._START_S", 0.3)
    with _child("import time; time.sleep(60)") as child:
        assert list(_lines(child, 0.1, GIB)) == [json.dumps({"killed": "did not end in 0.3 s; --timeout allows more"})]
        child.kill()


def test_a_process_that_dies_is_said_to_have_died(tmp_path, monkeypatch):
    started = "import sys, json, os, signal; print(json.dumps({'at': '1/forward.onnx'}), flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    popen = subprocess.Popen
    monkeypatch.setattr(
        "edgefl.bundle.sandbox.subprocess.Popen", lambda command, **given: popen([sys.executable, "-c", started], **given)
    )
    with pytest.raises(BundleError, match=r"bundle: 1/forward\.onnx: the process that ran it died of SIGSEGV"):
        verify(written(tmp_path / "bundle"))
    started = "raise SystemExit('no room')"
    with pytest.raises(InputError, match="the process that checks it did not start: no room"):
        verify(tmp_path / "bundle")


def test_limits_follow_the_files_and_this_computers_memory(monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr("edgefl.bundle.sandbox.psutil.virtual_memory", lambda: SimpleNamespace(available=100 * GIB))
    assert default_memory_bytes(GIB) == 12 * GIB
    assert default_memory_bytes(20 * GIB) == 80 * GIB
