"""What a method reports of a round can be written into its record."""

import pytest
import torch

from edgefl.errors import AggregationError
from edgefl.methods.create import create
from edgefl.server.rounds import observed_by
from edgefl.server.state import ServerState


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (None, "observe returned NoneType, expected a dictionary of JSON values"),
        ({"norm": torch.tensor(1.0)}, r"observe returned norm = tensor\(1.\), expected a JSON value"),
        ({"fine": 1.0, "mean": float("nan")}, "observe returned mean = nan, expected a JSON value, such as a finite float"),
    ],
)
def test_what_a_method_observes_has_a_json_form(found, told, monkeypatch):
    method = create("fedhm", {})
    monkeypatch.setattr(type(method), "observe", lambda self, state, sent: found)
    with pytest.raises(AggregationError, match=f"^method FedHM: {told}"):
        observed_by(method, ServerState(None), ())
