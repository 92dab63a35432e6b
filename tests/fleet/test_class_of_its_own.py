"""Classes of a fleet with a link, a name or a trace of their own, without a copy of the device's file."""

from __future__ import annotations

import numpy as np
import pytest
from small_fleet import small, write_device

from edgefl.errors import DataError, ProfileError
from edgefl.fleet.load import load_fleet, load_link
from edgefl.run.trained import without_training

MIX = 'name = "f"\ntitle = "F"\n[mix]\nmark = "assumed"\nsource = "made for a test"\n'
BOTH = '[[class]]\ndevice = "board.toml"\nshare = 0.5\n[[class]]\ndevice = "board.toml"\nshare = 0.5\n'


def write(folder, classes: str) -> str:
    write_device(folder, "board")
    (path := folder / "fleet.toml").write_text(MIX + classes)
    return str(path)


def test_a_class_has_a_link_of_its_own_and_a_name_that_says_so(tmp_path):
    first, second = load_fleet(write(tmp_path, f'{BOTH}link = "lte-m"\n')).classes
    assert (first.device.name, second.device.name, second.device.title) == ("board", "board-lte-m", "board, LTE-M")
    assert second.device.link == load_link("lte-m")
    assert second.device.model_copy(update={"name": "board", "title": "board", "link": first.device.link}) == first.device
    assert second.device.link.metered
    assert not first.device.link.metered


def test_the_shipped_narrow_links_are_slower_than_4g_and_paid_for():
    slow, narrow, phone = (load_link(name) for name in ("lte-m", "nb-iot", "4g"))
    assert narrow.upload_bytes_per_s < slow.upload_bytes_per_s < phone.upload_bytes_per_s
    assert all(link.metered for link in (slow, narrow, phone))


def test_each_class_follows_its_own_trace_and_the_others_availability(tmp_path):
    (tmp_path / "night.csv").write_text("client,from,to,state\n0,0,3600,eligible\n0,7200,86400,none\n")
    path = write(tmp_path, f'{BOTH}name = "night-board"\ntrace = "night.csv"\n')
    run = small(path, clients=12, per_round=12, conditions="ideal", rounds_per_day=24.0)
    of = run.plan.population.classes(np.arange(12))
    first, second = ({c.client for c in record.clients} for record in without_training(run, 2))
    assert first == set(range(12))
    assert second == set(np.flatnonzero(of == 0).tolist())
    assert {c.device.name for c in run.plan.classes} == {"board", "night-board"}


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (f'{BOTH}link = "lte"\n', "class.1.link: .*'lte'"),
        (f"{BOTH}link = 4\n", "class.1.link: expected the name or the path of a link, got 4"),
        (f"{BOTH}name = 4\n", "class.1.name: expected a name of the class, such as 'night-phone', got 4"),
        (f'{BOTH}trace = "night.csv"\n', "class.0.trace: another class of 'board' has another trace; give one of them a name"),
        (BOTH + "[class.budget]\ndownload_bytes = 9.0\n", "by its key name"),
    ],
)
def test_a_class_that_is_wrong_is_said_with_its_key(classes, message, tmp_path):
    with pytest.raises(ProfileError, match=message):
        load_fleet(write(tmp_path, classes))


def test_a_trace_that_begins_late_is_said_with_the_remedy(tmp_path):
    (path := tmp_path / "late.csv").write_text("client,from,to,state\n0,864000,864010,eligible\n")
    fleet = write(tmp_path, '[[class]]\ndevice = "board.toml"\nshare = 1.0\ntrace = "late.csv"\n')
    with pytest.raises(DataError) as raised:
        small(fleet)
    assert str(raised.value) == (
        f"{path}, line 2: from: the trace begins 10 d 00 h after the start of a run; seconds count from there, not from 1970: subtract "
        "864000 from all of from and to, or use edgefl trace import"
    )
