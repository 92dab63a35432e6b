"""Measures a board with a bundle's own models: onnxruntime and numpy, nothing else, and writes its device profile.

    python calibrate.py BUNDLE --out my-device.toml

Measured are inference of one sample (the median over the bundle's tiers, on one thread and on all), a matrix product, one core's memory
bandwidth, and memory. Training is not, nor power: the profile marks them as assumed, and says why. On a computer that has edgefl itself,
`edgefl calibrate` measures training too.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

TRAINING_SHARE = 0.4
POWER = {"idle_w": 1.6, "load_w": 7.2, "energy_pj_per_mac": 471}
"""Of a Raspberry Pi 4, as edgefl's profile of it has them: what stands in where nothing measures a board's power."""

_SIDE = 512
_COPIED_BYTES = 64 * 2**20
_LEAST = 5
_SHORTEST_S = 0.005


class InputError(Exception):
    """Something given is wrong; nothing was written."""


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Return a bundle's manifest, after its own hash and those of the models that it names."""
    path = bundle / "manifest.json"
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
        own = manifest["manifest_sha256"]
        if manifest["format_version"] != 2:
            raise InputError(f"{path}: format_version: got {manifest['format_version']!r}, expected 2")
        if hashlib.sha256(content.replace(own.encode(), b"0" * 64, 1)).hexdigest() != own:
            raise InputError(f"{path}: changed: get the bundle again")
        for tier in manifest["tiers"]:
            model = bundle / tier["forward"]
            if hashlib.sha256(model.read_bytes()).hexdigest() != manifest["files"][tier["forward"]]["sha256"]:
                raise InputError(f"{model}: changed: get the bundle again")
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; expected a folder that edgefl export wrote") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a bundle's manifest: {error!r}") from None
    if not manifest["tiers"]:
        raise InputError(f"{path}: tiers: none, expected at least one model to run")
    return dict(manifest)


def spread(run: Callable[[], object], seconds: float) -> list[float]:
    """Return the seconds of at least five repeats of ``run``, in order; what is short runs several times in one."""
    run()
    begun = time.perf_counter()
    run()
    times = max(1, int(_SHORTEST_S / max(time.perf_counter() - begun, 1e-7)))
    found: list[float] = []
    started = time.perf_counter()
    while len(found) < _LEAST or time.perf_counter() - started < seconds:
        begun = time.perf_counter()
        for _ in range(times):
            run()
        found.append((time.perf_counter() - begun) / times)
    return sorted(found)


def rate(seconds: list[float], amount: float) -> tuple[float, str]:
    """Return 10⁹ per second that a quarter of the repeats reached, and their median and range."""
    found = [amount / s / 1e9 for s in seconds]
    value = found[len(found) // 4]
    return value, f"{value:.3g} (median {statistics.median(found):.3g}, {found[-1]:.3g} to {found[0]:.3g}, {len(found)} repeats)"


def inference(bundle: Path, manifest: dict[str, Any], threads: int, seconds: float) -> tuple[float, str]:
    """Return the median rate over the tiers in GMAC/s, each with a batch of one, and the note of it."""
    values, notes = [], []
    for tier in manifest["tiers"]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(str(bundle / tier["forward"]), options, providers=["CPUExecutionProvider"])
        x = {"x": np.zeros((1, *manifest["input_shape"]), manifest.get("input_dtype", "float32"))}
        macs = tier["costs"].get("macs_inference", tier["costs"]["macs_forward"])
        run = functools.partial(session.run, None, x)
        value, note = rate(spread(run, seconds / len(manifest["tiers"])), macs)
        values.append(value)
        notes.append(f"tier {tier['label']} {note}")
    return statistics.median(values), f"batch of 1, median of tiers of {manifest['model']}: " + ", ".join(notes)


def memory_bytes() -> tuple[int, int]:
    """Return all memory of this computer, and what is free."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if line.endswith("kB")}
        return sizes["MemTotal"], sizes["MemAvailable"]
    except (OSError, KeyError):
        pass
    if sys.platform == "win32":
        status = (ctypes.c_ulonglong * 8)(64)  # the first eight bytes hold the structure's length and a load in percent
        ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status[1]), int(status[2])
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return total, total // 2  # the system does not say what is free


def processor() -> str:
    """Return the board's or the processor's name."""
    for path, key in (("/proc/device-tree/model", ""), ("/proc/cpuinfo", "model name")):
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").rstrip("\0").splitlines()
        except OSError:
            continue
        if found := [line.partition(":")[2] if key else line for line in lines if line.startswith(key)]:
            return " ".join("".join(c for c in found[0] if c.isprintable()).split())
    return platform.processor() or platform.machine()


def profile(bundle: Path, name: str, link: str, threads: int, seconds: float) -> str:
    """Measure this computer for about ``seconds`` and return its profile, the text of a TOML file."""
    manifest = read_manifest(bundle)
    total, free = memory_bytes()
    every, every_note = inference(bundle, manifest, threads, seconds * 0.35)
    single, single_note = inference(bundle, manifest, 1, seconds * 0.35)
    a, b = (np.full((_SIDE, _SIDE), value, np.float32) for value in (0.5, 0.25))
    _, product = rate(spread(lambda: a @ b, seconds * 0.15), _SIDE**3)
    source_array, target = np.ones(_COPIED_BYTES, np.uint8), np.empty(_COPIED_BYTES, np.uint8)
    copied, copied_note = rate(spread(lambda: np.copyto(target, source_array), seconds * 0.15), _COPIED_BYTES)
    board = processor()
    source = (
        f"calibrate.py on {board}; {threads} threads where not one; onnxruntime {onnxruntime.__version__}, numpy {np.__version__}"
    )
    no_training = f"training was not measured: {TRAINING_SHARE} of the all-thread inference rate"
    no_power = "not measured: the figure of a Raspberry Pi 4, a placeholder"
    groups = {
        "memory": {
            "total_bytes": figure(total, "measured", source, "what the system has"),
            "training_bytes": figure(free, "measured", source, "free when it was measured: what other programs left"),
        },
        "compute": {
            "inference_gmacs_per_s": figure(every, "measured", source, f"{every_note}. A matrix product in numpy: {product}"),
            "inference_single_thread_gmacs_per_s": figure(single, "measured", source, single_note),
            "training_gmacs_per_s": figure(
                TRAINING_SHARE * every, "assumed", no_training, f"{TRAINING_SHARE} of {every:.4g} GMAC/s"
            ),
            "memory_bandwidth_gb_per_s": figure(
                copied, "measured", source, f"one core copies, bytes counted once: {copied_note}"
            ),
        },
        "power": {key: figure(value, "assumed", no_power, "") for key, value in POWER.items()},
    }
    names = {"name": name, "title": f"{board}, {threads} threads, calibrated", "reference_hardware": board, "link": link}
    lines = [f"{key} = {text(value)}" for key, value in names.items()]
    for group, figures in groups.items():
        lines += ["", f"[{group}]", *(f"{key} = {value}" for key, value in figures.items())]
    return "\n".join(lines) + "\n"


def figure(value: float, mark: str, source: str, note: str) -> str:
    """Return a figure as TOML."""
    written = str(value) if isinstance(value, int) else f"{value:.4g}"
    return f"{{ value = {written}, mark = {text(mark)}, source = {text(source)}, note = {text(note)} }}"


def text(value: str) -> str:
    """Return a TOML string: what JSON escapes, TOML reads alike."""
    return json.dumps(value, ensure_ascii=False)


def write(out: Path, content: str) -> None:
    """Write a file whole or not at all."""
    try:
        handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            Path(temporary).replace(out)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another --out FILE") from None


def main() -> int:
    """Run the command: exit 2 on wrong input, 130 when interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path, help="folder that edgefl export wrote")
    parser.add_argument("--out", type=Path, default=Path("my-device.toml"), help="profile to write (default: my-device.toml)")
    parser.add_argument("--name", help="of the profile (default: that of the file)")
    parser.add_argument("--link", default="wifi-world", help="name of its network connection (default: wifi-world)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads to run on (default: every core)")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long to measure (default: 20)")
    given = parser.parse_args()
    if not 0 < given.seconds <= 3600 or given.threads < 1:
        parser.error(f"expected --seconds in (0, 3600] and --threads of at least 1, got {given.seconds:g} and {given.threads}")
    if given.out.is_dir():
        parser.error(f"--out: {given.out} is a folder, expected a file")
    if not given.out.absolute().parent.is_dir():
        parser.error(f"--out: {given.out.parent} is no folder")
    try:
        write(given.out, profile(given.bundle, given.name or given.out.stem, given.link, given.threads, given.seconds))
    except InputError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; nothing was written.\n")
        return 130
    sys.stderr.write(f"written: {given.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
