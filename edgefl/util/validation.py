"""Errors of pydantic in plain English, one line each."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from edgefl.errors import ConfigError, nearest

T = TypeVar("T")

_LONGEST = 80
_TABLE = ("dict_type", "model_type", "dataclass_type")
_EXPECTED = {
    "greater_than": "above {gt:,.10g}",
    "greater_than_equal": "at least {ge:,.10g}",
    "less_than": "below {lt:,.10g}",
    "less_than_equal": "at most {le:,.10g}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(_TABLE, "a table"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "string_type": "text",
    "string_too_short": "text of {min_length} or more characters",
    "string_pattern_mismatch": "text of the form {pattern}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


def explain(problem: ErrorDetails, known: Collection[str] = (), otherwise: str = "") -> str:
    """Return one problem of a pydantic ``ValidationError`` as one line; for an unknown key, suggest one of ``known`` or say ``otherwise``.

    >>> explain({"type": "greater_than_equal", "loc": ("rounds",), "msg": "", "input": 0, "ctx": {"ge": 1}})
    'rounds must be at least 1, got 0'
    >>> explain({"type": "extra_forbidden", "loc": ("round",), "msg": "", "input": 3}, known=["rounds"])
    "round: unknown key; did you mean 'rounds'?"
    >>> explain({"type": "int_type", "loc": ("rounds",), "msg": "", "input": 2.0})
    'rounds must be a whole number, got 2.0'
    """
    places = [part for part in problem["loc"] if not _form(part)]
    # A key that a file gives may contain line breaks and terminal codes.
    key = ".".join(str(part) if str(part).isprintable() else repr(part) for part in places)
    kind, message = problem["type"], str(problem["msg"])
    if len(places) == 2 and isinstance(place := places[1], int) and kind not in _TABLE:
        # A list on the command line: its entries have no names, and the value says which it is.
        key = str(places[0]) if kind == "value_error" else f"{places[0]}, entry {place + 1},"
    if kind == "missing":
        return f"{key}: missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        hint = nearest(str(problem["loc"][-1]), known) or otherwise or (f" known: {', '.join(known)}" if known else "")
        return f"{key}: unknown key{hint and ';'}{hint}"
    if kind == "value_error":
        message = message.removeprefix("Value error, ")
        return f"{key}: {message}" if key else message
    expected = _EXPECTED.get(kind, message.removeprefix("Input should be ")).format(**problem.get("ctx", {}))
    if kind not in _EXPECTED and expected == message:
        return f"{key}: {message}, got {short(problem['input'])}"
    # A whole number was expected: 2.0 is shown as such.
    shown = repr(problem["input"]) if kind.startswith("int_") and isinstance(problem["input"], float) else short(problem["input"])
    return f"{key or 'the content'} must be {expected}, got {shown}"


def with_options(kind: type[T], options: Mapping[str, Any], where: str = "") -> T:
    """Return an instance of a dataclass with ``options``, its fields, validated.

    Raises:
        ConfigError: an option is unknown, or its value is wrong; the message begins with ``where``.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(options))
    except ValidationError as error:
        known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        raise ConfigError(where + "; ".join(explain(problem, known) for problem in error.errors())) from None


def explain_all(problems: Iterable[ErrorDetails], known: Collection[str] = (), otherwise: str = "") -> str:
    """Return a line for each problem of a ``ValidationError``; the forms that a value may have are listed in one message.

    >>> at_least = {"type": "greater_than", "loc": ("clip_norm", "constrained-float"), "msg": "", "input": 0, "ctx": {"gt": 0}}
    >>> word = {"type": "literal_error", "loc": ("clip_norm", "literal"), "msg": "", "input": 0, "ctx": {"expected": "'adaptive'"}}
    >>> explain_all([at_least, word])
    "clip_norm must be above 0, or 'adaptive', got 0"
    """
    problems = list(problems)
    # Where a list has a wrong entry, that it is no word is not the problem.
    within = {problem["loc"][0] for problem in problems if len(problem["loc"]) > 2 and _form(problem["loc"][1])}
    problems = [
        problem
        for problem in problems
        if len(problem["loc"]) != 2 or problem["loc"][0] not in within or not _form(problem["loc"][1])
    ]
    groups: dict[tuple[object, str], list[ErrorDetails]] = {}
    for problem in problems:
        groups.setdefault((problem["loc"][:1], short(problem["input"])), []).append(problem)
    lines = []
    for (key, value), together in groups.items():
        forms = [
            _EXPECTED[problem["type"]].format(**problem.get("ctx", {}))
            for problem in together
            if problem["type"] in _EXPECTED and len(problem["loc"]) == 2
        ]
        if key and len(forms) == len(together) > 1:
            lines.append(f"{together[0]['loc'][0]} must be {', or '.join(forms)}, got {value}")
        else:
            lines += [explain(problem, known, otherwise) for problem in together]
    return "\n".join(dict.fromkeys(lines))


def _form(part: object) -> bool:
    """Return whether a part of a problem's place is no key, but one of the forms that pydantic tries."""
    return isinstance(part, str) and part.startswith(("tuple[", "literal[", "constrained-", "function-", "list["))


def short(value: object) -> str:
    """Return a value as its user wrote it, for an error, cut after 80 characters.

    >>> short(-1.0), short("x"), short((1, 2))
    ('-1', "'x'", '(1, 2)')
    """
    text = f"{value:.10g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
