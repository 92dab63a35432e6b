"""The command ``completion``: Print a script that completes commands, options and names in your shell."""

import click

from edgefl.cli.console import echo, print_json
from edgefl.cli.options import Command, json_option

_USE = {
    "bash": 'eval "$(edgefl completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(edgefl completion zsh)"    # in ~/.zshrc',
    "fish": "edgefl completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(tuple(_USE)))
@json_option
@click.pass_context
def command(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the completion script of SHELL. It completes commands, options, methods, models, devices, data sets and run folders.

    \b
    eval "$(edgefl completion bash)"
    eval "$(edgefl completion zsh)"
    edgefl completion fish | source
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, "click knows every shell of the choice"
    script = made(ctx.find_root().command, {}, "edgefl", "_EDGEFL_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "use": _USE[shell], "script": script})
    else:
        echo(script)
