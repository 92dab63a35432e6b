"""The page's policy: publishers pinned at first use, strangers and unsigned bundles refused, updates signed by the device's own key."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from hand_bundle import samples, tier_of, write_bundle
from serving import reload, served_as_it_is, serving
from signed_update_by_hand import ABOUT, TENSORS
from signing import CONTENT, LINE, sign_bundle

from edgefl.util.keys import PublicKey, SigningKey
from edgefl.wire.device_keys import DeviceKeys, Enrolment
from edgefl.wire.update_content import signer
from edgefl.wire.update_file import ExpectedUpdate, read_update

PINS = "() => localStorage.getItem('edgefl-trusted-keys')"


@pytest.fixture
def own(tmp_path, ort_web):
    """A bundle, its server, and the function that signs it anew with another key."""
    folder = tmp_path / "bundle"
    write_bundle(folder)

    def sign(key: SigningKey) -> None:
        sign_bundle(folder, key)
        served_as_it_is(server, folder)

    with serving(folder, ort_web) as server:
        yield folder, server, sign


def refused(page) -> str:
    page.wait_for_selector("#untrusted:not([hidden])")
    assert page.is_disabled("#tier")
    return page.text_content("#problem-text")


def test_the_first_publisher_is_pinned_and_another_needs_a_decision(own, opened, tmp_path):
    _, server, sign = own
    first, other = str(SigningKey.own().public), SigningKey.new(tmp_path / "other.pem")
    page = opened(server.url)
    assert page.is_hidden("#problem")
    assert json.loads(page.evaluate(PINS)) == [first]
    assert first in page.text_content("#facts")
    sign(other)
    reload(page)
    assert f"signed by {other.public}, and this browser trusts {first}." in refused(page)
    page.click("#open-once")
    page.wait_for_selector("#tier:not([disabled])")
    assert "not checked" in page.text_content("#facts")
    assert json.loads(page.evaluate(PINS)) == [first]
    reload(page)
    refused(page)
    page.click("#trust")
    page.wait_for_selector("#tier:not([disabled])")
    assert json.loads(page.evaluate(PINS)) == [first, str(other.public)]
    reload(page)
    page.wait_for_selector("#tier:not([disabled])")
    assert page.is_hidden("#problem")


def test_an_older_or_expired_bundle_does_not_come_back(opened, tmp_path, ort_web):
    def write(round_, **age):
        entry, files = tier_of(1, 3, "none")
        files["freshness.json"] = json.dumps({"line": LINE, **age}).encode()
        write_bundle(tmp_path / "bundle", made=[(entry, files)], round=round_)

    write(9)
    with serving(tmp_path / "bundle", ort_web) as server:
        page = opened(server.url)
        assert page.is_hidden("#problem")
        stored = json.loads(page.evaluate("() => localStorage.getItem('edgefl-met-rounds')"))
        assert stored == {"rounds": {f"{SigningKey.own().public}/{LINE}": 9}}
        for round_, age, message in (
            (1, {}, "is of round 1, and this device has met round 9 of it"),
            (9, {"expires": "2020-01-31T00:00:00Z"}, "expired at 2020-01-31T00:00:00Z"),
        ):
            write(round_, **age)
            served_as_it_is(server, tmp_path / "bundle")
            reload(page)
            assert message in refused(page)


def test_script_in_the_texts_of_a_bundle_is_shown_as_text(opened, tmp_path, ort_web):
    names = ('<img src=x onerror="window.ran=1">', "<script>window.ran=1</script>", "</select><b>", "plain")
    write_bundle(
        tmp_path / "bundle",
        class_names=names,
        model="<img src=x onerror='window.ran=1'>",
        dataset="<script>window.ran=1</script>",
    )
    with serving(tmp_path / "bundle", ort_web) as server:
        page = opened(server.url)
        page.wait_for_selector("#tier:not([disabled])")
        assert names[0] in page.text_content("body")
        assert page.evaluate("() => document.querySelectorAll('[onerror]').length") == 0
        # Nor would it run if it were no text: the policy of content forbids it.
        page.evaluate("() => document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran=1\">')")
        page.wait_for_timeout(300)
        assert page.evaluate("() => window.ran") is None


def test_an_unsigned_bundle_is_refused_unless_told_otherwise(tmp_path, ort_web, opened):
    write_bundle(tmp_path / "bundle")
    for name in ("manifest.sig", "manifest.pub"):
        (tmp_path / "bundle" / name).unlink()
    with serving(tmp_path / "bundle", ort_web) as server:
        page = opened(server.url)
        assert refused(page).startswith("The bundle is not signed.")
        assert page.is_hidden("#trust")
        assert page.evaluate(PINS) is None
        page.click("#open-once")
        page.wait_for_selector("#tier:not([disabled])")
        assert page.is_hidden("#problem")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("manifest.sig", "manifest.sig: not a signature of this manifest by manifest.pub: do not use the bundle"),
        ("manifest.pub", "manifest.pub: not an Ed25519 public key"),
    ],
)
def test_a_wrong_signature_or_key_is_refused_without_a_choice(name, message, own, opened):
    folder, server, _ = own
    (folder / name).write_bytes(bytes(64))
    served_as_it_is(server, folder)
    page = opened(server.url)
    assert page.text_content("#problem-text").startswith(message)
    assert page.is_hidden("#untrusted")
    assert page.evaluate(PINS) is None


def test_damaged_pins_are_no_first_use(own, opened):
    _, server, _ = own
    page = opened(server.url)
    for text in ("{", "[]", '["x"]', "7"):
        page.evaluate("text => localStorage.setItem('edgefl-trusted-keys', text)", text)
        reload(page)
        page.wait_for_selector("#problem:not([hidden])")
        assert "edgefl-trusted-keys in this site's data: expected the public keys" in page.text_content("#problem-text")


def test_a_browser_without_ed25519_says_so(own, browser):
    _, server, _ = own
    context = browser.new_context()
    context.add_init_script(
        "crypto.subtle.importKey = () => Promise.reject(new DOMException('no', 'NotSupportedError'));"
        "crypto.subtle.generateKey = crypto.subtle.importKey;"
    )
    page = context.new_page()
    page.goto(server.url)
    assert "This browser cannot check Ed25519 signatures" in refused(page)
    page.click("#open-once")
    page.wait_for_selector("#tier:not([disabled])")
    with pytest.raises(Exception, match="This browser makes no Ed25519 keys"):
        page.evaluate("() => edgefl.enrol('phone')")
    context.close()


def test_an_enrolled_browser_signs_its_updates(own, opened, tmp_path):
    _, server, _ = own
    page = opened(server.url)
    x, y = samples(40)
    train = {"x": x.tolist(), "y": y.tolist(), "epochs": 1}
    page.evaluate("given => edgefl.choose('1').then(() => edgefl.train(given))", train)
    manifest = page.evaluate("() => edgefl.manifest")
    upload = next(tier for tier in manifest["tiers"] if tier["label"] == "1")["train"]["upload"]
    shapes = {name: tuple(shape) for name, shape in upload.items()}
    expected = ExpectedUpdate(manifest["manifest_sha256"], manifest["round"], {"1": shapes}, manifest["classes"])
    path = tmp_path / "update"
    path.write_bytes(bytes(page.evaluate("() => edgefl.update()")))
    assert read_update(path, expected).key is None
    request = tmp_path / "phone.json"
    request.write_text(page.evaluate("() => edgefl.enrol('phone')"))
    found = Enrolment.of_file(request)
    assert found.name == "phone"
    assert str(found.key) in page.text_content("#device-note")
    path.write_bytes(bytes(page.evaluate("() => edgefl.update()")))
    keys = DeviceKeys(tmp_path / "fleet.toml").with_device("phone", found.key)
    assert read_update(path, ExpectedUpdate(expected.bundle, 3, expected.tiers, 4, keys)).device == "phone"
    reload(page)  # the key stays, and no script reads its private half
    page.wait_for_selector("#tier:not([disabled])")
    assert str(found.key) in page.text_content("#device-note")
    again = json.loads(page.evaluate("() => edgefl.enrol('other')"))
    assert again["key"] == str(found.key)
    with pytest.raises(Exception, match="expected 1 to 64 of"):
        page.evaluate("() => edgefl.enrol('a b')")


def test_the_page_hashes_and_signs_the_same_bytes_as_the_other_clients(shared_page):
    """The golden content of test_update_signature.py, with a key of the browser's own."""
    script = """async ([about, tensors]) => {
        const { contentSha256, signed } = await import("./core/state.js");
        const { signing } = await import("./identity.js");
        const { host } = await import("./host.js");
        const keys = await crypto.subtle.generateKey({ name: "Ed25519" }, false, ["sign", "verify"]);
        const given = new Map(Object.entries(tensors).map(([name, [dims, data]]) => [name, { dims, data: Float32Array.from(data) }]));
        const key = await signing(keys);
        return [await contentSha256(host, given), key.public, await signed(host, about, given, key)];
    }"""
    tensors = {name: ([int(side) for side in shape.split(",") if side], values) for name, (shape, values) in TENSORS.items()}
    content, key, about = shared_page.evaluate(script, [ABOUT, tensors])
    assert content == CONTENT
    assert (about["key"], base64.b64decode(key) == PublicKey.of_text(key).raw) == (key, True)
    assert {name: about[name] for name in ABOUT} == ABOUT
    assert signer(about, CONTENT) == PublicKey.of_text(key)
    assert np.prod(tensors["fc.weight"][0]) == 6
