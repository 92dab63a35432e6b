"""Help whose options stand under headings, in the order in which they were declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

THIS_COMMAND = "This command"


class Option(click.Option):
    """An option that knows under which heading help lists it."""

    def __init__(self, *args: Any, section: str = THIS_COMMAND, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help groups its options by their sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list of options per section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (row := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(parameter, "section", THIS_COMMAND), []).append(row)
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)


def option(*names: str, section: str = THIS_COMMAND, **settings: Any) -> Callable[[F], F]:
    """Return the decorator of an option that help lists under ``section``."""
    return click.option(*names, cls=Option, section=section, **settings)


def stack(command: F, decorators: list[Callable[[F], F]]) -> F:
    """Return ``command`` under ``decorators``, of which the first is the outermost: help lists them in their order."""
    for decorator in reversed(decorators):
        command = decorator(command)
    return command
