"""The flags of a run, made from the annotations of :class:`edgefl.config.RunConfig`, and those of the commands about one network."""

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import click

from edgefl.cli.names import check_names, check_run
from edgefl.cli.options import complete_name, config_option, method_option, option, options_of, plugin_option, stacked
from edgefl.cli.param_types import Listed, NetworkOfTier, NumberOr, Within, by_tier
from edgefl.config import FLAGS, TASK, RunConfig
from edgefl.config.field import KeyValues
from edgefl.registry import models

F = TypeVar("F", bound=Callable[..., Any])

NETWORK = "Network"
_TRAINING = ("batch_size", "micro_batch", "optimizer", "codec")
_CHECKED = (*_TRAINING, "runtime")
DATA = ("dataset", "data_dir", "label", "owner", "features", "held_out", "preprocessing")
"""Keys of a run that say which data set, and what its samples are."""


def run_flags(
    *keys: str, leave_out: Sequence[str] = (), section: str = "", defaults: Mapping[str, str] | None = None
) -> Callable[[F], F]:
    """Return the decorator that adds the flags of a run's ``keys`` (all by default), under ``section`` or their own headings.

    ``defaults`` are words for what a flag's absence means where it is not the run's default.
    Their values are checked with the rest of the configuration, by :class:`edgefl.config.RunConfig`; None stands for "not given".
    """
    wanted = [key for key in keys or FLAGS if key not in leave_out and FLAGS[key].section]
    return stacked(*(_flag(key, section, (defaults or {}).get(key)) for key in wanted))


def run_options(command: F) -> F:
    """Add what configures one run: ``config_file``, and the flags of which :func:`run_keys` returns the keys."""
    decorate: Callable[[F], F] = stacked(
        run_flags(), plugin_option(TASK, expose=True), method_option(section=TASK), config_option
    )
    return decorate(command)


def run_keys(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a run that flags of :func:`run_options` give."""
    method_options = dict(flags.pop("method_options"))
    return given(flags) | ({"method_options": method_options} if method_options else {})


def given(flags: KeyValues) -> dict[str, Any]:
    """Return the flags that were given."""
    return {key: value for key, value in flags.items() if value is not None}


def flag_of(key: str) -> str:
    """Return the flag of a key of a run.

    >>> flag_of("data_dir")
    '--data-dir'
    """
    return f"--{key.replace('_', '-')}"


def network_options(command: F) -> F:
    """Add NETWORK and its description: ``network``, ``model``, ``inputs``, ``classes``, ``norm``; see :func:`network_and_options`."""
    default, described = "[a reference network's own]", options_of(NETWORK)
    shape = f"Shape of one sample, such as 3x32x32 or ids=int64:80; repeat it for several inputs. {default}"
    decorate: Callable[[F], F] = stacked(
        click.argument("network", required=False, shell_complete=complete_name),
        described("--model", metavar="NAME", names=models, help="Another way to give NETWORK, as in 'edgefl simulate'. {known}"),
        described("--input", "inputs", multiple=True, metavar="[NAME=][TYPE:]SHAPE", help=shape),
        described(
            "--classes", type=Within(int, 1), metavar="N", help=f"Number of labels, also for a factory that takes it. {default}"
        ),
        run_flags("norm", section=NETWORK),
        plugin_option(NETWORK),
    )
    return decorate(command)


def data_options(command: F) -> F:
    """Add the flags of a data set whose samples and classes take the place of ``--input`` and ``--classes``."""
    return run_flags(*DATA, section="Data set, instead of --input and --classes", defaults={"dataset": "none"})(command)


def network_and_options(flags: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (network, inputs, classes) and the other flags that were given. A data set gives what it says of the three.

    Raises:
        click.UsageError: not exactly one network was given, or a data set and the shape of a sample.
        InputError: a flag of training has a wrong value, or the data set cannot be read.
    """
    network, model, inputs, classes = (flags.pop(key) for key in ("network", "model", "inputs", "classes"))
    data = given({key: flags.pop(key, None) for key in DATA})
    if (network is None) == (model is None) and not (data and network is None):
        raise click.UsageError("give one network, such as resnet18 or net.py:make, or --model NAME")
    if data:
        if inputs or classes:
            raise click.UsageError(
                "--data gives the shape of a sample and the number of classes: leave --input and --classes out"
            )
        if "dataset" not in data:
            raise click.UsageError(f"{flag_of(next(iter(data)))} is about a data set: give --data too")
        config = RunConfig.of(data)
        check_run(config)
        _check(network or model, flags)
        from edgefl.run.inspect_data import network_for

        usual, inputs, classes = network_for(config)
        model = model or (None if network else usual)
        if not (network or model):
            raise click.UsageError("the samples have several inputs, and reference networks take one: give NETWORK")
    options = given(flags)
    if "method_options" in options:
        options["method_options"] = dict(options["method_options"])
    RunConfig.of({key: options[key] for key in _CHECKED if key in options})
    if not data:
        _check(network or model, options)
    return (network or model, inputs, classes), options


def _check(network: str | None, flags: Mapping[str, Any]) -> None:
    """Raise InputError unless the names of a network, a method, devices and a fleet are known."""
    devices = flags.get("device") or ()
    names = [devices] if isinstance(devices, str) else devices
    check_names(model=[network], method=[flags.get("method")], device=names, fleet=[flags.get("fleet")])


def training_options(command: F) -> F:
    """Add the flags of training on a client: ``batch_size``, ``micro_batch``, ``optimizer``, ``codec``, ``samples``, ``local_epochs``."""
    section = "Training on a client"
    count = options_of(section, type=Within(int, 1), metavar="N")
    decorate: Callable[[F], F] = stacked(
        run_flags(*_TRAINING, section=section),
        options_of(section)("--recompute", is_flag=True, help="Compute activations again in the backward pass, to save memory."),
        count("--samples", default=500, help="Training samples of a client, for seconds and joules on a device."),
        count("--local-epochs", default=1, help="Epochs that a client trains each round, for seconds and joules."),
    )
    return decorate(command)


def _flag(key: str, section: str, absent: str | None) -> Callable[[F], F]:
    flag, field, name = FLAGS[key], RunConfig.model_fields[key], flag_of(key)
    settings: dict[str, Any] = {"section": section or flag.section, "default": None}
    text, bracket, default = flag.text.partition(" [")
    if bool in (field.annotation, *get_args(field.annotation)):
        name += f"/{flag.switch or name.replace('--', '--no-')}"
    elif key == "tier":
        settings |= {"type": NetworkOfTier(), "metavar": flag.metavar, "multiple": True, "callback": by_tier}
    elif key.endswith("_s"):
        settings["type"], settings["metavar"] = str, flag.metavar  # the configuration reads the unit
    else:
        settings["type"], settings["metavar"] = _type(field.annotation, flag.metavar)
    if flag.names:
        settings |= {"names": flag.names, "metavar": flag.metavar or None}
        text += " {known}"
    if absent:
        default = absent + "]"
    elif not bracket:
        shown = field.default if isinstance(field.default, tuple) else (field.default,)
        default = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in shown) + "]"
    names = (name, flag.also, key) if flag.also else (name,)
    return option(*names, help=f"{text}{'' if flag.names else ' '}[{default}", **settings)


def _type(annotation: Any, metavar: str) -> tuple[Any, str]:
    """Return the type of a flag and its placeholder: ``metavar``, unless that is empty or an example of a list."""
    united = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kind, *others = [part for part in united if part is not NoneType]
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is Literal:
        return str, metavar or "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        element = get_args(kind)[0]
        example, _, word = metavar.partition("|")
        return Listed(float if element is float else str, example, word if others else None), metavar
    words = tuple(word for other in others if get_origin(other) is Literal for word in get_args(other))
    if kind in (int, float):
        metavar = metavar or {int: "N", float: "X"}[kind]
        return NumberOr(kind, words, metavar), metavar
    return kind, metavar or "NAME"
