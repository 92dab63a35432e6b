"""A run's configuration: defaults, then a TOML file, then flags. An unknown key is an error with the nearest known name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomlkit
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from edgefl.errors import ConfigError, UnknownNameError
from edgefl.registry import Registry, codecs, datasets, engines, methods, models, objectives, server_optimizers
from edgefl.util.files import read_toml
from edgefl.util.validation import explain

HOST_KEYS = frozenset({"engine", "workers", "data_dir"})
"""Keys that describe this computer, so that a resumed run may change them; :func:`changed` has the one exception."""

TASK, DATA, ROUNDS, TIERS = "Method, model and data set", "Clients and their data", "Rounds and evaluation", "Tiers"
CLIENT, SERVER, FLEET, HOST = "Training on a client", "Server and codec", "Fleet and conditions", "This computer"


Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Flag:
    """How the command line shows a key: the ``section`` of the help, the ``text``, a ``metavar`` (or the type's), and the known ``names``.

    ``switch`` is the flag that turns a yes/no key off, if not ``--no-`` and the key.
    """

    section: str
    text: str
    metavar: str = ""
    names: Registry | None = None
    switch: str = ""


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


def _known(names: Registry, *others: str | None) -> AfterValidator:
    def check(name: str) -> str:
        if name in others:
            return name
        try:
            names.check(name)
        except UnknownNameError as error:
            raise ValueError(str(error)) from None
        return name

    return AfterValidator(check)


def _ordered(tiers: Any) -> Any:
    if isinstance(tiers, tuple):
        check_ratios(tiers)
    return tiers


def _once(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or len(set(words)) != len(words):
        raise ValueError(f"expected some of idle, charging, unmetered, each once, got {', '.join(words) or 'none'}")
    return words


def _steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    if not steps or len(set(steps)) != len(steps) or {"send", "refuse"} & set(steps[:-1]):
        raise ValueError(f"expected each step once, and refuse or send last, got {', '.join(steps) or 'none'}")
    return steps


class RunConfig(BaseModel):
    """Everything that decides the result of a run, and how this computer computes it.

    ``None`` stands for a default that depends on other keys.

    Raises:
        ConfigError: names each wrong key, its value and what is expected.

    >>> RunConfig(rounds=3, tiers=(1, 0.5)).tiers
    (1.0, 0.5)
    >>> RunConfig.of({"round": 3})
    Traceback (most recent call last):
        ...
    edgefl.errors.ConfigError: round: unknown key; did you mean 'rounds'?
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_min_length=1)

    profile: Annotated[str, Flag(TASK, "Fleet or device to simulate; 'edgefl devices' lists them.", "NAME|FILE")] = "phone"
    method: Annotated[str, Flag(TASK, "Federated learning method; 'edgefl methods' describes each.", names=methods)] = "fedhm"
    method_options: Annotated[dict[str, Any], Flag("", "Options of the method; 'edgefl methods NAME' lists them.")] = {}
    model: Annotated[str | None, Flag(TASK, "Network to train. [the data set's own]", names=models)] = None
    norm: Annotated[str | None, Flag(TASK, "Norm layers: group, static, batch, layer or none. [the model's own]", "POLICY")] = (
        None
    )
    dataset: Annotated[str, Flag(TASK, "Data set, or several as domains of one: a+b.", "NAME[+NAME…]", names=datasets)] = "digits"
    data_dir: Annotated[str | None, Flag(TASK, "Folder with the data set's files. [where its package puts them]", "DIR")] = None

    clients: Annotated[int, Field(ge=1, le=10**9), Flag(DATA, "Number of clients in the population.")] = 20
    partition: Annotated[
        str,
        Flag(
            DATA,
            "How clients share the samples. iid: evenly; dirichlet:A: uneven labels, more so for small A; classes:K: K labels each; "
            "natural: by the data set's owners; index:S or index:S:A: S samples per client (uneven labels), for any number of clients.",
            "SPEC",
        ),
    ] = "dirichlet:0.5"
    data_share: Annotated[float, Field(gt=0, le=1), Flag(DATA, "Share of its training samples that each client uses.")] = 1.0
    permute_labels: Annotated[bool, Flag(DATA, "Each client has its own order of labels; accuracy is their mean. [no]")] = False

    rounds: Annotated[Count, Flag(ROUNDS, "Number of rounds; with --mode async, of server steps.")] = 30
    per_round: Annotated[
        Count | None, Flag(ROUNDS, "Updates wanted per round; in mode async, clients at work. [half of --clients]")
    ] = None
    eval_every: Annotated[Count, Flag(ROUNDS, "Evaluate every N rounds, and after the last one.")] = 1
    eval_samples: Annotated[
        Count | None, Flag(ROUNDS, "Held-out samples to evaluate on, drawn by the seed. [all after the last round, 1,000 before]")
    ] = None
    seed: Annotated[int, Field(ge=0), Flag(ROUNDS, "Seed of every random draw.")] = 0

    tiers: Annotated[
        tuple[float, ...] | Literal["auto"] | None,
        AfterValidator(_ordered),
        Flag(
            TIERS,
            "Sizes of sub-models, largest first; auto: the largest that fits each class. [the method's own]",
            "1,0.5,0.25|auto",
        ),
    ] = None
    tier_assignment: Annotated[
        Literal["auto", "uniform", "dynamic"],
        Flag(TIERS, "auto: the largest tier that fits the class; uniform: a random fitting tier per client; dynamic: per round."),
    ] = "auto"
    tier_shares: Annotated[
        tuple[float, ...] | None, Flag(TIERS, "Shares of clients at each tier, unless assigned by auto. [equal]", "0.5,0.3,0.2")
    ] = None

    local_epochs: Annotated[Count | None, Flag(CLIENT, "Epochs that a client trains each round. [digits: 5, else 1]")] = None
    batch_size: Annotated[Count, Flag(CLIENT, "Samples per training step.")] = 32
    micro_batch: Annotated[Count | None, Flag(CLIENT, "Samples per pass; gradients add up over the batch. [the batch]")] = None
    runtime: Annotated[Literal["torch", "onnx"], Flag(CLIENT, "Library that trains; onnx: onnxruntime, on exported graphs.")] = (
        "torch"
    )
    optimizer: Annotated[Literal["momentum", "sgd", "adam"], Flag(CLIENT, "Optimizer of the client.")] = "momentum"
    lr: Annotated[Positive, Flag(CLIENT, "Learning rate of the client.")] = 0.05
    lr_schedule: Annotated[Literal["constant", "cosine"], Flag(CLIENT, "Change of --lr over rounds; cosine ends at 0.")] = (
        "constant"
    )
    momentum: Annotated[float, Field(ge=0, lt=1), Flag(CLIENT, "Coefficient of the optimizer momentum.")] = 0.9
    weight_decay: Annotated[float, Field(ge=0), Flag(CLIENT, "L2 coefficient, added to the gradients.")] = 1e-4
    objective: Annotated[
        str, _known(objectives), Flag(CLIENT, "Correction of client drift: FedProx, FedDyn or SCAFFOLD.", names=objectives)
    ] = "none"
    objective_strength: Annotated[Positive, Flag(CLIENT, "Weight of the objective: μ of prox, α of dyn.")] = 0.1

    server_optimizer: Annotated[
        str,
        _known(server_optimizers),
        Flag(SERVER, "How the server steps; avg takes the average as it is.", names=server_optimizers),
    ] = "avg"
    server_lr: Annotated[Positive | None, Flag(SERVER, "Learning rate of the server. [1; adam and yogi: 0.01]")] = None
    codec: Annotated[str, _known(codecs), Flag(SERVER, "Encoding of the updates that clients send.", names=codecs)] = "fp32"

    conditions: Annotated[
        Literal["fleet", "ideal"], Flag(FLEET, "fleet: links vary and sessions are lost; ideal: no losses, delays or batteries.")
    ] = "fleet"
    over_selection: Annotated[
        float | None, Field(ge=1, le=10), Flag(FLEET, "Clients selected per update wanted. [the profile's own; ideal: 1]")
    ] = None
    deadline_s: Annotated[
        Positive | None, Flag(FLEET, "Longest session in simulated seconds; also a budget of the tiers. [the profile's own]")
    ] = None
    availability: Annotated[
        str,
        Flag(
            FLEET,
            "When clients are eligible: always, by the hour of the day, or by a trace (CSV, Parquet: client, from, to, state).",
            "always|daily|FILE",
        ),
    ] = "always"
    eligible_when: Annotated[
        tuple[Literal["idle", "charging", "unmetered"], ...],
        AfterValidator(_once),
        Flag(
            FLEET, "Device states that a trace must show for a client to be eligible; for daily, only charging counts.", "WORD,…"
        ),
    ] = ("idle", "charging", "unmetered")
    start_hour: Annotated[float, Field(ge=0, lt=24), Flag(FLEET, "Hour of the day at which the simulated clock starts.")] = 0.0
    dynamic_devices: Annotated[
        bool, Flag(FLEET, "Free memory, speed and tiers of devices change each round. [static]", switch="--static-devices")
    ] = False
    mode: Annotated[
        Literal["sync", "async"], Flag(FLEET, "The server steps after each round, or (async, FedBuff) after --buffer updates.")
    ] = "sync"
    buffer: Annotated[Count | None, Flag(FLEET, "Updates per server step in mode async. [half of --per-round]")] = None
    staleness_power: Annotated[float, Field(ge=0), Flag(FLEET, "In mode async, updates s steps old weigh 1/(1 + s)^X.")] = 0.5
    enforce: Annotated[
        Literal["plan", "meter", "hard"],
        Flag(FLEET, "Memory is predicted (plan), metered in training (meter), or limited in a process per client (hard)."),
    ] = "meter"
    on_shortfall: Annotated[
        tuple[Literal["micro-batch", "tier", "refuse", "send"], ...],
        AfterValidator(_steps),
        Flag(
            FLEET,
            "Steps to try if a tier does not fit: micro-batch, tier; then refuse (implied) or send (train anyway).",
            "STEP,…",
        ),
    ] = ("micro-batch", "tier")

    cpu_limit_s: Annotated[Positive, Flag(HOST, "Processor seconds per client under --enforce hard.")] = 600.0
    engine: Annotated[
        str | None,
        _known(engines, "auto", None),
        Flag(
            HOST,
            "Where clients train. inline: in this process; pool: in --workers processes, to the same bits; group: clients of a "
            "tier together, equal to within rounding; auto: the fastest in a short trial. [inline; with --workers above 1: pool]",
        ),
    ] = None
    workers: Annotated[Count, Flag(HOST, "Number of processes that train clients; engine auto uses every core.")] = 1
    device: Annotated[Literal["cpu", "cuda"], Flag(HOST, "Hardware that trains clients.")] = "cpu"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := [*_training_problems(self), *_fleet_problems(self)]:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        # Defined last, so that it sees what the validators above say.
        try:
            return handler(values)
        except ValidationError as error:
            problems = [explain(problem, cls.model_fields, " see edgefl simulate --help") for problem in error.errors()]
            raise ConfigError("; ".join(problems)) from None

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Return the configuration of ``values``; ``source`` is named in errors."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}" if source else str(error)) from None

    @classmethod
    def load(cls, path: Path | None, flags: Mapping[str, Any]) -> Self:
        """Return the configuration of a TOML file (or none) with ``flags`` put over it; see :func:`keys_of`."""
        return cls.of(keys_of(path, flags))

    def to_toml(self) -> str:
        """Return the TOML form, without the keys that are None."""
        return tomlkit.dumps({key: value for key, value in self.model_dump(mode="json").items() if value is not None})


FLAGS: dict[str, Flag] = {
    key: next(part for part in field.metadata if isinstance(part, Flag)) for key, field in RunConfig.model_fields.items()
}
RunConfig.__doc__ = f"{RunConfig.__doc__}\nAttributes:\n" + "\n".join(f"    {name}: {flag.text}" for name, flag in FLAGS.items())


def keys_of(path: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a TOML file (or none) and ``flags`` give; flags win, option by option for ``method_options``."""
    if path is None:
        return dict(flags)
    values = read_toml(path, ConfigError)
    RunConfig.of(values, str(path))
    options = {**values.get("method_options", {}), **flags.get("method_options", {})}
    return {**values, **flags} | ({"method_options": options} if options else {})


def changed(before: RunConfig, after: RunConfig) -> list[str]:
    """Return the keys that decide a result and differ.

    An engine decides none, except when it trains clients together: sums in float32 then have another order.

    >>> changed(RunConfig(seed=1, workers=2), RunConfig(engine="pool"))
    ['seed']
    >>> changed(RunConfig(engine="group"), RunConfig(engine="pool"))
    ['engine']
    """
    keys = [key for key in RunConfig.model_fields if key not in HOST_KEYS and getattr(before, key) != getattr(after, key)]
    return keys + ["engine"] * (_groups_clients(before) != _groups_clients(after))


def _groups_clients(config: RunConfig) -> bool:
    return config.engine in engines.names() and bool(engines.facts(config.engine).get("groups_clients"))


def _training_problems(config: RunConfig) -> Iterator[str]:
    """Say what does not fit together in how clients train."""
    if config.engine == "inline" and config.workers > 1:
        yield f"engine: inline has one worker, got workers = {config.workers}; use pool"
    if _groups_clients(config) and (config.enforce == "hard" or config.runtime == "onnx"):
        alone = "enforce hard" if config.enforce == "hard" else "runtime onnx"
        yield f"engine: {config.engine} trains clients together, and {alone} trains them one by one; use pool"
    needs = objectives.facts(config.objective).get("needs", ())
    if "plain_sgd" in needs and (config.optimizer != "sgd" or config.weight_decay):
        yield (
            "objective: the control variates of scaffold are gradients computed from plain SGD steps (option II); give "
            f"optimizer sgd and weight_decay 0, got {config.optimizer} and {config.weight_decay:g}"
        )
    if "fixed_coordinates" in needs and config.tier_assignment == "dynamic":
        yield (
            f"objective: {config.objective} remembers a gradient of every weight that a client trains; with tier_assignment dynamic "
            "these change from round to round"
        )
    if "rounds" in needs and config.mode == "async":
        yield f"mode: {config.objective} corrects gradients by what the server had when a round began; async has no rounds"
    if "send" in config.on_shortfall and config.enforce == "plan":
        yield "on_shortfall: send needs a device that meters its memory, and enforce plan only predicts it; give enforce meter or hard"


def _fleet_problems(config: RunConfig) -> Iterator[str]:
    """Say what does not fit together in tiers, clients and rounds."""
    if (shares := config.tier_shares) is not None:
        if config.tier_assignment == "auto":
            yield "tier_shares: with tier_assignment auto the devices decide; give tier_assignment uniform or dynamic"
        if isinstance(config.tiers, tuple) and len(config.tiers) != len(shares):
            yield f"tier_shares: got {len(shares)} shares for {len(config.tiers)} tiers; give one for each"
        if any(share < 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
            yield f"tier_shares: expected shares from 0 that add up to 1, got {', '.join(f'{s:g}' for s in shares)}"
    if config.per_round is not None and config.per_round > config.clients:
        yield f"per_round: got {config.per_round}, expected at most the {config.clients} clients"
    if config.buffer is not None and config.mode == "sync":
        yield "buffer: only asynchronous rounds have one; give mode async"
    if config.buffer is not None and config.buffer > config.clients:
        yield f"buffer: got {config.buffer}, expected at most the {config.clients} clients, who answer once a step"
