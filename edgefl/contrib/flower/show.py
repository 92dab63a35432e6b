"""The comparison of a run of real devices with its simulation, for ``edgefl compare``."""

import json
from pathlib import Path
from typing import Any

from edgefl.cli.console import echo, show_result
from edgefl.contrib.flower.twin import twin_of, twin_table
from edgefl.contrib.flower.twin_page import twin_page
from edgefl.registry import view
from edgefl.util.files import write_bytes


@view("twin")
def show_twin(both: list[Any], out: Path | None, as_json: bool) -> None:
    """Print the comparison of the summaries and rounds of ``both`` runs, and write its page into ``out``."""
    twin = twin_of(both[0], both[1])
    if out is not None:
        write_bytes(out / "compare.html", twin_page(twin).encode())
    if as_json:
        echo(json.dumps(twin.to_dict(), indent=2))
    else:
        show_result(twin_table(twin))
