"""Training graphs: optimizers, batches in parts, statistics, objectives, what cannot be written, all against torch's own steps."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from edgefl.errors import EdgeflError, InputError
from edgefl.factor.gradient import gradients, held
from edgefl.onnxgrad.gradients import RULES
from edgefl.onnxgrad.loss import loss_graph
from edgefl.onnxgrad.roles import PREDICTION
from edgefl.onnxgrad.stateless import called
from edgefl.onnxgrad.step import StepRule, part_graphs, training_graphs, training_step
from edgefl.onnxgrad.stepper import StepGraphs, Stepper
from edgefl.records import Batch
from edgefl.rng import generator, torch_seeded

LR, BETA, DECAY = 0.1, 0.8, 0.01


def network():
    with torch_seeded(generator(0, "network")):
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def cross_entropy(module, batch):
    return nn.functional.cross_entropy(module(batch.x), batch.y)


def samples(count=7, shape=(2, 3), classes=3):
    rng = np.random.default_rng(count)
    return rng.standard_normal((count, *shape)).astype(np.float32), rng.integers(classes, size=count)


def graphs_of(module, optimizer="momentum", decay=DECAY, loss=cross_entropy, shape=(2, 3), draws=(None,), decayed=None):
    def of_draw(draw):
        return lambda own, x, y: loss(own, Batch(x, y, draw=draw))

    batch = {"x": torch.zeros(2, *shape), "y": torch.zeros(2, dtype=torch.int64)}
    graph = loss_graph(module.train(), [of_draw(draw) for draw in draws], batch)
    names = dict(module.named_parameters()) if decayed is None else decayed
    rule = StepRule(optimizer, decay, set(names))
    return StepGraphs(training_graphs(graph, rule), graph.roles, *part_graphs(graph, rule))


def stepper_of(graphs, module, beta=BETA, **options):
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    arrays = {role: tensors[name].detach().numpy() for name, role in graphs.roles.tensors.items()}
    return Stepper(graphs, arrays, LR, beta, **options)


def torch_optimizer(module, kind):
    groups = [{"params": list(module.parameters()), "weight_decay": DECAY}]
    if kind == "adam":
        return torch.optim.Adam(groups, lr=LR, betas=(BETA, 0.999))
    return torch.optim.SGD(groups, lr=LR, momentum=BETA if kind == "momentum" else 0.0)


def follow(module, optimizer, steps, loss=cross_entropy):
    losses = []
    for x, y in steps:
        value = loss(module, Batch(torch.from_numpy(x), torch.from_numpy(y)))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_steps_are_those_of_torchs_optimizers_with_a_partial_last_batch(kind):
    module = network()
    steps = [samples(7), samples(5), samples(1), samples(7)]
    stepper = stepper_of(graphs_of(module, kind), module)
    ours = [stepper.step(x, y) for x, y in steps]
    expected = copy.deepcopy(module).train()
    assert ours == pytest.approx(follow(expected, torch_optimizer(expected, kind), steps), rel=1e-5)
    for name, parameter in expected.named_parameters():
        np.testing.assert_allclose(stepper.tensors()[f"p.{name}"], parameter.detach(), atol=2e-6)


def test_a_step_leaves_the_callers_arrays_alone():
    module = network()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    stepper_of(graphs_of(module), module).step(*samples())
    assert all(torch.equal(before[name], parameter) for name, parameter in module.named_parameters())


def test_decay_acts_on_the_parameters_that_it_is_to_act_on():
    module = network()
    plain, some = (graphs_of(module, "sgd", decayed=names) for names in ((), ("1.weight",)))
    steppers = [stepper_of(graphs, module) for graphs in (plain, some)]
    for stepper in steppers:
        stepper.step(*samples())
    without, with_decay = (stepper.tensors() for stepper in steppers)
    np.testing.assert_allclose(
        without["p.1.weight"] - with_decay["p.1.weight"], LR * DECAY * module[1].weight.detach(), atol=1e-7
    )
    np.testing.assert_array_equal(without["p.1.bias"], with_decay["p.1.bias"])


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("part", [1, 3, 7, 100])
def test_a_batch_in_parts_is_the_same_step(kind, part):
    module = network()
    graphs = graphs_of(module, kind)
    whole, parts = stepper_of(graphs, module), stepper_of(graphs, module, parts=True)
    for count in (7, 2, 7):
        assert parts.step(*samples(count), part=part) == pytest.approx(whole.step(*samples(count)), rel=1e-5)
    for name, array in whole.tensors().items():
        np.testing.assert_allclose(parts.tensors()[name], array, atol=2e-6)


def test_running_statistics_are_state():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    graphs = graphs_of(module, shape=(3,))
    assert list(graphs.roles.statistics.values()) == ["s.1.running_mean", "s.1.running_var"]
    steps = [samples(count, (3,)) for count in (7, 4)]
    stepper = stepper_of(graphs, module)
    before = copy.deepcopy(module).train()
    ours = [stepper.step(x, y) for x, y in steps]
    assert ours == pytest.approx(follow(before, torch_optimizer(before, "momentum"), steps), rel=1e-5)
    np.testing.assert_allclose(stepper.tensors()["s.1.running_mean"], before[1].running_mean, atol=1e-6)
    np.testing.assert_allclose(stepper.tensors()["s.1.running_var"], before[1].running_var, atol=1e-6)


def test_each_kind_of_step_updates_the_statistics_once():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    (x, y), scales = samples(7, (3,)), {0.25: 1.0, 0.75: -2.0}
    graphs = graphs_of(
        module, loss=lambda own, batch: cross_entropy(own, Batch(batch.x * scales[batch.draw], batch.y)), draws=scales, shape=(3,)
    )
    for kind, scale in enumerate(scales.values()):
        for parts in (False, True):
            stepper = stepper_of(graphs, module, parts=parts)
            stepper.step(x, y, kind=kind)
            np.testing.assert_allclose(stepper.tensors()["s.0.running_mean"], 0.1 * scale * x.mean(0), atol=1e-6)


def test_a_parameter_without_a_gradient_stays_and_one_that_is_frozen_is_read_only():
    module = network()
    module.register_parameter("unused", nn.Parameter(torch.ones(3)))
    module[1].bias.requires_grad_(False)
    graphs = graphs_of(module)
    assert graphs.roles.frozen["1.bias"] == "f.1.bias"
    stepper = stepper_of(graphs, module)
    stepper.step(*samples())
    np.testing.assert_array_equal(stepper.tensors()["p.unused"], np.ones(3))
    assert "f.1.bias" not in stepper.tensors()


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_parts_leave_a_parameter_without_a_gradient_alone(kind):
    module = network()
    module.register_parameter("unused", nn.Parameter(torch.ones(3)))
    stepper = stepper_of(graphs_of(module, kind), module, parts=True)
    stepper.step(*samples(), part=3)
    np.testing.assert_array_equal(stepper.tensors()["p.unused"], np.ones(3))
    assert (stepper.tensors()["p.1.weight"] != module[1].weight.detach().numpy()).all()


def test_the_mean_squared_error_of_torch_has_a_free_batch():
    """torch's exporter gives some of its values shapes that cannot be changed."""
    module = nn.Linear(2, 1)
    batch = {"x": torch.zeros(4, 2), "y": torch.zeros(4, 1)}
    graphs = training_step(module, lambda own, x, y: nn.functional.mse_loss(own(x), y), batch)
    weights = {"p.weight": np.array([[1, 2]], np.float32), "p.bias": np.zeros(1, np.float32)}
    stepper = Stepper(graphs, weights, 0.5)
    x, y = np.array([[1, 0], [0, 1], [1, 1]], np.float32), np.array([[0], [2], [6]], np.float32)
    assert stepper.step(x, y) == pytest.approx(10 / 3)  # errors 1, 0 and -3
    np.testing.assert_allclose(stepper.tensors()["p.weight"], [[1 + 2 / 3, 3]], rtol=1e-6)  # gradients -4/3 and -2
    np.testing.assert_allclose(stepper.tensors()["p.bias"], [2 / 3], rtol=1e-6)  # -4/3


def test_kinds_of_steps_share_their_tensors():
    def loss(module, batch):
        return cross_entropy(module, batch) * (1.0 if batch.draw < 0.5 else 3.0)

    module = network()
    graphs = graphs_of(module, "sgd", 0.0, loss, draws=(0.25, 0.75))
    first, second = (stepper_of(graphs, module) for _ in range(2))
    assert 3 * first.step(*samples(), kind=0) == pytest.approx(second.step(*samples(), kind=1), rel=1e-6)
    moved = [stepper.tensors()["p.3.weight"] - module[3].weight.detach().numpy() for stepper in (first, second)]
    np.testing.assert_allclose(3 * moved[0], moved[1], atol=1e-6)


def test_gradients_inside_of_a_loss_are_written_out():
    """Two steps of a loss whose gradient is taken at a moved point, and one that is differentiated through."""

    def moved(module, batch):
        inner = cross_entropy(module, batch)
        parameters = dict(module.named_parameters())
        slopes = gradients(inner, list(parameters.values()), keep=True)
        at = {name: p - 0.3 * g for (name, p), g in zip(parameters.items(), slopes, strict=True)}
        return nn.functional.cross_entropy(called(module, at, (batch.x,)), batch.y) + held(inner) * inner

    def through(module, batch):
        weight = module[1].weight
        (slope,) = gradients((weight * weight.tanh()).sum(), [weight], constant=False)
        return cross_entropy(module, batch) + (slope * slope).sum()

    for loss in (moved, through):
        module = network()
        stepper = stepper_of(graphs_of(module, "sgd", loss=loss), module)
        expected = copy.deepcopy(module).train()
        steps = [samples(7), samples(4)]
        ours = [stepper.step(x, y) for x, y in steps]
        assert ours == pytest.approx(follow(expected, torch_optimizer(expected, "sgd"), steps, loss), rel=1e-5)
        for name, parameter in expected.named_parameters():
            np.testing.assert_allclose(stepper.tensors()[f"p.{name}"], parameter.detach(), atol=2e-6)


def test_graphs_hold_no_weights_and_no_paths_and_are_the_same_each_time():
    module = nn.Sequential(nn.Flatten(), nn.Linear(6, 500), nn.Linear(500, 3))
    first, second = (graphs_of(module) for _ in range(2))
    assert first == second
    for graph in (*first.steps, *first.passes, first.update):
        assert len(graph) < 8_000
        assert b".py" not in graph
        assert {opset.domain for opset in onnx.load_model_from_string(graph).opset_import} == {""}


def test_constants_of_a_part_are_in_the_order_of_the_whole_graph():
    class Scaled(nn.Linear):
        def forward(self, x):
            for factor in range(2, 9):
                x = torch.tanh(x * float(factor))
            return super().forward(x)

    graph = loss_graph(Scaled(3, 2), [lambda own, x: own(x).sum()], {"x": torch.zeros(2, 3)})
    names = [tensor.name for tensor in graph.part([PREDICTION]).graph.initializer]
    assert len(names) == 7
    assert names == [name for name in graph.model.graph.initializers if name in names]


def test_an_operator_without_a_rule_is_named(monkeypatch):
    monkeypatch.delitem(RULES, "Acosh")

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            return (self.fc(x.flatten(1)).square() + 2).acosh()

    with pytest.raises(InputError, match=r"\(Acosh\): no gradient rule for Acosh; rules are a table, edgefl/onnxgrad/gradients"):
        graphs_of(Odd())


def test_a_loss_that_counts_its_samples_is_refused():
    def loss(module, batch):
        return cross_entropy(module, batch) / len(batch.y)

    with pytest.raises(EdgeflError, match="depends on how many samples there are"):
        graphs_of(network(), loss=loss)


def test_an_operation_without_an_onnx_form_is_named():
    class Strange(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x):
            return torch.special.airy_ai(self.fc(x.flatten(1)))

    with pytest.raises(EdgeflError, match=r"Strange cannot be trained in ONNX: aten.special_airy_ai"):
        graphs_of(Strange())


def test_a_missing_tensor_or_one_of_another_shape_is_named():
    module = network()
    graphs = graphs_of(module)
    with pytest.raises(EdgeflError, match=r"tensor p.1.weight of the training graph: no value, expected shape \(5, 6\)"):
        Stepper(graphs, {}, LR)
    with pytest.raises(EdgeflError, match=r"tensor p.1.weight of the training graph: shape \(2,\), expected shape \(5, 6\)"):
        Stepper(graphs, {"p.1.weight": np.zeros(2, np.float32)}, LR)


def test_samples_of_another_shape_are_an_error_and_change_nothing():
    module = network()
    stepper = stepper_of(graphs_of(module), module)
    before = stepper.tensors()
    with pytest.raises(EdgeflError, match="onnxruntime cannot take the step"):
        stepper.step(np.zeros((4, 9, 9), np.float32), np.zeros(4, np.int64))
    for name, array in stepper.tensors().items():
        np.testing.assert_array_equal(array, before[name])


def test_onnxruntime_needs_no_edgefl_to_take_a_step():
    """As a client in another language would: the graph's own declaration, zeros for the state, one run."""
    module = network()
    (graph,) = graphs_of(module).steps
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    x, y = samples()
    feed = {"x": x, "y": y, "lr": np.array(LR, np.float32), "beta": np.array(BETA, np.float32)}
    parameters = dict(module.named_parameters())
    for value in session.get_inputs():
        if value.name not in feed:
            name = value.name[2:]
            feed[value.name] = parameters[name].detach().numpy() if value.name[0] == "p" else np.zeros(value.shape, np.float32)
    found = dict(zip([value.name for value in session.get_outputs()], session.run(None, feed), strict=True))
    assert found.keys() == {"loss"} | {f"{kind}.{name}.out" for kind in "pm" for name in parameters}
    expected = copy.deepcopy(module)
    assert float(found["loss"]) == pytest.approx(follow(expected, torch_optimizer(expected, "momentum"), [(x, y)])[0], rel=1e-5)
    np.testing.assert_allclose(found["p.1.weight.out"], expected[1].weight.detach(), atol=1e-6)


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(4, 3, padding_idx=-4), nn.Linear(3, 2)
        nn.init.ones_(self.words.weight)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


def test_the_padding_of_an_embedding_is_read_and_not_trained():
    batch = {"x": torch.tensor([[0, 1], [2, 0]]), "y": torch.tensor([0, 1])}
    graphs = training_step(Padded(), lambda net, x, y: nn.functional.cross_entropy(net(x), y), batch)
    tensors = {f"p.{name}": parameter.detach().numpy() for name, parameter in Padded().named_parameters()}
    stepper = Stepper(graphs, tensors, lr=1.0)
    stepper.step(*(part.numpy() for part in batch.values()))
    words = stepper.tensors()["p.words.weight"]
    assert [bool((row == 1).all()) for row in words] == [True, False, False, True]
