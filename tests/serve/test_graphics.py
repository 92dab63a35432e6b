"""The page by WebGPU, which Chromium computes in software here. About 25 s of processor time, most of it to compile shaders."""

import contextlib
from typing import Any

import numpy as np
import pytest
from hand_bundle import LR, MOMENTUM, parameters, run_steps, samples, train_graph
from page_use import STEPS, in_order, trained
from requirements import CHROMIUM, unavailable
from serving import serving

FLAGS = ["--headless", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--enable-unsafe-webgpu"]


@pytest.fixture(scope="module")
def graphics(browser):
    """Open an address in a browser that computes WebGPU in software."""
    with contextlib.closing(browser.browser_type.launch(executable_path=CHROMIUM, args=FLAGS)) as started:

        def opened(address: str) -> Any:
            page = started.new_context().new_page()
            page.set_default_timeout(60_000)
            page.goto(address)
            page.wait_for_selector("#tier:not([disabled])")
            if not page.evaluate("() => edgefl.graphics"):
                unavailable("WebGPU", "this Chromium has none, not even in software")
            assert page.is_visible("#provider-row")
            return page

        yield opened


def test_training_graphs_compute_the_same_by_webgpu(graphics, url):
    page = graphics(url)
    page.evaluate("() => edgefl.choose('1').then(() => edgefl.compute('webgpu'))")
    assert page.input_value("#provider") == "webgpu"
    assert "on the graphics processor" in page.text_content("#runtime")
    x, y = samples(32)
    expected, _ = run_steps(train_graph(parameters(12)), parameters(12), in_order(x, y), lr=LR, beta=MOMENTUM)
    result = trained(page, x, y, shuffle=False, steps=3)
    np.testing.assert_allclose(result["losses"], expected[:3], rtol=1e-3, atol=1e-5)
    page.evaluate("() => edgefl.compute('wasm')")
    assert page.evaluate("() => edgefl.model.steps") == 0
    again = trained(page, x, y, shuffle=False, steps=3)
    np.testing.assert_allclose(result["losses"], again["losses"], rtol=1e-4)


def test_where_the_graphics_fail_the_page_stays_on_the_processor(graphics, bundle, ort_web):
    with serving(bundle, ort_web) as server:
        server.table = {path: served for path, served in server.table.items() if not path.startswith("/ort/ort.webgpu")}
        page = graphics(server.url)
        page.select_option("#provider", "webgpu")
        page.wait_for_selector("#problem:not([hidden])")
        page.wait_for_selector("#provider:not([disabled])")
        assert page.input_value("#provider") == "wasm"
        x, y = samples(20)
        assert len(trained(page, x, y)["losses"]) == STEPS
