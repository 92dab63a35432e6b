"""Results as records: their JSON form and their pandas form."""

import json
import sys
from types import SimpleNamespace

import pytest

from edgefl import Budget, RunConfig, plan, profile, whatif
from edgefl.errors import InputError
from edgefl.report.cost_rows import DEVICE_COLUMNS
from edgefl.report.results import flat


@pytest.fixture(scope="module")
def rows():
    return profile("mlp", (64,), 10, method="heterofl", tiers=(1.0, 0.5), device="laptop")


def test_a_row_has_its_values_as_fields_and_as_keys(rows):
    row = rows[0]
    assert row.to_dict()["macs_forward"] == row.macs_forward > 0
    assert row.to_dict()["layers"][0]["layer"] == row.layers[0].layer
    assert json.loads(json.dumps(rows.to_dict(), allow_nan=False)) == rows.to_dict()
    assert row.fits is row.to_dict()["fits"] is True


def test_a_row_without_a_device_has_no_keys_of_one(rows):
    (bare,) = profile("mlp", (64,), 10)
    assert set(DEVICE_COLUMNS) <= rows[0].to_dict().keys()
    assert not set(DEVICE_COLUMNS) & bare.to_dict().keys()
    assert bare.fits is None


def test_rows_become_a_frame(rows, monkeypatch):
    """Pandas is not among the dependencies: its constructor is stood in for."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows: ("frame", rows)))
    assert rows.to_pandas() == ("frame", rows.to_dict())
    found = whatif(RunConfig(method="heterofl", model="mlp", rounds=1, clients=4))
    assert found.to_pandas() == ("frame", [flat(row) for row in found.to_dict()["rows"]])
    plans = plan("mlp", (64,), 10, method="heterofl", budget=Budget(macs_forward=1e4))
    assert plans.to_pandas() == ("frame", [flat(plans[0].to_dict())])


def test_without_pandas_the_message_says_what_to_do(rows, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        InputError, match="to_pandas needs pandas, which is not installed; run pip install pandas, or use to_dict"
    ):
        rows.to_pandas()
