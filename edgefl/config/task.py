"""Keys of what is trained: method, network and data set."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticSerializationError, to_jsonable_python

from edgefl.config.field import Keys, key
from edgefl.registry import datasets, methods, models
from edgefl.util.datasets import data_spec, share_in
from edgefl.util.files import is_profile_path
from edgefl.util.networks import canonical, spec_of

TASK = "Method, model and data set"
"""Heading of these keys in the command line's help."""


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
    except OverflowError:
        pass  # a whole number, and no share
    if share_in(str(given)) is None:
        raise ValueError(f"expected a share of more than 0 and less than 1, or a file, got {given}")
    return str(given)


def _file(path: Any) -> Any:
    return str(Path(path).resolve()) if isinstance(path, (str, Path)) and str(path) else path


def _preprocessing(given: Any) -> Any:
    plain = isinstance(given, str) and (given in ("none", "from-weights") or given.startswith("{"))
    return given if plain or isinstance(given, bool) else _file(given)


def _profile(given: Any) -> Any:
    return _file(given) if isinstance(given, Path) or (isinstance(given, str) and is_profile_path(given)) else given


def _options(given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        try:
            stored = _has_values(to_jsonable_python(value, inf_nan_mode="constants"))
        except PydanticSerializationError:
            stored = False
        if not stored:
            form = "a number, text, true, false, or a list or table of them"
            raise ValueError(f"{name}: expected {form}, got {value!r}; leave it out for its default")
    return given


def _has_values(plain: Any) -> bool:
    """Return whether no part of a value in the form of JSON is None, which TOML does not have."""
    if isinstance(plain, (list, dict)):
        return all(map(_has_values, plain.values() if isinstance(plain, dict) else plain))
    return plain is not None


class TaskKeys(Keys):
    """Keys of what is trained: method, network and data set."""

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
    data_dir: Annotated[str | None, BeforeValidator(_file)] = key(
        None, TASK, "Folder with the data set's files. [where its package puts them]", "DIR"
    )
