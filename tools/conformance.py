"""Compare edgefl with databases that others wrote, and write the results into docs/conformance.md.

Each file of tools/judges/ is a judge of one database, and each of its cases one JSON line of tools/results/conformance/JUDGE.jsonl: equal,
refused, wrong, crashed or skipped, with a reason. A stopped command resumes where it was; a run of other code begins anew. A judge whose
packages are not installed is skipped by name, and keeps its stored lines, which the page shows with their versions and commit.

Everything, on two cores:             python tools/conformance.py --jobs 2 --write
Some judges:                          python tools/conformance.py --judges operators,modules --write
After a mend, some subjects again:    python tools/conformance.py --again operators/linalg.inv --write
Some subjects, which are not stored:  python tools/conformance.py --only operators/linalg.inv --only "modules/nn.Conv*"
The fixed sample of the tests:        python tools/conformance.py --sample
The page from what is stored:         python tools/conformance.py --no-run --write
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch

from counters.markdown import arguments, publish
from judges import NAMES
from judges.page import details, overview
from judges.run import Task, judge_of, run, sampled, work
from judges.store import RESULTS, WORK, Line, about, amend, begun, faults, finish, read, tested, text_of
from judges.verdict import Judge
from speed.process import commit


def found_judges(names: Sequence[str]) -> dict[str, Judge]:
    """Return the judges whose packages are installed; say which are not."""
    warnings.simplefilter("ignore")  # of the databases, about their own values
    found = {}
    for name in names:
        try:
            found[name] = judge_of(name)
        except ModuleNotFoundError as error:
            print(f"{name}: skipped, {error.name or error} is not installed", file=sys.stderr)
    return found


def judge_all(judges: dict[str, Judge], jobs: int) -> None:
    """Judge every case that is not stored for this code, and store each as it is found."""
    tasks, current = [], commit()
    for name, judge in judges.items():
        stored = read(RESULTS / f"{name}.jsonl")
        first = about(judge, current)
        if stored is not None and all(stored.about.get(key) == first[key] for key in ("code", "versions")):
            continue
        done = begun(WORK / f"{name}.jsonl", first)
        tasks += [Task(name, subject, tuple(c for s, c in done if s == subject)) for subject in judge.subjects()]

    def keep(task: Task, line: Line) -> None:
        with (WORK / f"{task.judge}.jsonl").open("a", encoding="utf-8") as file:
            file.write(text_of({}, [line]).partition("\n")[2])
        if faults([line]):
            _say(task, line)

    run(tasks, jobs, keep)
    for name in dict.fromkeys(task.judge for task in tasks):
        finish(WORK / f"{name}.jsonl", RESULTS / f"{name}.jsonl", judges[name].subjects())


def judge_some(tasks: Sequence[Task], jobs: int, all_shown: bool) -> Counter[str]:
    """Judge tasks, say what was found, and store nothing; return how many cases have which verdict."""
    counts: Counter[str] = Counter()

    def show(task: Task, line: Line) -> None:
        counts[line.verdict] += 1
        if all_shown or faults([line]):
            _say(task, line)

    run(tasks, jobs, show)
    return counts


def judge_again(tasks: Sequence[Task], jobs: int) -> None:
    """Judge tasks, and put their verdicts in the place of the stored ones."""
    current, found = commit(), defaultdict[str, list[Line]](list)

    def keep(task: Task, line: Line) -> None:
        found[task.judge].append(replace(line, commit=current))
        _say(task, line)

    run(tasks, jobs, keep)
    for name, lines in found.items():
        amend(RESULTS / f"{name}.jsonl", lines)


def _say(task: Task, line: Line) -> None:
    print(f"{task.judge}/{line.subject}, {line.case}: {line.verdict} {line.reason}".rstrip(), flush=True)


def markdown() -> str:
    """Return the page's tables from the stored verdicts."""
    stored = {name: found for name in NAMES if (found := read(RESULTS / f"{name}.jsonl")) is not None}
    titles = {name: found.about["title"] for name, found in stored.items()}
    parts = [overview(stored, titles, tested())]
    for name, found in stored.items():
        parts.append(f"## {titles[name]}\n\n{found.about['about']}\n\n{details(found)}")
    return "\n\n".join(parts)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--judges", default=",".join(NAMES), help="some of them, separated by commas")
    add(
        "--only",
        action="append",
        metavar="JUDGE/SUBJECT",
        help="only these, * stands for anything; may be repeated; nothing is stored",
    )
    add("--again", action="append", metavar="JUDGE/SUBJECT", help="judge only these, and replace what is stored of them")
    add("--jobs", type=int, default=2, help="processes at a time, each with one thread [2]")
    add("--sample", action="store_true", help="only the fixed sample; nothing is stored")
    add("--no-run", action="store_true", help="judge nothing")
    add("--work", action="store_true", help=argparse.SUPPRESS)
    options = arguments(parser)
    names = options.judges.split(",")
    if chosen := options.again or options.only:
        names = [name for name in names if any(fnmatch(name, pattern.partition("/")[0]) for pattern in chosen)]
    if unknown := sorted(set(names) - set(NAMES)):
        parser.error(f"no judge {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.jobs < 1:
        parser.error("--jobs must be positive")
    if options.work:
        work()
    elif options.sample or options.only:
        _judge_selected(options, found_judges(names))
    else:
        if options.again:
            judge_again(_chosen(options.again, found_judges(names)), options.jobs)
        elif not options.no_run:
            judge_all(found_judges(names), options.jobs)
        publish("conformance", markdown(), options)


def _chosen(patterns: Sequence[str], judges: dict[str, Judge]) -> list[Task]:
    """Return the subjects that ``patterns`` name."""
    subjects = [(name, subject) for name, judge in judges.items() for subject in judge.subjects()]
    return [Task(*names) for names in subjects if any(fnmatch("/".join(names), pattern) for pattern in patterns)]


def _judge_selected(options: argparse.Namespace, judges: dict[str, Judge]) -> None:
    started = time.perf_counter()
    sample = [Task(name, subject, sample=True) for name, judge in judges.items() for subject in sampled(judge)]
    tasks = sample if options.sample else _chosen(options.only, judges)
    counts = judge_some(tasks, options.jobs, bool(options.only))
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())), f"in {time.perf_counter() - started:.0f} s")
    sys.exit(1 if counts["wrong"] or counts["crashed"] else 0)


if __name__ == "__main__":
    main()
