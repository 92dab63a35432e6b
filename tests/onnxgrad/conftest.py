"""Networks of these tests begin at the same weights whatever ran before."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_weights() -> None:
    torch.manual_seed(0)
