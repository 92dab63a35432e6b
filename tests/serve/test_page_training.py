"""What the page computes: outputs, losses and updates are those of onnxruntime and NumPy in Python."""

import re

import numpy as np
import pytest
from edgefl_order import Order
from hand_bundle import LR, MOMENTUM, NAMES, parameters, run_steps, samples, train_graph
from page_use import BATCH, STEPS, in_order, logits_of, trained, update_of


@pytest.mark.parametrize("label", ["1", "0.5", "0.25"])
def test_outputs_are_those_of_onnxruntime_in_python(page, bundle, label):
    x, _ = samples(37)
    page.evaluate("label => edgefl.choose(label)", label)
    found = page.evaluate("x => edgefl.predict(x)", x.tolist())
    np.testing.assert_allclose(found, logits_of(bundle, label, x), atol=1e-4, rtol=0)


def test_twenty_steps_lower_the_loss_as_they_do_in_python(page, tmp_path):
    x, y = samples(40)
    expected, state = run_steps(train_graph(parameters(12)), parameters(12), in_order(x, y), lr=LR, beta=MOMENTUM)
    result = trained(page, x, y, shuffle=False)
    np.testing.assert_allclose(result["losses"], expected, rtol=1e-3, atol=1e-5)
    assert result["losses"][-1] < 0.5 * result["losses"][0]
    tensors, metadata = update_of(page, tmp_path)
    for name in NAMES:
        np.testing.assert_allclose(tensors[name], state[f"p.{name}"], atol=1e-4, rtol=0)
    client = metadata.pop("client")
    assert re.fullmatch("[0-9a-f]{16}", client)
    manifest_sha256 = page.evaluate("() => edgefl.manifest.manifest_sha256")
    assert metadata == {
        "format": "edgefl-update", "version": "1", "bundle": manifest_sha256, "round": "3", "tier": "1", "samples": "40", "steps": "20",
    }  # fmt: skip
    # Classification is that of the trained parameters, then again that of the bundle's.
    weights = {name: tensors[name] for name in NAMES}
    hidden = np.maximum(x.reshape(40, -1) @ weights["one.weight"].T + weights["one.bias"], 0)
    after = hidden @ weights["two.weight"].T + weights["two.bias"]
    np.testing.assert_allclose(page.evaluate("x => edgefl.predict(x)", x.tolist()), after, atol=1e-3, rtol=0)
    page.evaluate("() => edgefl.reset()")
    assert np.abs(np.array(page.evaluate("x => edgefl.predict(x)", x.tolist())) - after).max() > 0.5


def test_training_goes_on_where_it_was_and_a_seed_decides_the_batches(page):
    x, y = samples(40)
    once = trained(page, x, y, shuffle=False, steps=6)["losses"]
    page.evaluate("() => edgefl.reset()")
    parts = [trained(page, x, y, shuffle=False, steps=3)["losses"] for _ in range(2)]  # 40 samples are three batches
    np.testing.assert_allclose(parts[0] + parts[1], once, rtol=1e-5)
    runs = []
    for seed in (1, 1, 2):
        page.evaluate("() => edgefl.reset()")
        runs.append(trained(page, x, y, seed=seed)["losses"])
    assert runs[0] == runs[1] != runs[2]
    order = Order(40, BATCH, 2)  # that of the Python client
    batches = [(x[index], y[index]) for index in (order.batch() for _ in range(STEPS))]
    expected, _ = run_steps(train_graph(parameters(12)), parameters(12), batches, lr=LR, beta=MOMENTUM)
    np.testing.assert_allclose(runs[2], expected, rtol=1e-4, atol=1e-6)


def test_images_are_mirrored_as_the_bundle_says(page):
    """One sample a step, with a rate so small that the loss of each step is the first model's: of the sample, or of its mirror image."""
    x, y = samples(STEPS)
    small = {"shuffle": False, "lr": 1e-9, "batchSize": 1}
    plain, mirrored = (np.array(trained(page, images, y, **small)["losses"]) for images in (x, x[..., ::-1]))
    page.evaluate("() => { edgefl.model.entry.train.augment = 'flip'; }")
    try:
        found = np.array(trained(page, x, y, **small)["losses"])
        check = page.evaluate("() => edgefl.check()")
        np.testing.assert_allclose(check["losses"], check["expected"], rtol=1e-3)
    finally:  # the page is shared
        page.evaluate("() => { edgefl.model.entry.train.augment = 'none'; }")
    as_they_are, turned = np.isclose(found, plain, rtol=1e-4), np.isclose(found, mirrored, rtol=1e-4)
    assert (as_they_are | turned).all()
    assert 2 < turned.sum() < STEPS - 2


@pytest.mark.parametrize("label", ["1", "0.5"])
def test_a_training_graph_is_held_to_its_reference(page, label):
    page.evaluate("label => edgefl.choose(label)", label)
    check = page.evaluate("() => edgefl.check()")
    np.testing.assert_allclose(check["losses"], check["expected"], rtol=1e-3)
    assert page.evaluate("() => edgefl.model.steps") == 0


def test_scaffold_sends_control_variates_and_keeps_what_is_personal(page, tmp_path):
    page.evaluate("() => edgefl.choose('0.5')")
    x, y = samples(60)
    x, y = x[y != 2], y[y != 2]
    start, present = parameters(6), np.array([True, True, False, True])
    expected, state = run_steps(train_graph(start, shifted=True), start, in_order(x, y), present=present, lr=0.05)
    losses = trained(page, x, y, shuffle=False, lr=0.05)["losses"]
    doubled = np.array(losses) / expected  # the second of its graphs differs in that it says twice the loss
    np.testing.assert_allclose(doubled, np.round(doubled), rtol=1e-3)
    assert set(np.round(doubled)) == {1, 2}, "both graphs are drawn"
    tensors, metadata = update_of(page, tmp_path)
    sent = set(NAMES) - {"two.bias"}
    assert tensors.keys() == sent | {f"control:{name}" for name in sent}
    assert (metadata["tier"], metadata["labels"]) == ("0.5", "0,1,3")
    for name in sent:
        control = (start[name] - state[f"p.{name}"]) / (STEPS * 0.05)
        np.testing.assert_allclose(tensors[f"control:{name}"], control, atol=1e-4, rtol=0)


def test_a_loss_that_is_no_number_ends_training_with_the_last_sound_parameters(page, tmp_path):
    x, y = samples(40)
    result = trained(page, x, y, lr=1e18)
    assert result["diverged"]
    assert 0 < len(result["losses"]) < STEPS
    assert np.isfinite(result["losses"]).all()
    tensors, metadata = update_of(page, tmp_path)
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    assert metadata["steps"] == str(page.evaluate("() => edgefl.model.steps")) == str(len(result["losses"]) - 1)


def test_a_question_is_answered_while_training(page):
    x, y = samples(40)
    answered = page.evaluate(
        """async ([x, y]) => {
          let [done, begun] = [false, null];
          const first = new Promise((resolve) => { begun = resolve; });
          const training = edgefl.train({ x, y, steps: 100000, onProgress: begun }).finally(() => { done = true; });
          await first;
          await edgefl.predict(x);
          const meanwhile = !done;
          edgefl.model.stop();
          const { losses, stopped } = await training;
          return { meanwhile, stopped, steps: losses.length };
        }""",
        [x.tolist(), y.tolist()],
    )
    assert answered["meanwhile"]
    assert answered["stopped"]
    assert answered["steps"] < 100_000


def test_stop_counts_while_the_graphs_are_being_fetched(page):
    x, y = samples(40)
    code = "([x, y]) => { const training = edgefl.train({ x, y, steps: 100000 }); edgefl.model.stop(); return training; }"
    stopped = page.evaluate(code, [x.tolist(), y.tolist()])
    assert (stopped["losses"], stopped["stopped"]) == ([], True)
    assert len(trained(page, x, y)["losses"]) == STEPS


def test_a_last_step_that_leaves_no_numbers_is_undone(page):
    x, y = samples(16)
    before = page.evaluate("x => edgefl.predict(x)", x.tolist())
    result = trained(page, x, y, lr=1e39, steps=1)
    assert (result["diverged"], len(result["losses"]), result["totalSteps"]) == (True, 0, 0)
    assert result["problem"].startswith("step 1: ")
    np.testing.assert_array_equal(page.evaluate("x => edgefl.predict(x)", x.tolist()), before)


def test_an_update_that_the_server_cannot_use_is_not_made(page):
    trained(page, *samples(20))
    page.evaluate("() => { edgefl.model.entry.train.no_update = 'it has its own clusters'; }")
    with pytest.raises(Exception, match="This tier's updates cannot be sent: it has its own clusters"):
        page.evaluate("() => edgefl.update()")
    page.evaluate("() => { edgefl.model.entry.train.no_update = ''; }")
    page.evaluate("() => edgefl.reset()")
    with pytest.raises(Exception, match="There is no update yet: train first"):
        page.evaluate("() => edgefl.update()")
