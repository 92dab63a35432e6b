"""A run's configuration: flags override a TOML file, which overrides defaults. The error about an unknown key suggests the nearest one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import tomlkit
from pydantic import ModelWrapValidatorHandler, ValidationError, create_model, model_validator

from edgefl.config.contradictions import fleet_problems, groups_clients, network_problems, training_problems
from edgefl.config.field import Flag, Keys, KeyValues
from edgefl.config.group import CoreKeys, groups
from edgefl.config.rates import SCHEDULES, follows_rounds
from edgefl.consent import admit
from edgefl.errors import ConfigError
from edgefl.plugins import PARTS, code_in, resolved
from edgefl.registry import key_groups
from edgefl.util.files import read_toml
from edgefl.util.validation import explain_all

HOST_KEYS = frozenset({"engine", "workers", "data_dir", "sources", "log", "bundle", "mixed_nodes"}).union(
    *(group.keys.model_fields for name, group in groups().items() if key_groups.facts(name).get("host"))
)
"""Keys that describe this computer and its files. A resumed run may change them; :func:`changed` has the one exception."""
CODE = frozenset({*PARTS, "model", "tier", "loss", "metric", "lr_schedule", "log", "stages", "sampler"})
"""Keys that may name code."""


def _with_groups() -> list[type[Keys]]:
    """Return the classes of all keys, the last in the help first, as :class:`CoreKeys` has them."""
    classes: list[type[Keys]] = [CoreKeys]
    for core in CoreKeys.__bases__:
        classes += [group.keys for name, group in reversed(groups().items()) if key_groups.facts(name)["after"] == core.__name__]
        classes.append(core)
    return classes


if TYPE_CHECKING:
    AllKeys = CoreKeys
else:
    AllKeys = create_model("AllKeys", __base__=tuple(_with_groups()))


class RunConfig(AllKeys):
    """Everything that decides the result of a run, and how this computer computes it.

    None is a default that depends on other keys; :func:`edgefl.run.prepare.resolve` fills it in.

    Raises:
        ConfigError: names each wrong key, its value and what is expected.

    >>> RunConfig(rounds=3, tiers=(1, 0.5)).tiers
    (1.0, 0.5)
    >>> RunConfig.of({"round": 3})
    Traceback (most recent call last):
        ...
    edgefl.errors.ConfigError: round: unknown key; did you mean 'rounds'?
    """

    if TYPE_CHECKING:  # the keys of features are known when the program runs

        def __init__(self, **keys: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        of_groups = (problem for group in groups().values() for problem in group.problems(self))
        if problems := [*training_problems(self), *network_problems(self), *fleet_problems(self), *of_groups]:
            raise ValueError("\n".join(problems))
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        # Defined last, because a wrapping validator handles only the errors of validators above it.
        try:
            return handler(resolved(values) if isinstance(values, Mapping) else values)
        except ValidationError as error:
            raise ConfigError(explain_all(error.errors(), cls.model_fields, " see edgefl simulate --help")) from None

    @classmethod
    def of(cls, values: KeyValues, source: str = "") -> Self:
        """Return the configuration of ``values``, key → value; the ConfigError about a wrong one begins with ``source``."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError("\n".join(f"{source}: {line}" if source else line for line in str(error).splitlines())) from None

    @classmethod
    def load(cls, path: Path | None, flags: KeyValues) -> Self:
        """Return the configuration of a TOML file (None: the defaults), overridden by ``flags``; see :func:`keys_of`."""
        return cls.of(keys_of(path, flags))

    @property
    def named_tiers(self) -> tuple[float, ...] | Literal["auto"] | None:
        """The tiers that the keys name, largest first: by ``tiers``, or by their networks; None: neither does."""
        return self.tiers or tuple(map(float, self.tier or ())) or None

    @property
    def free_jobs(self) -> int:
        """About how many clients train in all rounds together if edgefl chooses where; 0 if ``engine`` or ``workers`` say it."""
        free = self.engine is None and "workers" not in self.model_fields_set
        return self.rounds * (self.per_round or self.clients) if free else 0

    def to_toml(self) -> str:
        """Return the configuration as TOML, without the keys that are None."""
        return tomlkit.dumps({key: value for key, value in self.model_dump(mode="json").items() if value is not None})


FLAGS: dict[str, Flag] = {name: cast(Any, field.json_schema_extra)["flag"] for name, field in RunConfig.model_fields.items()}
RunConfig.__doc__ = f"{RunConfig.__doc__}\nAttributes:\n" + "\n".join(f"    {name}: {flag.text}" for name, flag in FLAGS.items())


def keys_of(path: Path | None, flags: KeyValues) -> KeyValues:
    """Return the keys of a TOML file (or none), checked, overridden by ``flags``; ``method_options`` are overridden one by one.

    Plug-ins are not overridden: there are those of both.

    Raises:
        ConfigError: a key is wrong, or the file names code that the user has not consented to, see :mod:`edgefl.consent`.
    """
    if path is None:
        return flags
    values = {key: value for key, value in read_toml(path, ConfigError).items() if key not in CODE or key not in flags}
    admit_keys(values, str(path), flags)
    RunConfig.of(values, str(path))
    options = {**values.get("method_options", {}), **flags.get("method_options", {})}
    keys = {**values, **flags} | ({"method_options": options} if options else {})
    own, flagged = values.get("plugins"), flags.get("plugins")
    if isinstance(own, Mapping) and isinstance(flagged, Mapping):
        keys["plugins"] = {**own, **flagged}
    return keys


def admit_keys(values: KeyValues, source: str, typed: KeyValues, others: Iterable[Any] = ()) -> None:
    """Raise :class:`ConfigError` if the file ``source`` names code that is not ``typed`` too, and that nobody consented to.

    ``others`` are more tables of keys in the file.
    """
    plugins, folders = (value if isinstance(value := values.get(key), Mapping) else {} for key in ("plugins", "sources"))
    named = [pair for table in (values, *others) for pair in code_in(table)]
    admit(
        named,
        source,
        code_in(typed),
        plugins,
        {str(folders.get(root)) for root in ("root", "loss_root", "metric_root", "lr_schedule_root")},
    )


def changed(before: RunConfig, after: RunConfig) -> list[str]:
    """Return the keys that differ and that can change the result of a run.

    :data:`HOST_KEYS` cannot, with one exception: engines that train clients together add float32 numbers in another order.

    >>> changed(RunConfig(seed=1, workers=2), RunConfig(engine="pool"))
    ['seed']
    >>> changed(RunConfig(engine="group"), RunConfig(engine="pool"))
    ['engine']
    """
    others = RunConfig.model_fields.keys() - HOST_KEYS - {"plugins"}
    keys = [key for key in RunConfig.model_fields if key in others and getattr(before, key) != getattr(after, key)]
    # A plug-in that a run uses is always among its own: one more changes nothing.
    one, other = (set((config.plugins or {}).values()) for config in (before, after))
    keys += [] if one <= other or other <= one else ["plugins"]
    return keys + ["engine"] * (groups_clients(before) != groups_clients(after))


def lengthened(before: RunConfig, after: RunConfig) -> str:
    """Return why a run of the rounds of ``before`` cannot continue to those of ``after``; "" if it can.

    A run continues to more rounds where its first rounds are those of the longer run.

    >>> lengthened(RunConfig(rounds=3), RunConfig(rounds=5))
    ''
    >>> lengthened(RunConfig(rounds=3, lr_schedule="cosine"), RunConfig(rounds=5, lr_schedule="cosine"))
    'with lr_schedule cosine the learning rate of every round depends on their number'
    """
    if after.rounds <= before.rounds:
        return "a run continues only to more rounds"
    for key in SCHEDULES:
        if follows_rounds(rule := getattr(before, key)):
            return f"with {key} {rule} the learning rate of every round depends on their number"
    return next(filter(None, (group.fixed_rounds(before) for group in groups().values())), "")
