"""What a training step is made from is checked by name, and what torch would do later in Python is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgefl.errors import EdgeflError, InputError
from edgefl.onnxgrad import Stepper, StepRule, export, training_step
from edgefl.onnxgrad.graphs import dims_of

X, Y = torch.randn(4, 5), torch.tensor([0, 2, 1, 0])


def squares(network, x):
    return network(x).square().mean()


def cross_entropy(network, x, y):
    return functional.cross_entropy(network(x), y)


@pytest.mark.parametrize(
    ("network", "loss", "batch", "rule", "message"),
    [
        (
            nn.Linear(5, 3),
            nn.CrossEntropyLoss(),
            (X, Y),
            None,
            r"batch: expected a dictionary.* got a tuple; call training_step\(",
        ),
        (
            nn.Linear(5, 3),
            nn.CrossEntropyLoss(),
            {"x": X, "y": Y},
            None,
            r"CrossEntropyLoss compares outputs.*call training_step\(",
        ),
        (nn.Linear(5, 3), functional.cross_entropy, {"x": X, "y": Y}, None, r"cross_entropy compares outputs"),
        (nn.Linear(5, 3), cross_entropy, {"x": X}, None, r"called with \(network, x\): missing a required argument: 'y'"),
        (nn.Linear(5, 3), squares, {"x": X.numpy()}, None, "input x of the batch: expected a torch.Tensor, got a ndarray"),
        (nn.Linear(5, 3), squares, {"x": X[:1]}, None, "the example has one sample"),
        (nn.Linear(5, 3), cross_entropy, {"x": X, "y": Y[:3]}, None, "as many samples, got x: 4, y: 3"),
        (nn.Linear(5, 3), squares, {"x": X.bfloat16()}, None, "input x of the batch is torch.bfloat16"),
        (nn.Linear(5, 3), squares, {"x": X}, "adam", r'expected a StepRule such as StepRule\("adam"\), got a str'),
        (nn.Linear(5, 3), squares, {"x": X}, StepRule("adamw"), "unknown optimizer 'adamw'"),
        (nn.Linear(5, 3), squares, {"lr": X}, None, "called 'lr', which training graphs use themselves"),
        (nn.Linear(5, 3), squares, {"p.weight": X}, None, "called 'p.weight', which training graphs use themselves"),
        (nn.Linear(5, 3), lambda network, x: network(x), {"x": X}, None, "a tensor with 2 axes, expected one number"),
        (nn.Linear(5, 3), lambda network, x: None, {"x": X}, None, "the loss returns a NoneType"),
        (nn.Linear(5, 3).half(), squares, {"x": X.half()}, None, r"weight is torch.float16, .* call .float\(\)"),
        (nn.Linear(5, 3).bfloat16(), squares, {"x": X}, None, r"weight is torch.bfloat16, .* call .float\(\)"),
        (nn.Linear(5, 3).double(), squares, {"x": X.double()}, None, r"weight is torch.float64, .* call .float\(\)"),
        (nn.LazyLinear(3), squares, {"x": X}, None, "weight has no size yet; call the network once"),
        (
            nn.Linear(5, 3),
            lambda network, x: network(x).half().square().mean().float(),
            {"x": X},
            None,
            "float16.*; leave out",
        ),
    ],
)
def test_a_wrong_argument_is_refused_with_the_remedy(network, loss, batch, rule, message):
    with pytest.raises(InputError, match=message):
        training_step(network, loss, batch, rule)


def test_hooks_and_parts_in_evaluation_mode_are_refused():
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    network[1].eval()
    with pytest.raises(InputError, match="1 is in evaluation mode, but a step calls"):
        training_step(network, squares, {"x": X})
    assert not network[1].training
    network[1].train()
    network[0].weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(InputError, match="0.weight has a hook on its gradient"):
        training_step(network, squares, {"x": X})


class Of(nn.Module):
    """A function of the outputs of a layer and of a parameter."""

    def __init__(self, function, **buffers):
        super().__init__()
        self.function, self.layer, self.w = function, nn.Linear(5, 4), nn.Parameter(torch.randn(4))
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self.function(self, self.layer(x))


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(context, x):
        return x.round()

    @staticmethod
    def backward(context, gradient):
        return gradient


class Clipped(torch.autograd.Function):
    """The identity, whose gradient is clipped where no example reaches."""

    @staticmethod
    def forward(context, x):
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        return gradient.clamp(-10, 10)


def clipped(y: Tensor) -> Tensor:
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient.clamp(-10, 10))
    return y


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda own, y: Straight.apply(y), r"Straight \(a torch.autograd.Function\) has a backward pass of its own"),
        (lambda own, y: Clipped.apply(y), r"Clipped \(a torch.autograd.Function\) has a backward pass of its own"),
        (lambda own, y: clipped(y), r"a hook of a tensor \(register_hook\) changes gradients"),
        (lambda own, y: (y * 1).detach_() * y, r"detach_ makes a constant"),
    ],
)
def test_gradients_that_python_computes_are_refused_by_name(function, message):
    with pytest.raises(InputError, match=message):
        training_step(Of(function), squares, {"x": X})
    assert Straight.apply(X).shape == X.shape


class Scaled(torch.autograd.Function):
    """Multiplies by a number, or with ``straight`` rounds with the gradient of the identity. Counts its forward passes."""

    calls = 0

    @staticmethod
    def forward(context, x, factor, straight):
        Scaled.calls += 1
        context.factor = 1 if straight else factor
        return x.round() if straight else x * factor

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None, None


def test_a_function_is_differentiated_once_for_each_kind_of_arguments():
    training_step(Of(lambda own, y: Scaled.apply(y, 2.0, False)), squares, {"x": X})
    first = Scaled.calls
    training_step(Of(lambda own, y: Scaled.apply(y, 2.0, False)), squares, {"x": X})
    assert (
        Scaled.calls - first == first - 8
    )  # inputs of four scales, each through the Function and through its forward pass alone
    with pytest.raises(InputError, match="Scaled .* has a backward pass of its own"):
        training_step(Of(lambda own, y: Scaled.apply(y, 2.0, True)), squares, {"x": X})


def test_a_backward_hook_of_a_module_is_refused_only_if_it_changes_gradients():
    network = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
    network[1].register_full_backward_hook(lambda part, given, found: None)
    training_step(network, squares, {"x": X})
    network[1].register_full_backward_hook(lambda part, given, found: tuple(2 * gradient for gradient in given))
    with pytest.raises(InputError, match="a backward hook of 1 changes gradients"):
        training_step(network, squares, {"x": X})


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_options_of_embeddings_that_no_graph_has_are_named(options):
    with pytest.raises(InputError, match=next(iter(options))):
        training_step(nn.Embedding(9, 4, **options), squares, {"x": Y})


def test_packed_sequences_are_refused_and_the_remedy_trains():
    class Last(nn.Module):
        def __init__(self, packs):
            super().__init__()
            self.layer, self.packs = nn.GRU(3, 4, batch_first=True), packs

        def forward(self, x, lengths):
            if self.packs:
                return self.layer(nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False))[1][-1]
            y, _ = self.layer(x)
            return y.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, y.shape[2]))

    def loss(network, x, lengths):
        return network(x, lengths).square().mean()

    batch = {"x": torch.randn(3, 5, 3), "n": torch.tensor([5, 2, 4])}
    with pytest.raises(InputError, match=r"pack_padded_sequence has no ONNX form; .* y\.gather"):
        training_step(Last(True), loss, batch)
    # The remedy passes the comparison with torch.
    wrapped = nn.ModuleDict({"inner": Last(False)})
    wrapped.forward = lambda inputs: wrapped["inner"](inputs["x"], inputs["n"])
    training_step(wrapped, lambda network, inputs: network(inputs).square().mean(), {"inputs": batch})


@pytest.mark.parametrize(
    "function",
    [
        lambda own, y: y * own.w.clamp(-0.5, 0.5),
        lambda own, y: y.clamp(-1, 1) + 3 * y.clamp(-0.1, 0.2) + 5 * y.clamp(-2, 0.1),
        lambda own, y: y * y.sum().item(),
    ],
)
def test_clamps_of_one_value_and_numbers_of_tensors_train_as_in_torch(function):
    training_step(Of(function), squares, {"x": X})


@pytest.mark.parametrize("name", ["mean", "linear", "relu", "y", "x"])
def test_a_buffer_called_like_another_value_of_the_graph(name):
    network = Of(lambda own, y: torch.relu(y).mean(1, keepdim=True) - getattr(own, name), **{name: torch.randn(1, 10)})
    (output,) = export(network.eval(), {"x": X}).graph.output
    assert (output.name, dims_of(output)) == ("y", ("batch", 10))


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8, np.int16, np.bool_, np.float64])
def test_inputs_of_other_types_are_fed_as_the_graph_reads_them(kind):
    values = np.array([[0, 1, 1], [1, 0, 0]]).astype(kind)
    network = nn.Linear(3, 2)
    step = training_step(network, lambda own, x: own(x.float()).square().mean(), {"x": torch.from_numpy(values)})
    before = {step.roles.trained[name]: value.detach().numpy() for name, value in network.named_parameters()}
    loss = Stepper(step, before, 0.1).step(values)
    assert loss == pytest.approx(squares(network, torch.from_numpy(values).float()).item(), rel=1e-5)


def test_values_that_the_type_of_an_input_does_not_contain_are_refused():
    network = nn.Linear(5, 3)
    step = training_step(network, cross_entropy, {"x": X, "y": Y})
    before = {step.roles.trained[name]: value.detach().numpy() for name, value in network.named_parameters()}
    stepper = Stepper(step, before, 0.1)
    assert stepper.step(X.numpy(), Y.numpy().astype(np.float32)) > 0
    with pytest.raises(EdgeflError, match="input y: got values of float32 that int64"):
        stepper.step(X.numpy(), Y.numpy().astype(np.float32) + np.float32(0.5))
    with pytest.raises(EdgeflError, match=r"a step takes 2 arrays \(x, y\), got 1"):
        stepper.step(X.numpy())


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}])
def test_cross_entropy_of_the_logits_of_one_sample(options):
    training_step(nn.Linear(5, 3), lambda own, x, y: functional.cross_entropy(own(x).mean(0), y[0], **options), {"x": X, "y": Y})


def test_transformers_apply_masks_without_reading_their_values():
    mask = nn.Transformer.generate_square_subsequent_mask(5)

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, x):
            return self.encoder(x, mask=mask)

    training_step(Masked(), squares, {"x": torch.randn(2, 5, 4)})
    assert export(Masked().eval(), {"x": torch.randn(2, 5, 4)}).graph.node
