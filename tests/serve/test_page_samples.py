"""Samples on the page: files, images, drawings and text, training from them, and messages about wrong ones."""

import re

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hand_bundle import CLASSES, NAMES, SHAPE, samples, write_text_bundle
from own_files import png
from page_use import add_file, logits_of, samples_file, trained
from serving import serving


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
    assert re.search(r"Speed\s+[\d.]+ steps/s", figures)
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
