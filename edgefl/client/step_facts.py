"""The facts that a tier's training step depends on, if they are values and edgefl's own code: the key of stored costs and graphs."""

from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch

from edgefl.client.criterion import Criterion
from edgefl.client.objective import Objective
from edgefl.methods.base import Method
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.registry import models
from edgefl.util.shelf import Facts, own_code_sha256

_LIBRARIES = ("torch", "numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime")


def step_facts(
    architecture: Architecture,
    method: Method,
    tier: Tier,
    objective: Objective,
    criterion: Criterion,
    *parts: object,
    **others: Any,
) -> Facts | None:
    """Return all that decides the step of a tier, with ``others``, as JSON has it; None if code does that is not edgefl's own.

    ``parts`` are objects of other classes that decide it. The weights are not among it: neither costs nor graphs depend on them.
    """
    if type(architecture) is not Architecture or criterion.spec or criterion.measure_sha256:
        return None
    definitions = models.load(architecture.model), *map(type, (method, objective, *parts))
    if any(definition.__module__.partition(".")[0] != "edgefl" for definition in definitions):
        return None
    return {
        "code": own_code_sha256(),
        "libraries": {name: version(name) for name in _LIBRARIES},
        "numbers": str(torch.get_default_dtype()),
        "network": architecture.described(),
        "method": [type(method).__qualname__, method.config.model_dump_json()],
        "objective": [type(objective).__qualname__, asdict(objective)],
        "tier": asdict(tier),
        "criterion": criterion.fields(),
        **others,
    }
