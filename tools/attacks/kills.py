"""SIGKILL at a random moment of a command that writes. Afterwards the same command comes to the same bits, and leaves nothing behind.

Commands take turns by the number of the case, so that few cases kill each of them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from attacks.harness import Bench, Case, Finding, Rng, Zygote, check_clean, same, tree
from attacks.made import MODES, SMALL, aged, lines, simulated, summary, updates

TIMED = ("rounds.jsonl", "summary.json", "report.html", "hashes.json", "compare.html", "compare.json", "clients.sqlite")
"""Files with this computer's time, or whose bytes depend on the order of writes; records and chains of hashes are compared instead."""


FIRST = ("export", "simulate per-fedavg", "simulate onnx", "fed-round")
"""Commands whose turn is before that of the others; all of them write bundles."""


_TRIES = 4
"""How often a command may end before it is killed; each time it gets half of the time."""


@dataclass(frozen=True)
class Target:
    """A command that is killed.

    Attributes:
        arguments: of the command; what it writes is called ``out`` in the folder where it is called.
        again: what is added to them to continue.
        runs: the folders of runs below ``out``; each has records to compare and is verified.
        once: whether a whole ``out`` refuses the command.
    """

    arguments: tuple[object, ...]
    again: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    once: bool = False


def _simulate(mode: str) -> Target:
    return Target(("simulate", *SMALL, *MODES[mode], "--out", "out"), ("--resume",), (".",))


def _compared() -> Target:
    flags = ["--seeds" if flag == "--seed" else flag for flag in SMALL]
    runs = ("fedavg@0.5/seed-3", "heterofl@0.5/seed-3")
    return Target(("compare", "--methods", "fedavg@0.5,heterofl@0.5", *flags, "--out", "out"), ("--resume",), runs)


def targets(bench: Bench) -> dict[str, Callable[[], Target]]:
    """Return name → target, which is made when it is asked for."""
    return {
        **{f"simulate {mode}": partial(_simulate, mode) for mode in MODES},
        "export": lambda: Target(("export", simulated(bench), "--quantize", "int8", "--with-client", "--out", "out"), once=True),
        "fed-round": lambda: Target(
            ("fed-round", simulated(bench) / "bundle", "--updates", updates(bench), "--out", "out"), once=True
        ),
        "compare": _compared,
        "whatif": lambda: Target(
            ("whatif", *SMALL[: SMALL.index("--eval-every")], "--tiers", "1,0.5", "--out", "out/whatif.html")
        ),
    }


def target_of(bench: Bench, name: str) -> Target:
    """Return a target by its name."""
    return targets(bench)[name]()


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    names = sorted(targets(bench), key=lambda name: name not in FIRST)

    def case(rng: Rng, folder: Path) -> str:
        name, here = names[int(folder.name.rpartition("-")[2]) % len(names)], folder / "here"
        target, (wanted, seconds) = target_of(bench, name), whole(bench, name)
        here.mkdir(parents=True)
        killed = 0
        for arguments in ((), target.again)[: 1 + int(rng.random() < 0.3)]:
            share, before = rng.random(), killed
            for halves in range(_TRIES):
                running = bench.edgefl.start(*target.arguments, *arguments, cwd=here)
                time.sleep(share * seconds / 2**halves)
                killed += running.runs()
                running.kill()
                if killed > before or arguments:
                    break
                shutil.rmtree(here / "out", ignore_errors=True)  # it was quicker than the first time
        aged(Zygote.temporary(here))
        aged(here)
        complete = target.once and (here / "out").exists()
        ended = bench.edgefl.run(*target.arguments, *target.again, cwd=here)
        ended.check((2,) if complete else (0,), ["out"] if complete else [])
        compare(bench, here / "out", wanted, target)
        check_clean(here)
        return f"{name}: {f'killed {killed}×' if killed else 'ended before the kill'}"

    return case


def whole(bench: Bench, name: str) -> tuple[Path, float]:
    """Return what a target writes if nothing stops it, and how long it takes."""

    def make(path: Path) -> None:
        path.mkdir()
        started_s = time.monotonic()
        bench.edgefl.run(*target_of(bench, name).arguments, cwd=path).check((0,))
        (path / "seconds").write_text(str(time.monotonic() - started_s), encoding="utf-8")

    path = bench.once(f"whole-{name}", make)
    return path / "out", float((path / "seconds").read_text(encoding="utf-8"))


def compare(bench: Bench, found: Path, wanted: Path, target: Target) -> None:
    """Raise :class:`Finding` unless files, records and summaries are those of ``wanted``, and every run verifies."""
    if found.is_dir():
        same(tree(found, TIMED), tree(wanted, TIMED), str(found))
    for run in target.runs:
        if lines(found / run) != lines(wanted / run):
            raise Finding(f"{found / run}/rounds.jsonl: other records than in one go")
        if summary(found / run) != summary(wanted / run):
            raise Finding(f"{found / run}/summary.json: another summary than in one go")
        bench.edgefl.run("verify", found / run, cwd=found.parent).check((0,))
