"""What each extra adds to an installation: packages and megabytes, as the table of docs/install.md.

Usage: python tools/extras.py --write     in an environment with edgefl[test] installed

An extra whose packages are not installed keeps its row of the page. Run the tool again in an environment that has the extra, such as
``litert``, which needs another pydantic than the tests do.
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
    "serve": "`edgefl serve`: a bundle in this computer's browser",
    "figures": "charts as SVG or PDF files, and in notebooks",
    "data": "images, tables and data sets of the Hugging Face hub",
    "trace": "traces of availability as Parquet",
    "notebook": "results as data frames, and a kernel",
    "tensorboard": "`--log tensorboard`",
    "mlflow": "`--log mlflow`",
    "wandb": "`--log wandb`",
    "ray": "`--engine ray`: [a cluster](cluster.md)",
    "flower": "[rounds with real devices](flower.md)",
    "privacy": "[differential privacy](privacy.md)",
    "executorch": "`export --also executorch`: [other formats](other-formats.md)",
    "litert": "`export --also litert`, in an environment of its own",
    "contract": "the tests that your own parts pass",
    "docs": "this site",
    "web": "the tests of the browser page; Chromium comes on top",
    "test": "the tests of the core",
    "dev": "all tests, and the tools of a release",
}
"""Extra → what it is for, in the order of the table."""


def needed(requirement: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add to ``found`` the packages that a requirement brings, by name; return it. Packages in ``found`` are not visited again.

    Raises:
        PackageNotFoundError: a package is not installed.
    """
    of = Requirement(requirement)
    for extra in (of.extras or {""}) | {""}:
        key = f"{re.sub(r'[-_.]+', '-', of.name).lower()}[{extra}]"
        if key in found:
            continue
        found[key] = distribution(of.name)
        for line in found[key].requires or []:
            own = Requirement(line)
            if own.marker is None or (own.marker.evaluate({"extra": extra}) and (not extra or "extra" in str(own.marker))):
                needed(line, found)
    return found


def megabytes(distributions: dict[str, Distribution]) -> float:
    """Return the size of all files of these packages; a package counts once."""
    files = {str(file.locate()) for of in distributions.values() for file in of.files or []}
    return sum(Path(file).stat().st_size for file in files if Path(file).is_file()) / 1e6


def row(extra: str, base: dict[str, Distribution], page: str) -> str:
    """Return the row of an extra: measured where its packages are installed, else as ``page`` has it.

    Raises:
        ValueError: the packages are not installed, and the page has no row.
    """
    try:
        added = needed(f"edgefl-sim[{extra}]", dict(base))
    except PackageNotFoundError as missing:
        kept = re.search(rf"^\| `{extra}` \|.*\| ([\d,]+ MB) \|$", page, re.MULTILINE)
        if kept is None:
            message = f"{missing.name} is not installed, and {PAGE.name} has no row of {extra}: install the extra"
            raise ValueError(message) from missing
        return f"| `{extra}` | {PURPOSE[extra]} | {kept[1]} |"
    known = {of.metadata["Name"] for of in base.values()}
    own = {key: of for key, of in added.items() if of.metadata["Name"] not in known}
    return f"| `{extra}` | {PURPOSE[extra]} | {megabytes(own):,.0f} MB |"


def table(page: str) -> str:
    """Return the Markdown table; ``page`` is the text that holds the present one."""
    base = needed("edgefl-sim", {})
    lines = ["| extra | for | adds |", "|---|---|---:|", f"| (none) | everything else | {megabytes(base):,.0f} MB in all |"]
    return "\n".join([*lines, *(row(extra, base, page) for extra in PURPOSE)])


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/install.md")
    page = PAGE.read_text(encoding="utf-8")
    if parser.parse_args().write:
        PAGE.write_text(replaced(page, "extras", table(page)), encoding="utf-8")
    else:
        print(table(page))


if __name__ == "__main__":
    main()
