"""What combines with what: capabilities that choices need and methods lack, never lists of names."""

from typing import get_args

import pytest

from edgefl.methods.axes import AXES, Need, choices, conflict, needs, refused
from edgefl.methods.create import create
from edgefl.registry import methods


def test_every_need_and_every_lack_is_a_capability_that_there_is():
    known = set(get_args(Need))
    assert {need for key in AXES for choice in choices(key) for need in needs(key, choice)} | {"own_loss"} == known
    for name in methods.names():
        assert set(create(name).lacks) <= known


@pytest.mark.parametrize("key", [key for key in AXES if key != "adversary"])  # its default is none of its choices
def test_every_method_takes_some_choice_of_every_axis(key):
    for name in methods.names():
        assert set(choices(key)) - refused(create(name).lacks).keys()


def test_the_first_need_that_is_lacking_gives_the_reason():
    lacks = {"common_model": "none in common", "received_weights": "nothing arrives"}
    assert conflict(lacks, "objective", "scaffold") == "nothing arrives"
    assert conflict(lacks, "objective", "none") == ""
    assert set(refused(lacks, ["objective"])) == {"prox", "dyn", "scaffold"}
