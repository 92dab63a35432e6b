"""The tables of docs/conformance.md, from the stored verdicts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from counters.markdown import table

from judges import NAMES
from judges.store import Line, Stored

KINDS = ("equal", "partly refused", "refused", "wrong", "crashed", "skipped")
"""What is counted of subjects: equal is equal in all cases, and partly refused is equal in the others."""


def kind_of(lines: Iterable[Line]) -> str:
    """Return the kind of a subject from the verdicts of its cases; one bad case decides.

    >>> kind_of([Line("Relu", "a", "equal"), Line("Relu", "b", "refused", "why")])
    'partly refused'
    """
    verdicts = {line.verdict for line in lines}
    for bad in ("crashed", "wrong"):
        if bad in verdicts:
            return bad
    if "refused" in verdicts:
        return "partly refused" if "equal" in verdicts else "refused"
    return "equal" if "equal" in verdicts else "skipped"


def by_subject(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Return subject → its lines, in their order."""
    found = defaultdict[str, list[Line]](list)
    for line in lines:
        found[line.subject].append(line)
    return dict(found)


def overview(stored: Mapping[str, Stored], titles: Mapping[str, str], tested: Mapping[str, str]) -> str:
    """Return the table of all judges: subjects and cases by kind, versions and commit. ``tested``: package → edgefl's tested version."""
    rows = []
    for name in NAMES:
        if name not in stored:
            rows.append([titles.get(name, name), "not run", *[""] * (len(KINDS) + 3)])
            continue
        found = stored[name]
        subjects = Counter(kind_of(lines) for lines in by_subject(found.lines).values())
        cases = Counter(line.verdict for line in found.lines)
        judged = sum(subjects.values()) - subjects["skipped"]
        share = f"{100 * subjects['equal'] / judged:.1f} %" if judged else "–"
        counts = [f"**{subjects[k]:,}**" if k in ("wrong", "crashed") and subjects[k] else f"{subjects[k]:,}" for k in KINDS]
        versions = ", ".join(with_tested(package, of, tested) for package, of in found.about["versions"].items())
        rows.append(
            [
                titles[name],
                *counts,
                share,
                f"{cases['equal']:,} of {len(found.lines) - cases['skipped']:,}",
                versions,
                _commits(found),
            ]
        )
    return table(["judge", *KINDS, "share", "equal cases", "with", "commit"], rows)


def _commits(found: Stored) -> str:
    """Return the commit of a run, and those of cases that were judged again."""
    again = Counter(line.commit for line in found.lines if line.commit)
    return "; ".join([found.about["commit"], *(f"{count} cases again at {commit}" for commit, count in again.items())])


def with_tested(package: str, version: str, tested: Mapping[str, str]) -> str:
    """Return a package with its version, and the tested version if it is another one.

    >>> with_tested("torch", "2.12.0", {"torch": "2.13.0"}), with_tested("peft", "1.0", {})
    ('torch 2.12.0 (**another version**: edgefl is tested with 2.13.0)', 'peft 1.0')
    """
    expected = tested.get(package, version)
    return f"{package} {version}" + (f" (**another version**: edgefl is tested with {expected})" if version != expected else "")


def details(found: Stored) -> str:
    """Return what a judge says of its subjects: counts by family, then every reason with the subjects that it concerns."""
    subjects = by_subject(found.lines)
    parts = [_families(subjects)] if len({family_of(subject) for subject in subjects}) > 1 else []
    for bad in ("wrong", "crashed", "refused", "skipped"):
        reasons = defaultdict[str, dict[str, int]](dict)
        for subject, lines in subjects.items():
            for line in lines:
                if line.verdict == bad:
                    of = reasons[general(line.reason, subject)]
                    of[subject] = of.get(subject, 0) + 1
        if reasons:
            rows = [
                [reason, f"{len(of)}", _named(of)]
                for reason, of in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
            ]
            parts.append(table([f"{bad}: why", "subjects", "which (cases)"], rows))
    return "\n\n".join(parts)


def _families(subjects: Mapping[str, Sequence[Line]]) -> str:
    """Return counts of subjects by their namespace, such as ``linalg``."""
    kinds = defaultdict[str, Counter[str]](Counter)
    for subject, lines in subjects.items():
        kinds[family_of(subject)][kind_of(lines)] += 1
    rows = [[family, *(f"{counts[k]:,}" for k in KINDS)] for family, counts in sorted(kinds.items())]
    return table(["family", *KINDS], rows)


def family_of(subject: str) -> str:
    """Return the family of an operator or model.

    >>> family_of("linalg.inv"), family_of("add"), family_of("light/light_vgg19"), family_of("nn.functional.pad.reflect")
    ('linalg', 'torch', 'light', 'nn.functional')
    """
    if "/" in subject:
        return subject.partition("/")[0]
    found = re.match(r"(nn\.functional|linalg|fft|special|masked|signal\.windows|_refs|torch\.ops\.aten)\.", subject)
    return found[1] if found else "torch"


def general(reason: str, subject: str) -> str:
    """Return a reason without what differs between subjects: figures, and names of nodes.

    >>> general("node_Pow_3 (Pow): differs by 1.5e-07, [2, 1]", "Pow")
    'node … (Pow): differs by …, …'
    """
    text = re.sub(r"\bnode_\w+|\bnode '[^']*'", "node …", reason)
    text = re.sub(r"[\[(][\d, x?]*[\])]", "…", text)
    text = re.sub(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])", "…", text)
    text = re.sub(r"; known: .*|Known: .*", "", text, flags=re.IGNORECASE)
    return re.sub(r"values\.…\S*", "values…", text).replace("|", "\\|").replace("<", "&lt;")[:160].strip()


def _named(of: Mapping[str, int]) -> str:
    return ", ".join(f"{subject} ({count})" for subject, count in of.items())
