"""The second count of a forward pass's MACs, over the ONNX graph, in every form of a profile."""

from __future__ import annotations

import csv
import io
import json
import sys

import pytest
import torch
from torch import nn

from edgefl import profile
from edgefl.cli.main import main
from edgefl.onnxgrad.exporter import export
from edgefl.onnxgrad.macs import macs_per_sample
from edgefl.report.cost_page import cost_page
from edgefl.report.cost_tables import cost_table


class Pair(nn.Module):
    """A network with two named inputs."""

    def __init__(self):
        super().__init__()
        self.table, self.fc, self.head = nn.Embedding(7, 5), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, ids, x):
        return self.head(self.table(ids).mean(1) + self.fc(x))


@pytest.mark.parametrize(("method", "tiers"), [(None, None), ("fedhm", (1.0, 0.4)), ("fedpara", (0.4,))])
def test_both_counts_of_a_reference_network_are_equal(method, tiers):
    for row in profile("cnn-digits", (1, 8, 8), 10, method=method, tiers=tiers, check_macs=True):
        assert row.macs_forward_onnx == row.macs_forward


def test_both_counts_of_a_network_with_several_inputs_are_equal():
    (row,) = profile(Pair, {"ids": "int64:9", "x": (6,)}, check_macs=True)
    assert row.macs_forward_onnx == row.macs_forward == 6 * 5 + 5 * 3


class Windows(nn.Module):
    """A linear layer of every window of 3x3 entries."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(18, 3)

    def forward(self, x):
        return self.head(nn.functional.unfold(x, 3).transpose(1, 2)).mean(1)


@pytest.mark.parametrize(
    ("network", "shape", "macs"),
    [
        # 7x7 outputs of the convolution do not divide into 4x4 windows of one size.
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64, 3)),
            (3, 9, 9),
            49 * 4 * 27 + 192,
        ),
        (nn.Sequential(nn.Linear(9, 7), nn.AdaptiveAvgPool1d(4)), (2, 9), 2 * 9 * 7),  # the graph's output is the pooling
        (Windows(), (2, 8, 8), 36 * 18 * 3),
    ],
    ids=["pooling", "pooling at the end", "windows"],
)
def test_pooling_and_windows_are_no_macs_in_either_count(network, shape, macs):
    (row,) = profile(network, shape, check_macs=True)
    assert row.macs_forward_onnx == row.macs_forward == macs


def test_the_count_is_in_every_form_and_without_it_nothing_changes():
    rows = profile("mlp", (1, 8, 8), 10, check_macs=True)
    macs = rows[0].macs_forward
    assert json.loads(cost_table(rows, "json"))["rows"][0]["macs_forward_onnx"] == macs
    assert next(csv.DictReader(io.StringIO(cost_table(rows, "csv"))))["macs_forward_onnx"] == str(macs)
    assert "macs_forward_onnx" in cost_table(rows, "markdown")
    assert "by ONNX" in cost_page(rows)
    plain = profile("mlp", (1, 8, 8), 10)
    assert "macs_forward_onnx" not in plain[0].to_dict()
    assert "by ONNX" not in cost_page(plain)


def test_the_command_shows_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["edgefl", "profile", "mlp", "--input", "1x8x8", "--classes", "10", "--check-macs"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert (stopped.value.code, "equal" in capsys.readouterr().out) == (0, True)


def test_work_on_weights_alone_is_not_of_a_sample():
    class Composed(nn.Module):
        def __init__(self):
            super().__init__()
            self.u, self.v = nn.Parameter(torch.ones(5, 2)), nn.Parameter(torch.ones(2, 4))

        def forward(self, x):
            return x @ (self.u @ self.v)

    graph = export(Composed().eval(), {"x": torch.zeros(2, 5)}, unfolded=("u", "v"))
    assert macs_per_sample(graph) == 5 * 4
