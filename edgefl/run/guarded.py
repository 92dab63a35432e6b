"""What protects the model of real devices: a defence if nobody has chosen one, and a check that a round has not made the model worse."""

from collections.abc import Callable, Collection, Mapping, Sequence

from edgefl.config import RunConfig
from edgefl.errors import ConfigError, EdgeflError
from edgefl.methods.axes import conflict
from edgefl.methods.tier_sum import gaps
from edgefl.records import Metric
from edgefl.run.resolved import method_of

DEFENCE = "norm-filter"
"""Averaging alone lets one device of ten spoil a model. This defence drops few updates of honest devices."""
STRENGTH = 6.0
"""If every client has one class, the changes of honest clients are up to five times as long as the median of their tier."""
MAX_DROP = 0.03
"""The largest drop that a round passes with: 3 points of accuracy, or 3 % of another metric.

On 1,000 held-out samples, the standard error of an accuracy of 90 % is 0.9 points. Three times this is 2.8, so that rounds of honest
devices seldom fail by chance.
"""
_MOST = 10


def guarded(config: RunConfig, given: Collection[str]) -> tuple[RunConfig, str]:
    """Return ``config`` with :data:`DEFENCE` of :data:`STRENGTH`, unless it has a defence, or ``given`` keys say that it has none.

    The second value is why a run cannot have it, such as a method whose clients share no coordinates; "" if it can.
    """
    if config.defence != "none" or "defence" in given:
        return config, ""
    try:
        strength = STRENGTH if config.defence_strength is None else config.defence_strength
        found = RunConfig.of({**config.model_dump(), "defence": DEFENCE, "defence_strength": strength})
        why = conflict(gaps(method_of(found)), "defence", DEFENCE)
    except ConfigError as error:
        why = str(error)
    return (config, why) if why else (found, "")


def drop_of(before: float, after: float, metric: Metric) -> float:
    """Return by how much a model got worse: a difference of shares, or the part of ``before`` for a metric that is no share.

    >>> round(drop_of(0.969, 0.919, Metric()), 3)
    0.05
    >>> drop_of(2.0, 2.5, Metric("mse", better="lower", share=False))
    0.25
    """
    worse = before - after if metric.better == "higher" else after - before
    if worse != worse:  # NaN: the model gives no finite value
        return float("inf")
    return worse if metric.share or not before else worse / abs(before)


def best_of(one: Mapping[str, float], other: Mapping[str, float], metric: Metric) -> dict[str, float]:
    """Return the better of two values for each model of ``other``.

    >>> best_of({"global": 0.9}, {"global": 0.8, "1": 0.7}, Metric())
    {'global': 0.9, '1': 0.7}
    """
    return {name: one[name] if name in one and drop_of(one[name], value, metric) > 0 else value for name, value in other.items()}


def check_drop(
    best: Mapping[str, float],
    after: Mapping[str, float],
    metric: Metric,
    max_drop: float,
    suspects: Callable[[], Sequence[str]],
) -> None:
    """Raise :class:`EdgeflError` if the global model or that of a tier drops by more than ``max_drop`` from the best so far.

    ``best`` and ``after`` have the metric by model, "global" or the label of a tier. ``suspects`` returns lines about updates that look
    wrong.
    """
    drops = {name: drop_of(best[name], after[name], metric) for name in best}
    name = max(drops, key=lambda name: drops[name])
    if drops[name] <= max_drop:
        return
    model = "the global model" if name == "global" else f"the model of tier {name}"
    scale, unit = (100, " %") if metric.share else (1, "")
    values = f"{scale * best[name]:.4g}{unit} at best, {scale * after[name]:.4g}{unit} after"
    limit = f"{100 * max_drop:g} {'points' if metric.share else '%'}"
    lines = suspects()
    shown = [f"\n  {line}" for line in lines[:_MOST]]
    more = f"\n  and {len(lines) - _MOST} more" if len(lines) > _MOST else ""
    which = (
        f"\nUpdates that look wrong:{''.join(shown)}{more}"
        if lines
        else "\nNo update looks different from the others of its tier."
    )
    raise EdgeflError(
        f"{model} gets worse on held-out data: {metric.name} {values}, more than --max-drop allows ({limit}); nothing is written. "
        f"Leave updates out, screen them (--clip-norm, --defence), or write it with --keep-anyway.{which}"
    )
