"""Networks of these tests begin at the same weights whatever ran before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from edgefl.rng import torch_seeded


@pytest.fixture(autouse=True)
def _same_weights() -> Iterator[None]:
    with torch_seeded(np.random.default_rng(0)):
        yield
