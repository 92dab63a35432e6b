"""Attacks that are refused: wrong specifications, and those that make no sense for the data or the method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgefl import RunConfig
from edgefl.contrib.attacks.adversary import lacks_of
from edgefl.data.digits import digits
from edgefl.data.sources import Dataset
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.run.prepare import prepare


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adversary": "sign-flip"}, r"adversary: expected NAME:SHARE or NAME:SHARE\(option=value, …\), such as sign-flip:0.1"),
        ({"adversary": "sign-flip:1.5"}, "with a share above 0 and below 1, got 'sign-flip:1.5'"),
        ({"adversary": "sign-flip:nan"}, "with a share above 0 and below 1"),
        ({"adversary": "sign-flip:0.1(scale=10"}, "expected NAME:SHARE"),
        ({"adversary": "sign-flip:0.1(10)"}, "expected NAME:SHARE"),
        ({"adversary": f"sign-flip:0.1(scale={'(' * 3000}"}, "expected NAME:SHARE"),
        ({"adversary": "sing-flip:0.1"}, "unknown adversary 'sing-flip'; did you mean 'sign-flip'"),
        ({"adversary": "sign-flip:0.1(scael=10)"}, "adversary: sign-flip: scael: unknown key; did you mean 'scale'"),
        ({"adversary": "sign-flip:0.1(scale=0)"}, "adversary: sign-flip: scale must be above 0, got 0"),
        ({"adversary": "inflated:0.1(times=1.5)"}, "adversary: inflated: times must be a whole number, got 1.5"),
    ],
)
def test_a_wrong_specification_is_refused_at_once(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig.of(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"adversary": "sign-flip:0.9", "clients": 2, "per_round": 1},
            "adversary: sign-flip:0.9 makes all of 2 clients adversaries",
        ),
        ({"adversary": "backdoor:0.1(target=10)"}, "adversary: backdoor: target: digits has labels 0 to 9, got 10"),
        ({"adversary": "backdoor:0.1(pixels=8)"}, "adversary: backdoor: pixels must be below 8"),
        ({"adversary": "label-flip:0.1(labels={1: 12})"}, "adversary: label-flip: labels: digits has labels 0 to 9, got 12"),
        (
            {"adversary": "sign-flip:0.1", "method": "standalone"},
            "sign-flip makes no sense with Stand-alone on digits: nothing travels",
        ),
        (
            {"adversary": "inflated:0.1"},
            "inflated makes no sense with HeteroFL on digits: HeteroFL weighs no client by the samples that it claims",
        ),
        (
            {"adversary": "backdoor:0.1", "permute_labels": True, "method": "fedper"},
            "backdoor makes no sense with FedPer on digits: permute_labels gives every client its own order",
        ),
    ],
)
def test_an_attack_that_makes_no_sense_is_refused(values: dict[str, Any], message: str) -> None:
    config = RunConfig.of({"profile": "lab", "clients": 8, "per_round": 5, "model": "mlp", "method": "heterofl", **values})
    with pytest.raises(ConfigError, match=message):
        prepare(config)


def test_texts_and_targets_lack_what_attacks_need() -> None:
    fedavg = create("fedavg")
    words = Dataset.from_arrays(np.arange(120).reshape(20, 6), np.arange(20) % 2, name="words")
    assert words.vocabulary == 120
    assert lacks_of(words, False, fedavg) == {"images": "a sample of words is no image"}
    x, y = np.arange(40, dtype=np.float32).reshape(20, 2), np.linspace(-1.0, 1.0, 20, dtype=np.float32)
    targets = Dataset.from_arrays(x, y, name="heights")
    assert lacks_of(targets, False, fedavg)["labels"] == "heights has float32 targets, no labels"
    assert not lacks_of(digits(), False, fedavg)


def test_none_is_nobody() -> None:
    assert RunConfig.of({"adversary": "none"}).adversary is None
    assert RunConfig.of({"adversary": "sign-flip:.10( scale = 10 )"}).adversary == "sign-flip:0.1(scale=10)"
