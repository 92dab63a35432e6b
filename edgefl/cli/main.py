"""``edgefl``: commands are found by file and imported when called, so that help answers at once."""

import ast
import contextlib
import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn, cast

import click

from edgefl.errors import EdgeflError, InputError, Interrupted, first_line, nearest, printable
from edgefl.version import __version__

_ORDER = (
    "simulate", "compare", "sweep", "whatif", "methods", "profile", "inspect", "plan", "devices", "calibrate", "trace", "audit", "export",
    "verify", "serve", "open", "fed-round", "enroll", "revoke", "keys", "trust", "flower", "report", "doctor", "completion",
)  # fmt: skip
_NAMED = {"--method", "--model", "--data", "--dataset"}


@cache
def _homes() -> Mapping[str, tuple[str, str]]:
    """Return command → module and its text: files of this package, and ``command.py`` of the folders of contrib."""
    here = Path(__file__).parent
    files = {path.stem.replace("_", "-"): (f"edgefl.cli.{path.stem}", path) for path in here.glob("*.py")}
    files |= {
        path.parent.name: (f"edgefl.contrib.{path.parent.name}.command", path)
        for path in here.parent.glob("contrib/*/command.py")
    }
    texts = {name: (module, path.read_text(encoding="utf-8")) for name, (module, path) in files.items()}
    return {name: (module, text) for name, (module, text) in texts.items() if "\ndef command(" in text}


class Commands(click.Group):
    """Commands of this package and of contrib: files whose click command is called ``command``; a ``_`` is a ``-`` of the name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, the most used first."""
        return [name for name in _ORDER if name in _homes()] + sorted(_homes().keys() - set(_ORDER))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in self.list_commands(ctx):
            return None
        command = cast(click.Command, importlib.import_module(_homes()[name][0]).command)
        command.name = name  # of the function by default; the documentation shows it
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Raise a usage error that suggests the nearest command if a name is unknown."""
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-"):
            commands = self.list_commands(ctx)
            raise click.UsageError(f"no such command {name!r};{nearest(name, commands)} known: {', '.join(commands)}", ctx)
        if _NAMED.isdisjoint({arg.partition("=")[0] for arg in args}):
            return super().resolve_command(ctx, args)
        from edgefl.cli.names import check_given  # reads the registries

        check_given(args[1:])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by the first line of their files, without importing them."""
        rows = []
        for name in self.list_commands(ctx):
            text = ast.get_docstring(ast.parse(_homes()[name][1])) or ""
            rows.append((name, text.splitlines()[0].partition(": ")[2]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="edgefl")
def group() -> None:
    """Simulate federated learning on devices: what each can train under its budgets, what it costs, and what the fleet learns.

    \b
    edgefl simulate --profile phone
    edgefl COMMAND --help   (-h: shorter)
    """


def main() -> None:
    """Run the command line: exit 2 on wrong usage or input, 3 when a budget cannot be met, 1 on other failures."""
    _open_streams()
    try:
        Path.cwd()
    except OSError as error:
        _fail(f"the working folder cannot be used ({error.strerror}); change to another one", InputError.exit_code)
    try:
        status = _called()
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        if "--json" in sys.argv:
            _fail(error.format_message(), error.exit_code)
        shown = io.StringIO()
        error.show(shown)
        click.echo(printable(shown.getvalue()), nl=False, err=True)
        sys.exit(error.exit_code)
    except EdgeflError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt as error:
        more = f" Continue with: {error.command}" if isinstance(error, Interrupted) else ""
        click.echo(printable(f"Interrupted.{more}"), err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of a pipe has gone, as in `edgefl devices | head`. That is no error; the rest of the output is discarded.
        _discard_output()
        sys.exit(0)
    except Exception as error:
        if where := _plugin(error):
            _fail(f"{where}: {type(error).__name__}: {first_line(error)}", EdgeflError.exit_code)
        if isinstance(error, MemoryError):
            _fail("not enough memory: a file, a network or a fleet is too large for this computer", EdgeflError.exit_code)
        if not isinstance(error, OSError):
            raise
        from edgefl.util.files import UNWRITABLE

        # An error outside the run folder, such as of a full /tmp, a full disk of the output, or a working directory that was removed.
        users = error.errno in (errno.ENOSPC, errno.EDQUOT, *UNWRITABLE) and error.errno != errno.EIO
        text = f"{error.filename or 'standard output, or a temporary file'}: {error.strerror or error}"
        if error.filename is None:
            _discard_output()  # what is left of it would fail again at the end of the process
        _fail(text, InputError.exit_code if users else EdgeflError.exit_code)


def _called() -> object:
    """Call the command, and return what it returns. Click makes one error of an interruption and of a file that ends too early."""
    try:
        return group.main(prog_name="edgefl", standalone_mode=False)
    except click.Abort as error:
        raise error.__cause__ or KeyboardInterrupt from None


def _discard_output() -> None:
    """Let nothing more arrive at the standard output, if it is a file of the system."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_streams() -> None:
    """Discard what goes to standard streams that are closed, as by ``>&-``; otherwise the next file that is opened would get it.

    Characters that a stream's encoding lacks become question marks.
    """
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            setattr(sys, name, os.fdopen(fd, "r" if fd == 0 else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _plugin(error: BaseException) -> str:
    """Return which line of a plug-in has raised an error; "" if none has."""
    where = sys.modules["edgefl.plugins"].blamed(error) if "edgefl.plugins" in sys.modules else ""
    return where and f"plug-in {where}"


def _fail(message: str, status: int) -> NoReturn:
    """Print an error, with ``--json`` as a line of JSON, and exit."""
    line = json.dumps({"error": message, "exit_status": status}) if "--json" in sys.argv else f"Error: {printable(message)}"
    click.echo(line, err=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
