"""Specifications in one line, such as ``sign-flip:0.1(scale=10)``: a name, a share after a colon, and options in parentheses."""

import ast
import math
from typing import Any, NamedTuple


class Spec(NamedTuple):
    """The parts of a specification.

    >>> str(Spec("sign-flip", 0.1, {"scale": 10}))
    'sign-flip:0.1(scale=10)'
    """

    name: str
    share: float
    options: dict[str, Any]

    def __str__(self) -> str:
        """Return the form that :func:`shared` reads."""
        listed = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}:{self.share!r}{listed and f'({listed})'}"


def called(spec: str) -> tuple[str, dict[str, Any]]:
    """Return the name in ``name`` or ``name(keyword=value, …)``, and the values by keyword: literals of Python.

    Raises:
        ValueError: it has another form.

    >>> called("dirichlet(alpha=0.5, sizes=[1, 2])")
    ('dirichlet', {'alpha': 0.5, 'sizes': [1, 2]})
    """
    name, bracket, rest = spec.partition("(")
    try:
        call = ast.parse(f"_{bracket}{rest}", mode="eval").body
        if not bracket:
            return name, {}
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError(spec)
        return name, {_word(argument.arg): ast.literal_eval(argument.value) for argument in call.keywords}
    except (SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError(spec) from None


def named(spec: str) -> tuple[str, str]:
    """Return the name that ``spec`` begins with, and its rest from the last colon before the options on.

    >>> named("sign-flip:0.1(scale=10)"), named("mine.py:Mine:0.1"), named("sign-flip")
    (('sign-flip', ':0.1(scale=10)'), ('mine.py:Mine', ':0.1'), ('sign-flip', ''))
    """
    head, bracket, options = spec.partition("(")
    name, colon, share = head.rpartition(":")
    return (name, f"{colon}{share}{bracket}{options}") if colon else (head, f"{bracket}{options}")


def at_ratio(spec: str) -> tuple[str, str | None]:
    """Return the name and the ratio in ``name@ratio``; None without one. A name such as ``me@home/mine.py:Mine`` may hold an @ itself.

    >>> at_ratio("fedavg@0.5"), at_ratio("me@home/mine.py:Mine")
    (('fedavg', '0.5'), ('me@home/mine.py:Mine', None))
    """
    name, at, ratio = spec.strip().rpartition("@")
    return (name, ratio) if at and ":" not in ratio else (spec.strip(), None)


def shared(spec: str) -> Spec:
    """Return the parts of ``name:share`` or ``name:share(keyword=value, …)``.

    Raises:
        ValueError: it has another form, or the share is not above 0 and below 1.

    >>> shared("sign-flip:0.1(scale=10)")
    Spec(name='sign-flip', share=0.1, options={'scale': 10})
    """
    head, options = called(spec)
    name, _, text = head.rpartition(":")
    share = float(text)
    if not name or not (math.isfinite(share) and 0 < share < 1):
        raise ValueError(spec)
    return Spec(name, share, options)


def _word(keyword: str | None) -> str:
    if keyword is None:  # **{…}
        raise ValueError("a value without a keyword")
    return keyword
