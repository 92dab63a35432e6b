"""How well `edgefl whatif --run` foretells accuracies: each real run is foretold by another run of the same setting, round by round.

Usage: python tools/surrogate.py FOLDER [--write]      (about ten minutes; FOLDER keeps the runs)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from edgefl.config import RunConfig
from edgefl.report.comparison import Played
from edgefl.report.policies import EXPONENT, FACTOR
from edgefl.report.run_files import read_rounds, read_trained
from edgefl.report.surrogate import Taught, curve_of
from edgefl.report.words import counted
from edgefl.run.simulate import simulate

COMMON = {"profile": "phone", "rounds": 16, "local_epochs": 2}
BASES: dict[str, dict[str, Any]] = {
    **{f"fedhm-{seed}": {"method": "fedhm", "seed": seed} for seed in range(3)},
    **{f"heterofl-{seed}": {"method": "heterofl", "seed": seed} for seed in range(2)},
}
POLICIES: dict[str, dict[str, Any]] = {
    "deadline-0.3": {"deadline_s": 0.3},
    "deadline-0.4-over-1": {"deadline_s": 0.4, "over_selection": 1.0},
    "deadline-0.6": {"deadline_s": 0.6},
    "over-1": {"over_selection": 1.0},
    "over-2": {"over_selection": 2.0},
    "five-a-round": {"per_round": 5},
    "deadline-1": {"deadline_s": 1.0},
    "over-1.6": {"over_selection": 1.6},
    "three-a-round": {"per_round": 3},
}
"""Each is foretold by the base's own run, which makes 45 pairs; those in which a class or the largest tier is left out are not judged."""
TOLERANCE = 0.01
"""Evaluations differ by so much from one round to the next."""
RESULT = Path(__file__).parent / "results" / "surrogate.json"


def run_in(folder: Path, name: str, changed: dict[str, Any]) -> Played:
    """Return a run, which is made if the folder does not hold it yet."""
    run = folder / name
    if not (run / "summary.json").exists():
        simulate(RunConfig.of({**COMMON, **changed}), run)
    summary = read_trained(run / "summary.json")
    return Played(summary.seed, summary, read_rounds(run / "rounds.jsonl"))


def errors(base: Played, held_out: Played) -> list[tuple[float, bool]]:
    """Return, per evaluation, how far the foretold accuracy is off, and whether the real one is within the range."""
    curve, progress, found = curve_of(base.rounds), 0.0, []
    for line in held_out.rounds:
        used = counted(line.groups)["trained"]
        progress += used**EXPONENT if used else 0.0
        foretold = curve.at(progress)
        if foretold is not None:
            real, high = line.accuracy["global"], curve.at(progress * FACTOR) or 0.0
            low = curve.at(progress / FACTOR)
            low = curve.points[0][1] if low is None else low
            found.append((foretold - real, low - TOLERANCE <= real <= high + TOLERANCE))
    return found


def leaves_out(base: Played, held_out: Played) -> bool:
    """Return whether a run leaves out a class or the largest tier that the base trained, as what-if sees it before any training."""
    mine, other = (Taught.of(run.summary, run.rounds) for run in (base, held_out))
    return bool(mine.left_out(other.largest, mine.devices - other.devices))


def main() -> None:
    """Make the runs, compare them, and print or write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    by_run, left_out = {}, []
    for base, of_base in BASES.items():
        known = run_in(given.folder, base, of_base)
        for policy, changed in POLICIES.items():
            name = f"{base}-{policy}"
            other = run_in(given.folder, name, {**of_base, **changed})
            if leaves_out(known, other):
                left_out.append(name)
            else:
                by_run[name] = errors(known, other)
    every = [pair for found in by_run.values() for pair in found]
    sizes = sorted(abs(error) for error, _ in every)
    result = {
        "exponent": EXPONENT,
        "factor": FACTOR,
        "pairs": len(by_run),
        "not_judged": left_out,
        "evaluations": len(every),
        "within": round(sum(inside for _, inside in every) / len(every), 4),
        "median_error": round(median(sizes), 4),
        "ninth_decile": round(sizes[int(0.9 * len(sizes))], 4),
        "final_within": sum(found[-1][1] for found in by_run.values()),
        "final_errors": {name: round(found[-1][0], 4) for name, found in by_run.items()},
    }
    text = json.dumps(result, indent=2) + "\n"
    print(text)
    if given.write:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
