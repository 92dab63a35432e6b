"""A run's configuration: defaults, then a TOML file, then flags. An unknown key is an error with the nearest known name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import tomlkit
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from edgefl.errors import ConfigError, UnknownNameError, nearest
from edgefl.registry import codecs, objectives, server_optimizers
from edgefl.util.files import read_toml
from edgefl.util.validation import explain

HOST_KEYS = frozenset({"engine", "workers", "data_dir"})
"""Keys that say how this computer does the work, so that a resumed run may change them; :func:`changed` knows the one exception."""


class RunConfig(BaseModel):
    """Everything that decides the result of a run, and how this computer computes it.

    ``None`` stands for a default that depends on other keys: ``model`` and ``local_epochs`` on the dataset, ``tiers`` on the
    method, ``per_round`` on ``clients`` (half of them), ``norm`` on the model, ``engine`` on ``workers``, ``server_lr`` on
    ``server_optimizer`` (1, for adam and yogi 0.01). ``tiers`` "auto" are the largest that fit each class of the fleet.
    ``tier_shares`` are the shares of clients at each tier where it is drawn; None draws all alike.
    ``conditions`` "fleet" are those of the fleet's profile (links that vary, sessions that are lost), "ideal" are none; of
    ``over_selection`` None takes the conditions' own, of ``deadline_s`` the fleet's. ``availability`` is "always", "daily" or the path of
    a trace, in which a client is eligible while all of ``eligible_when`` hold. Asynchronous rounds end with every ``buffer`` updates
    (half of ``per_round`` by default, and then those are the clients at work at once); an update s steps old counts 1/(1 + s)^p,
    p = ``staleness_power``. ``on_shortfall`` is what is tried, in order, where a tier does not fit a device.
    ``objective_strength`` is μ of ``prox`` and α of ``dyn``; ``data_share`` of its training samples is what each client has,
    ``eval_samples`` held-out samples, drawn by ``seed``, are what models are evaluated on; None takes all after the last round, and before
    it 1,000.

    Raises:
        ConfigError: names each wrong key, its value and what is expected.

    >>> RunConfig(rounds=3, tiers=(1, 0.5)).tiers
    (1.0, 0.5)
    >>> RunConfig.of({"round": 3})
    Traceback (most recent call last):
        ...
    edgefl.errors.ConfigError: round: unknown key; did you mean 'rounds'?
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    profile: str = "phone"
    method: str = "fedhm"
    method_options: dict[str, Any] = {}
    model: str | None = None
    norm: str | None = None
    dataset: str = "digits"
    data_dir: str | None = None
    partition: str = "dirichlet:0.5"
    permute_labels: bool = False
    data_share: float = Field(1.0, gt=0, le=1)
    clients: int = Field(20, ge=1)
    per_round: int | None = Field(None, ge=1)
    rounds: int = Field(30, ge=1)
    local_epochs: int | None = Field(None, ge=1)
    batch_size: int = Field(32, ge=1)
    micro_batch: int | None = Field(None, ge=1)
    optimizer: Literal["momentum", "sgd", "adam"] = "momentum"
    objective: str = "none"
    objective_strength: float = Field(0.1, gt=0)
    server_optimizer: str = "avg"
    server_lr: float | None = Field(None, gt=0)
    lr: float = Field(0.05, gt=0)
    lr_schedule: Literal["constant", "cosine"] = "constant"
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(1e-4, ge=0)
    tiers: tuple[float, ...] | Literal["auto"] | None = None
    codec: str = "fp32"
    tier_assignment: Literal["auto", "uniform", "dynamic"] = "auto"
    tier_shares: tuple[float, ...] | None = None
    conditions: Literal["fleet", "ideal"] = "fleet"
    over_selection: float | None = Field(None, ge=1, le=10)
    deadline_s: float | None = Field(None, gt=0)
    availability: str = "always"
    eligible_when: tuple[Literal["idle", "charging", "unmetered"], ...] = ("idle", "charging", "unmetered")
    start_hour: float = Field(0.0, ge=0, lt=24)
    dynamic_devices: bool = False
    mode: Literal["sync", "async"] = "sync"
    buffer: int | None = Field(None, ge=1)
    staleness_power: float = Field(0.5, ge=0)
    enforce: Literal["plan", "meter", "hard"] = "meter"
    on_shortfall: tuple[Literal["micro-batch", "tier", "refuse", "send"], ...] = ("micro-batch", "tier")
    cpu_limit_s: float = Field(600.0, gt=0)
    eval_every: int = Field(1, ge=1)
    eval_samples: int | None = Field(None, ge=1)
    runtime: Literal["torch", "onnx"] = "torch"
    engine: Literal["auto", "inline", "pool", "group"] | None = None
    workers: int = Field(1, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = Field(0, ge=0)

    @field_validator("objective", "server_optimizer", "codec")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        try:
            {"objective": objectives, "server_optimizer": server_optimizers, "codec": codecs}[str(info.field_name)].check(name)
        except UnknownNameError as error:
            raise ValueError(str(error)) from None
        return name

    @field_validator("tiers")
    @classmethod
    def _tiers(cls, tiers: tuple[float, ...] | str | None) -> tuple[float, ...] | str | None:
        if isinstance(tiers, tuple):
            check_ratios(tiers)
        return tiers

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.per_round is not None and self.per_round > self.clients:
            raise ValueError(f"per_round: got {self.per_round}, expected at most the {self.clients} clients")
        if self.engine == "inline" and self.workers > 1:
            raise ValueError(f"engine: inline has one worker, got workers = {self.workers}; use pool")
        if self.engine == "group" and (self.enforce == "hard" or self.runtime == "onnx"):
            alone = "enforce hard" if self.enforce == "hard" else "runtime onnx"
            raise ValueError(f"engine: group trains clients together, and {alone} takes them one by one; use pool")
        needs = objectives.facts(self.objective).get("needs", ())
        if "plain_sgd" in needs and (self.optimizer != "sgd" or self.weight_decay):
            raise ValueError(
                "objective: the control variates of scaffold are gradients worked out from plain SGD steps (option II); give "
                f"optimizer sgd and weight_decay 0, got {self.optimizer} and {self.weight_decay:g}"
            )
        if "fixed_coordinates" in needs and self.tier_assignment == "dynamic":
            raise ValueError(
                f"objective: {self.objective} remembers a gradient of every weight that a client trains; with tier_assignment dynamic "
                "these change from round to round"
            )
        _check_shares(self)
        _check_fleet(self)
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        # Defined last, so that it sees what the validators above say.
        try:
            return handler(values)
        except ValidationError as error:
            raise ConfigError("; ".join(_explain(problem) for problem in error.errors())) from None

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Return the configuration of ``values``; ``source`` is named in errors."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}" if source else str(error)) from None

    @classmethod
    def load(cls, path: Path | None, flags: Mapping[str, Any]) -> Self:
        """Return the configuration of a TOML file (or none) with ``flags`` put over it."""
        if path is None:
            return cls.of(flags)
        values = read_toml(path, ConfigError)
        cls.of(values, str(path))
        return cls.of({**values, **flags})

    def to_toml(self) -> str:
        """Return the TOML form, without the keys that are None."""
        return tomlkit.dumps({key: value for key, value in self.model_dump(mode="json").items() if value is not None})


def changed(before: RunConfig, after: RunConfig) -> list[str]:
    """Return the keys that decide a result and differ.

    An engine decides none, but for whether it trains clients together: sums in float32 then have another order.

    >>> changed(RunConfig(seed=1, workers=2), RunConfig(engine="pool"))
    ['seed']
    >>> changed(RunConfig(engine="group"), RunConfig(engine="pool"))
    ['engine']
    """
    keys = [key for key in RunConfig.model_fields if key not in HOST_KEYS and getattr(before, key) != getattr(after, key)]
    return keys + ["engine"] * ((before.engine == "group") != (after.engine == "group"))


def _check_fleet(config: RunConfig) -> None:
    steps = config.on_shortfall
    if not steps or len(set(steps)) != len(steps) or {"send", "refuse"} & set(steps[:-1]):
        raise ValueError(f"on_shortfall: expected each step once, and refuse or send last, got {', '.join(steps) or 'none'}")
    if "send" in steps and config.enforce == "plan":
        raise ValueError(
            "on_shortfall: send leaves it to the device to find out, which enforce plan never does; give meter or hard"
        )
    if not config.eligible_when or len(set(config.eligible_when)) != len(config.eligible_when):
        got = ", ".join(config.eligible_when) or "none"
        raise ValueError(f"eligible_when: expected some of idle, charging, unmetered, each once, got {got}")
    if config.buffer is not None and config.mode == "sync":
        raise ValueError("buffer: only asynchronous rounds have one; give mode async")
    if config.buffer is not None and config.buffer > config.clients:
        raise ValueError(f"buffer: got {config.buffer}, expected at most the {config.clients} clients, who answer once a step")
    if config.mode == "async" and "rounds" in objectives.facts(config.objective).get("needs", ()):
        raise ValueError(
            f"mode: {config.objective} corrects gradients by what the server had when a round began; async has no rounds"
        )


def _check_shares(config: RunConfig) -> None:
    shares = config.tier_shares
    if shares is None:
        return
    if config.tier_assignment == "auto":
        raise ValueError("tier_shares: with tier_assignment auto the devices decide; give tier_assignment uniform or dynamic")
    if isinstance(config.tiers, tuple) and len(config.tiers) != len(shares):
        raise ValueError(f"tier_shares: got {len(shares)} shares for {len(config.tiers)} tiers; give one for each")
    if any(share < 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"tier_shares: expected shares from 0 that add up to 1, got {', '.join(f'{s:g}' for s in shares)}")


def check_ratios(ratios: tuple[float, ...]) -> None:
    """Raise ValueError unless ``ratios`` are tiers: in (0, 1], each once, largest first."""
    if not ratios:
        raise ValueError("expected at least one tier")
    for ratio in ratios:
        if not 0 < ratio <= 1:
            raise ValueError(f"a tier lies in (0, 1], got {ratio:g}")
    ordered = tuple(sorted(set(ratios), reverse=True))
    if ordered != tuple(ratios):
        raise ValueError(f"tiers are listed once each, largest first: {','.join(f'{r:g}' for r in ordered)}")


def _explain(error: ErrorDetails) -> str:
    if error["type"] == "extra_forbidden":
        key = str(error["loc"][0])
        return f"{key}: unknown key;{nearest(key, RunConfig.model_fields) or ' see edgefl simulate --help'}"
    return explain(error)
