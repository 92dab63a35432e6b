"""Torch's compiler stays out of what compiles nothing, and works afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
