"""Matrix products."""

import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import Operator, Rule, simple


def _gemm(node: Operator, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a, b = (m.t() if node.get(key, 0) else m for m, key in ((a, "transA"), (b, "transB")))
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is not None:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha)
    return a @ b if alpha == 1 else alpha * (a @ b)


RULES: dict[str, Rule] = {
    "MatMul": simple(torch.matmul), "Gemm": _gemm, "Det": simple(torch.linalg.det),
    "Einsum": lambda node, *operands: torch.einsum(node.get("equation"), *operands),
}  # fmt: skip
WEIGHTS = {"Gemm": (1, 2)}
ATTRIBUTES = {"Gemm": "alpha beta transA transB", "Einsum": "equation"}
