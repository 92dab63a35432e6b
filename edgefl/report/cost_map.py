"""A map of where a network's cost sits: a cell per layer and tier, the stronger its shade, the more it takes."""

from collections.abc import Callable, Sequence
from typing import Any

from edgefl.report.chart import Chart, Json, category, cells, ending, layer, layered, slots
from edgefl.report.words import tier_label
from edgefl.util.units import human_bytes, human_count, human_percent

_KINDS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("macs_train_step", "MACs of a training step, by layer and tier", "MACs of a step", human_count),
    ("parameter_bytes", "Bytes of weights, by layer and tier", "of weights", human_bytes),
)
_LONGEST_NAME = 18


def cost_maps(summary: Json) -> tuple[Chart, ...]:
    """Return a map of MACs and one of bytes; nothing if the summary's tiers do not list layers."""
    tiers = sorted((row for row in summary["tiers"] if row.get("layers")), key=lambda row: -float(row["tier"]))
    if not tiers:
        return ()
    whole = [of["layer"] for of in tiers[0]["layers"]]
    merged = [{**row, "layers": _merged(row["layers"], whole)} for row in tiers]
    names = list(dict.fromkeys(of["layer"] for row in merged for of in row["layers"]))
    return tuple(chart for kind in _KINDS if (chart := _map(merged, names, *kind)))


def _merged(layers: Sequence[Json], whole: Sequence[str]) -> list[Json]:
    """Return layers with the factors of one (``conv2.u``, ``conv2.v``) summed under its name, where the largest tier has it whole."""
    found: dict[str, dict[str, Any]] = {}
    for of in layers:
        parent = next((name for name in whole if of["layer"].startswith(f"{name}.")), of["layer"])
        sums = found.setdefault(parent, {"layer": parent, **{key: 0 for key, *_ in _KINDS}})
        for key, *_ in _KINDS:
            sums[key] += of[key]
    return list(found.values())


def _map(
    tiers: Sequence[Json], names: Sequence[str], key: str, title: str, noun: str, human: Callable[[float], str]
) -> Chart | None:
    shown = [name for name in names if any(of[key] for row in tiers for of in row["layers"] if of["layer"] == name)]
    if not shown:
        return None
    (places,) = (rungs := slots([(None, [ending(name, _LONGEST_NAME) for name in shown])])).of
    slot = dict(zip(shown, places, strict=True))
    labels = [f"tier {tier_label(row['tier'])}" for row in tiers]
    sums = {label: sum(of[key] for of in row["layers"]) for label, row in zip(labels, tiers, strict=True)}
    found = [
        {
            "slot": slot[of["layer"]],
            "tier": label,
            "value": of[key],
            "text": human(of[key]),
            "told": f"{of['layer']}, {label}: {human(of[key])} {noun}, {human_percent(of[key] / sums[label])} of it",
        }
        for label, row in zip(labels, tiers, strict=True)
        for of in row["layers"]
        if of[key]
    ]
    first = max(tiers[0]["layers"], key=lambda of: float(of[key]))
    part = human_percent(first[key] / sums[labels[0]]) if sums[labels[0]] else human_percent(0)
    sentence = f"{first['layer']} takes most of {labels[0]}: {human(first[key])} {noun}, {part}."
    x = category("tier", None, labels)
    return Chart(
        f"map-{key}",
        title,
        sentence,
        layered(
            {"step": 24},
            cells(found, x, rungs.y, "value", range=[0.06, 0.5], zero=True),
            layer({"type": "text", "baseline": "middle", "fontSize": 11}, found, x=x, y=rungs.y, text="text"),
        ),
    )
