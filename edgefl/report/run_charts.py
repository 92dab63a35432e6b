"""The charts of a run's page: accuracy, what tiers cost, and how much of each budget the device classes use."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from edgefl.records import Metric
from edgefl.report.chart import WHOLE, Chart, Json, Spec, clock_unit, colour, layer, layered, lines, number, share, slots
from edgefl.report.cost_page import TRAFFIC, Measure, measured
from edgefl.report.metric import best_of, metric_axis, metric_text, reaches, worst_of
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary, RunSummary
from edgefl.report.run_rows import BudgetUse, ClassRow
from edgefl.report.run_tables import budget_entries
from edgefl.report.words import USEFUL, budget_name, clock_word, energy_trust, tier_label
from edgefl.util.units import human_budget, human_bytes, human_percent, human_seconds

_WIDEST_SHARE = 1.5


def tier_colour(summary: AnySummary, tier: float | None) -> str:
    """Return the CSS variable of a tier's colour, the same in every chart: the largest tier has the first."""
    tiers = sorted((row.tier for row in summary.tiers), reverse=True)
    return colour(tiers.index(tier)) if tier in tiers else "var(--refused)" if tier is None else "var(--soft)"


def trust_facts(summary: AnySummary) -> list[tuple[str, str]]:
    """Return how far simulated seconds and joules can be trusted."""
    errors = sorted({item.clock_error for item in summary.classes})
    factors = " to ".join(f"{error:.3g}" for error in dict.fromkeys(errors[:1] + errors[-1:]))
    clock = [("seconds of training", f"right within a factor of {factors}")] if errors else []
    return [*clock, trust_of_energy(summary)]


def trust_of_energy(summary: AnySummary) -> tuple[str, str]:
    """Return how far joules can be trusted, or that they are unknown."""
    return "energy", energy_trust(summary.energy_j, (item.energy_error for item in summary.classes))


def deadline_facts(summary: AnySummary) -> list[tuple[str, str]]:
    """Return the deadline of a round, and the calendar and the clock margin if there are any, with their names."""
    deadline = "none" if summary.deadline_s is None else human_seconds(summary.deadline_s)
    calendar = [("calendar", summary.calendar)] if summary.calendar else []
    return [("round deadline", deadline), *calendar, *margin_facts(summary.clock_margin)]


def margin_facts(margin: float) -> list[tuple[str, str]]:
    """Return the clock margin with which tiers were assigned, and its name; nothing without a margin."""
    return (
        [] if margin == 1 else [("clock margin", f"{margin:g}: tiers were assigned as if training took {margin:g} times as long")]
    )


def tier_colours(summary: AnySummary) -> list[str]:
    """Return the colours of the rows of a table of tiers."""
    return [tier_colour(summary, row.tier) for row in summary.largest_first]


def accuracy_charts(summary: RunSummary, rounds: Sequence[RoundLine]) -> tuple[Chart, ...]:
    """Return accuracy over rounds, over bytes sent and over the clock, a simulated or a real one."""
    evaluated, sent_bytes, total_bytes = list[RoundLine](), list[int](), 0
    for line in rounds:
        total_bytes += line.download_bytes + line.upload_bytes
        if line.accuracy:
            evaluated.append(line)
            sent_bytes.append(total_bytes)
    unit, unit_s = clock_unit(max((line.clock_s for line in evaluated), default=0.0))
    metric, clock = summary.metric, clock_word(rounds)
    title = metric.name.capitalize()
    axes = {
        f"{title} over rounds": number("round", "round", **WHOLE),
        f"{title} over bytes sent": number("bytes", "bytes sent, down and up", "~s", "B"),
        f"{title} over {clock} time": number("clock", f"{clock} time ({unit})"),
    }
    keys = [f"accuracy-{axis['field']}" for axis in axes.values()]
    if not evaluated:
        sentence = f"No round was evaluated, so there is no {metric.name} to draw."
        return tuple(Chart(key, title, sentence, None) for key, title in zip(keys, axes, strict=True))
    whole = "mean of clients" if summary.of_clients else "global"
    labels = {tier_label(tier): tier for tier in sorted((row.tier for row in summary.tiers), reverse=True)}
    names = merged({label: f"tier {label}" for label in labels}, [line.accuracy for line in evaluated], metric) | {
        "global": whole
    }
    colours = {names[label]: tier_colour(summary, tier) for label, tier in labels.items() if label in names}
    colours[whole] = "var(--ink)"
    rows = [
        {
            "series": name,
            "accuracy": reached,
            "round": line.round,
            "bytes": sent,
            "clock": line.clock_s / unit_s,
            "told": f"{name}: {metric_text(metric, reached)} in round {line.round}, "
            f"after {human_bytes(sent)} and {human_seconds(line.clock_s)}",
        }
        for line, sent in zip(evaluated, sent_bytes, strict=True)
        for label, name in names.items()
        if (reached := line.accuracy.get(label)) is not None
    ]
    y = metric_axis(metric, zero=False)
    drawn = [layered(260, *lines(rows, colours, axis, y, dotted=whole)) for axis in axes.values()]
    same = " Curves that are within half a point of each other on average are one line." if len(names) <= len(labels) else ""
    sentences = (_accuracy_by_tier(summary, evaluated) + same, *_close_to_best(summary, evaluated, sent_bytes))
    return tuple(Chart(*parts) for parts in zip(keys, axes, sentences, drawn, strict=True))


def merged(names: Mapping[str, str], evaluated: Sequence[Mapping[str, float]], metric: Metric) -> dict[str, str]:
    """Return ``names`` of the curves to draw; those on average within half a point of an earlier one share its line and its name.

    >>> evaluated = [{"1": 0.5, "0.5": 0.504, "0.25": 0.4}]
    >>> merged({"1": "tier 1", "0.5": "tier 0.5", "0.25": "tier 0.25"}, evaluated, Metric())
    {'1': 'tier 1, tier 0.5', '0.25': 'tier 0.25'}
    """
    found: dict[str, list[str]] = {}

    def same(one: str, other: str) -> bool:
        if not all({one, other} <= accuracy.keys() for accuracy in evaluated):
            return False
        return fmean(abs(accuracy[one] - accuracy[other]) for accuracy in evaluated) <= 0.005 * metric.share

    for label, name in names.items():
        found.setdefault(next((drawn for drawn in found if same(drawn, label)), label), []).append(name)
    return {label: ", ".join(together) for label, together in found.items()}


def loss_chart(summary: RunSummary, rounds: Sequence[RoundLine]) -> Chart | None:
    """Return the training loss of each tier: the mean over a round's clients that trained, weighted by their samples; None without any."""
    rows: list[Json] = []
    for line in rounds:
        losses: dict[float, list[tuple[float, float]]] = {}
        for client in line.clients:
            if client.status == USEFUL and client.train_loss is not None and client.tier is not None:
                losses.setdefault(client.tier, []).append((client.train_loss, client.samples or 1))
        for tier, pairs in losses.items():
            mean = sum(loss * samples for loss, samples in pairs) / sum(samples for _, samples in pairs)
            name = f"tier {tier_label(tier)}"
            told = f"{name}: loss {mean:.4g} in round {line.round}"
            rows.append({"series": name, "tier": tier, "round": line.round, "loss": mean, "told": told})
    if not rows:
        return None
    last = {row["series"]: row["loss"] for row in rows}
    tiers = sorted({row["tier"] for row in rows}, reverse=True)
    colours = {f"tier {tier_label(tier)}": tier_colour(summary, tier) for tier in tiers}
    sentence = (
        f"At the end, clients' mean loss on their own samples is {', '.join(f'{last[name]:.3g} ({name})' for name in colours)}."
    )
    x, y = number("round", "round", **WHOLE), number("loss", "training loss", tickCount=5)
    return Chart("loss", "Training loss over rounds", sentence, layered(260, *lines(rows, colours, x, y)))


def _accuracy_by_tier(summary: RunSummary, evaluated: Sequence[RoundLine]) -> str:
    last, metric = evaluated[-1], summary.metric
    accuracy = dict(last.accuracy)
    whole, when = metric_text(metric, accuracy.pop("global", None)), f"After round {last.round}"
    are, be, of = ("are right on", "is right on", " of") if metric.share else (f"have {metric.name}", f"has {metric.name}", " on")
    if summary.of_clients:
        sentence = f"{when} clients {are} {whole}{of} held-out samples of their own, on average"
    else:
        sentence = f"{when} the global model {be} {whole}{of} held-out samples"
    if accuracy:
        worst = worst_of(metric)(accuracy.values())
        label = next(label for label, value in accuracy.items() if value == worst)
        sentence += f", the weakest tier ({label}) {'on ' if metric.share else ''}{metric_text(metric, worst)}"
    if last.accuracy_after_training is None:
        return f"{sentence}."
    after = metric_text(metric, last.accuracy_after_training)
    return f"{sentence}. Right after local training, the round's clients {are} {after}{of} their own."


def _close_to_best(summary: RunSummary, evaluated: Sequence[RoundLine], sent_bytes: Sequence[int]) -> tuple[str, str]:
    """Return what it took, in bytes and in time, to come within one point of the best global accuracy."""
    metric = summary.metric
    reached = [line.accuracy["global"] for line in evaluated]
    best = best_of(metric)(reached)
    first = next(i for i, value in enumerate(reached) if reaches(metric, value, best - 0.01 * metric.share))
    line = evaluated[first]
    who = "The clients' mean" if summary.of_clients else "The global model"
    claim = f"{who} {'came within one point of' if metric.share else 'reached'} its best ({metric_text(metric, best)}) after"
    return (
        f"{claim} {human_bytes(sent_bytes[first])}, of {human_bytes(sent_bytes[-1])} sent in all.",
        f"{claim} {human_seconds(line.clock_s)} of {clock_word(evaluated)} time, in round {line.round}.",
    )


def cost_charts(summary: RunSummary) -> tuple[Chart, ...]:
    """Return what each tier computes in a step, holds while it trains, and sends in a round."""
    tiers = summary.largest_first
    if not tiers:
        sentence = "The run has no tier, so there is no cost to draw."
        return tuple(Chart(f"cost-{key}", key.capitalize(), sentence, None) for key in ("compute", "memory", "traffic"))
    step = f"a training step at a batch of {summary.batch_size}"
    names = [f"tier {tier_label(row.tier)}" for row in tiers]
    compute = {name: (tier_colour(summary, row.tier), name) for name, row in zip(names, tiers, strict=True)}
    measures = (
        Measure("compute", "Compute", "MACs in a training step", "", "computes", f"MACs in {step}", compute),
        Measure("memory", "Memory", "bytes held while training", "B", "holds", f"at the peak of {step}", _MEMORY),
        Measure("traffic", "Traffic", "bytes in a round", "B", "moves", "per client and round", TRAFFIC),
    )
    steps = [max(0, row.training_memory_bytes - row.parameter_bytes - row.optimizer_bytes) for row in tiers]
    filled = (
        {**vars(row), name: row.macs_train_step, "step_bytes": of} for name, row, of in zip(names, tiers, steps, strict=True)
    )
    return measured(list(filled), measures, "cost")


_MEMORY = {
    "parameters": ("var(--part-0)", "parameter_bytes"),
    "optimizer": ("var(--part-2)", "optimizer_bytes"),
    "activations and gradients": ("var(--part-3)", "step_bytes"),
}


def budget_chart(summary: RunSummary) -> Chart:
    """Return how much of each of its budgets every device class uses, with a line at all of it."""
    key, title = "budget-use", "Budget use per device class"
    used = [(item, entries) for item in summary.classes if (entries := budget_entries(item))]
    if not used:
        return Chart(key, title, "No device class of this run has a budget.", None)
    item, tightest = max(((item, entry) for item, entries in used for entry in entries), key=lambda pair: pair[1].share)
    budget = budget_name(tightest.budget)
    sentence = f"The tightest is the {budget} of {item.title}: {human_percent(tightest.share)} of it is needed."
    return Chart(key, title, sentence, _budget_spec(summary, used))


def _budget_spec(summary: RunSummary, used: Sequence[tuple[ClassRow, Sequence[BudgetUse]]]) -> Spec:
    """Return horizontal bars, one per class and budget under the class's name, cut where they leave the chart."""
    widest = min(max(1.1, *(entry.share for _, entries in used for entry in entries)) * 1.02, _WIDEST_SHARE)
    tiers = ["no tier" if item.tier is None else f"tier {tier_label(item.tier)}" for item, _ in used]
    labels = ([budget_name(entry.budget) for entry in entries] for _, entries in used)
    places = slots([(f"{item.title} · {tier}", own) for (item, _), tier, own in zip(used, tiers, labels, strict=True)])
    rows: list[Json] = [
        {
            "slot": slot,
            "share": min(entry.share, widest),
            "colour": tier_colour(summary, item.tier),
            "text": human_percent(entry.share),
            "told": f"{item.title}: {human_budget(entry.budget, entry.need)} of "
            f"{human_budget(entry.budget, entry.have)} {budget_name(entry.budget)}",
        }
        for (item, entries), own in zip(used, places.of, strict=True)
        for entry, slot in zip(entries, own, strict=True)
    ]
    x = share("share", "share of the budget used", domain=[0, widest], nice=False)
    fill = {"field": "colour", "type": "nominal", "scale": None}
    inside, outside = ([row for row in rows if (row["share"] > 0.75 * widest) is within] for within in (True, False))
    text = {"type": "text", "baseline": "middle", "align": "left", "dx": 5}
    return layered(
        {"step": 24},
        layer({"type": "rule", "color": "var(--refused)", "strokeWidth": 2, "strokeDash": [6, 4]}, [{}], x={"datum": 1}),
        layer("bar", rows, x=x, y=places.y, fill=fill, tooltip="told"),
        layer({**text, "color": "var(--on-colour)"}, inside, x={"value": 0}, y=places.y, text="text"),
        layer(text, outside, x=x, y=places.y, text="text"),
        places.heads,
    )
