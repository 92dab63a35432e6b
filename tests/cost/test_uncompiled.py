"""Torch's compiler stays out of what compiles nothing, and works afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from edgefl import RunConfig, export_network, inspect
from edgefl.models.factory import factory_of
from tests.runs import stopped_after

PLAYED = """
import sys
from edgefl.config import RunConfig
from edgefl.run.prepare import prepare
from edgefl.server.exchange import Exchange
from edgefl.server.state import OpenSession
from edgefl.server.schedule import ask

run = prepare(RunConfig.of({"profile": "phone", "clients": 4, "rounds": 1, "dataset": "digits", "enforce": "meter"}))
exchange = Exchange(run.method, run.start(), run.rules, 4)
(first, *_) = ask(run.forecast, exchange.state, 2).arrivals
outcome = run.clients.run(exchange.job(OpenSession(1, 0, first), exchange.send(first.client, first.tier)[1], None))
assert outcome.status == "trained", outcome
assert outcome.measured_training_memory_bytes, outcome
"""
NOT_IMPORTED = "\nassert 'torch._dynamo' not in sys.modules and 'torch._dynamo.eval_frame' not in sys.modules"
COMPILES = """
import torch, torch._dynamo
assert torch._dynamo.eval_frame
assert torch.compile(lambda x: 2 * x, backend="eager")(torch.ones(2)).tolist() == [2, 2]
"""
WITHIN = """
import sys, torch
from edgefl.cost.uncompiled import uncompiled
with uncompiled():
    torch._dynamo.graph_break()
    assert torch.compiler.disable(recursive=False)(len) is len  # as transformers decorates
    import torch._dynamo.config
    assert 'torch._dynamo.eval_frame' not in sys.modules
    assert torch._dynamo.config.fake_tensor_cache_enabled in (True, False)
    assert torch._dynamo.is_compiling() is False  # what is not known here makes it run
    assert 'torch._dynamo.eval_frame' in sys.modules
assert torch._dynamo is sys.modules['torch._dynamo'] and torch._dynamo.__file__
"""
A_MODULE = """
import sys, torch
from edgefl.cost.uncompiled import uncompiled
finders = list(sys.meta_path)
with uncompiled():
    from torch._dynamo.source import AttrSource
    import torch._dynamo.exc
    assert AttrSource is torch._dynamo.source.AttrSource and torch._dynamo.eval_frame
    assert torch._dynamo.source.__spec__.name == 'torch._dynamo.source' and torch._dynamo.source.__spec__.origin.endswith('.py')
    assert torch._dynamo.guards.AttrSource is AttrSource  # imported once
assert sys.meta_path == finders
"""
BEFORE = """
import sys, torch, torch._dynamo
from edgefl.cost.uncompiled import uncompiled
real = torch._dynamo
with uncompiled():
    assert torch._dynamo is real is sys.modules['torch._dynamo']
assert torch._dynamo is real is sys.modules['torch._dynamo']
"""


@pytest.mark.parametrize(
    "code",
    [PLAYED + NOT_IMPORTED + COMPILES, WITHIN + COMPILES, A_MODULE + COMPILES, BEFORE],
    ids=["a run", "what is not known", "a module", "imported before"],
)
def test_the_compiler_is_not_imported_until_it_is_asked_for(code):
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_block_that_raises_leaves_nothing_behind():
    code = """
import sys, torch
from edgefl.cost.uncompiled import uncompiled
try:
    with uncompiled():
        raise KeyError
except KeyError:
    pass
assert 'torch._dynamo' not in sys.modules and '_dynamo' not in vars(torch)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


COMPILED = """
from pathlib import Path
import torch
from torch import nn

def noted(graph, inputs):
    Path(__file__).with_suffix(".done").touch()  # seen from every process; an error would leave torch's hook on every call of Python
    return graph.forward

@torch.compile(backend=noted)
def act(x):
    return x * torch.sigmoid(x)

@torch.compile(backend=noted)
def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, num_classes)

    def forward(self, image):
        return self.last(act(self.first(image.flatten(1))))

def whole(num_classes):
    return torch.compile(Net(num_classes), backend=noted)
"""


def test_compiled_functions_run_as_they_are_written_until_a_command_ends(tmp_path):
    (tmp_path / "compiled.py").write_text(COMPILED)
    spec, done = f"{tmp_path / 'compiled.py'}:", tmp_path / "compiled.done"
    for name in ("Net", "whole"):
        found = inspect(f"{spec}{name}", {"image": (1, 8, 8)}, 10, method="heterofl", tiers=(1.0, 0.5))
        assert [(row.layer, row.tiers[1].channels) for row in found.layers] == [("first", (64, 4)), ("last", (4, 10))]
    keys = {"model": f"{spec}Net", "loss": f"{spec}loss", "dataset": "digits", "clients": 2, "data_share": 0.2, "rounds": 1}
    for engine in ("inline", "pool"):
        stopped_after(RunConfig(**keys, method="heterofl", engine=engine), tmp_path / engine, 1)
    export_network(factory_of(f"{spec}whole")(10), torch.rand(2, 1, 8, 8), tmp_path / "exported")
    assert not done.exists()
    factory_of(f"{spec}act")(torch.ones(2))
    assert done.exists()
