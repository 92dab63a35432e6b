"""What is said of a wrong value: pydantic's words are nowhere, every key has ours. Takes a second."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgefl.config import RunConfig
from edgefl.errors import ConfigError, InputError

PYDANTIC = re.compile(r"Input should|valid (?!\.)|expected greater|expected less|type=|Value error|union|constrained|function-")
WRONG = (True, "x y", -1, 1.5, [], [1.5, None], {"a": 1}, "", 10**400, "a" * 300)


def said(values: dict[str, object], source: str = "") -> str:
    try:
        RunConfig.of(values, source)
    except InputError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("key", sorted(RunConfig.model_fields))
def test_a_wrong_value_of_any_key_is_said_in_our_words(key: str) -> None:
    texts = [text for value in WRONG if (text := said({key: value}))]
    assert texts
    for text in texts:
        assert not PYDANTIC.search(text), text
        assert text.startswith((key, *RunConfig.model_fields, "no module")), text
        assert not re.search(r"^\w+\.\d", text), text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"lr": -1.0}, "lr must be above 0, got -1"),
        ({"rounds": "x"}, "rounds must be a whole number, got 'x'"),
        ({"rounds": True}, "rounds must be a whole number, got True"),
        ({"per_round": False}, "per_round must be a whole number, got False"),
        ({"lr": True}, "lr must be a number, got True"),
        ({"deadline_s": True}, "deadline_s must be a number, got True"),
        ({"clip_norm": True}, "clip_norm must be a number, got True"),
        ({"tiers": (True, 0.5)}, "tiers: expected numbers, got (True, 0.5)"),
        ({"permute_labels": True, "method_options": {}, "dynamic_devices": False}, ""),
        ({"log": ("mlflo",)}, "log: unknown logger 'mlflo'; did you mean 'mlflow'? Known: mlflow, tensorboard, wandb"),
        ({"tier_shares": (0.5, "x")}, "tier_shares, entry 2, must be a number, got 'x'"),
        ({"clip_norm": 0}, "clip_norm must be above 0, or 'adaptive' or 'off', got 0"),
        ({"deadline_s": "10"}, ""),
        ({"deadline_s": "10MB"}, "deadline_s: '10MB' is in bytes, expected a time above 0, such as 600, 10min or 2h"),
        ({"cpu_limit_s": 0}, "cpu_limit_s must be above 0, got 0"),
    ],
)
def test_the_words(values: dict[str, object], text: str) -> None:
    assert said(values) == text


def test_seconds_are_read_with_their_unit() -> None:
    assert RunConfig.of({"deadline_s": "2min", "cpu_limit_s": "0.5 h"}).model_dump(include={"deadline_s", "cpu_limit_s"}) == {
        "deadline_s": 120.0,
        "cpu_limit_s": 1800.0,
    }


def test_all_errors_of_a_file_are_said_at_once_and_once(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('rounds = 0\nlr = -1\nround = 3\nobjective = "proxy"\ntiers = [0.5, 1]\nfeatures = [1, 2]\n')
    with pytest.raises(ConfigError) as raised:
        RunConfig.load(path, {"seed": -1})
    lines = str(raised.value).splitlines()
    assert sorted(lines) == sorted(set(lines))
    assert all(line.startswith(f"{path}: ") for line in lines)
    keys = [re.split(r"[ :,]", line.removeprefix(f"{path}: "))[0] for line in lines]
    assert sorted(keys) == ["features", "features", "lr", "objective", "round", "rounds", "tiers"]
