"""Measures a board with the models of a bundle, and writes a device profile. Needs only onnxruntime and NumPy.

    python calibrate.py BUNDLE --out my-device.toml
    python calibrate.py BUNDLE --steps steps.csv --sustained 10

The first command measures the inference of one sample (the median over the tiers, on one thread and on all), a matrix product, the memory
bandwidth of one core, and memory. Training and power are not measured: the profile marks them as assumed. If the computer has edgefl, use
`edgefl calibrate`, which measures training too.

The second command times training steps and inference of every tier, and again after ten minutes of load. It needs the client's other
files beside this one, and safetensors. On another computer, `edgefl calibrate --from steps.csv` fits a profile from the file.
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

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # onnxruntime reads it when it is imported

import onnxruntime

TRAINING_SHARE = 0.4
POWER = {"idle_w": 1.6, "load_w": 7.2}
"""Power of a Raspberry Pi 4, from edgefl's profile of it, as a placeholder."""

_SIDE = 512
_COPIED_BYTES = 64 * 2**20
_LEAST = 5
_SHORTEST_S = 0.005
_LONGEST_MINUTES = 1440


class InputError(Exception):
    """An input is wrong, or (``exit_code`` 1) a graph cannot be run; no file was written."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def read_manifest(bundle: Path) -> dict[str, Any]:
    """Return a bundle's manifest, after checking its hash and those of its models; InputError if one was changed."""
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


def spread(run: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter) -> list[float]:
    """Return the seconds of at least five repeats of ``run``, in ascending order; a short ``run`` is called several times per repeat."""
    run()
    begun = clock()
    run()
    times = max(1, int(_SHORTEST_S / max(clock() - begun, 1e-7)))
    found: list[float] = []
    started = clock()
    while len(found) < _LEAST or clock() - started < seconds:
        begun = clock()
        for _ in range(times):
            run()
        found.append((clock() - begun) / times)
    return sorted(found)


def rate(seconds: list[float], amount: float) -> tuple[float, str]:
    """Return a rate in 10⁹ per second that a quarter of the repeats reached, and a note with median and range."""
    found = [amount / s / 1e9 for s in seconds]
    value = found[len(found) // 4]
    return value, f"{value:.3g} (median {statistics.median(found):.3g}, {found[-1]:.3g} to {found[0]:.3g}, {len(found)} repeats)"


def inference(bundle: Path, manifest: dict[str, Any], threads: int, seconds: float) -> tuple[float, str]:
    """Return the median rate over the tiers in GMAC/s, for a batch of one, and a note with each tier's rate."""
    values, notes = [], []
    for tier in manifest["tiers"]:
        try:
            value, note = rate(
                spread(_runnable(bundle, manifest, tier, threads), seconds / len(manifest["tiers"])),
                tier["costs"].get("macs_inference", tier["costs"]["macs_forward"]),
            )
        except Exception as error:  # noqa: BLE001 - a manifest may say anything, and onnxruntime's types live in its C extension
            why = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
            raise InputError(f"{bundle}: tier {tier.get('label')!a}: cannot be measured ({why})", 1) from None
        values.append(value)
        notes.append(f"tier {tier['label']} {note}")
    return statistics.median(values), f"batch of 1, median of tiers of {manifest['model']}: " + ", ".join(notes)


def _runnable(bundle: Path, manifest: dict[str, Any], tier: dict[str, Any], threads: int) -> Callable[[], object]:
    """Return what runs a tier on one sample of zeros."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
    session = onnxruntime.InferenceSession(str(bundle / tier["forward"]), options, providers=["CPUExecutionProvider"])
    one = {"shape": manifest["input_shape"], "dtype": manifest.get("input_dtype", "float32")}
    inputs = {f"x.{name}": entry for name, entry in (manifest.get("inputs") or {}).items()} or {"x": one}
    x = {name: np.zeros((1, *entry["shape"]), entry.get("dtype", "float32")) for name, entry in inputs.items()}
    return functools.partial(session.run, None, {given.name: x[given.name] for given in session.get_inputs()})


def memory_bytes() -> tuple[int, int]:
    """Return total and free bytes of memory."""
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
    """Return the name of the board, or of the processor."""
    for path, key in (("/proc/device-tree/model", ""), ("/proc/cpuinfo", "model name")):
        try:
            lines = Path(path).read_text(encoding="utf-8", errors="replace").rstrip("\0").splitlines()
        except OSError:
            continue
        if found := [line.partition(":")[2] if key else line for line in lines if line.startswith(key)]:
            return " ".join("".join(c for c in found[0] if c.isprintable()).split())
    return platform.processor() or platform.machine()


def profile(bundle: Path, name: str, link: str, threads: int, seconds: float) -> str:
    """Measure this computer for about ``seconds``, and return its profile as the text of a TOML file."""
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


def steps(bundle: Path, threads: int, seconds: float, sustained_s: float) -> str:
    """Time training steps and inference of every tier, and return the content of the CSV file; progress goes to stderr."""
    try:
        from edgefl_bundle import ClientError, read_bundle
        from edgefl_timing import measure, to_csv
    except ImportError as error:
        needs = "expected the client's other files beside calibrate.py, and the packages onnxruntime, numpy and safetensors"
        raise InputError(f"--steps: {error.name} is missing; {needs}") from None
    try:
        return to_csv(measure(read_bundle(bundle), threads, seconds, sustained_s, spread, _say))
    except ClientError as error:
        raise InputError(str(error), error.exit_code) from None


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def figure(value: float, mark: str, source: str, note: str) -> str:
    """Return a figure of a profile as an inline table of TOML."""
    written = str(value) if isinstance(value, int) else f"{value:.4g}"
    return f"{{ value = {written}, mark = {text(mark)}, source = {text(source)}, note = {text(note)} }}"


def text(value: str) -> str:
    """Return a TOML string: TOML reads the escapes of JSON."""
    return json.dumps(value, ensure_ascii=False)


def write(out: Path, content: str, option: str) -> None:
    """Write a file, which ``option`` names, whole or not at all."""
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
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another {option} FILE") from None


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0, 1 if a graph cannot be run, 2 for wrong input, or 130 if interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path, help="folder that edgefl export wrote")
    parser.add_argument("--out", type=Path, help="profile to write (default: my-device.toml)")
    parser.add_argument("--name", help="of the profile (default: that of the file)")
    parser.add_argument("--link", default="wifi-world", help="name of its network connection (default: wifi-world)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads to run on (default: every core)")
    parser.add_argument("--seconds", type=float, default=20.0, help="about how long to measure (default: 20)")
    parser.add_argument(
        "--steps", type=Path, metavar="FILE", help="CSV file to write instead of a profile: seconds of training steps"
    )
    parser.add_argument(
        "--sustained", type=float, metavar="MINUTES", help="with --steps: measure again after this long under load"
    )
    given = parser.parse_args(arguments)
    if not 0 < given.seconds <= 3600 or given.threads < 1:
        parser.error(f"expected --seconds in (0, 3600] and --threads of at least 1, got {given.seconds:g} and {given.threads}")
    if given.steps and (given.out or given.name):
        parser.error("--steps: no profile is written with it: leave out --out and --name")
    if given.sustained is not None and not given.steps:
        parser.error("--sustained: expected with --steps FILE only")
    if given.sustained is not None and not 0 < given.sustained <= _LONGEST_MINUTES:
        parser.error(f"--sustained: got {given.sustained:g}, expected minutes above 0, at most {_LONGEST_MINUTES}")
    option, out = ("--steps", given.steps) if given.steps else ("--out", given.out or Path("my-device.toml"))
    if out.is_dir():
        parser.error(f"{option}: {out} is a folder, expected a file")
    if not out.absolute().parent.is_dir():
        parser.error(f"{option}: {out.parent} is no folder")
    try:
        if given.steps:
            content = steps(given.bundle, given.threads, given.seconds, 60 * (given.sustained or 0))
        else:
            content = profile(given.bundle, given.name or out.stem, given.link, given.threads, given.seconds)
        write(out, content, option)
    except InputError as error:
        sys.stderr.write("Error: " + "".join(c if c.isprintable() else "?" for c in str(error)) + "\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted; nothing was written.\n")
        return 130
    sys.stderr.write(f"written: {out}\n")
    return 0


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # a bundle, in which this file may be, must not get other files
    sys.exit(main())
