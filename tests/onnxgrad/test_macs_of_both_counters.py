"""Every operator that the reader knows costs as many MACs in the ONNX graph as in the torch module that it becomes."""

import pytest
import torch
from test_to_torch_rules import CASES
from torch.utils._python_dispatch import TorchDispatchMode

from edgefl.cost.macs import work_of
from edgefl.onnxgrad.macs import count_macs
from edgefl.onnxgrad.to_torch import module_of


class Counter(TorchDispatchMode):
    """Sums the MACs of what torch dispatches."""

    def __init__(self):
        super().__init__()
        self.macs, self.uncounted = 0, False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        work = work_of(operation, args, out)
        self.macs += work.macs if work else 0
        self.uncounted |= work is None
        return out


@pytest.mark.parametrize("case", CASES)
def test_both_counters_agree(case):
    model, inputs = CASES[case]()
    found = count_macs(model, batch_size=len(next(iter(inputs.values()))))
    module, _ = module_of(model)
    with torch.no_grad(), Counter() as counter:
        module(*(torch.from_numpy(array) for array in inputs.values()))
    assert (counter.macs, counter.uncounted) == (found.total, bool(found.uncounted_ops))
