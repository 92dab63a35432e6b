"""A network with two inputs, token ids and a mask, as BERT has them, and its data."""

from pathlib import Path
from typing import Any

import numpy as np

NET = """
import torch
from torch import nn

class Text(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words, self.hidden, self.head = nn.Embedding(9, 8), nn.Linear(8, 16), nn.Linear(16, classes)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(2).float()
        mean = (self.words(input_ids) * mask).sum(1) / mask.sum(1)
        return {"logits": self.head(self.hidden(mean).relu()), "mean": mean}
"""


def texts() -> dict[str, np.ndarray]:
    """Return 96 texts whose first word is their label, and whose masked words are 8."""
    rng, y = np.random.default_rng(0), np.arange(96) % 2
    mask = np.arange(6) < rng.integers(1, 7, (96, 1))
    ids = np.where(mask, rng.integers(2, 8, (96, 6)), 8)
    ids[:, 0] = y
    return {"input_ids": ids, "attention_mask": mask, "y": y}


def write_texts(folder: Path, more: str = "") -> dict[str, str]:
    """Write the network, with ``more`` source behind it, and the texts; return the keys of a run with them."""
    (folder / "nets.py").write_text(NET + more)
    arrays: dict[str, Any] = texts()  # savez has an argument of another type, too
    np.savez(folder / "texts.npz", **arrays)
    return {"dataset": str(folder / "texts.npz"), "model": f"{folder}/nets.py:Text"}
