"""A run's configuration: flags override a TOML file, which overrides defaults. The error about an unknown key suggests the nearest one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import tomlkit
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)

from edgefl.errors import ConfigError, UnknownNameError
from edgefl.plugins import resolved
from edgefl.registry import Registry, codecs, datasets, engines, loggers, methods, models, objectives, server_optimizers
from edgefl.util.datasets import data_spec, share_in
from edgefl.util.files import read_toml
from edgefl.util.networks import canonical, spec_of
from edgefl.util.validation import explain

HOST_KEYS = frozenset({"engine", "workers", "data_dir", "sources", "log", "ray_address", "ray_auth", "mixed_nodes"})
"""Keys that describe this computer and its files. A resumed run may change them; :func:`changed` has the one exception."""

# Headings of the command line's help.
TASK, DATA, ROUNDS, TIERS = "Method, model and data set", "Clients and their data", "Rounds and evaluation", "Tiers"
CLIENT, SERVER, FLEET, HOST = "Training on a client", "Server and codec", "Fleet and conditions", "This computer"

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class Flag:
    """How the command line shows a key; type, choices and default come from the key itself.

    Attributes:
        section: the heading in the help; empty for a key without a flag.
        text: what the key means, with its unit. A default that depends on other keys is in brackets at the end.
        metavar: placeholder of the value in the help; empty: that of the key's type.
        names: registry whose names the help lists.
        switch: the flag that turns a yes/no key off; empty: ``--no-`` and the key.
        also: another name of the flag.
    """

    section: str
    text: str
    metavar: str = ""
    names: Registry | None = None
    switch: str = ""
    also: str = ""


def key(
    default: Any,
    section: str,
    text: str,
    metavar: str = "",
    names: Registry | None = None,
    switch: str = "",
    also: str = "",
    **bounds: Any,
) -> Any:
    """Return the pydantic field of a key: its default, its :class:`Flag`, and pydantic's ``bounds`` of its value, such as ``ge=1``."""
    extra: Any = {"flag": Flag(section, text, metavar, names, switch, also)}  # typed as JSON by pydantic, which stores any object
    return Field(default, json_schema_extra=extra, **bounds)


def check_ratios(ratios: tuple[float, ...]) -> None:
    """Raise ValueError unless ``ratios`` can be the tiers of a run: one or more in (0, 1], each once, largest first."""
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


def _network(model: Any) -> Any:
    if isinstance(model, (str, Path)):
        return canonical(str(model))
    return spec_of(model) if callable(model) else model


def _data(given: Any) -> Any:
    return data_spec(given, datasets.names())


def _held_out(given: Any) -> Any:
    try:
        float(given)
    except (TypeError, ValueError):
        return data_spec(given, [])
    if share_in(str(given)) is None:
        raise ValueError(f"expected a share of more than 0 and less than 1, or a file, got {given}")
    return str(given)


def _file(path: Any) -> Any:
    return str(Path(path).resolve()) if isinstance(path, (str, Path)) and str(path) else path


def _ordered(tiers: Any) -> Any:
    if isinstance(tiers, tuple):
        check_ratios(tiers)
    return tiers


def _once(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or len(set(words)) != len(words):
        raise ValueError(f"expected some of idle, charging, unmetered, each once, got {', '.join(words) or 'none'}")
    return words


def _distinct(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if names and len(set(names)) != len(names):
        raise ValueError(f"expected each name once, got {', '.join(names)}")
    return names


Remedy = Literal["micro-batch", "recompute", "tier", "refuse", "send"]


def _steps(steps: tuple[str, ...]) -> tuple[str, ...]:
    if not steps or len(set(steps)) != len(steps) or {"send", "refuse"} & set(steps[:-1]):
        raise ValueError(f"expected each step once, and refuse or send last, got {', '.join(steps) or 'none'}")
    return steps


class RunConfig(BaseModel):
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

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_min_length=1)

    plugins: dict[str, str] | None = key(
        None,
        "",
        "Files and modules of plug-ins, each with its SHA-256; a list of files, modules and decorated classes is possible.",
    )
    profile: str = key("phone", TASK, "Fleet or device to simulate; 'edgefl devices' lists them.", "NAME|FILE")
    method: str = key("fedhm", TASK, "Federated learning method; 'edgefl methods' describes each.", names=methods)
    method_options: dict[str, Any] = key({}, "", "Options of the method; 'edgefl methods NAME' lists them.")
    model: Annotated[str | None, BeforeValidator(_network)] = key(
        None,
        TASK,
        "Network to train: a name, or your own as package.module:factory, file.py:factory, timm:NAME, torchvision:NAME or FILE.onnx. "
        "[the data set's own]",
        names=models,
    )
    weights: Annotated[str | None, BeforeValidator(_file)] = key(
        None, TASK, "Initial weights of the whole network, a safetensors file. [random]", "FILE"
    )
    loss: Annotated[str | None, BeforeValidator(_network)] = key(
        None,
        TASK,
        "Loss of a batch, as package.module:function or file.py:function: (outputs, targets) to a scalar. [cross-entropy]",
        "FUNCTION",
    )
    new_classifier: bool = key(
        False, TASK, "Leave the last layer out of --weights, such as one for other labels: it begins with random values. [no]"
    )
    sources: dict[Literal["root", "model", "weights", "data", "loss_root", "loss", "fleet", "trace"], str] | None = key(
        None,
        "",
        "Recorded by the run: the folders of network and loss, and hashes of their source, of weights, and of your data, fleet and trace.",
    )
    norm: str | None = key(None, TASK, "Normalisation layers of the network. [the model's own]", "group|static|batch|layer|none")
    dataset: Annotated[str, BeforeValidator(_data)] = key(
        "digits",
        TASK,
        "Data set, or several as domains of one: a+b; or your own: a folder of images by class, an .npz, .npy, CSV, Parquet or Arrow "
        "file, or hf:ID.",
        "NAME[+NAME…]|PATH",
        names=datasets,
        also="--data",
    )
    label: str | None = key(None, TASK, "Column or array of your data with the labels. [guessed]", "COLUMN")
    owner: str | None = key(None, TASK, "Column or array of your data with each sample's owner. [guessed]", "COLUMN")
    features: tuple[str, ...] | None = key(None, TASK, "Columns of your data that are a sample. [guessed]", "a,b")
    held_out: Annotated[str | None, BeforeValidator(_held_out)] = key(
        None, TASK, "Share of your data that is held out for evaluation, or a file of such samples. [its own, or 0.2]", "X|PATH"
    )
    data_dir: str | None = key(None, TASK, "Folder with the data set's files. [where its package puts them]", "DIR")

    clients: int = key(20, DATA, "Number of clients in the population.", ge=1, le=10**9)
    partition: str = key(
        "dirichlet:0.5",
        DATA,
        "How clients share the samples. iid: evenly; dirichlet:A: uneven labels, more so for small A; classes:K: K labels each; "
        "natural: by the data set's owners; index:S or index:S:A: S samples per client (uneven labels), for any number of clients; "
        "flwr:NAME(keyword=value, …): a partitioner of flwr-datasets.",
        "SPEC",
    )
    data_share: float = key(1.0, DATA, "Share of its training samples that each client uses.", gt=0, le=1)
    validation_share: float = key(
        0.0,
        DATA,
        "Share of the training samples that no client has; models are evaluated on it instead of the test samples.",
        ge=0,
        lt=1,
    )
    permute_labels: bool = key(False, DATA, "Each client has its own order of labels; accuracy is their mean. [no]")

    rounds: Count = key(30, ROUNDS, "Number of rounds; with --mode async, of server steps.")
    per_round: Count | None = key(None, ROUNDS, "Updates wanted per round; in mode async, clients at work. [half of --clients]")
    eval_every: Count = key(1, ROUNDS, "Evaluate every N rounds, and after the last one.")
    eval_samples: Count | None = key(
        None, ROUNDS, "Held-out samples to evaluate on, drawn by the seed. [all after the last round, 1,000 before]"
    )
    eval_after_training: bool | None = key(
        None,
        ROUNDS,
        "In evaluated rounds, also evaluate each client's model right after its local training. [if clients have models of their own]",
    )
    seed: int = key(0, ROUNDS, "Seed of every random draw.", ge=0)

    tiers: Annotated[tuple[float, ...] | Literal["auto"] | None, AfterValidator(_ordered)] = key(
        None,
        TIERS,
        "Sizes of sub-models, largest first; auto: the largest that fits each class. [the method's own]",
        "1,0.5,0.25|auto",
    )
    tier_assignment: Literal["auto", "uniform", "dynamic"] = key(
        "auto",
        TIERS,
        "auto: the largest tier that fits the class; uniform: a random fitting tier per client; dynamic: per round.",
    )
    tier_shares: tuple[float, ...] | None = key(
        None, TIERS, "Shares of clients at each tier, unless assigned by auto. [equal]", "0.5,0.3,0.2"
    )

    local_epochs: Count | None = key(None, CLIENT, "Epochs that a client trains each round. [digits: 5, else 1]")
    batch_size: Count = key(32, CLIENT, "Samples per training step.")
    micro_batch: Count | None = key(None, CLIENT, "Samples per pass; gradients add up over the batch. [the batch]")
    runtime: Literal["torch", "onnx"] = key("torch", CLIENT, "Library that trains; onnx: onnxruntime, on exported graphs.")
    optimizer: Literal["momentum", "sgd", "adam"] = key("momentum", CLIENT, "Optimizer of the client.")
    lr: Positive = key(0.05, CLIENT, "Learning rate of the client.")
    lr_schedule: Literal["constant", "cosine", "step"] = key(
        "constant", CLIENT, "Change of --lr over rounds; cosine ends at 0; step: a tenth in the second half."
    )
    momentum: float = key(0.9, CLIENT, "Coefficient of the optimizer momentum.", ge=0, lt=1)
    augment: Literal["none", "flip"] = key(
        "none", CLIENT, "Change of training samples; flip: images are mirrored left-right with chance 1/2, anew in every epoch."
    )
    weight_decay: float = key(1e-4, CLIENT, "L2 coefficient, added to the gradients.", ge=0)
    objective: Annotated[str, _known(objectives)] = key(
        "none", CLIENT, "Correction of client drift: FedProx, FedDyn or SCAFFOLD.", names=objectives
    )
    objective_strength: Positive = key(0.1, CLIENT, "Weight of the objective: μ of prox, α of dyn.")

    server_optimizer: Annotated[str, _known(server_optimizers)] = key(
        "avg", SERVER, "How the server steps; avg takes the average as it is.", names=server_optimizers
    )
    server_lr: Positive | None = key(None, SERVER, "Learning rate of the server. [1; adam and yogi: 0.01]")
    codec: Annotated[str, _known(codecs)] = key("fp32", SERVER, "Encoding of the updates that clients send.", names=codecs)

    conditions: Literal["fleet", "ideal"] = key(
        "fleet", FLEET, "fleet: links vary and sessions are lost; ideal: no losses, delays or batteries."
    )
    over_selection: float | None = key(
        None, FLEET, "Clients selected per update wanted. [the profile's own; ideal: 1]", ge=1, le=10
    )
    deadline_s: Positive | None = key(
        None, FLEET, "Longest session in simulated seconds; also a budget of the tiers. [the profile's own]"
    )
    clock_margin: float = key(
        1.0,
        FLEET,
        "Plan tiers for training that takes this many times the predicted seconds; the clock itself stays.",
        ge=1,
        le=100,
    )
    availability: str = key(
        "always",
        FLEET,
        "When clients are eligible: always, by the hour of the day, or by a trace (CSV, Parquet: client, from, to, state).",
        "always|daily|FILE",
    )
    eligible_when: Annotated[tuple[Literal["idle", "charging", "unmetered"], ...], AfterValidator(_once)] = key(
        ("idle", "charging", "unmetered"),
        FLEET,
        "Device states that a trace must show for a client to be eligible; for daily, only charging counts.",
        "idle,charging",
    )
    start_hour: float = key(0.0, FLEET, "Hour of the day at which the simulated clock starts.", ge=0, lt=24)
    dynamic_devices: bool = key(
        False, FLEET, "Free memory, speed and tiers of devices change each round. [static]", switch="--static-devices"
    )
    mode: Literal["sync", "async"] = key(
        "sync", FLEET, "The server steps after each round, or (async, FedBuff) after --buffer updates."
    )
    buffer: Count | None = key(None, FLEET, "Updates per server step in mode async. [half of --per-round]")
    staleness_power: float = key(0.5, FLEET, "In mode async, updates s steps old weigh 1/(1 + s)^X.", ge=0)
    enforce: Literal["plan", "meter", "hard"] = key(
        "meter", FLEET, "Memory is predicted (plan), metered in training (meter), or limited in a process per client (hard)."
    )
    on_shortfall: Annotated[tuple[Remedy, ...], AfterValidator(_steps)] = key(
        ("micro-batch", "tier"),
        FLEET,
        "Steps to try if a tier does not fit: micro-batch, recompute (activations, in the backward pass), tier; then refuse (implied) "
        "or send (train anyway).",
        "micro-batch,tier",
    )

    cpu_limit_s: Positive = key(600.0, HOST, "Processor seconds per client under --enforce hard.")
    engine: Annotated[str | None, _known(engines, "auto", None)] = key(
        None,
        HOST,
        "Where clients train. inline: in this process; pool: in --workers processes, to the same bits; ray: on the nodes of a cluster, to "
        "the same bits if they are alike; group, ray-group: clients of a tier together, equal to within rounding; auto: the fastest of "
        "this computer in a short trial. [inline; with several --workers: pool]",
        "auto|NAME",
        engines,
    )
    workers: int = key(
        1,
        HOST,
        "Number of processes that train clients; 0: one for every core, or every slot of the Ray cluster. Engine auto uses every core.",
        ge=0,
    )
    ray_address: str = key(
        "auto",
        HOST,
        "Ray cluster of engine ray; auto: the one that this computer belongs to; local: one that is started here for the run.",
        "auto|HOST:PORT|local",
    )
    ray_auth: bool = key(True, HOST, "Connect to the Ray cluster with its token. [yes]")
    mixed_nodes: bool = key(
        False, HOST, "Use nodes of the Ray cluster that compute other bits than this computer; the summary says so. [no]"
    )
    log: Annotated[tuple[Annotated[str, _known(loggers)], ...] | None, AfterValidator(_distinct)] = key(
        None,
        HOST,
        "Where to show the run while it trains; a logger that fails is dropped. [nowhere]",
        "tensorboard,mlflow",
        loggers,
    )
    device: Literal["cpu", "cuda"] = key("cpu", HOST, "Hardware that trains clients.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if problems := [*_training_problems(self), *_fleet_problems(self)]:
            raise ValueError("; ".join(problems))
        return self

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        # Defined last, because a wrapping validator handles only the errors of validators above it.
        try:
            return handler(resolved(values) if isinstance(values, Mapping) else values)
        except ValidationError as error:
            problems = [explain(problem, cls.model_fields, " see edgefl simulate --help") for problem in error.errors()]
            raise ConfigError("; ".join(problems)) from None

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str = "") -> Self:
        """Return the configuration of ``values``, key → value; the ConfigError about a wrong one begins with ``source``."""
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}" if source else str(error)) from None

    @classmethod
    def load(cls, path: Path | None, flags: Mapping[str, Any]) -> Self:
        """Return the configuration of a TOML file (None: the defaults), overridden by ``flags``; see :func:`keys_of`."""
        return cls.of(keys_of(path, flags))

    def to_toml(self) -> str:
        """Return the configuration as TOML, without the keys that are None."""
        return tomlkit.dumps({key: value for key, value in self.model_dump(mode="json").items() if value is not None})


FLAGS: dict[str, Flag] = {name: cast(Any, field.json_schema_extra)["flag"] for name, field in RunConfig.model_fields.items()}
RunConfig.__doc__ = f"{RunConfig.__doc__}\nAttributes:\n" + "\n".join(f"    {name}: {flag.text}" for name, flag in FLAGS.items())


def keys_of(path: Path | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a TOML file (or none), checked, overridden by ``flags``; ``method_options`` are overridden one by one."""
    if path is None:
        return dict(flags)
    values = read_toml(path, ConfigError)
    RunConfig.of(values, str(path))
    options = {**values.get("method_options", {}), **flags.get("method_options", {})}
    return {**values, **flags} | ({"method_options": options} if options else {})


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
    return keys + ["engine"] * (_groups_clients(before) != _groups_clients(after))


def _groups_clients(config: RunConfig) -> bool:
    return config.engine in engines.names() and bool(engines.facts(config.engine).get("groups_clients"))


def _training_problems(config: RunConfig) -> Iterator[str]:
    """Yield a message for each contradiction between the keys of the network and of local training."""
    if config.new_classifier and config.weights is None:
        yield "new_classifier: the last layer begins with random values unless there are weights; give weights too"
    if config.engine == "inline" and config.workers != 1:
        yield f"engine: inline has one worker, got workers = {config.workers}; use pool"
    if _groups_clients(config) and (config.enforce == "hard" or config.runtime == "onnx"):
        alone = "enforce hard" if config.enforce == "hard" else "runtime onnx"
        yield f"engine: {config.engine} trains clients together, and {alone} trains them one by one; use pool"
    needs = objectives.facts(config.objective).get("needs", ())
    if "plain_sgd" in needs and (config.optimizer != "sgd" or config.weight_decay):
        got = f"got {config.optimizer} and {config.weight_decay:g}"
        yield f"objective: scaffold computes gradients from plain SGD steps (option II); give optimizer sgd and weight_decay 0, {got}"
    if "fixed_coordinates" in needs and config.tier_assignment == "dynamic":
        stores = f"{config.objective} stores a gradient of every weight on its client; with tier_assignment dynamic"
        yield f"objective: {stores} these weights change from round to round; give tier_assignment auto or uniform"
    if "rounds" in needs and config.mode == "async":
        yield f"mode: {config.objective} corrects gradients by a tensor of the round's start, and async has no rounds; give mode sync"
    if "recompute" in config.on_shortfall and config.runtime == "onnx":
        yield (
            "on_shortfall: recompute needs torch, and runtime onnx runs training graphs that save all activations; give runtime torch "
            "or leave recompute out"
        )
    if "send" in config.on_shortfall and config.enforce == "plan":
        yield "on_shortfall: send needs a device that meters its memory, and enforce plan only predicts it; give enforce meter or hard"


def _fleet_problems(config: RunConfig) -> Iterator[str]:
    """Yield a message for each contradiction between the keys of tiers, clients and rounds."""
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
        yield f"buffer: got {config.buffer}, expected at most the {config.clients} clients: each sends one update per step"
