"""How much memory a run with a data set takes that does not fit: all processes together, while ``edgefl simulate`` trains on it.

Usage: python tools/stream_memory.py [--gigabytes N] [--workers N] [--folder DIR] [--json FILE]

The data are random images 3×64×64 in an ``x.npy``, written block by block. Memory is the sum of the proportional set sizes (PSS) of the
command and its workers, sampled every 0.1 s: shared pages count once, pages of the mapped file too. The bar is 1.5 GB for 4 GB of data.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

SHAPE = (3, 64, 64)
CLASSES, CLIENTS, BLOCK = 10, 500, 1024
BAR_BYTES = 1.5e9


def write(folder: Path, size_bytes: float) -> int:
    """Write the data set and return the number of its samples."""
    count = int(size_bytes / np.prod(SHAPE))
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=count)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, (count, *SHAPE))
    for start in range(0, count, BLOCK):
        light = 20 * y[start : start + BLOCK, None, None, None]
        x[start : start + BLOCK] = rng.integers(0, 64, (len(light), *SHAPE), dtype=np.uint8) + light.astype(np.uint8)
    x.flush()
    np.save(folder / "y.npy", y)
    return count


def peak_of(command: list[str]) -> tuple[int, float]:
    """Return the largest sum of the set sizes of a command and its children, and the seconds that it took."""
    started, most = time.monotonic(), 0
    process = psutil.Popen(command)
    while process.poll() is None:
        held = 0
        for one in [process, *_children(process)]:
            try:
                held += one.memory_full_info().pss
            except psutil.Error:
                continue
        most = max(most, held)
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"the run ended with status {process.returncode}")
    return most, time.monotonic() - started


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def main() -> None:
    """Measure, print a line, and write a JSON file if one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        count = write(Path(folder), 1e9 * given.gigabytes)
        flags: dict[str, Any] = {
            "data": f"{folder}/x.npy", "clients": CLIENTS, "per-round": 10, "rounds": 2, "model": "cnn-tiny", "tiers": 1,
            "partition": "iid", "workers": given.workers, "out": f"{folder}/run",
        }  # fmt: skip
        command = [sys.executable, "-m", "edgefl.cli.main", "simulate", *(f"--{name}={value}" for name, value in flags.items())]
        peak_bytes, seconds = peak_of(command)
    found = {"samples": count, "data_bytes": count * int(np.prod(SHAPE)), "peak_bytes": peak_bytes, "host_s": round(seconds, 1)}
    print(f"{found['data_bytes'] / 1e9:.2f} GB of data: peak {peak_bytes / 1e9:.3f} GB, bar {BAR_BYTES / 1e9} GB; {found}")
    if given.json is not None:
        given.json.write_text(json.dumps({**found, "workers": given.workers}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
