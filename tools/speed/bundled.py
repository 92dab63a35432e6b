"""The processor time of a run's stage "bundle", its imports included, in the process that trained the tiers.

Usage: python tools/speed/bundled.py --json FILE

The run is the README's first one with a single round: bundles do not depend on the number of rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import edgefl
from edgefl.onnxgrad.contexts import uncollected


def bundle_cpu_s(**keys: Any) -> float:
    """Return the processor seconds of the stage in a run with these keys."""
    edgefl.simulate  # noqa: B018 - what a run imports anyway
    started = time.process_time()
    with uncollected():  # as a run imports it
        stage = importlib.import_module("edgefl.run.bundle")
    taken = [time.process_time() - started]
    build = stage.build_bundle

    def timed(*arguments: Any) -> Any:
        started = time.process_time()
        built = build(*arguments)
        taken.append(time.process_time() - started)
        return built

    with tempfile.TemporaryDirectory() as folder, patch.object(stage, "build_bundle", timed):
        edgefl.simulate(edgefl.RunConfig(**keys), out=Path(folder) / "run")
    return sum(taken)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="where to write the figure")
    options = parser.parse_args()
    figure = {"processor seconds": bundle_cpu_s(profile="phone", rounds=1)}
    options.json.write_text(json.dumps(figure) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
