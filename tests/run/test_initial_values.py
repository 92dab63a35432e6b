"""Initial weights and buffers that no receiver accepts are refused before a run is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import edgefl
from edgefl.errors import ConfigError

BUFFER = (
    "mask begins with NaN or infinity, expected finite values; register the buffer with persistent=False, so that it is not sent"
)


class Causal(nn.Module):
    """Rows of a digit attend to earlier rows; the mask of minus infinity is sent, or is no part of the state."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.head = nn.Linear(8, 10)
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(1, 2)
        return self.head((torch.softmax(rows @ rows.transpose(1, 2) + self.mask, -1) @ rows).mean(1))


def unsent() -> nn.Module:
    return Causal(persistent=False)


def broken() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network[1].bias.data[3] = torch.nan
    return network


def config(model: object) -> edgefl.RunConfig:
    small = {"rounds": 1, "clients": 2, "per_round": 2, "data_share": 0.1, "local_epochs": 1, "engine": "inline"}
    return edgefl.RunConfig(model=model, method="fedavg", tiers=(1.0,), **small)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Causal, f"Causal: {BUFFER}"),
        (broken, "broken: 1.bias begins with NaN or infinity, expected finite values; give it finite values"),
    ],
)
def test_values_that_are_not_finite_are_refused_and_nothing_is_written(model: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        edgefl.simulate(config(model), tmp_path / "run")
    assert str(error.value).endswith(message)
    assert not (tmp_path / "run").exists()


def test_a_mask_that_is_not_sent_trains(tmp_path: Path) -> None:
    assert (edgefl.simulate(config(unsent), tmp_path / "run").folder / "bundle").is_dir()


def test_an_export_refuses_them_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        edgefl.export_network(Causal(), torch.zeros(2, 1, 8, 8), tmp_path / "bundle")
    assert str(error.value) == f"model Causal: {BUFFER}"
    with pytest.raises(ConfigError, match=r"1\.bias begins with NaN or infinity, expected finite values; give it finite values"):
        edgefl.export_network(broken(), torch.zeros(2, 1, 8, 8), tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
