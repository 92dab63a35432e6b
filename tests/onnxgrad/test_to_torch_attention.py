"""Attention where a query has no allowed key: 0, as in ONNX, onnxruntime and torch, with finite gradients."""

import numpy as np
import pytest
import torch
from graph_case import numbers, one

from edgefl.onnxgrad.to_torch import module_of

HEADS = {name: numbers(2, 4, 3, 8, seed=seed) for seed, name in enumerate("qkv")}
NONE = np.array([[False] * 3, [True, False, True], [True] * 3])
MASKS = {
    "bool": (NONE, {}),
    "float": (np.where(NONE, 0, -np.inf).astype(np.float32), {}),
    "bool and causal": (np.array([[False, True, True]] * 3), {"is_causal": 1}),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_query_without_a_key_gets_zero_and_gives_no_gradient(kind):
    mask, attributes = MASKS[kind]
    model, inputs = one("Attention", HEADS, {"m": mask}, opset=23, **attributes)
    module, _ = module_of(model)
    q, k, v = (torch.from_numpy(array).requires_grad_() for array in inputs.values())
    y = module(q, k, v)
    assert torch.equal(y[:, :, 0], torch.zeros(2, 4, 8))
    assert (y[:, :, 1:] != 0).all()
    y.square().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (q, k, v))
    assert torch.equal(q.grad[:, :, 0], torch.zeros(2, 4, 8))
    allowed = torch.from_numpy(mask == 0 if mask.dtype == np.float32 else mask)
    if attributes:
        allowed = allowed & torch.ones(3, 3, dtype=torch.bool).tril()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, allowed)
    assert torch.allclose(y[:, :, 1:], expected[:, :, 1:], atol=1e-6)
