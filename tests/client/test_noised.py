"""Local privacy: a client's upload after clipping and noise."""

import numpy as np
import pytest
import torch

from edgefl.contrib.privacy.guarantee import Privacy
from edgefl.contrib.privacy.noised import noised

SENT = {"w": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.5])}
UPDATE = {"w": torch.tensor([2.0, -4.0]), "b": torch.tensor([2.5]), "new": torch.tensor([4.0])}


class Noise:
    def standard_normal(self, shape):
        return np.full(shape, -2.0)


def test_values_worked_out_by_hand():
    # The change is (1, −2; 2; 4), 5 long; clipped to 2.5 it is halved. The noise is −2·0.2·2.5 = −1 everywhere.
    found = noised(UPDATE, SENT, Privacy("local", 2.5, 0.2, 1e-5), Noise())
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"w": [0.5, -4.0], "b": [0.5], "new": [1.0]}
    assert found["w"].dtype == torch.float32


def test_any_two_uploads_differ_by_at_most_twice_the_clip_before_the_noise():
    privacy, rng = Privacy("local", 0.3, 0.0, 1e-5), np.random.default_rng(0)
    sent = {"w": torch.zeros(50)}
    found = [
        noised({"w": torch.from_numpy(rng.normal(size=50) * scale).float()}, sent, privacy, rng)["w"] for scale in (9, -9, 0.01)
    ]
    gaps = [float((one - other).norm()) for one in found for other in found]
    assert max(gaps) <= 2 * 0.3 * (1 + 1e-5)
    assert max(gaps) > 0.3


def test_the_noise_has_the_variance_that_the_accountant_counts():
    sent = {"w": torch.zeros(20000)}
    found = noised(sent, sent, Privacy("local", 0.5, 3.0, 1e-5), np.random.default_rng(3))["w"]
    assert float(found.std()) == pytest.approx(1.5, rel=0.02)
