"""The pages that a person reads: every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = {"all-methods.md", "all-devices.md"}
"""The site's build writes these pages, perhaps while tests are collected, and checks their links itself."""
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for page in ROOT.glob("docs/*.md") if page.name not in GENERATED),
        *ROOT.glob("export/*.md"),
        *ROOT.glob("profiles/*.md"),
        *ROOT.glob("edgefl/**/*.md"),
    ]
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them: lower case, hyphens for spaces, other signs dropped."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"
