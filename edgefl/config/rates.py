"""Learning-rate rules: the share of the learning rate that each round of a run has.

A rule is a function (round, from 1; rounds of the run) → share. Names may be joined, and their shares are multiplied:
``warmup(rounds=5)+cosine``.
"""

import inspect
import math
from collections.abc import Callable

from edgefl.util.networks import canonical, is_own
from edgefl.util.spec import called

Rule = Callable[[int, int], float]
SCHEDULES = ("lr_schedule", "server_lr_schedule")
"""Keys of rules."""


def cosine() -> Rule:
    """Return the rule ½·(1 + cos(π·(t − 1)/T)) for rounds t = 1 … T."""
    return lambda round_, rounds: (1 + math.cos(math.pi * min(1.0, (round_ - 1) / rounds))) / 2


def step() -> Rule:
    """Return the rule 1 in the first half of the rounds, and 0.1 in the second."""
    return lambda round_, rounds: 0.1 if 2 * (round_ - 1) >= rounds else 1.0


def exponential(fall: float = 0.001) -> Rule:
    """Return the rule (1 − fall)^(t − 1): 0.1 % a round as in pFedPara (Hyeon-Woo et al. 2022), if ``fall`` is not given."""
    if not 0 < fall < 1:
        raise ValueError(f"exponential: fall: got {fall}, expected a share between 0 and 1, such as 0.001")
    return lambda round_, rounds: (1.0 - fall) ** (round_ - 1)


def warmup(rounds: int = 5) -> Rule:
    """Return the rule t/rounds until round ``rounds``, and 1 from then on."""
    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"warmup: rounds: got {rounds}, expected a whole number from 1")
    return lambda round_, _: min(1.0, round_ / rounds)


RULES: dict[str, Callable[..., Rule]] = {"cosine": cosine, "step": step, "exponential": exponential, "warmup": warmup}
_KNOWN = "constant, cosine, step, exponential(fall=0.001), warmup(rounds=5), several joined by +, or your own as file.py:function"


def named_rules(text: str) -> list[Rule]:
    """Return the rules that ``text`` names; none for "constant".

    Raises:
        ValueError: a name or an option is unknown or wrong.

    >>> [round(named_rules("cosine")[0](t, 4), 4) for t in (1, 3, 4)]
    [1.0, 0.5, 0.1464]
    """
    rules = []
    for part in (part.strip() for part in text.split("+")):
        if part == "constant":
            continue
        try:
            name, options = called(part)
            make = RULES[name]
            inspect.signature(make).bind(**options)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"got {part!r}, expected {_KNOWN}") from None
        try:
            rules.append(make(**options))
        except TypeError:  # an option of another type
            raise ValueError(f"got {part!r}, expected {_KNOWN}") from None
    return rules


def checked_rule(rule: object) -> object:
    """Return a configuration's rule, the path of a file made whole; ValueError if it names no rule."""
    if isinstance(rule, str) and is_own(rule):
        return canonical(rule)
    if isinstance(rule, str):
        named_rules(rule)
    return rule


def shares(rules: list[Rule], rounds: int) -> tuple[float, ...]:
    """Return the share of every round, the product of those of the ``rules``; nothing if there are none.

    >>> shares(named_rules("step"), 4), shares(named_rules("constant"), 4), shares(named_rules("warmup(rounds=2)+exponential(fall=0.5)"), 3)
    ((1.0, 1.0, 0.1, 0.1), (), (0.5, 0.5, 0.25))
    """
    return tuple(math.prod(rule(round_, rounds) for rule in rules) for round_ in range(1, rounds + 1)) if rules else ()


def follows_rounds(text: str) -> bool:
    """Return whether the first rounds of a run may have another rate if the run has more rounds.

    >>> follows_rounds("warmup(rounds=5)+exponential"), follows_rounds("warmup+cosine"), follows_rounds("mine.py:rule")
    (False, True, True)
    """
    return is_own(text) or any(part.partition("(")[0].strip() in ("cosine", "step") for part in text.split("+"))
