"""Shared pieces of the tests."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("edgefl", deadline=None, max_examples=40)
settings.load_profile("edgefl")


@pytest.fixture(autouse=True)
def _one_thread():
    """As in a run: sums come out to the same bits whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
