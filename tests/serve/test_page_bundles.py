"""Bundles that the page refuses because they are damaged, differ or mean harm, and the page without a network."""

import contextlib
import re
import shutil

import numpy as np
import onnx
import pytest
import safetensors
import safetensors.numpy
from hand_bundle import CLASSES, samples, tier_of, write_bundle
from page_use import STEPS, is_not_used, logits_of, trained
from serving import reload, served_as_it_is, serving

from edgefl.util.keys import SigningKey


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
