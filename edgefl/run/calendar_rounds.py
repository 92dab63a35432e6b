"""The rounds of a run that begin before its fleet's calendar ends."""

from collections.abc import Callable

from edgefl.config import RunConfig
from edgefl.errors import ConfigError
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.run.trained import without_training
from edgefl.server.light_round import light_round


def prepare_to_train(config: RunConfig, say: Callable[[str], None] = lambda text: None) -> Run:
    """Return a run that is ready to train, with as many of its rounds as begin before the calendar's end; ``say`` is told if not all do."""
    run = prepare(config)
    if (fitting := rounds_that_fit(run)) == run.config.rounds:
        return run
    say(f"the calendar ends after {fitting} of {run.config.rounds} rounds: the run has {fitting}")
    return prepare(config.model_copy(update={"rounds": fitting}))


def rounds_that_fit(run: Run) -> int:
    """Return how many of a run's rounds begin before its calendar ends; ConfigError if none does."""
    calendar, rounds = run.conditions.calendar, run.config.rounds
    if calendar is None or calendar.end is None:
        return rounds
    return require_rounds(run, sum(1 for _ in without_training(run, rounds, light_round)))


def require_rounds(run: Run, rounds: int) -> int:
    """Return the number of rounds that a calendar has; ConfigError if it is 0."""
    if not rounds and (calendar := run.conditions.calendar) is not None:
        raise ConfigError(f"calendar: no round begins from {calendar.start} to {calendar.end}; give a later end or more hours")
    return rounds
