"""The page for the keyboard, screen readers, any width and weak eyes."""

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.numpy


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
