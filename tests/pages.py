"""Reading what the report room writes: pages as a browser would, tables as a terminal of some width shows them."""

import functools
import io
import json
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import jsonschema
import vl_convert
from rich.console import Console, RenderableType

from edgefl.report.page import CONFIG
from edgefl.report.terminal import shown


class Page(HTMLParser):
    """What a page asks a browser to do: its tags, addresses, headings, captions, and the text that is not a script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.headings: list[tuple[int, str]] = []
        self.text = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = tag
        if re.fullmatch(r"h\d", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            return
        data = data.replace("\xa0", " ")
        self.text += data
        if re.fullmatch(r"h\d", self._open):
            level, text = self.headings.pop()
            self.headings.append((level, text + data.strip()))


def charts_of(page: str) -> dict[str, Any]:
    """Return the specifications of a page's charts, by their keys."""
    return dict(json.loads(data_of(page))["charts"])


def data_of(page: str) -> str:
    """Return the JSON that a page holds, as it is written there."""
    found = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return found[1]


def layers(spec: Any, mark: str) -> list[Any]:
    """Return the layers of a chart that have this mark."""
    return [layer for layer in spec["layer"] if mark in (layer["mark"], *_types(layer["mark"]))]


def _types(mark: Any) -> list[Any]:
    return [mark["type"]] if isinstance(mark, dict) else []


def rows(spec: Any, mark: str) -> list[Any]:
    """Return what the layers of a chart with this mark show."""
    return [row for layer in layers(spec, mark) for row in layer["data"]["values"]]


def series(shown: Iterable[Any], field: str) -> dict[str, list[Any]]:
    """Return the values of a field by the series of their rows, both in the order of the rows."""
    found: dict[str, list[Any]] = {}
    for row in shown:
        found.setdefault(row["series"], []).append(row[field])
    return found


def looks(layer: Any, channel: str) -> dict[str, Any]:
    """Return how a channel of a layer shows each series."""
    scale = layer["encoding"][channel]["scale"]
    return dict(zip(scale["domain"], scale["range"], strict=True))


def heads(spec: Any) -> list[str]:
    """Return the headings above the bars of a chart, from top to bottom."""
    return [row["head"] for row in rows(spec, "text") if "head" in row]


def labels(spec: Any) -> list[str]:
    """Return the labels beside the bars of a chart, from top to bottom."""
    places = next(layer["encoding"]["y"]["scale"]["domain"] for layer in spec["layer"] if "y" in layer["encoding"])
    return [place.partition("|")[2] for place in places if not place.endswith("|")]


def drawn(spec: Any) -> str:
    """Return a chart as Vega-Lite draws it, after its specification passed Vega-Lite's schema."""
    _schema().validate({**spec, "layer": [{**layer, "data": {"values": []}} for layer in spec["layer"]]})
    svg = str(vl_convert.vegalite_to_svg(json.dumps({**spec, "config": CONFIG})))
    assert "NaN" not in svg
    assert "undefined" not in svg
    return svg


@functools.cache
def _schema() -> jsonschema.Draft7Validator:
    schema = json.loads((files("altair") / "vegalite" / "v6" / "schema" / "vega-lite-schema.json").read_text("utf-8"))
    return jsonschema.Draft7Validator({**schema, "$ref": "#/definitions/TopLevelLayerSpec"})


def printed(table: RenderableType, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(shown(table))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
