"""A map of where a network's cost sits: a cell per layer and tier, the stronger its shade, the more it takes."""

from collections.abc import Callable, Mapping, Sequence

from edgefl.report.chart import Chart, category, cells, ending, layer, layered, slots
from edgefl.report.run_files import RunSummary
from edgefl.report.run_rows import LayerUse
from edgefl.report.words import tier_label
from edgefl.util.units import human_bytes, human_count, human_percent

_KINDS: tuple[tuple[str, str, str, Callable[[float], str]], ...] = (
    ("macs_train_step", "MACs of a training step, by layer and tier", "MACs of a step", human_count),
    ("parameter_bytes", "Bytes of weights, by layer and tier", "of weights", human_bytes),
)
_LONGEST_NAME = 18


_Uses = Mapping[str, LayerUse]
"""Layer → what it takes of one tier."""


def cost_maps(summary: RunSummary) -> tuple[Chart, ...]:
    """Return a map of MACs and one of bytes; nothing if the summary's tiers do not list layers."""
    tiers = [row for row in summary.largest_first if row.layers]
    if not tiers:
        return ()
    whole = [of.layer for of in tiers[0].layers]
    uses = {f"tier {tier_label(row.tier)}": _merged(row.layers, whole) for row in tiers}
    names = list(dict.fromkeys(name for of in uses.values() for name in of))
    return tuple(chart for kind in _KINDS if (chart := _map(uses, names, *kind)))


def _merged(layers: Sequence[LayerUse], whole: Sequence[str]) -> dict[str, LayerUse]:
    """Return layers with the factors of one (``conv2.u``, ``conv2.v``) summed under its name, where the largest tier has it whole."""
    found: dict[str, LayerUse] = {}
    for of in layers:
        parent = next((name for name in whole if of.layer.startswith(f"{name}.")), of.layer)
        known = found.get(parent, LayerUse(parent, 0, 0))
        found[parent] = LayerUse(parent, known.macs_train_step + of.macs_train_step, known.parameter_bytes + of.parameter_bytes)
    return found


def _map(
    uses: Mapping[str, _Uses], names: Sequence[str], key: str, title: str, noun: str, human: Callable[[float], str]
) -> Chart | None:
    values = {label: {name: getattr(of, key) for name, of in layers.items()} for label, layers in uses.items()}
    shown = [name for name in names if any(of.get(name) for of in values.values())]
    if not shown:
        return None
    (places,) = (rungs := slots([(None, [ending(name, _LONGEST_NAME) for name in shown])])).of
    slot = dict(zip(shown, places, strict=True))
    sums = {label: sum(of.values()) for label, of in values.items()}
    found = [
        {
            "slot": slot[name],
            "tier": label,
            "value": value,
            "text": human(value),
            "told": f"{name}, {label}: {human(value)} {noun}, {human_percent(value / sums[label])} of it",
        }
        for label, of in values.items()
        for name, value in of.items()
        if value
    ]
    largest = next(iter(values))
    first, most = max(values[largest].items(), key=lambda pair: pair[1])
    part = human_percent(most / sums[largest] if sums[largest] else 0)
    sentence = f"{first} takes most of {largest}: {human(most)} {noun}, {part}."
    x = category("tier", None, list(uses))
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
