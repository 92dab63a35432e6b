"""The page docs/nano.md: its program runs, prints what the page shows, and the path through the code is as short as the page says."""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/nano.md").read_text(encoding="utf-8")


def counted(text: str) -> list[str]:
    """The lines without losses, accuracies and bytes of ONNX, which may differ between processors and between versions of torch."""
    return [re.sub(r"\d+\.\d+%?(?=,| in| to|$)|[\d,]+ bytes of ONNX", "#", line) for line in text.splitlines()]


def test_the_program_prints_what_the_page_shows(tmp_path, capsys):
    program, shown = (re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[1] for kind in ("python", "text"))
    (tmp_path / "nano.py").write_text(program, encoding="utf-8")
    runpy.run_path(str(tmp_path / "nano.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert counted(printed) == counted(shown)
    accuracies = [float(share) for share in re.findall(r"accuracy ([\d.]+)%", printed)]
    assert len(accuracies) == 2
    assert min(accuracies) > 90


def test_the_page_and_the_path_through_the_code_are_short():
    assert len(PAGE.splitlines()) <= 300
    path = re.findall(r"\]\(\.\./(edgefl/[\w/]+\.py)\)", PAGE.partition("## The shortest path")[2])
    assert len(path) == 7
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in path)
    assert lines <= 1_500
