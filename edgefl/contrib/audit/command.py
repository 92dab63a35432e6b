"""The command ``audit``: Measure what a finished run leaks, beside the ε that is accounted."""

from pathlib import Path

import click

from edgefl.cli.console import busy, echo, loading, note, print_json, show_result
from edgefl.cli.options import Command, json_option, option, trust_option
from edgefl.cli.param_types import PATH, Within
from edgefl.cli.values import runs


@click.command(cls=Command)
@click.argument("run", type=PATH, shell_complete=runs)
@option("--canaries", type=Within(int, 20), default=200, metavar="N", help="How many canaries; more give a narrower interval.")
@trust_option
@json_option
def command(run: Path, canaries: int, as_json: bool) -> int:
    """Measure what the finished run in the folder RUN leaks.

    With differential privacy, canaries of random directions take the way of the run's clients: its clipping and its noise. How well they
    are recognised gives a 99 % interval. Its lower limit is the empirical ε: the run leaks at least that. The exit status is 1 if it is
    above the accounted ε.

    Without, a membership attack guesses from the final model's losses which samples it was trained with.

    \b
    edgefl audit runs/0001-fedhm-digits
    """
    with loading():
        from edgefl.contrib.audit import show
        from edgefl.contrib.audit.audit import audit
    with busy("measuring"):
        result = audit(run, canaries, note)
    if as_json:
        print_json(result.to_json())
    elif result.membership is not None:
        echo(show.membership_text(result.membership))
    else:
        show_result(show.leaks_table(result))
        echo(show.verdict(result))
    return int(result.exceeds)
