"""What each extra adds to an installation: packages and megabytes, as the table of docs/install.md.

Usage: python tools/extras.py --write     in an environment with edgefl[test] installed
"""

from __future__ import annotations

import argparse
import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from counters.markdown import replaced
from packaging.requirements import Requirement

PAGE = Path(__file__).resolve().parent.parent / "docs/install.md"
PURPOSE = {
    "data": "images, tables and data sets of the Hugging Face hub",
    "trace": "traces of availability as Parquet",
    "notebook": "results as data frames, and a kernel",
    "tensorboard": "`--log tensorboard`",
    "mlflow": "`--log mlflow`",
    "wandb": "`--log wandb`",
    "ray": "`--engine ray`: [a cluster](cluster.md)",
    "flower": "[rounds with real devices](flower.md)",
    "contract": "the tests that your own parts pass",
    "privacy": "[differential privacy](privacy.md)",
    "docs": "this site",
    "test": "all tests",
}
"""Extra → what it is for; the others are for the authors of edgefl."""


def needed(requirement: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add to ``found`` the installed packages that a requirement brings, by name; return it. Those of ``found`` are not visited again."""
    of = Requirement(requirement)
    for extra in (of.extras or {""}) | {""}:
        key = f"{re.sub(r'[-_.]+', '-', of.name).lower()}[{extra}]"
        if key in found:
            continue
        try:
            found[key] = distribution(of.name)
        except PackageNotFoundError:
            continue
        for line in found[key].requires or []:
            own = Requirement(line)
            if own.marker is None or (own.marker.evaluate({"extra": extra}) and (not extra or "extra" in str(own.marker))):
                needed(line, found)
    return found


def megabytes(distributions: dict[str, Distribution]) -> float:
    """Return the size of all files of these packages; a package counts once."""
    files = {str(file.locate()) for of in distributions.values() for file in of.files or []}
    return sum(Path(file).stat().st_size for file in files if Path(file).is_file()) / 1e6


def table() -> str:
    """Return the Markdown table."""
    base = needed("edgefl-sim", {})
    lines = ["| extra | for | adds |", "|---|---|---:|", f"| (none) | everything else | {megabytes(base):,.0f} MB in all |"]
    for extra, purpose in PURPOSE.items():
        added = {key: of for key, of in needed(f"edgefl-sim[{extra}]", dict(base)).items() if key not in base}
        known = {of.metadata["Name"] for of in base.values()}
        added = {key: of for key, of in added.items() if of.metadata["Name"] not in known}
        lines.append(f"| `{extra}` | {purpose} | {megabytes(added):,.0f} MB |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/install.md")
    if parser.parse_args().write:
        PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), "extras", table()), encoding="utf-8")
    else:
        print(table())


if __name__ == "__main__":
    main()
