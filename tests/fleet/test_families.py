"""Tables of costs that take the shape of another device's, and what each shipped device says of its own error."""

from __future__ import annotations

import pytest
from own_profiles import DEVICE

from edgefl.errors import ProfileError
from edgefl.fleet.load import load_device, names
from edgefl.fleet.time_model import ONE_RATE_ERROR
from edgefl.records.work import Work

TABLE = """
[compute.training_step]
like = "raspberry-pi-4"
speed = { value = 2, mark = "derived", source = "published: 18.6 over 9.3 GMAC/s", note = "a note" }
error = { value = 1.5, mark = "derived", source = "published: a range of 1.3" }
"""
MEASURED = ("raspberry-pi-4", "raspberry-pi-5")


@pytest.fixture
def board(tmp_path):
    path = tmp_path / "board.toml"
    path.write_text(DEVICE + TABLE)
    return path


def test_a_table_takes_the_shape_of_another_device(board):
    device, family = load_device(str(board)), load_device("raspberry-pi-4")
    own, of_family = device.compute.training_step, family.compute.training_step
    assert own.seconds == pytest.approx([seconds / 2 for seconds in of_family.seconds])
    assert device.clock_error == 1.5
    figure = own.grouped_ps_per_mac
    assert (figure.mark, figure.source) == ("derived", "published: 18.6 over 9.3 GMAC/s")
    assert figure.note == "raspberry-pi-4's, 2 times as fast"


def test_an_assumed_speed_makes_every_cost_assumed(board):
    board.write_text(board.read_text().replace('value = 2, mark = "derived"', 'value = 2, mark = "assumed"'))
    assert "compute.training_step.product_ps_per_mac" in load_device(str(board)).assumed


def test_a_shape_may_be_that_of_a_file_or_of_a_device_with_a_shape_of_its_own(board):
    other = board.with_name("other.toml")
    other.write_text(board.read_text().replace('"raspberry-pi-4"', '"board.toml"'))
    third = load_device("raspberry-pi-4").compute.training_step.seconds
    assert load_device(str(other)).compute.training_step.seconds == pytest.approx([seconds / 4 for seconds in third])


def test_a_device_without_a_table_has_one_rate(board):
    board.write_text(DEVICE)
    device = load_device(str(board))
    assert device.compute.training_step is None
    assert device.clock_error == ONE_RATE_ERROR


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"raspberry-pi-4"', '"raspberry-pi-44"'), "training_step.like: unknown device 'raspberry-pi-44'; did you mean 'raspberry-pi-4'"),
        (('"raspberry-pi-4"', '"none.toml"'), "training_step.like: expected the name or the path of a device, got 'none.toml'"),
        (('"raspberry-pi-4"', "4"), "training_step.like: expected the name or the path of a device, got 4"),
        (('"raspberry-pi-4"', '"plain.toml"'), "training_step.like: expected a device with a table compute.training_step, got 'plain"),
        (('"raspberry-pi-4"', '"board.toml"'), "board.toml: takes the shape of board.toml, which takes its own"),
        (("speed = { value = 2", "speed = { value = 0"), "training_step.speed: expected a value above 0, got 0"),
        (("speed = { value = 2", "speed = { value = -2"), "training_step.speed: expected a value above 0, got -2"),
        (("speed = {", "speeds = {"), "training_step.speed: missing; expected { value = …"),
        (("error = {", "errors = {"), "training_step.error: missing; expected { value = …"),
        (("error = { value = 1.5", "error = { value = 0.5"), "training_step.error: expected a ratio of at least 1, got 0.5"),
        (("error = {", "kernel_ns = 5\nerror = {"), "training_step.kernel_ns"),
        (("[compute.training_step]", "[compute.inference_step]"), "inference_step.like: expected a device with a table compute.inf"),
    ],
)  # fmt: skip
def test_a_wrong_family_is_one_message(board, change, message):
    board.with_name("plain.toml").write_text(DEVICE)
    text = board.read_text()
    assert change[0] in text
    board.write_text(text.replace(*change))
    with pytest.raises(ProfileError) as error:
        load_device(str(board))
    found = [line for line in str(error.value).splitlines() if message in line]
    assert len(found) == 1, error.value
    assert str(board) in found[0]


def test_two_files_that_take_each_others_shape_are_refused(board):
    other = board.with_name("other.toml")
    other.write_text(board.read_text().replace('"raspberry-pi-4"', '"board.toml"'))
    board.write_text(board.read_text().replace('"raspberry-pi-4"', '"other.toml"'))
    with pytest.raises(ProfileError, match=r"board.toml: takes the shape of other.toml, which takes its own"):
        load_device(str(board))


@pytest.mark.parametrize("name", names("devices"))
def test_every_shipped_device_has_costs_by_kind_and_an_error(name):
    device = load_device(name)
    assert device.compute.training_step is not None
    figure = device.compute.training_step.error
    if name in MEASURED:
        assert figure.mark == "measured"
    else:
        assert figure.mark in ("derived", "assumed")
        assert figure.value > max(load_device(board).clock_error for board in MEASURED)


def test_the_jetsons_table_predicts_its_published_step():
    """ResNet-18, batch 8: 0.772 s a step by dusty-nv/jetson-inference (2019); work traced by edgefl, see tools/clock/work.json."""
    work = Work(
        convolution_macs=14_354_350_080, convolution_backward_macs=27_764_588_544, pointwise_macs=154_140_672,
        pointwise_backward_macs=308_281_344, product_macs=12_288_000, product_bytes=503_971_744, normalization_bytes=397_643_520,
        elementwise_bytes=648_985_248, update_bytes=140_274_144, input_bytes=4_816_896, kernels=1_392_832, operations=227,
    )  # fmt: skip
    device = load_device("jetson-nano")
    ratio = work.seconds(device.compute.training_step.seconds) / 0.772
    assert ratio == pytest.approx(1.06, abs=0.01)
    assert ratio < device.clock_error
