"""Bundles that mean harm, in the client in C++: it refuses or survives them, and shows no file outside of the bundle."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import safetensors.numpy

from attacks.bundles import STATUSES, check_secret, hostile
from attacks.harness import TESTS, TOP, Bench, Case, Finding, Rng, Unavailable, program

sys.path.append(str(TESTS))


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    client = bench.once("cpp", _compiled) / "edgefl-client"

    def case(rng: Rng, folder: Path) -> str:
        here, kind = folder / "here", str(rng.choice(["manifest", "graph", "damaged file"]))
        how, out = hostile(bench, here, kind, rng), here / "update"
        samples = here / "data.safetensors"
        safetensors.numpy.save_file(dict(np.load(here / "data.npz")), samples)
        reader = str(rng.choice(["infer", "train", "check"]))
        given = {"check": (), "infer": ("0.5", samples), "train": ("0.5", samples, "--out", out)}[reader]
        ended = program((client,), reader, here / "bundle", *given, "--allow-unsigned", cwd=here).check(STATUSES)
        if ended.status and out.exists():
            raise Finding(f"{reader}: {how}: failed, and wrote {out.name}")
        check_secret(out, f"{reader}: {how}")
        return f"{reader}, {how}: {'refused' if ended.status else 'accepted'}"

    return case


def _compiled(folder: Path) -> None:
    """Compile the client, as its tests do."""
    from requirements import INCLUDES, REQUIREMENTS

    for name in ("g++", "the headers of OpenSSL", "the headers of onnxruntime"):
        if not REQUIREMENTS[name].present():
            raise Unavailable(f"needs {name}: {REQUIREMENTS[name].install}")
    found = next(iter(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")), None)
    if found is None:
        raise Unavailable("this build of onnxruntime has no libonnxruntime.so")
    folder.mkdir(parents=True)
    library = folder / "libonnxruntime.so.1"
    library.symlink_to(found)
    source = TOP / "export" / "cpp" / "main.cpp"
    out = ("-o", folder / "edgefl-client", library, f"-Wl,-rpath,{folder}", "-lcrypto")
    subprocess.run(["g++", "-std=c++17", "-O0", *INCLUDES, source, *out], check=True)  # noqa: S607 - as its tests do
