"""Human units: three figures, the right prefix at every edge, and nothing shown that cannot be."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import InputError
from edgefl.util.units import (
    Unit,
    human_budget,
    human_bytes,
    human_count,
    human_difference,
    human_joules,
    human_percent,
    human_seconds,
    parse_amount,
)

HUMAN = [human_bytes, human_count, human_joules, human_percent, human_seconds]
FACTORS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1023, "1.02 kB"),
        (1024, "1.02 kB"),
        (99_950, "100 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (2**32, "4.29 GB"),
        (10**18, "1,000 PB"),
    ],
)
def test_bytes(value: int, text: str) -> None:
    assert human_bytes(value) == text


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (7, "7"), (999.7, "1.00 k"), (284_810, "285 k"), (1.5e9, "1.50 G")])
def test_counts(value: float, text: str) -> None:
    assert human_count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (2e-9, "0.002 µs"),
        (0.0005, "500 µs"),
        (0.9996, "1.00 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (86_369, "23 h 59 min"),
        (86_371, "1 d 00 h"),
        (400 * 86_400, "400 d 00 h"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert human_seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 J"), (3e-5, "30.0 µJ"), (0.25, "250 mJ"), (999.9, "1.00 kJ"), (2.5e6, "2.50 MJ")]
)
def test_joules(value: float, text: str) -> None:
    assert human_joules(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (1, "100 %"), (0.99996, "100.0 %"), (0.0005, "0.1 %"), (1e-9, "<0.1 %"), (9.9996, "1,000 %")],
)
def test_percent(share: float, text: str) -> None:
    assert human_percent(share) == text


def test_difference_has_a_sign_and_needs_a_measurement() -> None:
    assert human_difference(90, 100) == "−10.0 %"
    assert human_difference(1000, 10) == "+9,900.0 %"
    assert human_difference(7, 0) == "–"


def test_a_budget_is_written_in_its_own_unit() -> None:
    assert human_budget("upload_bytes", 1500) == "1.50 kB"
    assert human_budget("uncounted_ops", 2) == "2"


@pytest.mark.parametrize("human", HUMAN)
@pytest.mark.parametrize("value", [-1, -1e-9, math.nan, math.inf])
def test_what_cannot_be_is_refused(human: Callable[[float | None], str], value: float) -> None:
    with pytest.raises(InputError, match=r"cannot be shown as .*: expected a finite number, zero or more"):
        human(value)


@pytest.mark.parametrize("human", HUMAN)
def test_nothing_is_a_dash(human: Callable[[float | None], str]) -> None:
    assert human(None) == "–"


@given(st.floats(min_value=1e-8, max_value=1e11))
def test_an_energy_reads_back_as_it_is_shown(value: float) -> None:
    assert parse_amount(human_joules(value).replace(",", ""), "J") == pytest.approx(value, rel=6e-3)


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("200mJ", "s", "'200mJ' is in joules, expected a time"),
        ("5 us", "J", "'5 us' is a time, expected an energy"),
        ("1kmJ", "J", "'1kmJ' is not an energy above 0"),
        ("1 kmin", "s", "'1 kmin' is not a time above 0"),
    ],
)
def test_another_unit_is_named(text: str, unit: Unit, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_amount(text, unit)


@given(st.integers(min_value=0, max_value=10**18))
def test_bytes_read_back_within_half_a_percent(value: int) -> None:
    number, unit = human_bytes(value).replace(",", "").split()
    assert float(number) * FACTORS[unit] == pytest.approx(value, rel=5e-3)
    assert len(number.replace(".", "")) <= 4


@given(st.floats(min_value=60, max_value=1e9))
def test_durations_read_back_within_their_smaller_unit(value: float) -> None:
    whole, unit, rest, part = human_seconds(value).replace(",", "").split()
    seconds = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
    assert int(whole) * seconds[unit] + int(rest) * seconds[part] == pytest.approx(value, abs=seconds[part] / 2 + 1e-6)
    assert int(rest) < seconds[unit] // seconds[part]


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1kB", "B", 1e3),
        ("1KB", "B", 1e3),
        ("1kiB", "B", 1024),
        ("1KiB", "B", 1024),
        ("2Mi", "B", 2**21),
        ("3MAC", "MAC", 3),
        ("3 MMACs", "MAC", 3e6),
        ("1.5e3 J", "J", 1500),
        ("250ms", "s", 0.25),
        ("500 µs", "s", 0.0005),
        ("500us", "s", 0.0005),
        ("200mJ", "J", 0.2),
        ("7 µJ", "J", 7e-6),
        ("7 μJ", "J", 7e-6),
        ("2MJ", "J", 2e6),
    ],
)
def test_prefixes_are_read_in_either_case_of_k(text: str, unit: str, value: float) -> None:
    assert parse_amount(text, unit) == value
