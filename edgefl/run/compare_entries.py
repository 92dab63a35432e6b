"""The runs of a comparison: which methods, with which tiers and configurations. All are checked before the first one starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomlkit

from edgefl.config import RunConfig, admit_keys
from edgefl.config.updates import TrainingKeys
from edgefl.errors import BudgetError, CheckpointError, ConfigError, InputError
from edgefl.plugins import resolved
from edgefl.registry import Options
from edgefl.registry import methods as known_methods
from edgefl.report.evaluated import RankBy, check_rank_by
from edgefl.report.run_budget import RunBudget, check_target
from edgefl.run.calendar_rounds import prepare_to_train
from edgefl.run.prepare import prepare
from edgefl.util.files import read_toml
from edgefl.util.spec import at_ratio

OWN_KEYS = tuple(TrainingKeys.model_fields)
"""Keys of a run that a method may have for itself. Others would change the clients, their data or their devices."""
_KINDS = {"methods": list, "seeds": list, "config": dict, "options": dict}


@dataclass(frozen=True)
class Entry:
    """A method of a comparison: its name, and the single ratio that the user gave it, if any."""

    method: str
    ratio: float | None = None

    @classmethod
    def of(cls, text: str) -> Entry:
        """Read ``METHOD`` or ``METHOD@R``.

        Raises:
            InputError: there is no such method, or the ratio is not a number in (0, 1].

        >>> Entry.of("fedavg@0.50").label
        'fedavg@0.5'
        """
        name, ratio = at_ratio(text)
        known_methods.check(name)
        name = known_methods.resolve(name)
        if ratio is None:
            return cls(name)
        with suppress(ValueError):
            if 0 < float(ratio) <= 1:
                return cls(name, float(ratio))
        raise ConfigError(f"methods: {text!r}: expected a ratio in (0, 1] after @, such as {name}@0.5")

    @property
    def label(self) -> str:
        """Its name in tables and folders."""
        return self.method if self.ratio is None else f"{self.method}@{self.ratio:g}"


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        number: its place in the order of the runs, from 0.
        tiers_why: the reason for its tiers.
        failure: why it failed; empty if it did not.
    """

    number: int
    entry: Entry
    seed: int
    config: RunConfig
    tiers_why: str
    failure: str = ""

    @property
    def name(self) -> str:
        """The run's name in messages."""
        return f"{self.entry.label}, seed {self.seed}"


@dataclass(frozen=True)
class ComparisonRequest:
    """What a user asked to compare, stored in ``comparison.toml`` for ``--resume``."""

    methods: tuple[str, ...]
    config: RunConfig = field(default_factory=RunConfig)
    seeds: tuple[int, ...] = (0,)
    options: Mapping[str, Options] = field(default_factory=dict)
    budget: RunBudget = field(default_factory=RunBudget)
    target_accuracy: float | None = None
    rank_by: RankBy = "clients"
    settings: Mapping[str, Options] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise :class:`ConfigError` for a target or a rank that is wrong."""
        check_target(self.target_accuracy)
        check_rank_by(self.rank_by)

    def to_toml(self) -> str:
        """Return the TOML form."""
        config = {key: value for key, value in self.config.model_dump(mode="json").items() if value is not None}
        options = {method: dict(of) for method, of in self.options.items()}
        limits = {key: value for key, value in vars(self.budget).items() if value is not None}
        target = {} if self.target_accuracy is None else {"target_accuracy": self.target_accuracy}
        first = {"methods": list(self.methods), "seeds": list(self.seeds), **target, "rank_by": self.rank_by}
        settings = {label: dict(of) for label, of in self.settings.items()}
        values = {**first, "config": config, "options": options, **({"settings": settings} if settings else {})}
        return tomlkit.dumps({**values, **({"budget": limits} if limits else {})})

    @classmethod
    def of_file(cls, path: Path, flags: Options | None = None) -> ComparisonRequest:
        """Read ``comparison.toml``; ``flags`` replace keys of its configuration.

        Raises:
            CheckpointError: the file is missing or has other keys.
            ConfigError: a flag is wrong.
        """
        values = read_toml(path, CheckpointError)
        if values.keys() - {"budget", "target_accuracy", "rank_by", "settings"} != {"methods", "seeds", "config", "options"}:
            raise CheckpointError(f"{path}: expected the keys methods, seeds, config and options; start a new comparison")
        if not all(isinstance(values[key], kind) for key, kind in _KINDS.items()):
            raise CheckpointError(
                f"{path}: expected lists methods and seeds, and tables config and options; start a new comparison"
            )
        settings = values.get("settings", {})
        if not isinstance(settings, dict):
            raise CheckpointError(f"{path}: settings: expected a table for each method; start a new comparison")
        methods = [{"method": at_ratio(str(name))[0]} for name in (*values["methods"], *values["options"], *settings)]
        admit_keys(values["config"], str(path), flags or {}, [*methods, *settings.values()])
        config = RunConfig.of({**RunConfig.of(values["config"], str(path)).model_dump(), **(flags or {})})
        asked = tuple(values["methods"]), config, tuple(values["seeds"]), values["options"]
        try:
            limits = RunBudget(**values.get("budget", {})), values.get("target_accuracy"), values.get("rank_by", "clients")
            return cls(*asked, *limits, settings)
        except (ConfigError, TypeError) as error:
            remedy = "expected a table budget with s, bytes and j, a target_accuracy in (0, 1], and rank_by"
            raise CheckpointError(f"{path}: {error}; {remedy}") from None


def asked_of(
    methods: Sequence[str],
    config: RunConfig,
    seeds: Sequence[int] | None,
    options: Mapping[str, Options],
    settings: Mapping[str, Options] | None = None,
) -> ComparisonRequest:
    """Return what to compare, with names and numbers checked; raise an InputError for one that is wrong or given twice."""
    if isinstance(methods, str):
        raise ConfigError(f"methods: got the text {methods!r}, expected a list, such as {methods.split(',')!r}")
    entries = [Entry.of(text) for text in methods]
    labels = [entry.label for entry in entries]
    if not labels:
        raise ConfigError("methods: expected at least one, such as fedhm,heterofl")
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ConfigError(f"methods: {twice} is listed {labels.count(twice)} times, expected each once")
    chosen = (config.seed,) if seeds is None else tuple(seeds)
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0:
        raise ConfigError(f"seeds: expected different whole numbers from 0, got {', '.join(map(str, chosen)) or 'none'}")
    named = {entry.method for entry in entries}
    options = {known_methods.resolve(method): own for method, own in options.items()}
    if config.method_options:
        options = {**options, config.method: {**config.method_options, **options.get(config.method, {})}}
    if strange := sorted(set(options) - named):
        raise ConfigError(f"method options of {', '.join(strange)}: not among the methods: {', '.join(sorted(named))}")
    plugins = config.plugins
    for entry in entries:
        plugins = resolved({"plugins": plugins, "method": entry.method}).get("plugins")
    shared = config.model_copy(update={"method_options": {}, "plugins": plugins})
    return ComparisonRequest(tuple(labels), shared, chosen, options, settings=_settings(entries, settings or {}))


def _settings(entries: Sequence[Entry], settings: Mapping[str, Options]) -> dict[str, Options]:
    """Return the keys that methods have for themselves, by method or ``METHOD@R``, checked."""
    known = [*dict.fromkeys(name for entry in entries for name in (entry.method, entry.label))]
    found = {_resolved(label): own for label, own in settings.items()}
    for label, own in found.items():
        if label not in known:
            raise ConfigError(f"settings of {label}: not among the methods: {', '.join(known)}")
        for key in own:
            if key in RunConfig.model_fields and key not in OWN_KEYS:
                raise ConfigError(
                    f"settings of {label}: {key} is the same for all methods; each may have its own {', '.join(OWN_KEYS)}"
                )
        RunConfig.of(own, f"settings of {label}")
    return found


def _resolved(label: str) -> str:
    with suppress(InputError):
        return Entry.of(label).label
    return label


def parts_of(asked: ComparisonRequest) -> tuple[list[ComparedRun], ComparisonRequest]:
    """Return all runs, seed by seed, and what was asked with its tiers; raise a ConfigError with every problem of all configurations."""
    entries = [Entry.of(label) for label in asked.methods]
    tiers = asked.config.named_tiers or next((own for e in entries if len(own := _own_tiers(e)) > 1), (1.0,))
    asked = replace(asked, config=asked.config.model_copy(update={"tiers": tiers}))
    problems: dict[str, None] = {}
    made: dict[tuple[int, Entry], ComparedRun] = {}
    for entry in entries:
        try:
            chosen, why = _tiers_of(entry, asked)
            for seed in asked.seeds:
                config, failure = _config(asked, entry, seed, chosen), ""
                try:
                    run = prepare_to_train(config)
                    config = run.config
                    check_target(asked.target_accuracy, run.criterion.metric)
                except BudgetError as error:
                    failure = str(error)
                made[seed, entry] = ComparedRun(0, entry, seed, config, why, failure)
        except InputError as error:
            problems[f"{entry.label}: {error}"] = None
    if problems:
        raise ConfigError("; ".join(problems))
    order = [(seed, entry) for seed in asked.seeds for entry in entries]
    return [replace(made[key], number=number) for number, key in enumerate(order)], asked


def own_settings(entry: Entry, asked: ComparisonRequest) -> dict[str, Any]:
    """Return the keys that a method has for itself; those of ``METHOD@R`` replace those of the method."""
    return {**asked.settings.get(entry.method, {}), **asked.settings.get(entry.label, {})}


def _own_tiers(entry: Entry) -> tuple[float, ...]:
    return tuple(known_methods.load(entry.method).default_tiers) if entry.ratio is None else (entry.ratio,)


def _config(asked: ComparisonRequest, entry: Entry, seed: int, tiers: tuple[float, ...] | str) -> RunConfig:
    """Return the configuration of one run; with a single tier, the tier assignment is "auto"."""
    options = dict(asked.options.get(entry.method, {}))
    values = asked.config.model_dump() | {"method": entry.method, "method_options": options, "seed": seed, "tiers": tiers}
    values |= own_settings(entry, asked)
    if len(tiers) == 1:
        values |= {"tier_assignment": "auto", "tier_shares": None}
    return RunConfig.of(values)


def _tiers_of(entry: Entry, asked: ComparisonRequest) -> tuple[tuple[float, ...] | str, str]:
    """Return the tiers that a method trains here, and the reason."""
    tiers, own = asked.config.tiers, _own_tiers(entry)
    if entry.ratio is not None:
        return own, "the ratio that was asked for"
    if tiers == "auto":
        return "auto", "the largest that fits each class of the fleet" if len(own) > 1 else "the largest that fits every class"
    assert isinstance(tiers, tuple)
    if len(own) > 1:
        return tiers, "the tiers of the comparison"
    # A default below 1 stays an upper bound: FedPara with γ = 1 would be as large as the dense network.
    candidates = sorted({own[0], *(tier for tier in tiers if tier <= own[0])}, reverse=True)
    return _largest_for_all(entry, asked, candidates)


def _largest_for_all(entry: Entry, asked: ComparisonRequest, candidates: Sequence[float]) -> tuple[tuple[float, ...], str]:
    """Return the largest of ``candidates`` that fits every class that fits any of them, with the shards of every seed."""
    of = ", ".join(f"{ratio:g}" for ratio in candidates)
    fitting: dict[float, set[tuple[int, str]]] = {}
    for ratio in candidates:
        sessions = [_fitting(_config(asked, entry, seed, (ratio,))) for seed in asked.seeds]
        fitting[ratio] = {(seed, device) for seed, devices in zip(asked.seeds, sessions, strict=True) for device in devices[0]}
        if all(len(fit) == count for fit, count in sessions):
            return (ratio,), f"one size only: the largest of {of} that every class fits"
    able = set().union(*fitting.values())
    ratio = next(ratio for ratio in candidates if fitting[ratio] == able) if able else candidates[-1]
    return (ratio,), f"one size only: the largest of {of} that every class fits which fits any of them"


def _fitting(config: RunConfig) -> tuple[set[str], int]:
    """Return the devices that fit the only tier of ``config``, and the number of device classes."""
    try:
        run = prepare(config)
    except BudgetError:
        return set(), -1
    return {c.device.name for c in run.plan.classes if c.fits}, len(run.plan.classes)
