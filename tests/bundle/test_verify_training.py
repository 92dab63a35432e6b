"""What verification holds a tier that trains to: graphs, first values, references, variants; losses expected are NumPy's, in float64."""

import dataclasses
import re

import numpy as np
import onnx
import pytest
from handmade import Regression, samples
from onnx import TensorProto, helper
from pydantic import ValidationError
from small_bundle import manifest, saved, tier, trainable, written_trainable

from edgefl.bundle.manifest import Objective, TrainEntry
from edgefl.bundle.manifest_file import read
from edgefl.bundle.verify import verify
from edgefl.bundle.write import write
from edgefl.errors import BundleError

pytestmark = pytest.mark.usefixtures("in_process")
SOUND = Regression()


@pytest.mark.parametrize(
    "network",
    [
        SOUND, Regression(optimizer="sgd"), Regression(optimizer="adam"), Regression(objective="prox", strength=0.1),
        Regression(objective="dyn", strength=0.1), Regression(objective="scaffold"), Regression(present=True), Regression(width=2),
        Regression(personal=("fc.bias",)),
    ],
    ids=lambda network: "-".join(map(str, (network.optimizer, network.objective, network.present, network.width, *network.personal))),
)  # fmt: skip
def test_a_tier_that_trains_as_numpy_does_passes(tmp_path, network):
    folder = written_trainable(tmp_path / "bundle", network)
    report = verify(folder)
    assert report.max_loss_errors.keys() == {"0.5"}
    assert report.max_loss_errors["0.5"] < 1e-5
    assert read(folder).tiers[0].train.upload.keys() == {"fc.weight", "fc.bias", "mean"} - set(network.personal)


def test_a_tier_without_training_has_no_losses(tmp_path):
    _, files = trainable(SOUND)
    entry = tier(0.5, opset=20)
    values = {"input_shape": SOUND.shape}
    write(tmp_path / "bundle", manifest(entry, **values), {path: files[path] for path in (entry.forward, entry.reference)})
    assert verify(tmp_path / "bundle").max_loss_errors == {}


def graph(change, network=SOUND) -> bytes:
    """Return the training graph after ``change`` of its record."""
    model = onnx.load_model_from_string(network.graph())
    change(model.graph)
    return model.SerializeToString()


def dropped(kind, name):
    def change(graph):
        values = getattr(graph, kind)
        values.remove(next(value for value in values if value.name == name))

    return change


def renamed(old, new):
    def change(graph):
        for value in (*graph.input, *graph.output):
            value.name = value.name.replace(old, new)
        for node in graph.node:
            node.input[:] = [name.replace(old, new) for name in node.input]
            node.output[:] = [name.replace(old, new) for name in node.output]

    return change


def reshaped(name, *dims, kind=TensorProto.FLOAT):
    def change(graph):
        value = next(value for value in (*graph.input, *graph.output) if value.name == name)
        value.CopyFrom(helper.make_tensor_value_info(name, kind, dims))

    return change


def more(graph):
    graph.input.append(helper.make_tensor_value_info("f.secret", TensorProto.FLOAT, [1]))


def negated(graph):
    next(node for node in graph.node if node.output[0] == "loss0").op_type = "Exp"


def stuck(graph):
    """The loss is right, and the weights never move."""
    node = next(node for node in graph.node if node.output[0] == "p.fc.weight.out")
    node.op_type = "Identity"
    del node.input[1:]


GRAPHS = {
    "no input": (renamed("p.fc.bias", "p.other"), "has no input p.fc.bias, expected float32 (3)"),
    "no momentum": (dropped("output", "m.fc.weight.out"), "has no output m.fc.weight.out, expected float32 (3, 6)"),
    "no statistics": (dropped("output", "s.mean.out"), "has no output s.mean.out, though it has the input"),
    "extra input": (more, "input 'f.secret', expected only "),
    "labels": (reshaped("y", "batch", kind=TensorProto.INT32), "input y is INT32 (batch), expected int64 (batch)"),
    "fixed batch": (reshaped("y", 4, kind=TensorProto.INT64), "input y is int64 (4), expected int64 (batch)"),
    "shape": (reshaped("m.fc.weight", "rows", 6), "input m.fc.weight is float32 (rows, 6), expected float32 (3, 6)"),
    "rate": (reshaped("lr", 1), "input lr is float32 (1), expected float32 ()"),
    "another loss": (negated, "losses "),
    "stuck": (stuck, "losses "),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_training_graph_is_held_to_the_manifest(tmp_path, kind):
    change, message = GRAPHS[kind]
    with pytest.raises(BundleError, match=rf"tier 0\.5: 0\.5/train\.onnx: {re.escape(message)}"):
        verify(written_trainable(tmp_path / "bundle", files={"train.onnx": graph(change)}))


def test_every_training_graph_is_run_not_only_the_first(tmp_path):
    network = Regression(width=2)
    content = graph(
        lambda g: next(n for n in g.node if n.output[0] == "loss0").CopyFrom(helper.make_node("Log", ["mean"], ["loss0"]))
    )
    with pytest.raises(BundleError, match=r"0\.5/train\.1\.onnx: loss after one sample holds values that are not finite"):
        verify(written_trainable(tmp_path / "bundle", network, {"train.1.onnx": content}))


def test_one_sample_must_leave_finite_tensors(tmp_path):
    def change(g):  # adds log(n - 1), which is 0 for the two samples of a reference
        node = next(node for node in g.node if node.output[0] == "s.mean.out")
        node.output[0] = "moved"
        unit = helper.make_tensor("own_unit", TensorProto.FLOAT, [], [1.0])
        g.initializer.append(unit)
        g.node.extend(
            [
                helper.make_node("Size", ["y"], ["own_size"]),
                helper.make_node("Cast", ["own_size"], ["own_count"], to=TensorProto.FLOAT),
                helper.make_node("Sub", ["own_count", "own_unit"], ["own_others"]),
                helper.make_node("Log", ["own_others"], ["own_log"]),
                helper.make_node("Add", ["moved", "own_log"], ["s.mean.out"]),
            ]
        )

    with pytest.raises(BundleError, match=r"0\.5/train\.onnx: s.mean.out after one sample holds values that are not finite"):
        verify(written_trainable(tmp_path / "bundle", files={"train.onnx": graph(change)}))


FIRST = SOUND.first()
WRONG_FIRST = {
    "missing": ({"scale": None}, "lacks scale"),
    "extra": ({"other": np.zeros(1, np.float32)}, "holds other, expected fc.bias, fc.weight, mean, scale and nothing else"),
    "control": ({"control:fc.bias": np.zeros(3, np.float32)}, "holds control:fc.bias"),
    "shape": ({"mean": np.zeros(5, np.float32)}, r"mean is float32 \(5,\), expected float32 \(6,\)"),
    "transposed": ({"fc.weight": FIRST["fc.weight"].T}, r"fc.weight is float32 \(6, 3\), expected float32 \(3, 6\)"),
    "double": ({"fc.bias": np.zeros(3)}, r"fc.bias is float64 \(3,\), expected float32 \(3,\)"),
    "nan": ({"fc.bias": np.array([0, np.nan, 0], np.float32)}, "fc.bias holds values that are not finite"),
    "inf": ({"scale": np.array([-np.inf], np.float32)}, "scale holds values that are not finite"),
}


@pytest.mark.parametrize("kind", WRONG_FIRST)
def test_first_values_are_held_to_the_manifest(tmp_path, kind):
    change, message = WRONG_FIRST[kind]
    tensors = {name: tensor for name, tensor in {**FIRST, **change}.items() if tensor is not None}
    with pytest.raises(BundleError, match=rf"tier 0\.5: 0\.5/parameters\.safetensors: {message}"):
        verify(written_trainable(tmp_path / "bundle", files={"parameters.safetensors": saved(tensors)}))


X, Y = samples(8)
LOSSES = np.array(SOUND.trained([(X, Y)] * 3)[1], np.float32)
WRONG_REFERENCES = {
    "label": ({"y": np.where(Y == 2, 3, Y)}, r"train_reference\.safetensors: y from 0 to 3, expected labels from 0 to 2"),
    "negative": ({"y": -Y}, r"train_reference\.safetensors: y from -2 to 0"),
    "two losses": ({"losses": LOSSES[:2]}, r"train_reference\.safetensors: losses is float32 \(2,\), expected float32 \(3,\)"),
    "first": ({"losses": LOSSES * np.float32([1.002, 1, 1])}, r"train\.onnx: losses .*, expected the same to 1e-03"),
    "third": ({"losses": LOSSES * np.float32([1, 1, 0.998])}, r"train\.onnx: losses .*, expected the same to 1e-03"),
    "labels": ({"y": Y[::-1]}, r"train\.onnx: losses "),
    "tensors": (
        {"after:fc.bias": np.ones(3, np.float32)},
        r"train\.onnx: fc\.bias after 3 steps differs from its reference by .*, expected at most",
    ),
    "some tensors": (
        {"after:fc.bias": np.zeros(2, np.float32)},
        r"train_reference\.safetensors: after:fc\.bias is float32 \(2,\)",
    ),
    "unknown tensors": ({"after:scale": np.zeros(1, np.float32)}, r"train_reference\.safetensors: holds after:scale"),
}


@pytest.mark.parametrize("kind", WRONG_REFERENCES)
def test_three_steps_are_held_to_the_reference(tmp_path, kind):
    change, message = WRONG_REFERENCES[kind]
    stored = saved({"x": X, "y": Y, "losses": LOSSES, **change})
    with pytest.raises(BundleError, match=rf"tier 0\.5: 0\.5/{message}"):
        verify(written_trainable(tmp_path / "bundle", files={"train_reference.safetensors": stored}))


def test_the_tolerance_of_losses_is_one_thousandth(tmp_path):
    stored = saved({"x": X, "y": Y, "losses": LOSSES * np.float32([1.0009, 0.9991, 1])})
    folder = written_trainable(tmp_path / "bundle", files={"train_reference.safetensors": stored})
    assert verify(folder).max_loss_errors["0.5"] == pytest.approx(9e-4, rel=2e-2)


def test_what_predicts_is_run_with_the_first_values(tmp_path):
    model = onnx.load_model_from_string(SOUND.predict(True))
    next(node for node in model.graph.node if node.op_type == "Mul").op_type = "Div"
    tensors = {**FIRST, "scale": np.zeros(1, np.float32)}
    files = {"parameters.safetensors": saved(tensors), "predict.onnx": model.SerializeToString()}
    with pytest.raises(BundleError, match=r"tier 0\.5: 0\.5/predict\.onnx: logits holds values that are not finite"):
        verify(written_trainable(tmp_path / "bundle", files=files))


def with_variant(folder, content, **changes):
    variant = {"kind": "fp16", "graph": "0.5/fp16.onnx", "bytes": len(content), "accuracy": 0.5, **changes}
    entry, files = trainable(SOUND, variants=(variant,))
    write(folder, manifest(entry, input_shape=SOUND.shape), {**files, "0.5/fp16.onnx": content})
    return folder


def test_a_variant_is_run_and_need_not_equal_the_float_graph(tmp_path):
    other = dataclasses.replace(SOUND, seed=1)
    assert verify(with_variant(tmp_path / "bundle", other.predict(False))).max_abs_errors["0.5"] < 1e-5


def test_a_wrong_variant_is_refused(tmp_path):
    with pytest.raises(BundleError, match=r"0\.5/fp16\.onnx: input 'p.fc.weight', expected only x float32 \(batch, 1, 2, 3\)"):
        verify(with_variant(tmp_path / "one", SOUND.predict(True)))
    model = onnx.load_model_from_string(SOUND.predict(False))
    model.graph.node[-1].op_type, model.graph.node[-1].input[0] = "Gemm", "scaled"
    model.graph.initializer[0].raw_data = np.full((3, 6), np.inf, np.float32).tobytes()
    with pytest.raises(BundleError, match=r"tier 0\.5: 0\.5/fp16\.onnx: logits holds values that are not finite"):
        verify(with_variant(tmp_path / "two", model.SerializeToString()))
    with pytest.raises(BundleError, match=r"0\.5/fp16\.onnx: 1 bytes in its variant, \d+ among the files"):
        with_variant(tmp_path / "three", SOUND.predict(False), bytes=1)


def train(**changes) -> TrainEntry:
    entry, _ = trainable(SOUND)
    return TrainEntry(**{**entry.train.model_dump(), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graphs": ()}, "graphs\n  Tuple should have at least 1 item"),
        ({"predict": "../predict.onnx"}, "expected a relative path inside the bundle"),
        ({"trained": {}}, "trained\n  Dictionary should have at least 1 item"),
        ({"trained": {"a\nb": (1,)}}, "expected a tensor's name"),
        ({"frozen": {"fc.bias": (3,)}}, "fc.bias: expected in one of trained, statistics and frozen, not in several"),
        ({"frozen": {"shift.fc.bias": (3,)}}, "frozen: shift.fc.bias is the name of an objective's input"),
        ({"personal": ("head",)}, "personal: head is none of the tier's tensors"),
        ({"personal": ("scale", "scale")}, "personal: scale twice"),
        ({"personal": ("mean",)}, "upload: mean is personal: it never leaves the device"),
        ({"upload": {"shift": (1,)}}, r"upload: shift \(1,\), expected one of the tier's tensors: none such"),
        ({"upload": {"mean": (5,)}}, r"upload: mean \(5,\), expected one of the tier's tensors: \(6,\)"),
        ({"lr": 0}, "lr\n  Input should be greater than 0"),
        ({"lr": float("inf")}, "lr\n  Input should be a finite number"),
        ({"momentum": 1}, "momentum\n  Input should be less than 1"),
        ({"optimizer": "lamb"}, "optimizer\n  Input should be 'sgd', 'momentum' or 'adam'"),
        ({"objective": {"name": "prox", "strength": -1}}, "strength\n  Input should be greater than or equal to 0"),
        ({"surprise": 1}, "surprise\n  Extra inputs are not permitted"),
    ],
)
def test_how_a_tier_trains_agrees_with_itself(changes, message):
    with pytest.raises(ValidationError, match=message):
        train(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"composed_layers": ("conv1",)}, "composed_layers: conv1, but form factored multiplies no layer out"),
        ({"budget": {"round_s": -1}}, r"round_s\n  Input should be greater than or equal to 0"),
        ({"variants": 2 * ({"kind": "fp16", "graph": "a", "bytes": 1},)}, "variants: fp16 twice"),
        ({"variants": ({"kind": "int4", "graph": "a", "bytes": 1},)}, "kind\n  Input should be 'int8-static'"),
    ],
)
def test_a_tier_agrees_with_itself(changes, message):
    with pytest.raises(ValidationError, match=message):
        tier(0.5, **changes)


def test_keys_that_a_tier_need_not_have():
    entry = tier(0.5)
    assert (entry.train, entry.variants, entry.composed_layers) == (None, (), ())
    assert entry.budget.model_dump() == {"memory_bytes": None, "round_s": None, "energy_j": None}
    assert (manifest().round, manifest().state_sha256) == (0, None)
    assert train().objective == Objective(name="none", strength=0.0)
    assert not train().present
    assert not train().labels
    assert train().augment == "none"


def test_only_images_are_mirrored():
    mirrored = tier(0.5, train=train(augment="flip"))
    assert manifest(mirrored, input_shape=(1, 8, 8)).tiers[0].train.augment == "flip"
    with pytest.raises(
        ValidationError, match=r"augment: flip, but samples have shape \(6,\), expected \(channels, height, width\)"
    ):
        manifest(mirrored)


def test_a_file_stands_for_one_thing():
    shared = trainable(SOUND)[0]
    with pytest.raises(ValidationError, match=r"tiers: 0\.5/forward\.onnx is named twice"):
        manifest(tier(1, forward="0.5/forward.onnx"), shared)
    doubled = train(predict="0.5/train.onnx")
    with pytest.raises(ValidationError, match=r"tiers: 0\.5/train\.onnx is named twice"):
        manifest(tier(0.5, train=doubled))
