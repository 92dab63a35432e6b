"""Common to all pages: the template engine, the style of charts, and Vega's code, which each page contains so that it works offline."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from edgefl.report.chart import Chart, Spec
from edgefl.report.words import STATUSES, UNKNOWN

CONFIG: Spec = json.loads(Path(__file__).with_name("vega_config.json").read_text(encoding="utf-8"))
"""What all charts share, in Vega-Lite's terms."""
_HEADING = re.compile(r'<h2 id="(?P<id>[^"]+)">(?P<title>.*?)</h2>')
_FIGURE = re.compile(r"(?<=\d) (?=(?:%|[kMGTP]?B|MACs|[µm]?s|min|h|[µmkMG]?J|[kMGTP])(?![\w]))")
"""The space between a figure and its unit."""


class Library(NamedTuple):
    """The code that draws charts: the ``versions`` of its parts, and its JavaScript ``packed`` by zlib, in base64.

    Packed it takes 0.41 MB of a page instead of 0.90 MB; the page unpacks it by itself.
    """

    versions: str
    packed: str


@cache
def vega() -> Library:
    """Return Vega, Vega-Lite and Vega-Embed, which ``tools/vega.py`` has bundled; ``vega-licence.md`` has their licences."""
    return Library(*Path(__file__).with_name("vega.packed").read_text(encoding="utf-8").split("\n"))


def render_page(template: str, **values: Any) -> str:
    """Return a page, with the charts among ``values``; everything except Vega's own code is escaped.

    ``template`` extends ``page.html.j2``: it places the charts, and names ``values``. It is a file of this folder, or ``PART/FILE`` of
    contrib.
    """
    return (
        _environment()
        .get_template(template)
        .render(
            specs={chart.key: chart.spec for chart in _charts_in(values) if chart.spec is not None},
            config=CONFIG,
            statuses={**STATUSES, "unknown": UNKNOWN},
            vega=vega().packed,
            about=values.pop("about", ()),
            answer=values.pop("answer", None),
            command=values.pop("command", ""),
            vega_versions=vega().versions,
            **values,
        )
    )


@cache
def _environment() -> Environment:
    """Return the template engine, which compiles each template once."""
    loader = ChoiceLoader([PackageLoader("edgefl", "report"), PackageLoader("edgefl", "contrib")])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_unbroken
    )
    environment.filters["sections"] = _sections
    return environment


def _unbroken(value: Any) -> Any:
    r"""Return a text whose figures stay beside their units, so that no line begins with "%"; anything but a text as it is.

    >>> _unbroken("94.2 % in 6.73 s").split(" ")
    ['94.2\xa0%', 'in', '6.73\xa0s']
    """
    return _FIGURE.sub("\xa0", value) if type(value) is str else value


def _sections(content: str) -> list[tuple[str, str]]:
    """Return the id and the title of every section of a page."""
    return [(found["id"], unescape(found["title"])) for found in _HEADING.finditer(content)]


def _charts_in(value: Any) -> Iterator[Chart]:
    if isinstance(value, Chart):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _charts_in(inner)


def facts(record: object, keys: Iterable[str]) -> list[tuple[str, str]]:
    """Return what a page says at its top: names and values of the keys that have one."""
    return [(key.replace("_", " "), str(value)) for key in keys if (value := getattr(record, key)) is not None]
