"""Flags that several commands share. Those of a run's keys come from the annotations of :class:`edgefl.config.RunConfig`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import click

from edgefl.cli.types import Listed
from edgefl.config import FLAGS, RunConfig

F = TypeVar("F", bound=Callable[..., Any])

OWN = "This command"
NETWORK = "Network"
_TRAINING = ("batch_size", "micro_batch", "optimizer", "codec")
_MOST_LISTED = 6
_HYPHEN = "\u2011"


class Option(click.Option):
    """An option that knows under which heading help lists it; its default is shown in brackets."""

    def __init__(self, *args: Any, section: str = OWN, show_default: bool = False, **settings: Any) -> None:
        if show_default:
            settings["help"] += f" [{settings['default']}]"
        super().__init__(*args, **settings)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what click adds to the text: only that a flag is required."""
        return {key: value for key, value in super().get_help_extra(ctx).items() if key == "required"}


class Command(click.Command):
    """A command whose help groups its options by their sections, and breaks no name at a hyphen."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list of options per section, those of the command itself last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)) is not None:
                names, text = row
                sections.setdefault(getattr(parameter, "section", OWN), []).append((names, text.replace("-", _HYPHEN)))
        for section in sorted(sections, key=lambda name: name == OWN):
            with formatter.section(section):
                formatter.write_dl(sections[section])

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, with plain hyphens."""
        return super().get_help(ctx).replace(_HYPHEN, "-")


def option(*names: str, section: str = OWN, **settings: Any) -> Callable[[F], F]:
    """Return the decorator of an option that help lists under ``section``."""
    return click.option(*names, cls=Option, section=section, **settings)


def run_flags(*keys: str, leave_out: Sequence[str] = (), section: str = "") -> Callable[[F], F]:
    """Return the decorator that adds the flags of a run's ``keys`` (all by default), under ``section`` or their own headings.

    Their values are checked with the rest of the configuration, by :class:`edgefl.config.RunConfig`; None stands for "not given".
    """
    flags = [_flag(key, section) for key in keys or FLAGS if key not in leave_out and FLAGS[key].section]
    return lambda command: _stack(command, flags)


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that were given."""
    return {key: value for key, value in flags.items() if value is not None}


config_option = option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with keys of a run: the long flags, with _ for -. Flags on the command line win.",
)
json_option = option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on standard output.")


def network_options(command: F) -> F:
    """Add NETWORK and its description: ``network``, ``model``, ``inputs``, ``classes``, ``norm``; see :func:`network_and_options`."""
    own = "[a reference network's own]"
    flags = (
        click.argument("network", required=False),
        run_flags("model", section=NETWORK),
        option(
            "--input",
            "inputs",
            multiple=True,
            section=NETWORK,
            metavar="[NAME=][TYPE:]SHAPE",
            help=f"Shape of one sample, such as 3x32x32 or ids=int64:80; repeat it for several inputs. {own}",
        ),
        option("--classes", type=click.IntRange(1), section=NETWORK, metavar="N", help=f"Number of labels. {own}"),
        run_flags("norm", section=NETWORK),
    )
    return _stack(command, flags)


def network_and_options(network: str | None, model: str | None, flags: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the one network that was given, and the flags that were given, checked as keys of a run where they are such.

    Raises:
        UsageError: no network, or two.
        ConfigError: a key of a run has a wrong value.
    """
    if (network is None) == (model is None):
        raise click.UsageError("give one network: NETWORK, or --model NAME")
    options = given(flags)
    RunConfig.of({key: options[key] for key in _TRAINING if key in options})
    return network or str(model), options


def training_options(command: F) -> F:
    """Add how a client trains and sends: ``batch_size``, ``micro_batch``, ``optimizer``, ``codec``, ``samples``, ``local_epochs``."""
    section = "Training on a client"
    count: dict[str, Any] = {"type": click.IntRange(1), "show_default": True, "metavar": "N", "section": section}
    flags = (
        run_flags(*_TRAINING, section=section),
        option("--samples", default=500, help="Training samples of a client.", **count),
        option("--local-epochs", default=1, help="Epochs that a client trains each round.", **count),
    )
    return _stack(command, flags)


def _stack(command: F, decorators: Sequence[Callable[[F], F]]) -> F:
    """Return ``command`` under ``decorators``, of which the first is the outermost: help lists them in their order."""
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def _flag(key: str, section: str) -> Callable[[F], F]:
    flag, field, name = FLAGS[key], RunConfig.model_fields[key], f"--{key.replace('_', '-')}"
    settings: dict[str, Any] = {"section": section or flag.section, "default": None}
    text, bracket, default = flag.text.partition(" [")
    if field.annotation is bool:
        name += f"/{flag.switch or name.replace('--', '--no-')}"
    else:
        settings["type"], settings["metavar"] = _type(field.annotation, flag.metavar)
    if flag.names:
        names = flag.names.names()
        if not flag.metavar:
            settings["metavar"] = "|".join(names) if len(names) <= _MOST_LISTED else "NAME"
        text += "" if settings["metavar"].count("|") else f" Known: {', '.join(names)}."
    if not bracket:
        shown = field.default if isinstance(field.default, tuple) else (field.default,)
        default = ",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in shown) + "]"
    return option(name, help=f"{text} [{default}", **settings)


def _type(annotation: Any, metavar: str) -> tuple[Any, str]:
    """Return the type of a flag and its placeholder: ``metavar``, unless that is empty or an example of a list."""
    united = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kind, *others = [part for part in united if part is not NoneType]
    if get_origin(kind) is Literal:
        return str, metavar or "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        of = get_args(kind)[0]
        example, _, word = metavar.partition("|")
        return Listed(float if of is float else str, example, word if others else None), metavar
    return kind, metavar or {int: "N", float: "X"}.get(kind, "NAME")
