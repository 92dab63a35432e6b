"""The last evaluation of a run in detail: its record, and its charts of classes and clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import fmean, median
from typing import Annotated

from pydantic import Field

from edgefl.report.chart import WHOLE, Chart, category, cells, colour, layer, layered, number, share, slots
from edgefl.report.results import Result
from edgefl.report.run_rows import Whole
from edgefl.util.units import human_percent

Share = Annotated[float, Field(ge=0, le=1)]

MOST_CLASSES = 30
"""Of more classes there is no confusion matrix."""
_MOST_BARS = 30
_BINS = 20


@dataclass(frozen=True)
class ClientScore(Result):
    """The accuracy of a client's final model on held-out ``samples`` with its own shares of labels."""

    client: Whole
    device: str
    tier: Annotated[float, Field(ge=0)]
    samples: Whole
    accuracy: Share


@dataclass(frozen=True)
class Evaluation(Result):
    """What the final models predict.

    Attributes:
        labels: the names of the classes.
        samples: held-out samples of each class, of which ``right`` were classified correctly.
        confusion: class → predicted class → samples; empty if there are more than :data:`MOST_CLASSES`.
        clients: the clients that were evaluated, each with the model of its tier or its own.
    """

    labels: tuple[str, ...]
    samples: tuple[Whole, ...]
    right: tuple[Whole, ...]
    confusion: tuple[tuple[Whole, ...], ...]
    clients: tuple[ClientScore, ...]


def evaluation_charts(found: Evaluation | None, titles: Mapping[str, str]) -> tuple[Chart, ...]:
    """Return accuracy per class, the confusion matrix, and accuracy per client; nothing without a last evaluation.

    ``titles`` are the names of devices for people.
    """
    if found is None:
        return ()
    return tuple(chart for chart in (_by_class(found), _confusion(found), client_chart(found.clients, titles)) if chart)


def _by_class(found: Evaluation) -> Chart | None:
    """Return the accuracy of every label, or of the weakest if there are many."""
    counts = zip(found.labels, found.samples, found.right, strict=True)
    ranked = sorted(((right / samples, label, samples) for label, samples, right in counts if samples), key=itemgetter(0))
    if not ranked:
        return None
    (least, weakest, _), (most, best, _) = ranked[0], ranked[-1]
    sentence = f"The weakest label is {weakest}, {human_percent(least)}; the best is {best}, {human_percent(most)}."
    if len(ranked) > _MOST_BARS:
        sentence += f" Drawn are the {_MOST_BARS} weakest of {len(ranked)} labels."
    shown = ranked[:_MOST_BARS]
    (places,) = (rungs := slots([(None, [_short(label) for _, label, _ in shown])])).of
    bars = [
        {"label": label, "value": value, "told": f"{label}: {human_percent(value)} of {samples:,}", "slot": slot}
        for (value, label, samples), slot in zip(shown, places, strict=True)
    ]
    x = share("value", "accuracy", domain=[0, 1])
    bar = layer({"type": "bar", "color": colour(0)}, bars, x=x, y=rungs.y, tooltip="told")
    return Chart("class-accuracy", "Accuracy per label", sentence, layered({"step": 20}, bar))


def _confusion(found: Evaluation) -> Chart | None:
    """Return which label is taken for which: shades are shares of a label's samples."""
    labels, counts = found.labels, found.confusion
    if not counts or len(labels) < 2:
        return None
    (places,) = (rungs := slots([(None, [_short(label) for label in labels])])).of
    taken, wrong = [], []
    for row, (true, slot) in enumerate(zip(labels, places, strict=True)):
        whole = sum(counts[row])
        for column, predicted in enumerate(labels):
            if not (count := counts[row][column]):
                continue
            part = count / whole
            told = f"{true} taken for {predicted}: {count:,} of {whole:,}, {human_percent(part)}"
            taken.append({"slot": slot, "predicted": predicted, "share": part, "told": told})
            if row != column:
                wrong.append((part, told))
    sentence = f"Most often confused: {max(wrong)[1]}." if wrong else "No held-out sample was classified wrongly."
    x = category("predicted", "predicted label", labels)
    if max(map(len, labels)) > 2:
        x["axis"] = {"grid": False, "labelAngle": -90, "labelLimit": 100}
    rect = cells(taken, x, rungs.y, "share", domain=[0, 1], range=[0.08, 1])
    return Chart("confusion", "Which label is taken for which", f"A row per true label. {sentence}", layered({"step": 22}, rect))


def client_chart(clients: Sequence[ClientScore], titles: Mapping[str, str]) -> Chart | None:
    """Return the histogram of clients' accuracies, and in words the median and the worst tenth; None without clients."""
    if not clients:
        return None
    ranked = sorted(clients, key=lambda row: row.accuracy)
    worst = ranked[: max(1, len(ranked) // 10)]
    mean, lowest = fmean(row.accuracy for row in worst), ranked[0]
    device = titles.get(lowest.device, lowest.device)
    sentence = (
        f"The median of {len(ranked)} clients has {human_percent(median(row.accuracy for row in ranked))}, the worst tenth "
        f"{human_percent(mean)} on average, and the worst client ({lowest.client}, {device}) {human_percent(lowest.accuracy)}."
    )
    counts: dict[int, int] = {}
    for row in ranked:
        place = min(int(row.accuracy * _BINS), _BINS - 1)
        counts[place] = counts.get(place, 0) + 1
    bins = [
        {
            "from": place / _BINS,
            "to": (place + 1) / _BINS,
            "clients": count,
            "told": f"{count} clients: {place * 5} to {place * 5 + 5} %",
        }
        for place, count in sorted(counts.items())
    ]
    x, y = (
        share("from", "accuracy on own held-out samples", domain=[0, 1]),
        number("clients", "clients", **WHOLE | {"tickCount": 5}),
    )
    spec = layered(230, layer({"type": "bar", "color": colour(0)}, bins, x=x, x2="to", y=y, y2={"datum": 0}, tooltip="told"))
    return Chart("client-accuracy", "Accuracy per client", sentence, spec)


def _short(label: str) -> str:
    return label if len(label) <= 14 else f"{label[:13]}…"
