"""Numbers as text for people: three significant figures, the unit, and decimal prefixes (1 kB = 1,000 B, for memory too).

``None`` becomes a dash; a negative or infinite value raises :class:`InputError`.
"""

import math
import re
from collections.abc import Callable
from typing import Literal

from edgefl.errors import InputError

MISSING = "–"

_Steps = tuple[tuple[float, str], ...]
_COUNTS: _Steps = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
_BYTES: _Steps = tuple((factor, f"{prefix}B") for factor, prefix in _COUNTS)
_SECONDS: _Steps = ((1e-6, "µs"), (1e-3, "ms"), (1, "s"))
_CLOCK: _Steps = ((1e-6, "µs"), (1e-3, "ms"), (1, "s"), (60, "min"), (3600, "h"), (86_400, "d"))
_JOULES: _Steps = ((1e-6, "µJ"), (1e-3, "mJ"), (1, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ"))
_PREFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_AMOUNT = re.compile(
    r"^\s*(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*"
    r"(?P<prefix>[kKMGT]i?)?(?P<unit>B|MACs?|[muµμ]?[sJ]|min|h|d|%)?\s*$"
)
Unit = Literal["B", "MAC", "s", "J"]
_EXPECTED = {
    "B": "a number of bytes above 0, such as 100MB or 64KiB",
    "MAC": "a number of MACs above 0, such as 100M or 1.5G",
    "s": "a time above 0, such as 600, 10min or 2h",
    "J": "an energy above 0, such as 30 (joules) or 1kJ",
}
_OTHER = {"B": "in bytes", "MAC": "in MACs", "%": "a share", **dict.fromkeys(("µJ", "mJ", "J"), "in joules")}
_SCALED: dict[str, _Steps] = {"s": _CLOCK, "J": _JOULES[:3]}
"""Units that are written without a prefix of :data:`_PREFIXES`."""


def parse_amount(text: str, unit: Unit) -> float:
    """Return the number above 0 in ``text``, with a decimal or binary prefix (M, Mi), and with ``unit`` or none.

    Seconds may also be written as ``µs``, ``ms``, ``min``, ``h`` or ``d``, joules as ``µJ`` or ``mJ``, and µ as ``u``. Anything else is an
    InputError, which says so if the unit is another.

    >>> parse_amount("64MB", "B"), parse_amount("1.5 Gi", "B"), parse_amount("100M", "MAC"), parse_amount("30", "J")
    (64000000.0, 1610612736.0, 100000000.0, 30.0)
    >>> parse_amount("10 min", "s"), parse_amount("1 kJ", "J"), parse_amount("200 mJ", "J")
    (600.0, 1000.0, 0.2)
    """
    value, match, written = math.nan, _AMOUNT.match(text), ""
    scaled = {name: factor for factor, name in _SCALED.get(unit, ())}
    if match:
        prefix = (match["prefix"] or "").replace("k", "K")
        written = re.sub("[uμ]", "µ", match["unit"] or "").replace("MACs", "MAC")
        if written in ("", unit) or (written in scaled and not prefix):
            value = float(match["number"]) * _PREFIXES[prefix] * scaled.get(written, 1)
    if not math.isfinite(value) or value <= 0:
        other = "" if written in ("", unit, *scaled) else _OTHER.get(written, "a time")
        raise InputError(f"{text!r} is {f'{other}, expected' if other else 'not'} {_EXPECTED[unit]}")
    return value


def parse_share(text: str) -> float:
    """Return the share in (0, 1] in ``text``, which may be in percent; otherwise raise InputError.

    >>> parse_share("0.85"), parse_share("85 %")
    (0.85, 0.85)
    """
    match = _AMOUNT.match(text)
    able = match is not None and not match["prefix"] and match["unit"] in (None, "%")
    value = float(match["number"]) / (100 if match["unit"] else 1) if match and able else math.nan
    if not 0 < value <= 1:
        raise InputError(f"{text!r} is not a share above 0 and at most 1, such as 0.85 or 85%")
    return value


def human_count(value: float | None) -> str:
    """Return a number of things (parameters, MACs) with a decimal prefix.

    >>> human_count(999), human_count(1000), human_count(284_810), human_count(None)
    ('999', '1.00 k', '285 k', '–')
    """
    return MISSING if value is None else _scaled(_checked(value, "a count"), _COUNTS, "")


def human_bytes(value: float | None) -> str:
    """Return a number of bytes with a decimal unit.

    >>> human_bytes(0), human_bytes(999), human_bytes(1023), human_bytes(999_999)
    ('0 B', '999 B', '1.02 kB', '1.00 MB')
    """
    return MISSING if value is None else _scaled(_checked(value, "a number of bytes"), _BYTES, "B")


def human_seconds(value: float | None) -> str:
    """Return a duration in seconds in the units of a clock.

    >>> human_seconds(0.0042), human_seconds(12.345), human_seconds(59.97), human_seconds(7512), human_seconds(200_000)
    ('4.20 ms', '12.3 s', '1 min 00 s', '2 h 05 min', '2 d 08 h')
    """
    if value is None:
        return MISSING
    if _rounded(_checked(value, "a duration in seconds")) < 60:
        return _scaled(value, _SECONDS, "s")
    # Each bound is where rounding to the smaller unit would fill the larger one: never "60 min 00 s".
    if value < 3599.5:
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds:02d} s"
    if value < 86_370:
        hours, minutes = divmod(round(value / 60), 60)
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(value / 3600), 24)
    return f"{days:,} d {hours:02d} h"


def human_range(low: float | None, high: float | None) -> str:
    """Return a range of seconds in one unit, to two figures; nothing if its ends are within a fifth of each other.

    >>> human_range(0.92, 1.61), human_range(64, 100), human_range(0.004, 0.0121), human_range(1.0, 1.1), human_range(None, None)
    ('0.92–1.6 s', '1.1–1.7 min', '4–12 ms', '', '')
    >>> human_range(0.41, 0.566)
    '410–570 ms'
    """
    if low is None or high is None or high <= 1.2 * low:
        return ""
    unit_s, unit = max(step for step in _CLOCK if step[0] <= max(high, _CLOCK[0][0]))
    ends = (f"{float(f'{end / unit_s:.2g}'):,.10g}" for end in (low, high))
    return f"{'–'.join(ends)} {unit}"


def human_joules(value: float | None) -> str:
    """Return an energy in joules with a decimal prefix.

    >>> human_joules(0), human_joules(0.0421), human_joules(3.5), human_joules(12_500)
    ('0 J', '42.1 mJ', '3.50 J', '12.5 kJ')
    """
    return MISSING if value is None else _scaled(_checked(value, "an energy in joules"), _JOULES, "J")


def human_money(value: float | None, currency: str = "") -> str:
    """Return an amount of money to the cent, in the currency if it is named.

    >>> human_money(12.345, "EUR"), human_money(1234.5), human_money(0.004, "EUR"), human_money(None)
    ('12.35 EUR', '1,234.50', 'less than 0.01 EUR', '–')
    """
    if value is None:
        return MISSING
    return " ".join(filter(None, (f"{value:,.2f}" if value >= 0.005 or not value else "less than 0.01", currency)))


def human_percent(share: float | None) -> str:
    """Return a share (0.964) as a percentage; only exactly 0 and 1 read ``0 %`` and ``100 %``.

    >>> human_percent(0.9642), human_percent(1), human_percent(0.0004), human_percent(12.4)
    ('96.4 %', '100 %', '<0.1 %', '1,240 %')
    """
    if share is None:
        return MISSING
    percent = 100 * _checked(share, "a share")
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:,.0f} %" if share in (0, 1) or percent >= 999.95 else f"{percent:.1f} %"


def human_difference(predicted: float, measured: float | None) -> str:
    """Return by how much a prediction is above (+) or below (−) a measurement; a dash without a measurement.

    >>> human_difference(103, 100), human_difference(99, 100), human_difference(5, 5), human_difference(5, None)
    ('+3.0 %', '−1.0 %', '0 %', '–')
    >>> human_difference(9999, 10_000)
    '<0.1 %'
    """
    if not measured:
        return MISSING
    if predicted == measured:
        return "0 %"
    if abs(predicted / measured - 1) < 0.0005:
        return "<0.1 %"
    return f"{100 * (predicted / measured - 1):+,.1f} %".replace("-", "−")


def human_budget(budget: str, value: float | None) -> str:
    """Return an amount of a budget in the unit at the end of the budget's name.

    >>> human_budget("memory_bytes", 1_500_000), human_budget("deadline_s", 90), human_budget("energy_j", 2)
    ('1.50 MB', '1 min 30 s', '2.00 J')
    """
    return _BY_SUFFIX.get(budget.rpartition("_")[2], human_count)(value)


def need_have(budget: str, need: float, have: float, clock_margin: float = 1.0) -> str:
    """Return what is needed and what there is of a budget; all digits where rounding would hide that one is more.

    ``clock_margin`` is the factor on the seconds of training that the need contains.

    >>> need_have("memory_bytes", 155_364_012, 1000), need_have("macs_forward", 1_000_001, 1_000_000)
    ('needs 155 MB, has 1 kB', 'needs 1,000,001, has 1,000,000')
    >>> need_have("deadline_s", 1.25, 0.9, 1.5)
    'needs 1.25 s with a clock margin of 1.5, has 900 ms'
    >>> need_have("largest_tier", 1, 0.5)
    'is 0.5'
    """
    if budget == "largest_tier":
        return f"is {have:g}"
    texts = [_ZEROS.sub("", human_budget(budget, value)) for value in (need, have)]
    if need != have and texts[0] == texts[1]:
        unit = {"bytes": " B", "s": " s", "j": " J"}.get(budget.rpartition("_")[2], "")
        texts = [f"{value:,.10g}{unit}" for value in (need, have)]
    margin = f" with a clock margin of {clock_margin:g}" if clock_margin != 1 else ""
    return f"needs {texts[0]}{margin}, has {texts[1]}"


_ZEROS = re.compile(r"\.0+(?= |$)|(?<=\.\d)0(?= |$)")
_BY_SUFFIX: dict[str, Callable[[float | None], str]] = {
    "bytes": human_bytes, "s": human_seconds, "j": human_joules, "tier": "{:g}".format
}  # fmt: skip


def _checked(value: float, what: str) -> float:
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{value!r} cannot be shown as {what}: expected a finite number, zero or more")
    return value


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")


def _scaled(value: float, steps: _Steps, base: str) -> str:
    """Write ``value`` with the largest unit that it fills; zero and whole ``base`` units below 1,000 stay exact."""
    if value == 0 or (steps[0][1] == base and value < 1000 and value == int(value)):
        return f"{int(value)} {base}".rstrip()
    rounded = _rounded(value)
    factor, unit = max((step for step in steps if step[0] <= rounded), default=steps[0])
    shown = rounded / factor
    decimals = 0 if shown >= 100 else 1 if shown >= 10 else 2
    return f"{f'{shown:,.{decimals}f}' if shown >= 1 else f'{shown:.3g}'} {unit}".rstrip()
