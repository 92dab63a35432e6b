"""Progress of a training: a file from which an interrupted one continues, to the same bits as without an interruption."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from edgefl_bundle import InputError, Tensors, read_regular, write
from edgefl_keys import content_sha256
from edgefl_order import Order
from edgefl_steps import Steps
from safetensors import SafetensorError

_MOST_BYTES = 1 << 32


@dataclass(frozen=True)
class Checkpoint:
    """Where progress is stored, and after how many steps again.

    Attributes:
        key: a hash of what is trained (:func:`key_of`); progress of anything else is refused.
    """

    path: Path
    every: int
    key: str = ""

    def restored(self, steps: Steps, order: Order) -> list[float]:
        """Bring back the last steps that were stored, and return the losses of all; none if there is no such file.

        Raises:
            InputError: the file is damaged, or of another training.
        """
        if not self.path.exists():
            return []
        content = read_regular(self.path, _MOST_BYTES, "the progress of a training")
        try:
            tensors = safetensors.numpy.load(content)
            about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__") or {}
            losses = tensors.pop("losses").tolist()
        except (SafetensorError, KeyError, ValueError, AttributeError) as error:
            raise InputError(f"{self.path}: not the progress of a training ({error}); delete it to begin anew") from None
        if about.get("key") != self.key:
            raise InputError(f"{self.path}: of another training: bundle, tier, data or settings differ; delete it to begin anew")
        steps.restore({name.removeprefix("now:"): tensor for name, tensor in tensors.items()}, str(self.path))
        order.move(about.get("order", ""), str(self.path))
        return [float(loss) for loss in losses]

    def store(self, steps: Steps, order: Order, losses: list[float]) -> None:
        """Write all that changes after so many steps, whole or not at all, if it is time to."""
        if len(losses) % self.every == 0:
            tensors = {f"now:{name}": value for name, value in steps.changing().items()} | {"losses": np.array(losses)}
            write(self.path, safetensors.numpy.save(tensors, {"key": self.key, "order": order.place()}))


def key_of(facts: Any, tensors: Tensors) -> str:
    """Return the hash of what is trained: ``facts`` as JSON has them, and tensors."""
    return hashlib.sha256(json.dumps([facts, content_sha256(tensors)], sort_keys=True, default=str).encode()).hexdigest()
