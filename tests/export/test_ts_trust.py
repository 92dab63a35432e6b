"""Whom the client in TypeScript trusts, and how it signs: keys and signatures are those of the Python client."""

from __future__ import annotations

import json

from handmade import Regression, changed
from python_client import header, ran
from signed_update_by_hand import ABOUT, TENSORS
from signing import CONTENT, device_key, sign_bundle
from ts_client import batch, node

from edgefl.util.keys import SigningKey
from edgefl.wire.device_keys import DeviceKeys, Enrolment
from edgefl.wire.update_content import signer
from edgefl.wire.update_file import ExpectedUpdate, read_update


def test_publishers_are_pinned_in_the_same_file_as_in_python(ts, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    owner, other = (SigningKey.new(tmp_path / f"{name}.pem") for name in ("owner", "other"))
    bundles = {}
    for name, key in (("own", owner), ("foreign", other), ("forged", owner), ("plain", None)):
        bundles[name] = Regression().write(tmp_path / name)
        if key is not None:
            sign_bundle(bundles[name], key)
    changed(bundles["forged"], round=9)
    (tmp_path / "own.pub").write_bytes(owner.public.pem)
    commands = [
        ("infer", bundles["own"], "0.5", data), ("infer", bundles["own"], "0.5", data), ("infer", bundles["foreign"], "0.5", data),
        ("infer", bundles["forged"], "0.5", data), ("infer", bundles["plain"], "0.5", data),
        ("infer", bundles["own"], "0.5", data, "--key", tmp_path / "own.pub"),
        ("infer", bundles["foreign"], "0.5", data, "--key", tmp_path / "own.pub"),
        ("infer", bundles["own"], "0.5", data, "--key", tmp_path / "own.pub", "--allow-unsigned"), ("trust", bundles["foreign"]),
    ]  # fmt: skip
    found = batch(ts, commands)
    pins = tmp_path / "config" / "edgefl" / "trusted.json"
    assert json.loads(pins.read_text()) == {"keys": [str(owner.public), str(other.public)]}
    assert [status for status, _, _ in found] == [0, 0, 2, 2, 2, 0, 2, 2, 0]
    assert f"signed by {owner.public}; pinned in {pins}" in found[0][2]
    assert f"signed by {other.public}, this device trusts {owner.public}" in found[2][2]
    assert "not a signature of this manifest by" in found[3][2]
    assert found[4][2] == ran(capsys, *commands[4])[2]
    assert ran(capsys, "infer", bundles["foreign"], "0.5", data)[::2] == (0, "")
    for content in ("", "{}", '{"keys": []}', '{"keys": [7]}', "[" * 5000):
        pins.write_text(content)
        ((status, _, errors),) = batch(ts, [commands[0]])
        assert (status, "trusted.json: expected the public keys that this device trusts" in errors) == (2, True)


def test_updates_and_requests_are_signed_as_in_python(ts, data, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bundle = Regression().write(tmp_path / "bundle")
    key = device_key(tmp_path, 5)
    own = tmp_path / "device-5.pem"
    (tmp_path / "open.pem").write_bytes(own.read_bytes())
    (tmp_path / "open.pem").chmod(0o644)
    found = batch(ts, [
        ("train", bundle, "0.5", data, "--out", tmp_path / "state", "--allow-unsigned"),
        ("update", tmp_path / "state", "--out", tmp_path / "plain"),
        ("update", tmp_path / "state", "--out", tmp_path / "signed", "--device-key", own),
        ("enroll", "--name", "phone-8", "--out", tmp_path / "request.json"),
        ("update", tmp_path / "state", "--out", tmp_path / "made"),
        ("update", tmp_path / "state", "--out", tmp_path / "no", "--device-key", tmp_path / "open.pem"),
        ("enroll", "--name", "a b", "--out", tmp_path / "no"),
    ])  # fmt: skip
    assert [status for status, _, _ in found] == [0] * 5 + [2] * 2, found
    assert "others may read or change this private key: chmod 600" in found[5][2]
    manifest = json.loads((bundle / "manifest.json").read_text())
    shapes = {name: tuple(shape) for name, shape in manifest["tiers"][0]["train"]["upload"].items()}
    expected = ExpectedUpdate(manifest["manifest_sha256"], manifest["round"], {"0.5": shapes}, manifest["classes"])
    assert read_update(tmp_path / "plain", expected).key is None
    request = Enrolment.of_file(tmp_path / "request.json")
    keys = DeviceKeys(tmp_path / "fleet.toml").with_device("phone-8", request.key)
    assert read_update(tmp_path / "made", ExpectedUpdate(expected.bundle, 3, expected.tiers, 3, keys)).device == "phone-8"
    assert header(tmp_path / "signed")["key"] == key.public
    assert (tmp_path / "config" / "edgefl" / "device.pem").stat().st_mode & 0o777 == 0o600


def test_it_hashes_and_signs_the_golden_update(ts, tmp_path):
    device_key(tmp_path, 5)
    given = json.dumps(
        {name: [[int(side) for side in shape.split(",") if side], values] for name, (shape, values) in TENSORS.items()}
    )
    code = f"""
    import {{ contentSha256, signed }} from "./lib/core/state.js";
    import {{ deviceKey }} from "./lib/node/files.js";
    import {{ nodeHost }} from "./lib/node/host.js";
    const value = ([dims, data]) => ({{ type: "float32", dims, data: Float32Array.from(data) }});
    const tensors = new Map(Object.entries({given}).map(([name, given]) => [name, value(given)]));
    const about = await signed(nodeHost(), {json.dumps(ABOUT)}, tensors, deviceKey({json.dumps(str(tmp_path / "device-5.pem"))}));
    console.log(JSON.stringify([await contentSha256(nodeHost(), tensors), about]));"""
    content, about = node(ts, code)
    assert content == CONTENT
    assert str(signer(about, CONTENT)) == about["key"]
