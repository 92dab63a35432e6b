"""What tests do with the page: train, classify, add samples and read its update; the same batches in NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import safetensors
import safetensors.numpy

STEPS, BATCH = 20, 16


def logits_of(bundle: Path, label: str, x: np.ndarray) -> np.ndarray:
    return np.asarray(onnxruntime.InferenceSession(str(bundle / label / "forward.onnx")).run(None, {"x": x})[0])


def in_order(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of the samples in their order, again and again, the last of each round being smaller."""
    rounds = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(y), BATCH)]
    return (rounds * STEPS)[:STEPS]


def trained(page: Any, x: np.ndarray, y: np.ndarray, **options: Any) -> dict[str, Any]:
    given = {"x": x.tolist(), "y": y.tolist(), "steps": STEPS, "batchSize": BATCH, **options}
    return dict(page.evaluate("options => edgefl.train(options)", given))


def is_not_used(page: Any, message: str) -> None:
    """Check that the page says why a tier is not used, and does not offer to train."""
    assert message in page.text_content("#problem-text")
    assert page.locator("#train").is_disabled()


def update_of(page: Any, tmp_path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    path = tmp_path / "update.safetensors"
    path.write_bytes(bytes(page.evaluate("() => edgefl.update()")))
    with safetensors.safe_open(str(path), "numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def add_file(page: Any, path: Path, many: bool = True) -> None:
    page.locator("#many-box").evaluate("box => { box.open = true; }")
    page.set_input_files("#samples" if many else "#upload", str(path))


def samples_file(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path
