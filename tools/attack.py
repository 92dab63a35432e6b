"""Attack edgefl: kills, damaged files, hostile bundles, updates, settings and nodes, full disks, folders that vanish.

Usage: python tools/attack.py --minutes N [--seed S] [--only KIND,KIND]
       python tools/attack.py --only KIND --seed S --case C            (one case again)

Prints how many cases of each kind ended in which way. The exit status is 0 if there was no failure. A failure prints what happened and
the command that repeats the case. Kinds take turns, so that each gets the same share of the N minutes. What they need, such as a finished
run or a compiled client, is made once for all, and takes time beside them. A kind that needs what this computer lacks, such as a browser,
is left out by name.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attacks.harness import Bench, Case, Finding, Unavailable, Zygote, generator_of

KINDS = sorted(
    path.stem for path in (Path(__file__).parent / "attacks").glob("*.py") if "\ndef attack(" in path.read_text(encoding="utf-8")
)
"""The files of tools/attacks that have an attack."""


@dataclass
class Attack:
    """A kind of attack, and what has come of it so far.

    Attributes:
        outcomes: what came of how many cases.
        spent_s: how long all of them took, without what was prepared for them.
        lacks: what this computer lacks for it; "": nothing.
    """

    kind: str
    seed: int
    bench: Bench
    number: int = 0
    spent_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    lacks: str = ""
    _case: Case | None = None

    def play(self, keep: bool = False) -> None:
        """Play the next case; ``keep`` its folder."""
        started_s, prepared_s, number = time.monotonic(), self.bench.prepared_s, self.number
        self.number += 1
        folder = self.bench.home.parent / f"case-{self.kind}-{number}"
        try:
            if self._case is None:
                with self.bench.preparing():
                    self._case = importlib.import_module(f"attacks.{self.kind}").attack(self.bench)
            folder.mkdir(parents=True)
            self.outcomes[self._case(generator_of(self.seed, self.kind, number), folder)] += 1
        except Unavailable as problem:
            self.number, self.lacks = number, str(problem)
        except Finding as finding:
            again = f"python tools/attack.py --only {self.kind} --seed {self.seed} --case {number}"
            self.failures.append(f"{self.kind}: {finding}\nrepeat: {again}")
            print(f"FAILURE {self.failures[-1]}\n", flush=True)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        self.spent_s += time.monotonic() - started_s - (self.bench.prepared_s - prepared_s)


def attack(
    kinds: Sequence[str], seed: int, home: Path, seconds: float, cases: int = 10**9, first: int | None = None
) -> list[Attack]:
    """Play cases of ``kinds`` in ``home``, those with the least time first, for ``seconds`` or until each has had ``cases``.

    What is prepared for them takes time beside that. ``first`` is the number of the only case to play; its files are kept.
    """
    with Zygote() as edgefl, contextlib.ExitStack() as opened:
        bench = Bench(home / "shared", edgefl, opened)
        found = [Attack(kind, seed, bench, first or 0) for kind in kinds]
        while waiting := [one for one in found if one.number - (first or 0) < cases and not one.lacks]:
            if sum(one.spent_s for one in found) > seconds:
                break
            min(waiting, key=lambda one: one.spent_s).play(keep=first is not None)
    return found


def table(found: Sequence[Attack]) -> str:
    """Return how many cases of each kind ended in which way."""
    lines = []
    for one in found:
        left_out = f"; left out: {one.lacks}" if one.lacks else ""
        lines.append(f"{one.kind}: {one.number:,} cases, {len(one.failures)} failures, {one.spent_s:.0f} s{left_out}")
        lines += [f"  {count:6,}  {outcome}" for outcome, count in sorted(one.outcomes.items())]
    total, failures = sum(one.number for one in found), sum(len(one.failures) for one in found)
    prepared_s = max((one.bench.prepared_s for one in found), default=0.0)
    return "\n".join([*lines, f"{total:,} cases, {failures} failures; {prepared_s:.0f} s of preparation"])


def main() -> int:
    """Run the tool; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, metavar="N", help="how long to attack, without preparation [5]")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of all cases [0]")
    parser.add_argument("--only", default=",".join(KINDS), metavar="KIND,KIND", help=f"kinds, of {', '.join(KINDS)} [all]")
    parser.add_argument("--case", type=int, metavar="C", help="play this case only, and keep its files")
    parser.add_argument("--home", type=Path, metavar="DIR", help="folder for files [a temporary one]")
    asked = parser.parse_args()
    kinds = [kind.strip() for kind in asked.only.split(",")]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"--only: unknown kind {unknown[0]!r}; known: {', '.join(KINDS)}")
    home = asked.home or Path(tempfile.mkdtemp(prefix="attack-"))
    try:
        found = attack(kinds, asked.seed, home, 60 * asked.minutes, 1 if asked.case is not None else 10**9, asked.case)
    finally:
        if asked.home is None and asked.case is None:
            shutil.rmtree(home, ignore_errors=True)
    print(table(found) + (f"\nfiles: {home}" if asked.case is not None else ""))
    return 1 if any(one.failures for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
