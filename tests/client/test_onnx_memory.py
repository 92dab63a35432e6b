"""The predicted memory of a training step in onnxruntime against what onnxruntime reports."""

import numpy as np
import pytest
import torch
from torch import nn

from edgefl import profile
from edgefl.client.onnx_memory import predicted_peak_bytes, predicted_step_bytes
from edgefl.errors import ConfigError
from edgefl.onnxgrad.roles import STATES
from edgefl.onnxgrad.step import StepRule, training_step
from edgefl.onnxgrad.stepper import Stepper, peak_bytes, session_of

COUNT = 6


class Last(nn.Module):
    """The last output of an LSTM."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(12, 20, batch_first=True), nn.Linear(20, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def image(*layers):
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers, nn.Flatten(), nn.LazyLinear(3))


NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 3)), (40,), 0.0),
    "batch norm": (lambda: image(nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)), (3, 16, 16), 0.0),
    "group norm": (lambda: image(nn.GroupNorm(4, 16), nn.Hardswish(), nn.Conv2d(16, 24, 3, 2)), (3, 16, 16), 0.0),
    "lstm": (Last, (9, 12), 0.03),  # the steps of its Scan share one block of temporary memory
}


def graphs_of(kind, **options):
    build, shape, _ = NETWORKS[kind]
    module, x = build(), torch.zeros(4, *shape)
    module(x)  # lazy layers take their shapes
    loss = lambda own, x, y: nn.functional.cross_entropy(own(x), y)  # noqa: E731
    return training_step(module, loss, {"x": x, "y": torch.zeros(4, dtype=torch.int64)}, **options)


def measured(graph, shape, count=COUNT):
    inputs = session_of(graph, 1).get_inputs()
    feed = {value.name: np.ones(value.shape, np.float32) for value in inputs if value.name not in ("x", "y")}
    return peak_bytes(graph, {**feed, "x": np.ones((count, *shape), np.float32), "y": np.zeros(count, np.int64)})


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_step_holds_what_was_predicted(kind, clip_norm):
    graphs = graphs_of(kind, rule=StepRule("momentum", clip_norm=clip_norm))
    (graph,) = graphs.steps
    _, shape, slack = NETWORKS[kind]
    assert predicted_peak_bytes(graph, COUNT) == pytest.approx(measured(graph, shape), rel=slack)


def stepper_of(graphs, *, parts):
    """A stepper whose tensors are zeros."""
    sizes = {value.name: value.shape for graph in graphs.steps for value in session_of(graph, 1).get_inputs()}
    return Stepper(graphs, {name: np.zeros(sizes[name], np.float32) for name in graphs.roles.tensors.values()}, 0.1, parts=parts)


@pytest.mark.parametrize(
    ("optimizer", "part"),
    [(optimizer, part) for optimizer in STATES for part in (1, 5)],
)
def test_a_step_in_parts_holds_sums_of_gradients_second_buffers_the_batch_and_the_larger_of_part_and_update(optimizer, part):
    graphs, shape = graphs_of("linear", rule=StepRule(optimizer), parts=True), NETWORKS["linear"][1]
    weights_bytes = 4 * (40 * 30 + 30 + 30 * 3 + 3)
    sets = 2 * (2 + len(STATES[optimizer]))  # weights, sums, state; each twice
    peak = max(measured(graphs.passes[0], shape, part), measured(graphs.update, shape))
    assert predicted_step_bytes(graphs, optimizer, 40 * 4, COUNT, part) == sets * weights_bytes + COUNT * 40 * 4 + peak
    held, scalars_bytes = stepper_of(graphs, parts=True).held_bytes, 4 * 8
    assert sets * weights_bytes <= held <= sets * weights_bytes + scalars_bytes


def test_sums_of_gradients_begin_with_zeros_in_every_step():
    """Whichever of the two sets a step begins with. A step moves weights by the rate times the gradient of its own batch only."""
    graphs = graphs_of("linear", rule=StepRule("sgd"), parts=True)
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(4, 40)).astype(np.float32), np.array([0, 2, 1, 2])
    stepper = stepper_of(graphs, parts=True)
    for size in (4, 2, 4, 1):
        before = stepper.tensors()
        stepper.step(x, y, part=size)
        for name, gradient in stepper.sums().items():
            np.testing.assert_allclose((before[name] - stepper.tensors()[name]) / 0.1, gradient, rtol=1e-3, atol=1e-5)


def test_a_profile_has_the_memory_of_the_runtime():
    options = {"batch_size": COUNT, "method": "fedhm", "tiers": (0.5,)}
    (torch_row,), (onnx_row,) = (profile("mlp", (1, 8, 8), 3, runtime=runtime, **options) for runtime in ("torch", "onnx"))
    assert onnx_row.training_memory_bytes > torch_row.training_memory_bytes + onnx_row.parameter_bytes
    parts = ("parameter_bytes", "buffer_bytes", "optimizer_bytes", "peak_gradient_bytes", "peak_saved_bytes")
    rest = onnx_row.training_memory_bytes - sum(getattr(onnx_row, part) for part in parts)
    assert onnx_row.peak_temporary_bytes == rest
    assert onnx_row.macs_train_step == torch_row.macs_train_step
    with pytest.raises(ConfigError, match="recompute needs torch: training graphs save all activations"):
        profile("mlp", (1, 8, 8), 3, runtime="onnx", recompute=True)
