"""The page in Chromium: what it computes, what it says, how it is used, and what it keeps."""

import contextlib
import itertools
import json
import re
import shutil
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import safetensors.numpy
from hand_bundle import (
    CLASSES,
    LR,
    MOMENTUM,
    NAMES,
    SHAPE,
    parameters,
    run_steps,
    samples,
    tier_of,
    train_graph,
    write_bundle,
    write_text_bundle,
)
from serving import reload, served_as_it_is, serving

from edgefl.util.files import shared
from edgefl.util.keys import SigningKey

sys.path.insert(0, str(shared("export") / "python"))

from edgefl_client import Training

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
    with safetensors.safe_open(str(path), "numpy") as file:  # type: ignore[no-untyped-call]
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


# What it computes.


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
    order = Training(batch_size=BATCH, epochs=STEPS, seed=2).batches(40)  # that of the Python client
    batches = [(x[index], y[index]) for index in itertools.islice(order, STEPS)]
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
    assert (result["diverged"], len(result["losses"]), result["totalSteps"]) == (True, 1, 0)
    np.testing.assert_array_equal(page.evaluate("x => edgefl.predict(x)", x.tolist()), before)


# What it shows and says.


def add_file(page: Any, path: Path, many: bool = True) -> None:
    page.locator("#many-box").evaluate("box => { box.open = true; }")
    page.set_input_files("#samples" if many else "#upload", str(path))


def samples_file(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_training_from_the_page(page, tmp_path):
    x, y = samples(60)
    add_file(page, samples_file(tmp_path, {"x": x.tolist(), "y": y.tolist()}))
    page.wait_for_selector("#counts li")
    counts = [f"{name}: {(y == label).sum()}" for label, name in enumerate(page.evaluate("() => edgefl.manifest.class_names"))]
    assert page.locator("#counts li").all_text_contents() == counts
    page.fill("#epochs", "3")
    page.click("#train")
    page.wait_for_selector("#download:not([disabled])")
    assert re.search(
        r"Done after 12 steps: mean loss \d\.\d+ in the first epoch, 0\.\d+ in the last; \d+ % to \d+ % of your",
        page.text_content("#status"),
    )
    figures = page.locator("#training-facts").inner_text()
    assert re.search(r"Speed\s+\d+ steps/s", figures)
    assert "16.8 MB" in figures
    assert "123 kB" in figures
    page.locator("#curve-table").evaluate("box => { box.open = true; }")
    assert page.locator("#loss-rows tr").count() == 6
    assert page.locator("#chart path").count() == 2
    with page.expect_download() as download:
        page.click("#download")
    assert re.fullmatch(r"update-round3-tier1-[0-9a-f]{16}\.safetensors", download.value.suggested_filename)
    assert safetensors.numpy.load_file(download.value.path()).keys() == set(NAMES)
    page.click("#reset")
    page.wait_for_selector("#download[disabled]")
    assert not page.locator("#curve").is_visible()


def test_samples_come_from_npz_too_also_as_raw_pixels(page, tmp_path):
    x, y = samples(30)
    np.savez_compressed(tmp_path / "mine.npz", x=x, y=y)
    add_file(page, tmp_path / "mine.npz")
    page.wait_for_selector("#counts li")
    np.testing.assert_array_equal(page.evaluate("() => Array.from(edgefl.samples.flat())"), x.ravel())
    raw = np.arange(64, dtype=np.uint8).reshape(1, *SHAPE) % 17
    np.savez(tmp_path / "raw.npz", pixels=raw, y=np.array([2]))
    add_file(page, tmp_path / "raw.npz")
    page.wait_for_function("() => edgefl.samples.length === 31")
    found = page.evaluate("() => Array.from(edgefl.samples.x.at(-1))")
    np.testing.assert_allclose(found, (raw.ravel() / 16 - 0.3) / 0.4, atol=1e-5)


def test_stop_ends_training_after_the_step_it_is_at(page, tmp_path):
    x, y = samples(30)
    add_file(page, samples_file(tmp_path, {"x": x.tolist(), "y": y.tolist()}))
    page.wait_for_selector("#counts li")
    page.fill("#epochs", "10000")
    page.click("#train")
    page.wait_for_selector("#chart path")
    assert page.locator("#train").is_disabled()
    assert page.locator("#tier").is_disabled()
    page.click("#stop")
    page.wait_for_selector("#train:not([disabled])")
    assert page.text_content("#status").startswith("Stopped after ")
    assert 0 < page.evaluate("() => edgefl.model.steps") < 20_000


WRONG = {
    "text": ("not json", "mine.json: not valid JSON"),
    "keys": ({"a": 1}, 'mine.json: expected {"x": [...], "y": [...]}'),
    "lengths": ({"x": [[0] * 64], "y": [0, 1]}, "mine.json: 1 samples but 2 classes"),
    "shape": ({"x": [[0] * 63], "y": [0]}, "mine.json: sample 0: 63 values, expected 64: 1 × 8 × 8"),
    "class": ({"x": [[0] * 64], "y": [4]}, "mine.json: sample 0: there is no class 4"),
    "value": ({"x": [[0] * 63 + ["1"]], "y": [0]}, "mine.json: sample 0: expected finite numbers only"),
    "none": ({"x": [], "y": []}, "mine.json: no samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_of_samples_is_named_and_nothing_is_added(page, tmp_path, case):
    content, message = WRONG[case]
    add_file(page, samples_file(tmp_path, content))
    page.wait_for_selector("#problem:not([hidden])")
    assert message in page.text_content("#problem-text")
    assert page.evaluate("() => edgefl.samples.length") == 0


def test_training_on_nothing_and_wrong_settings_are_messages(page, tmp_path):
    page.click("#train")
    assert "There is nothing to train on" in page.text_content("#problem-text")
    page.fill("#batch", "0")
    page.click("#train")
    assert page.text_content("#problem-text") == "Batch size: 0, expected a whole number from 1 to 4096."
    with pytest.raises(Exception, match="class 4, expected whole numbers from 0 to 3"):
        trained(page, samples(1)[0], np.array([4]))
    with pytest.raises(Exception, match="63 values, expected a multiple of 64"):
        trained(page, np.zeros(63), np.array([0]))
    page.evaluate("() => edgefl.choose('0.25')")
    assert "Tier 0.25 comes without a training graph" in page.text_content("#no-training")
    assert not page.locator("#training").is_visible()


def test_an_update_that_the_server_cannot_use_is_not_made(page):
    trained(page, *samples(20))
    page.evaluate("() => { edgefl.model.entry.train.no_update = 'it has its own clusters'; }")
    with pytest.raises(Exception, match="This tier's updates cannot be sent: it has its own clusters"):
        page.evaluate("() => edgefl.update()")
    page.evaluate("() => { edgefl.model.entry.train.no_update = ''; }")
    page.evaluate("() => edgefl.reset()")
    with pytest.raises(Exception, match="There is no update yet: train first"):
        page.evaluate("() => edgefl.update()")


def png(pixels: np.ndarray) -> bytes:
    """An RGB image (height, width, 3) of uint8 as PNG."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_an_image_is_averaged_normalised_and_classified(page, bundle, tmp_path):
    pixels = np.random.default_rng(3).integers(0, 256, (48, 60, 3), dtype=np.uint8)
    (tmp_path / "picture.png").write_bytes(png(pixels))
    add_file(page, tmp_path / "picture.png", many=False)
    page.wait_for_selector("#bars li")
    middle = pixels[:, 6:54] @ np.array([0.299, 0.587, 0.114]) / 255
    light = middle.reshape(8, 6, 8, 6).mean((1, 3))
    x = ((light - 0.3) / 0.4).astype(np.float32)
    np.testing.assert_allclose(page.evaluate("() => Array.from(edgefl.input.current)"), x.ravel(), atol=1e-4)
    logits = logits_of(bundle, "1", x.reshape(1, *SHAPE))[0]
    probability = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    names = page.evaluate("() => edgefl.manifest.class_names")
    assert page.text_content("#answer") == f"Most likely: {names[probability.argmax()]}, {100 * probability.max():.0f} %"
    assert page.locator("#bars li").count() == CLASSES
    page.check("#invert")
    page.wait_for_function(
        "expected => Math.abs(edgefl.input.current[0] - expected) < 1e-4", arg=float((1 - light[0, 0] - 0.3) / 0.4)
    )
    page.uncheck("#invert")


def test_an_unreadable_image_is_named(page, tmp_path):
    (tmp_path / "picture.png").write_bytes(b"not a picture")
    add_file(page, tmp_path / "picture.png", many=False)
    page.wait_for_selector("#problem:not([hidden])")
    assert "picture.png: cannot be read as an image" in page.text_content("#problem-text")
    assert page.locator("#add").is_disabled()


def test_several_images_of_one_class_are_added_at_once(page, tmp_path):
    page.locator("#many-box").evaluate("box => { box.open = true; }")
    for name, light in (("a", 0), ("b", 255)):
        (tmp_path / f"{name}.png").write_bytes(png(np.full((8, 8, 3), light, np.uint8)))
    page.set_input_files("#many", str(tmp_path / "a.png"))
    page.wait_for_selector("#problem:not([hidden])")
    assert page.text_content("#problem-text").startswith("Class of the images: nothing chosen, expected one")
    page.select_option("#many-label", label="bottom left")
    page.set_input_files("#many", [str(tmp_path / "a.png"), str(tmp_path / "b.png")])
    page.wait_for_selector("#counts li")
    assert page.locator("#counts li").all_text_contents() == ["bottom left: 2"]
    page.click("#undo")
    np.testing.assert_allclose(page.evaluate("() => Array.from(edgefl.samples.flat())"), (0 - 0.3) / 0.4, atol=1e-5)


def test_a_drawing_with_the_pointer_is_cut_to_its_ink(page):
    page.evaluate("() => scrollTo(0, 0)")
    box = page.locator("#pad").bounding_box()
    left, top = box["x"] + 40, box["y"] + 40
    page.mouse.move(left, top)
    page.mouse.down()
    page.mouse.move(left + 30, top, steps=3)
    page.mouse.up()
    page.wait_for_selector("#bars li")
    fitted = np.array(page.evaluate("() => Array.from(edgefl.input.current)")).reshape(8, 8) * 0.4 + 0.3
    assert fitted[3:5].min() > 0.2, "a bar across the middle"
    assert fitted[0].max() == pytest.approx(0, abs=1e-5)
    page.uncheck("#fit")
    page.wait_for_function("() => edgefl.input.current[8 * 4 + 4] < -0.7")
    page.check("#fit")


# The keyboard and screen readers.


def focused(page: Any) -> str:
    return str(page.evaluate("() => document.activeElement.id"))


def tab_to(page: Any, name: str) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused(page) == name:
            return
    raise AssertionError(f"{name} is not reached by the tab key; the focus is at {focused(page)}")


def test_everything_is_done_with_the_keyboard_alone(page, tmp_path):
    page.evaluate("() => { document.activeElement.blur(); }")
    page.locator("#tier").focus()
    tab_to(page, "pad")
    for key in ("Space", "ArrowLeft", "Space", "Shift+ArrowUp"):
        page.keyboard.press(key)
    assert page.text_content("#pad-place") == "Row 4, column 4 of 8: ink"
    page.keyboard.press("Delete")
    assert page.text_content("#pad-place") == "Row 4, column 4 of 8: empty"
    page.wait_for_selector("#bars li")
    assert page.locator("#add").is_disabled()
    tab_to(page, "label")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector("#add:not([disabled])")
    tab_to(page, "add")
    page.keyboard.press("Enter")
    assert page.text_content("#status") == "Added as top left: 1 sample in the training set."
    assert focused(page) == "label"
    assert page.locator("#add").is_disabled(), "the next sample needs an answer of its own"
    tab_to(page, "epochs")
    page.keyboard.press("Enter")
    page.wait_for_selector("#download:not([disabled])")
    assert focused(page) == "train"
    tab_to(page, "download")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    with safetensors.safe_open(download.value.path(), "numpy") as file:  # type: ignore[no-untyped-call]
        assert (file.metadata()["samples"], file.metadata()["steps"]) == ("1", "5")


def test_every_control_has_a_name_and_what_changes_is_read_out(page):
    client = page.context.new_cdp_session(page)
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    client.detach()
    roles = {
        "button",
        "combobox",
        "textbox",
        "spinbutton",
        "checkbox",
        "application",
        "image",
        "progressbar",
        "list",
        "link",
        "table",
    }
    shown = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
    controls = [(role, name) for role, name in shown if role in roles]
    assert len(controls) > 15
    assert [role for role, name in controls if not name] == []
    assert ("alert", "") in shown or page.locator("#problem[role=alert]").count() == 1
    for live in ("#status", "#answer"):
        assert page.locator(live).get_attribute("role") == "status"
    levels = [
        int(tag[1]) for tag in page.evaluate("() => [...document.querySelectorAll('h1, h2, h3')].map((title) => title.tagName)")
    ]
    assert levels[0] == 1
    assert set(levels[1:]) == {2}
    identifiers = page.evaluate("() => [...document.querySelectorAll('[id]')].map((found) => found.id)")
    assert len(identifiers) == len(set(identifiers))


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_contrast_as_wcag_asks(theme):
    style = (Path(__file__).parents[2] / "export" / "web" / "style.css").read_text()
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", style.split(":root {")[1 + theme]))
    pairs = [(text, ground, 4.5) for text in ("ink", "soft") for ground in ("page", "card")]
    pairs += [
        ("ink", "pale", 4.5),
        ("ink", "field", 4.5),
        ("on-accent", "accent", 4.5),
        ("alert", "card", 4.5),
        ("accent", "card", 4.5),
    ]
    pairs += [("edge", "card", 3), ("edge", "field", 3), ("accent", "page", 3)]
    for front, back, least in pairs:
        light, dark = sorted((luminance(colours[front]), luminance(colours[back])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= least, (front, back)


@pytest.mark.parametrize("width", [320, 1400])
def test_nothing_is_wider_than_the_screen(page, width):
    page.set_viewport_size({"width": width, "height": 700})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 1000, "height": 800})


def test_the_status_covers_nothing_on_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 700})
    try:
        boxes = page.evaluate(
            """() => {
              const page = document.querySelector(".page");
              const found = [];
              for (const end of [0, 0.5, 1]) {
                page.scrollTop = end * (page.scrollHeight - page.clientHeight);
                const [above, status] = [page.getBoundingClientRect(), document.querySelector(".messages").getBoundingClientRect()];
                found.push([above.bottom, status.top, status.bottom, page.scrollTop]);
              }
              return found;
            }"""
        )
        assert [box[3] for box in boxes] == sorted({box[3] for box in boxes})
        for page_bottom, status_top, status_bottom, _ in boxes:
            assert page_bottom <= status_top < status_bottom <= 700
        page.click("#train")  # far below: the message is in sight all the same
        assert page.locator("#problem").bounding_box()["y"] < 700
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert page.evaluate("() => document.documentElement.scrollHeight") <= 700, "the page scrolls within itself only"
    finally:
        page.set_viewport_size({"width": 1000, "height": 800})


# Bundles that are damaged, and no network.


@pytest.mark.parametrize("what", ["server ends", "network is off"])
def test_offline_the_page_loads_classifies_and_trains(bundle, ort_web, opened, what):
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serving(bundle, ort_web))
        page = opened(server.url)
        page.wait_for_selector("html[data-stored]")
        assert "works without a network" in page.text_content("#offline")
        if what == "server ends":
            stack.close()
        else:  # as in airplane mode; a request that reached the server all the same would be answered with 404
            page.context.set_offline(True)
            server.table = {}
        reload(page)
        page.wait_for_selector("#tier:not([disabled])")
        assert page.evaluate("() => crossOriginIsolated")
        page.select_option("#tier", "1")
        page.wait_for_selector("#tier:not([disabled])")
        x, y = samples(20)
        np.testing.assert_allclose(page.evaluate("x => edgefl.predict(x)", x.tolist()), logits_of(bundle, "1", x), atol=1e-4)
        assert len(trained(page, x, y)["losses"]) == STEPS


def test_what_changed_since_it_was_served_is_refused(bundle, ort_web, opened, tmp_path):
    mine = tmp_path / "bundle"
    shutil.copytree(bundle, mine)
    with serving(mine, ort_web) as server:
        graph = mine / "0.5" / "forward.onnx"
        graph.write_bytes(graph.read_bytes()[:-1] + b"?")
        page = opened(server.url)
        assert "0.5/forward.onnx: changed since the server started: end `edgefl serve` and start it again." in page.text_content(
            "#problem-text"
        )


def test_the_page_refuses_what_a_server_does_not_check(bundle, ort_web, opened, tmp_path):
    mine = tmp_path / "bundle"
    shutil.copytree(bundle, mine)

    with serving(mine, ort_web) as server:
        graph = mine / "0.5" / "forward.onnx"
        content = bytearray(graph.read_bytes())
        content[100] ^= 1
        graph.write_bytes(content)
        served_as_it_is(server, mine)
        page = opened(server.url)
        assert "0.5/forward.onnx: changed: its SHA-256 is not the manifest's; get the bundle again" in page.text_content(
            "#problem-text"
        )
        graph.write_bytes(bytes(content) + b"?")
        served_as_it_is(server, mine)
        reload(page)
        page.wait_for_selector("#problem:not([hidden])")
        assert re.search(r"0\.5/forward\.onnx: changed: \d+ bytes, expected \d+", page.text_content("#problem-text"))
        # Another tier is fine, and stays when the damaged one is asked for again.
        page.select_option("#tier", "1")
        page.wait_for_selector("#train:not([disabled])")
        page.select_option("#tier", "0.5")
        page.wait_for_selector("#problem:not([hidden])")
        page.wait_for_selector("#tier:not([disabled])")
        assert page.input_value("#tier") == "1"
        assert len(trained(page, *samples(20))["losses"]) == STEPS
        manifest = (mine / "manifest.json").read_text()
        for changed, message in (
            (manifest.replace("quarters", "quartets"), "manifest.json: changed: its SHA-256 is not its manifest_sha256"),
            (
                manifest.replace('"format_version": 2', '"format_version": 3'),
                "format_version: got 3, expected 2: made by another version",
            ),
            (manifest[:-9], "manifest.json: not valid JSON"),
        ):
            (mine / "manifest.json").write_text(changed)
            (mine / "manifest.sig").write_bytes(SigningKey.own().sign(changed.encode()))
            served_as_it_is(server, mine)
            reload(page)
            page.wait_for_selector("#problem:not([hidden])")
            assert message in page.text_content("#problem-text")


def test_a_model_that_computes_something_else_here_is_not_used(ort_web, opened, tmp_path):
    entry, files = tier_of(1, 3, "none")
    reference = safetensors.numpy.load(files[entry["reference"]])
    files[entry["reference"]] = safetensors.numpy.save({**reference, "logits": reference["logits"] + np.float32(0.01)})
    write_bundle(tmp_path / "bundle", made=[(entry, files)])
    with serving(tmp_path / "bundle", ort_web) as server:
        page = opened(server.url)
        is_not_used(page, "tier 1: this browser's outputs differ from its reference by 1.0e-2; it is not used")
        with pytest.raises(Exception, match="No tier is loaded"):
            trained(page, *samples(4))


def test_large_outputs_may_differ_by_a_share_of_the_largest(ort_web, opened, tmp_path):
    entry, files = tier_of(1, 3, "none")
    graph = onnx.load_model_from_string(files[entry["forward"]])
    reference = safetensors.numpy.load(files[entry["reference"]])
    for tensor in graph.graph.initializer:
        if tensor.name.startswith("two."):
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * np.float32(10_000), tensor.name))
    files[entry["forward"]] = graph.SerializeToString()
    logits = reference["logits"] * np.float32(10_000)
    assert np.abs(logits).max() > 1000
    logits[0, 0] += 0.05  # as computers differ
    files[entry["reference"]] = safetensors.numpy.save({**reference, "logits": logits})
    write_bundle(tmp_path / "bundle", made=[(entry, files)])
    with serving(tmp_path / "bundle", ort_web) as server:
        assert opened(server.url).locator("#problem").is_hidden()


def test_a_regression_is_refused(ort_web, opened, tmp_path):
    write_bundle(tmp_path / "bundle", target_shape=(CLASSES,))
    with serving(tmp_path / "bundle", ort_web) as server:
        is_not_used(opened(server.url), "The network is a regression, and this page runs classifiers.")


def test_a_graph_that_names_a_file_outside_of_the_bundle_is_not_used(ort_web, opened, tmp_path):
    entry, files = tier_of(1, 3, "none")
    (tmp_path / "secret").write_bytes(b"a private key" * 100)
    graph = onnx.load_model_from_string(files[entry["forward"]])
    tensor = graph.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    files[entry["forward"]] = graph.SerializeToString()
    write_bundle(tmp_path / "bundle", made=[(entry, files)])
    with serving(tmp_path / "bundle", ort_web) as server:
        message = "'1/../secret' is no file of the bundle: expected a path inside that the manifest lists"
        is_not_used(opened(server.url), message)


# Text.


def test_text_is_encoded_and_its_next_character_guessed(ort_web, opened, tmp_path):
    write_text_bundle(tmp_path / "bundle")
    with serving(tmp_path / "bundle", ort_web) as server:
        page = opened(server.url)
        assert not page.locator("#pad").is_visible()
        page.fill("#text", "  xba \n cab")
        page.wait_for_selector("#bars li")
        # "x" is outside of " abc": a space, and leading ones are dropped; the others are one space.
        found = page.evaluate("() => Array.from(edgefl.input.current, Number)")
        assert found == [0, 2, 1, 0, 3, 1, 2]
        assert page.text_content("#answer").startswith("Most likely: b")
