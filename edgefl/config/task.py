"""Keys of what is trained, by whom, in how many rounds, and of tiers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from edgefl.config.field import Count, Keys, key
from edgefl.errors import nearest
from edgefl.registry import datasets, methods, models
from edgefl.util.datasets import data_spec, share_in
from edgefl.util.files import is_profile_path
from edgefl.util.networks import canonical, is_own, spec_of
from edgefl.util.ratios import check_ratios, ratio_in

TASK = "Method, model and data set"
DATA = "Clients and their data"
ROUNDS = "Rounds and evaluation"
TIERS = "Tiers"
"""Headings of these keys in the command line's help."""
METRICS = ("accuracy", "macro-f1", "balanced-accuracy", "worst-client")
"""Metrics that have a name."""


def _network(model: Any) -> Any:
    if isinstance(model, (str, Path)):
        return canonical(str(model))
    return spec_of(model) if callable(model) else model


def _metric(value: Any) -> Any:
    name = _network(value)
    if isinstance(name, str) and not is_own(name) and name not in METRICS:
        choices = f"{', '.join(METRICS)}, or your own as file.py:function"
        raise ValueError(f"got {value!r};{nearest(name, METRICS)} expected one of {choices}")
    return name


def _by_tier(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    networks: dict[float, Any] = {}
    for tier, model in value.items():
        ratio = ratio_in(tier)
        if ratio in networks:
            raise ValueError(f"two networks for tier {ratio:g}, {networks[ratio]} and {_network(model)}; give one")
        networks[ratio] = _network(model)
    if 1.0 not in networks:
        raise ValueError("no network for tier 1, the whole model, to which relative deadlines refer; give it too")
    return {f"{ratio:g}": networks[ratio] for ratio in sorted(networks, reverse=True)}


def _data(value: Any) -> Any:
    return data_spec(value, datasets.names())


def _held_out(value: Any) -> Any:
    try:
        float(value)
    except (TypeError, ValueError):
        return data_spec(value, [])
    except OverflowError:
        pass  # a whole number, and no share
    if share_in(str(value)) is None:
        raise ValueError(f"expected a share of more than 0 and less than 1, or a file, got {value}")
    return str(value)


def _file(path: Any) -> Any:
    return str(Path(path).resolve()) if isinstance(path, (str, Path)) and str(path) else path


def _preprocessing(value: Any) -> Any:
    plain = isinstance(value, str) and (value in ("none", "from-weights") or value.startswith("{"))
    return value if plain or isinstance(value, bool) else _file(value)


def _profile(value: Any) -> Any:
    return _file(value) if isinstance(value, Path) or (isinstance(value, str) and is_profile_path(value)) else value


def _options(options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        try:
            stored = _has_values(to_jsonable_python(value, inf_nan_mode="constants"))
        except PydanticSerializationError:
            stored = False
        if not stored:
            form = "a number, text, true, false, or a list or table of them"
            raise ValueError(f"{name}: expected {form}, got {value!r}; leave it out for its default")
    return options


def _has_values(plain: Any) -> bool:
    """Return whether no part of a value in the form of JSON is None, which TOML does not have."""
    if isinstance(plain, (list, dict)):
        return all(map(_has_values, plain.values() if isinstance(plain, dict) else plain))
    return plain is not None


def _ordered(tiers: Any) -> Any:
    if isinstance(tiers, tuple):
        check_ratios(tiers)
    return tiers


_Source = Literal[
    "root", "model", "weights", "data", "loss_root", "loss", "metric_root", "metric", "lr_schedule_root", "lr_schedule", "fleet", "trace"
]  # fmt: skip


class TaskKeys(Keys):
    """Keys of method, network, data set, and the clients that share the data."""

    plugins: dict[str, str] | None = key(
        None,
        "",
        "Files and modules of plug-ins, each with its SHA-256; a list of files, modules and decorated classes is possible.",
    )
    profile: Annotated[str, BeforeValidator(_profile)] = key(
        "phone", TASK, "Fleet or device to simulate; 'edgefl devices' lists them.", "NAME|FILE"
    )
    method: str = key("fedhm", TASK, "Federated learning method; 'edgefl methods' describes each.", names=methods)
    method_options: Annotated[dict[str, Any], AfterValidator(_options)] = key(
        {}, "", "Options of the method; 'edgefl methods NAME' lists them."
    )
    model: Annotated[str | None, BeforeValidator(_network)] = key(
        None,
        TASK,
        "Network to train: a name, or your own as package.module:factory, file.py:factory, timm:NAME, torchvision:NAME or FILE.onnx. "
        "[the data set's own]",
        names=models,
    )
    weights: Annotated[str | None, BeforeValidator(_file)] = key(
        None, TASK, "Initial weights of the whole network, a safetensors file or a state_dict of torch. [random]", "FILE"
    )
    loss: Annotated[str | None, BeforeValidator(_network)] = key(
        None,
        TASK,
        "Loss of a batch, as package.module:function or file.py:function: (outputs, targets) to a scalar. [cross-entropy]",
        "FUNCTION",
    )
    metric: Annotated[str | None, BeforeValidator(_metric)] = key(
        None,
        TASK,
        "What evaluation measures: accuracy, macro-f1, balanced-accuracy, worst-client, or your own, as package.module:function or "
        "file.py:function: (outputs, targets) to a number. [accuracy; with --loss, the loss's own]",
        "NAME|FUNCTION",
    )
    preprocessing: Annotated[str | None, BeforeValidator(_preprocessing)] = key(
        None,
        TASK,
        "How your data are prepared: none, as they are; a JSON file with scale, mean and std; or from-weights, as --weights says. With "
        "--weights, your data need it. [by their own mean and deviation]",
        "none|FILE|from-weights",
    )
    new_classifier: bool = key(
        False, TASK, "Leave the last layer out of --weights, such as one for other labels: it begins with random values. [no]"
    )
    sources: dict[_Source, str] | None = key(
        None,
        "",
        "Recorded by the run: the folders of your own code; hashes of their source, of weights, data, fleet and trace.",
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
    data_dir: Annotated[str | None, BeforeValidator(_file)] = key(
        None, TASK, "Folder with the data set's files. [where its package puts them]", "DIR"
    )
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
    permute_labels: bool = key(False, DATA, "Each client has its own order of labels; accuracy is the mean over clients. [no]")


class RoundsKeys(Keys):
    """Keys of rounds, evaluation, tiers and who gets which."""

    rounds: Count = key(30, ROUNDS, "Number of rounds; with --mode async, of server steps.")
    per_round: Count | None = key(
        None, ROUNDS, "Updates wanted per round; with --mode async, clients that train at a time. [half of --clients]"
    )
    eval_every: Count = key(1, ROUNDS, "Evaluate every N rounds, and after the last one.")
    eval_samples: Count | None = key(
        None,
        ROUNDS,
        "Held-out samples to evaluate on, drawn by the seed; all clients together have as many of their own, each at least 50. "
        "[all after the last round, 1,000 before; 200 a client]",
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
    tier: Annotated[dict[str, str] | None, BeforeValidator(_by_tier)] = key(
        None,
        TIERS,
        "Network of one tier instead of --model, such as 0.25=net.py:make; repeat it for each tier. For methods that train different "
        "networks, such as feddf. [none]",
        "RATIO=NETWORK",
    )
    tier_assignment: Literal["auto", "uniform", "dynamic"] = key(
        "auto",
        TIERS,
        "auto: the largest tier that fits the class; uniform: a random fitting tier per client; dynamic: drawn anew every round.",
    )
    tier_shares: tuple[float, ...] | None = key(
        None, TIERS, "Shares of clients at each tier, unless assigned by auto. [equal]", "0.5,0.3,0.2"
    )
