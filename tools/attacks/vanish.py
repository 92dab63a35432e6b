"""The folder of a run is renamed, deleted or replaced while it is written. The command says so, and what was there can continue."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from attacks.harness import Bench, Case, Finding, Rng, check_clean, same, tree
from attacks.kills import TIMED, whole
from attacks.made import MODES, SMALL, lines

WAYS = ("renamed", "deleted", "replaced by an empty folder", "replaced by a file")


def attack(bench: Bench) -> Case:
    """Return what plays a case."""

    def case(rng: Rng, folder: Path) -> str:
        mode, way = str(rng.choice(sorted(MODES))), str(rng.choice(WAYS))
        command = ("simulate", *SMALL, *MODES[mode], "--out", "out")
        wanted, seconds = whole(bench, f"simulate {mode}")
        here = folder / "here"
        here.mkdir(parents=True)
        out, away = here / "out", here / "away"
        running = bench.edgefl.start(*command, cwd=here)
        end_s = time.monotonic() + rng.random() * seconds
        while running.runs() and (time.monotonic() < end_s or not (out / "config.toml").exists()):
            time.sleep(0.001)
        if not running.runs():
            running.wait().check((0,))
            return "ended before"
        out.rename(away)
        if way.endswith("folder"):
            out.mkdir()
        elif way.endswith("file"):
            out.write_text("mine", encoding="utf-8")
        if way == "deleted":
            shutil.rmtree(away)
        ended = running.wait()
        running.check_gone()
        ended.check((0, 1), ["the run's folder was moved or deleted: out"])
        if not ended.status and not (out / "summary.json").exists() and not (away / "summary.json").exists():
            raise Finding(f"{way}: the command succeeded, and its run is not there")
        if ended.status and out.is_dir() and any(out.iterdir()):
            raise Finding(f"{way}: the command failed, and left {', '.join(sorted(path.name for path in out.iterdir()))}")
        if way != "deleted" and ended.status:
            out.unlink() if out.is_file() else shutil.rmtree(out, ignore_errors=True)
            away.rename(out)
            bench.edgefl.run(*command, "--resume", cwd=here).check((0,))
            same(tree(out, TIMED), tree(wanted, TIMED), f"{way} and moved back")
            if lines(out) != lines(wanted):
                raise Finding(f"{way} and moved back: other records")
        check_clean(here)
        return f"{way}: {'refused' if ended.status else 'ended before it mattered'}"

    return case
