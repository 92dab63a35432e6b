"""From the settings of a run and its fleet's profile to the conditions of its rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from edgefl.errors import ConfigError
from edgefl.fleet.availability import Always, Availability, ByClass, Daily
from edgefl.fleet.calendar import Calendar
from edgefl.fleet.conditions import UNDISTURBED, Conditions, LeftOut
from edgefl.fleet.population import Population
from edgefl.fleet.profile import Fleet, FleetClass, State
from edgefl.fleet.trace import load_trace
from edgefl.util.files import exists
from edgefl.util.validation import explain


@dataclass(frozen=True)
class FleetSettings:
    """The keys of a run's configuration that :func:`conditions_in` reads; :class:`edgefl.RunConfig` explains each."""

    profile: str
    seed: int
    clients: int
    conditions: str
    over_selection: float | None
    deadline_s: float | None
    availability: str
    eligible_when: tuple[str, ...]
    start_hour: float
    dynamic_devices: bool
    rounds_per_day: float | None = None


def conditions_in(settings: FleetSettings, fleet: Fleet, availability: Availability | None) -> Conditions:
    """Return the conditions of a run; ``availability`` is that of ``settings`` if it was loaded before.

    Raises:
        ConfigError: they ask for figures that the fleet's profile does not have, or for a deadline that no device can meet.
        DataError: the trace is malformed.
    """
    _check_deadline(settings, fleet)
    ideal = settings.conditions == "ideal"
    recorded = all(c.trace is not None for c in fleet.classes) or settings.availability not in ("always", "daily")
    charging = (recorded or settings.availability == "daily") and "charging" in settings.eligible_when
    calendar = fleet.calendar or (None if settings.rounds_per_day is None else Calendar())
    conditions = Conditions(
        over_selection=settings.over_selection or 1.0,
        links_vary=not ideal,
        states=_states(settings, fleet),
        availability=availability or _availability(settings, fleet),
        battery=not ideal and not charging,
        start_hour=settings.start_hour,
        calendar=None if calendar is None else calendar.of_run(settings.start_hour, settings.rounds_per_day),
        left_out=_left_out(settings, fleet),
    )
    if ideal or (behaviour := fleet.behaviour) is None:
        return conditions
    # A recorded trace contains when devices leave.
    interrupted = 0.0 if recorded else behaviour.interrupted.value
    return replace(
        conditions,
        over_selection=settings.over_selection or behaviour.over_selection.value,
        drop_out=behaviour.drop_out.value,
        interrupted=interrupted,
        response_sigma=behaviour.response_sigma.value,
    )


def with_deadline(fleet: Fleet, deadline_s: float | None) -> Fleet:
    """Return ``fleet`` with a deadline in seconds instead of its own; None: its own."""
    if deadline_s is None:
        return fleet
    budget = fleet.budget.model_copy(update={"round_deadline_s": deadline_s, "round_deadline_ratio": None})
    return fleet.model_copy(update={"budget": budget})


def with_class_limits(fleet: Fleet, limits: Mapping[str, float]) -> Fleet:
    """Return ``fleet`` with other limits of its classes: ``DEVICE.KEY`` → value, where KEY is ``largest_tier`` or one of a class's budget.

    Raises:
        ConfigError: a device, a key or a value is wrong.

    >>> from edgefl.fleet.load import load_fleet
    >>> [c.largest_tier for c in with_class_limits(load_fleet("phone"), {"low-end-phone.largest_tier": 0.5}).classes]
    [None, None, 0.5]
    """
    classes = list(fleet.classes)
    for name, value in limits.items():
        device, _, key = name.rpartition(".")
        places = [place for place, c in enumerate(classes) if c.device.name == device]
        if not places:
            names = ", ".join(dict.fromkeys(c.device.name for c in classes))
            raise ConfigError(f"{name}: no class of the fleet is {device!r}; its classes are {names}")
        if key not in _CLASS_LIMITS:
            raise ConfigError(f"{name}: {key!r} is no limit of a class; expected {' or '.join(_CLASS_LIMITS)}")
        for place in places:
            c = classes[place]
            ratio = {"round_deadline_ratio": None} if key == "round_deadline_s" else {}
            other = {key: value} if key == "largest_tier" else {"budget": {**dict(c.budget), **ratio, key: value}}
            try:
                classes[place] = FleetClass.model_validate({**dict(c), **other})
            except ValidationError as error:
                raise ConfigError("; ".join(f"{device}.{explain(problem)}" for problem in error.errors())) from None
    try:
        fields = {Fleet.model_fields[key].alias or key: value for key, value in fleet}
        return Fleet.model_validate({**fields, "class": tuple(classes)})
    except ValidationError as error:
        raise ConfigError("; ".join(map(explain, error.errors()))) from None


_CLASS_LIMITS = "largest_tier", "round_deadline_s", "download_bytes", "upload_bytes", "energy_j"


def _check_deadline(settings: FleetSettings, fleet: Fleet) -> None:
    """Raise :class:`ConfigError` if the deadline is over before the round trip of the fastest link."""
    deadline_s = fleet.budget.round_deadline_s
    fastest = min((c.device.link for c in fleet.classes), key=lambda link: link.rtt_s)
    if deadline_s is not None and deadline_s <= fastest.rtt_s:
        where = settings.profile if settings.profile.endswith(".toml") else f"fleet {fleet.name}"
        key = "deadline_s" if settings.deadline_s is not None else f"{where}: budget.round_deadline_s"
        raise ConfigError(
            f"{key}: got {deadline_s:g} s, expected more than {fastest.rtt_s:g} s, the round trip of the fleet's fastest link "
            f"({fastest.name})"
        )


def _availability(settings: FleetSettings, fleet: Fleet) -> Availability:
    if not any(c.trace for c in fleet.classes):
        return _of_all(settings, fleet)
    others = None if all(c.trace for c in fleet.classes) else _of_all(settings, fleet)
    traces = {c.trace: _recorded(Path(c.trace), settings.eligible_when) for c in fleet.classes if c.trace}
    of_classes = tuple(traces[c.trace] if c.trace else others or Always() for c in fleet.classes)
    return ByClass(Population(fleet, settings.clients, settings.seed).classes, of_classes)


def _of_all(settings: FleetSettings, fleet: Fleet) -> Availability:
    if settings.availability == "always":
        return Always()
    if settings.availability != "daily":
        return _recorded(Path(settings.availability), settings.eligible_when)
    if fleet.behaviour is None:
        raise ConfigError(
            f"availability: daily needs the figures of a [behaviour] table, which the fleet {fleet.name} does not have; "
            "give always, a trace file, or a fleet that has one, such as phone"
        )
    shares = fleet.behaviour.eligible_share.value, fleet.behaviour.day_night_ratio.value
    return Daily(settings.seed, *shares, fleet.behaviour.peak_hour.value, settings.start_hour)


def _recorded(path: Path, eligible_when: tuple[str, ...]) -> Availability:
    if not exists(path):
        raise ConfigError(f"availability: expected always, daily or the path of a trace, got {str(path)!r}: no such file")
    trace = load_trace(path, eligible_when)
    if not len(trace.keys):
        together = ", ".join(eligible_when)
        raise ConfigError(
            f"eligible_when: expected conditions that some client of {path} meets at some time, got {together}: never all at once"
        )
    return trace


def _left_out(settings: FleetSettings, fleet: Fleet) -> LeftOut | None:
    numbers = tuple(number for number, c in enumerate(fleet.classes) if c.left_out)
    if not numbers:
        return None
    population = Population(fleet, settings.clients, settings.seed)
    counts = population.class_counts()
    return LeftOut(population.classes, numbers, sum(counts[number] for number in numbers))


def _states(settings: FleetSettings, fleet: Fleet) -> tuple[State, ...]:
    if not settings.dynamic_devices:
        return (UNDISTURBED,)
    if not fleet.states:
        raise ConfigError(
            f"dynamic_devices: the fleet {fleet.name} has no [[state]] tables that say what its devices may be in; "
            "give a fleet that has them, such as phone"
        )
    return tuple(sorted(fleet.states, key=lambda state: -state.memory_share * state.speed_share))
