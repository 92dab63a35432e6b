"""The pages of the site that list parts of the package: every method with its options, every device with the sources of its figures."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from click.testing import CliRunner

from edgefl.cli.main import group

Facts = Mapping[str, Any]
COMBINES = {
    "objective": "objectives",
    "server_optimizer": "server optimizers",
    "codec": "codecs",
    "tier_assignment": "tier assignments",
}


def pages() -> dict[str, str]:
    """Return the name of each page → its Markdown."""
    known = _facts("devices")
    devices = [_facts("devices", row["name"]) for row in known["devices"]]
    return {"all-methods": _page(_methods(_facts("methods"))), "all-devices": _page(_devices(devices, known["fleets"]))}


def _facts(*arguments: str) -> Any:
    result = CliRunner().invoke(group, [*arguments, "--json"], catch_exceptions=False)
    return json.loads(result.stdout)


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    yield from ("", "| " + " | ".join(header) + " |", "|" + "---|" * len(header))
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |"
    yield ""


def _methods(methods: Sequence[Facts]) -> Iterator[str]:
    yield "# Every method, with its options\n\nThe list is made from the code. `edgefl methods NAME` shows the same in a terminal."
    for method in methods:
        tiers = "one size for all clients" if method["one_size"] else ", ".join(f"{ratio:g}" for ratio in method["default_tiers"])
        yield f"\n## {method['name']}\n\n{method['title']} ({method['paper']}).\n"
        yield f"- A tier is a {method['tier_meaning']}." if not method["one_size"] else f"- Size: {method['tier_meaning']}."
        yield f"- Tiers by default: {tiers}."
        yield f"- Travels: {method['travels'] or 'nothing'}."
        yield f"- Stays on the client: {method['stays'] or 'nothing'}."
        for axis, words in COMBINES.items():
            yield f"- Combines with the {words} {', '.join(f'`{name}`' for name in method['combines'][axis]) or 'of the default only'}."
        yield from (f"- Refuses `{choice}`: {reason}." for choice, reason in method["refuses"].items())
        yield "\n" + re.sub(r":\w+:`~?([^`]+)`", r"`\1`", method["about"]) + "\n"
        if method["options"]:
            rows = [(f"`{o['name']}`", o["type"], f"`{json.dumps(o['default'])}`", o["about"]) for o in method["options"]]
            yield from _table(("option", "type", "default", "meaning"), rows)


def _devices(devices: Sequence[Facts], fleets: Sequence[Facts]) -> Iterator[str]:
    yield (
        "# Every device, with the sources of its figures\n\nThe list is made from `profiles/`. `edgefl devices NAME` shows the same in a "
        "terminal. The mark of a figure says where it comes from: *measured* by the source, stated by a *vendor*, *derived* by the "
        "arithmetic in the note, or *assumed*."
    )
    for fleet in fleets:
        mix = ", ".join(f"{row['share']:.0%} `{row['device']}`" for row in fleet["classes"])
        yield f"\nFleet `{fleet['name']}` ({fleet['title']}): {mix}."
    for device in devices:
        yield f"\n## {device['name']}\n\n{device['title']}: {device['reference_hardware']}.\n"
        for key, of in device["figures"].items():
            if "value" in of:
                note = f" ({of['note']})" if of["note"] else ""
                yield f"- `{key}`: {_number(of['value'])}. *{of['mark']}*: {of['source']}{note}"


def _number(value: object) -> object:
    """Return a number as people write it.

    >>> _number(4294967296.0), _number(0.37)
    ('4,294,967,296', '0.37')
    """
    return f"{value:,.12g}" if isinstance(value, float) else value
