"""Damaged files in run folders and bundles. A reader names the file, or its result is that of the undamaged files."""

from __future__ import annotations

import shutil
from pathlib import Path

from attacks.damage import spoil
from attacks.harness import Bench, Case, Ended, Finding, Rng, same, tree
from attacks.kills import TIMED
from attacks.made import interrupted, lines, simulated, summary, updates

FREE = ("report.html", ".lock")
"""Files of a run that nothing reads, and that may be written again."""
_STORED = "client store"


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    names = sorted(READERS)

    def case(rng: Rng, folder: Path) -> str:
        if rng.random() < 0.3:
            return f"resume: {_resume(bench, rng, folder)}"
        reader = names[int(rng.integers(len(names)))]
        return f"{reader}: {_read(bench, reader, rng, folder)}"

    return case


READERS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", "run"),
    "verify the bundle": ("verify", "run/bundle"),
    "export": ("export", "run", "--out", "out"),
    "export tables": ("export", "run", "--format", "csv", "--out", "out"),
    "report": ("report", "run"),
    "fed-round": ("fed-round", "run/bundle", "--updates", "updates", "--out", "out"),
}
"""Commands that read a finished run."""
_VERIFIED = ("verify", "verify the bundle")


def _read(bench: Bench, reader: str, rng: Rng, folder: Path) -> str:
    """Let a command read a damaged run that had ended; it may store what clients keep."""
    mode = _STORED if reader != "fed-round" and rng.random() < 0.5 else "inline"
    base, here = simulated(bench, mode), folder / "here"
    shutil.copytree(base, here / "run")
    if reader == "fed-round":
        shutil.copytree(updates(bench), here / "updates")
    inside = here / "run" / "bundle" if reader == "verify the bundle" else here / "run"
    how, path = spoil([path for path in sorted(inside.rglob("*")) if path.is_file() and path.name not in FREE], rng)
    ended = bench.edgefl.run(*READERS[reader], cwd=here).check((0, 1, 2), [path.name, path.parent.name])
    if ended.status:
        if (here / "out").exists():
            raise Finding(f"{reader} failed, and wrote {here / 'out'}")
        return f"{how}, refused"
    if reader in _VERIFIED:
        raise Finding(f"{reader}: {path}: {how}, and it verifies")
    if reader == "report":
        return f"{how}, same result" if _same_page(here / "run", base) else f"{how}, written"
    same(tree(here / "out"), tree(_expected(bench, reader, mode, base)), f"{reader}: {path}: {how}")
    return f"{how}, same result"


def _same_page(run: Path, base: Path) -> bool:
    """Return True; raise :class:`Finding` if the page of a run is another one than before the damage."""
    if (run / "report.html").read_bytes() != (base / "report.html").read_bytes():
        raise Finding("report: another page than of the undamaged run")
    return True


def _expected(bench: Bench, reader: str, mode: str, base: Path) -> Path:
    def make(path: Path) -> None:
        path.mkdir()
        shutil.copytree(base, path / "run")
        shutil.copytree(updates(bench), path / "updates")
        bench.edgefl.run(*READERS[reader], cwd=path).check((0,))

    return bench.once(f"{reader}-{mode}", make) / "out"


def _resume(bench: Bench, rng: Rng, folder: Path) -> str:
    """Resume a damaged run that was killed in its third round."""
    mode = str(rng.choice(["inline", _STORED, "async"]))
    here, base = folder / "here", interrupted(bench, mode)
    shutil.copytree(base, here / "run")
    files = [path for path in sorted((here / "run").rglob("*")) if path.is_file() and path.name not in FREE]
    how, path = spoil(files, rng)
    ended: Ended = bench.edgefl.run("simulate", "--resume", "--out", "run", cwd=here)
    ended.check((0, 1, 2), [path.name, path.parent.name])
    if ended.status:
        return f"{how}, refused"
    expected = _resumed(bench, mode)
    same(tree(here / "run", TIMED), tree(expected, TIMED), f"resume: {path}: {how}")
    if lines(here / "run") != lines(expected) or summary(here / "run") != summary(expected):
        raise Finding(f"resume: {path}: {how}: other records than without the damage")
    return f"{how}, same result"


def _resumed(bench: Bench, mode: str) -> Path:
    """Return what the undamaged run comes to."""

    def make(path: Path) -> None:
        shutil.copytree(interrupted(bench, mode), path)
        bench.run("simulate", "--resume", "--out", path)

    return bench.once(f"resumed-{mode}", make)
