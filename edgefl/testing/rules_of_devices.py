"""Rules of device profiles: every figure has a source, and the clock is of use."""

from __future__ import annotations

from pathlib import Path

from edgefl.fleet.clock import training_spends, with_joules
from edgefl.fleet.load import load_device
from edgefl.records import Timing
from edgefl.records.work import KINDS, Work

LEAST = 20
"""Letters of a source that says where a figure comes from."""


def test_every_figure_has_a_source(device: str) -> None:
    """Every figure, also of the link, has a mark and a source that somebody can look up."""
    figures = load_device(device).figures()
    short = [key for key, figure in figures.items() if len(figure.source) < LEAST]
    assert not short, f"the sources of {', '.join(short)} have less than {LEAST} letters"
    assert any(key.startswith("link.") for key in figures)


def test_the_name_is_that_of_the_file(device: str) -> None:
    """The profile has the name of its file."""
    assert load_device(device).name == Path(device).name.removesuffix(".toml")


def test_training_may_not_hold_more_than_the_memory(device: str) -> None:
    """The bytes that training may hold are at most the memory of the device."""
    memory = load_device(device).memory
    assert memory.training_bytes.value <= memory.total_bytes.value


def test_energy_is_known_or_claimed_nowhere(device: str) -> None:
    """A round has joules if the profile has the power of the device and of its radio; otherwise it has none, not 0."""
    profile = load_device(device)
    fixed_j, watts = training_spends(profile, Work(product_macs=10**9))
    timing = with_joules(profile, Timing(0.1, 1.0, 0.1, 0.0, 0.0, train_j=fixed_j + watts), 10**6, 10**6)
    compute_j, radio_j = timing.compute_j, timing.radio_j
    if profile.without_energy:
        assert (compute_j, radio_j) == (None, None), f"{device} has joules without {', '.join(profile.without_energy)}"
    else:
        assert compute_j, f"{device}: computing takes no energy"


def test_every_kind_of_mac_takes_time(device: str) -> None:
    """A table of training costs has seconds for every kind of MAC, and an error."""
    table = load_device(device).compute.training_step
    if table is not None:
        idle = [kind for kind, second in zip(KINDS, table.seconds, strict=True) if kind.endswith("_macs") and second <= 0]
        assert not idle, f"{', '.join(idle)} take no time"
        assert load_device(device).clock_error >= 1
