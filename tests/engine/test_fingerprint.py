"""What the bits of a model depend on besides the run: the vector instructions that torch and oneDNN choose, and what pinning them does."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from edgefl.engine.fingerprint import PINS, Fingerprint

BOTH = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
CLIENT = """
import hashlib, json
import numpy as np
from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.training import Training
from edgefl.data.digits import digits
from edgefl.engine.fingerprint import Fingerprint
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.rng import generator
from edgefl.util.compute import one_thread
from edgefl.wire.payload import encode

task = Task(0, "digits", None, "iid", 12, Architecture("cnn-digits", (1, 8, 8), 10), Training(1, 32, 0.05, 0.9, 0.0))
method, tier = create("fedavg"), Tier(1.0)
state = method.init(task.architecture, (tier,), generator(0, "init"))
payload = encode(dict(method.submodel(state, tier, np.random.default_rng(0)).tensors))
with one_thread():
    update = Clients(task, digits()).run(Job(1, 0, method, tier, payload)).payload
print(json.dumps([hashlib.sha256(update).hexdigest(), vars(Fingerprint.own())]))
"""


def trained(**pins: str) -> tuple[str, Fingerprint]:
    """Return the hash of a client's update, and the fingerprint of the process that trained it."""
    environment = {name: value for name, value in os.environ.items() if name not in PINS} | pins
    ran = subprocess.run([sys.executable, "-c", CLIENT], env=environment, capture_output=True, text=True, check=True)
    bits, facts = json.loads(ran.stdout)
    return bits, Fingerprint.of(facts)


def test_pinning_both_variables_changes_the_bits_of_a_processor_with_avx512_only():
    """There, each variable alone gives bits of its own. A processor with AVX2 has the same bits with and without."""
    (free, here), (half, _), (both, pinned) = trained(), trained(ATEN_CPU_CAPABILITY="avx2"), trained(**BOTH)
    if here.instructions in ("AVX2", "AVX512"):
        assert pinned.instructions == "AVX2"
    if here.instructions == "AVX512":
        assert len({free, half, both}) == 3
    if here.instructions == "AVX2":
        assert {free, half, both} == {free}
    assert pinned.pins == ", ".join(f"{name}={value}" for name, value in BOTH.items())
    assert any(
        told.startswith("pins ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=AVX2 there") for told in pinned.differences(here)
    )
