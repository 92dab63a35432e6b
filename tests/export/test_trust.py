"""Which bundles the client runs, and the key of its device: pinned at first use, refused when it changes, never guessed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import edgefl_keys
import edgefl_trust
import numpy as np
import pytest
import safetensors.numpy
from handmade import Regression, changed, samples
from python_client import header, ran
from signing import LINE, device_key, of_round, sign_bundle

from edgefl.errors import WireError
from edgefl.util.keys import PublicKey, SigningKey
from edgefl.wire.device_keys import Enrolment
from edgefl.wire.update_file import ExpectedUpdate, read_update


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """A device that has met no publisher, and has no key."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "edgefl"


@pytest.fixture
def owner(tmp_path):
    return SigningKey.new(tmp_path / "owner.pem")


@pytest.fixture
def bundle(tmp_path, owner):
    return sign_bundle(Regression().write(tmp_path / "bundle"), owner)


@pytest.fixture
def call(tmp_path, capsys):
    """The command ``infer``, or another one: arguments → exit status, standard output, standard error."""
    x, y = samples(10)
    np.savez(tmp_path / "data.npz", x=x, y=y)

    def called(*given) -> tuple[int, str, str]:
        if isinstance(given[0], Path):
            given = ("infer", given[0], "0.5", tmp_path / "data.npz", *given[1:])
        return ran(capsys, *given)

    return called


def test_the_first_publisher_is_pinned_and_another_is_refused(bundle, owner, call, config, tmp_path):
    status, _, errors = call(bundle)
    assert (status, f"{bundle}: signed by {owner.public}; pinned in " in errors) == (0, True)
    assert json.loads((config / "trusted.json").read_text()) == {"keys": [str(owner.public)]}
    assert call(bundle)[2] == ""
    other = SigningKey.new(tmp_path / "other.pem")
    for folder in (
        sign_bundle(bundle, other),
        sign_bundle(Regression().write(tmp_path / "new"), other),
    ):  # the same place, or another one
        status, out, errors = call(folder)
        assert (status, out) == (2, "")
        assert f"signed by {other.public}, this device trusts {owner.public}" in errors
        assert errors.endswith(f"ask them for their key, compare, then: edgefl_client.py trust {folder}\n")
    status, out, _ = call("trust", bundle)
    assert (status, f"signed by {other.public}, which this device trusts from now on" in out) == (0, True)
    assert json.loads((config / "trusted.json").read_text()) == {"keys": [str(owner.public), str(other.public)]}
    assert call(bundle)[0] == call(sign_bundle(bundle, owner))[0] == 0


def test_an_unsigned_bundle_is_refused_unless_told_otherwise(call, config, tmp_path):
    plain = Regression().write(tmp_path / "plain")
    for arguments in ((plain,), ("train", plain, "0.5", tmp_path / "data.npz", "--out", tmp_path / "state"), ("trust", plain)):
        status, out, errors = call(*arguments)
        assert (status, out) == (2, "")
        assert errors == (
            f"Error: {plain}: not signed, and a bundle is code: get a signed one (edgefl export signs); "
            "--allow-unsigned runs the bundle whoever made it\n"
        )
    assert call(plain, "--allow-unsigned")[0] == 0
    assert not config.exists()
    assert not (tmp_path / "state").exists()


def test_the_key_that_is_given_decides_alone(bundle, owner, call, config, tmp_path):
    (tmp_path / "own.pub").write_bytes(owner.public.pem)
    (tmp_path / "own.raw").write_bytes(owner.public.raw)
    (tmp_path / "other.pub").write_bytes(SigningKey.new(tmp_path / "other.pem").public.pem)
    (tmp_path / "bad").write_bytes(b"no key")
    for name in ("own.pub", "own.raw"):
        assert call(bundle, "--key", tmp_path / name)[::2] == (0, "")
    assert not config.exists()
    for name, message in (
        ("other.pub", "not a signature of this manifest by"),
        ("bad", "not an Ed25519 public key, PEM or 32 raw bytes"),
        ("none", "No such file or directory; expected a public key"),
        ("owner.pem", "not an Ed25519 public key"),
    ):
        status, _, errors = call(bundle, "--key", tmp_path / name)
        assert (status, message in errors) == (2, True), errors
    assert call(bundle, "--key", tmp_path / "own.pub", "--allow-unsigned")[0] == 2


def test_a_changed_manifest_or_another_key_beside_it_is_refused(bundle, owner, call, config, tmp_path):
    changed(bundle, round=9)  # with the hash that then belongs to it
    assert "not a signature of this manifest" in call(bundle)[2]
    other = SigningKey.new(tmp_path / "other.pem")
    sign_bundle(bundle, other)
    (bundle / "manifest.pub").write_bytes(owner.public.pem)  # the key that devices trust, with a signature by somebody else
    assert "not a signature of this manifest" in call(bundle)[2]
    (bundle / "manifest.pub").unlink()
    assert "the bundle does not say whose signature it has; give the publisher's key as --key" in call(bundle)[2]
    assert not config.exists()


@pytest.mark.parametrize("content", ["", "{}", '{"keys": []}', '{"keys": ["x"]}', '{"keys": 7}', '{"keys": [7]}', "[" * 5000])
def test_a_damaged_file_of_pinned_keys_is_no_first_use(content, bundle, call, config):
    config.mkdir(parents=True)
    (config / "trusted.json").write_text(content)
    status, _, errors = call(bundle)
    assert (status, "trusted.json: expected the public keys that this device trusts" in errors) == (2, True)
    assert (config / "trusted.json").read_text() == content


def test_without_a_place_for_the_pinned_key_the_message_says_what_to_do(bundle, call, config):
    config.parent.write_text("a file where a folder is expected")
    assert "trusted.json: cannot be written, to pin the publisher's key; give it as --key" in call(bundle)[2]


def test_without_cryptography_the_message_says_how_to_get_it(bundle, call, config, tmp_path, monkeypatch):
    call("train", bundle, "0.5", tmp_path / "data.npz", "--out", tmp_path / "state", "--allow-unsigned")
    monkeypatch.setattr(edgefl_keys, "MISSING", True)
    for arguments, rest in (
        ((bundle,), "--allow-unsigned runs the bundle whoever made it"),
        ((bundle, "--key", tmp_path / "k"), "--allow-unsigned runs the bundle whoever made it"),
        (("enroll", "--name", "a", "--out", tmp_path / "a"), "then enroll makes one"),
        (("update", tmp_path / "state", "--out", tmp_path / "u", "--device-key", tmp_path / "k"), "--unsigned writes it without"),
    ):
        status, _, errors = call(*arguments)
        assert (status, "needs the package cryptography: pip install cryptography; " + rest in errors) == (2, True), errors
    assert call(bundle, "--allow-unsigned")[0] == call("update", tmp_path / "state", "--out", tmp_path / "u")[0] == 0


def test_a_client_without_cryptography_can_be_imported(monkeypatch):
    with monkeypatch.context() as patched:
        for name in ("cryptography.exceptions", "edgefl_keys"):
            patched.delitem(sys.modules, name, raising=False)
        patched.setitem(sys.modules, "cryptography.exceptions", None)
        import edgefl_keys as fresh

        assert fresh.MISSING
    monkeypatch.setitem(sys.modules, "edgefl_keys", edgefl_keys)
    assert not edgefl_keys.MISSING


# The device's own key.


@pytest.fixture
def state(bundle, call, tmp_path):
    assert call("train", bundle, "0.5", tmp_path / "data.npz", "--out", tmp_path / "state")[0] == 0
    return tmp_path / "state"


def test_an_enrolled_device_signs_its_updates(bundle, state, call, config, tmp_path):
    assert call("update", state, "--out", tmp_path / "before")[1].endswith(", not signed\n")
    status, out, _ = call("enroll", "--name", "phone-7", "--out", tmp_path / "phone-7.json")
    request = Enrolment.of_file(tmp_path / "phone-7.json")
    assert (status, request.name, f"its public half: {request.key}\n" in out) == (0, "phone-7", True)
    assert (config / "device.pem").stat().st_mode & 0o777 == 0o600
    status, out, _ = call("update", state, "--out", tmp_path / "after")
    assert (status, out.endswith(f", signed by {request.key}\n")) == (0, True)
    manifest = json.loads((bundle / "manifest.json").read_text())
    shapes = {name: tuple(shape) for name, shape in manifest["tiers"][0]["train"]["upload"].items()}
    expected = ExpectedUpdate(manifest["manifest_sha256"], 3, {"0.5": shapes}, 3)
    found = read_update(tmp_path / "after", expected)
    assert (found.key, read_update(tmp_path / "before", expected).key) == (request.key, None)
    for name, tensor in safetensors.numpy.load((tmp_path / "before").read_bytes()).items():
        np.testing.assert_array_equal(tensor, found.tensors[name])
    call("enroll", "--name", "phone-8", "--out", tmp_path / "again.json")  # under another name: the key stays
    assert Enrolment.of_file(tmp_path / "again.json") == Enrolment("phone-8", request.key)
    call("update", state, "--out", tmp_path / "plain", "--unsigned")
    assert not {"key", "signature"} & header(tmp_path / "plain").keys()


def test_one_computer_may_have_keys_of_several_devices(state, call, config, tmp_path):
    key = device_key(tmp_path, 5)
    call("update", state, "--out", tmp_path / "u", "--device-key", tmp_path / "device-5.pem")
    assert header(tmp_path / "u")["key"] == key.public
    assert call("enroll", "--name", "a", "--out", tmp_path / "a", "--device-key", tmp_path / "device-5.pem")[0] == 0
    assert str(Enrolment.of_file(tmp_path / "a").key) == key.public == str(PublicKey.of_text(key.public))
    assert not (config / "device.pem").exists()


def test_a_key_that_others_may_read_or_that_is_none_is_refused(state, owner, call, config, tmp_path):
    shutil.copy(tmp_path / "owner.pem", config / "device.pem")
    (config / "device.pem").chmod(0o644)
    for command in (("update", state, "--out", tmp_path / "u"), ("enroll", "--name", "a", "--out", tmp_path / "u")):
        status, _, errors = call(*command)
        assert (status, "device.pem: others may read or change this private key: chmod 600" in errors) == (2, True)
    for content in (b"", b"no key", owner.public.pem):
        (config / "device.pem").write_bytes(content)
        assert "not an Ed25519 private key without a passphrase" in call("update", state, "--out", tmp_path / "u")[2]
    assert "none.pem: No such file" in call("update", state, "--out", tmp_path / "u", "--device-key", tmp_path / "none.pem")[2]
    assert call("enroll", "--name", "a b", "--out", tmp_path / "u")[0] == 2
    assert not (tmp_path / "u").exists()
    assert edgefl_trust.pins() == config / "trusted.json"


def test_an_older_bundle_of_a_publisher_does_not_come_back(owner, call, config, tmp_path):
    old, new = of_round(tmp_path / "old", owner, 1), of_round(tmp_path / "new", owner, 9)
    train = ("0.5", tmp_path / "data.npz", "--out", tmp_path / "state")
    assert call("train", old, *train)[0] == call("train", new, *train)[0] == call("train", new, *train)[0] == 0
    assert json.loads((config / "rounds.json").read_text()) == {"rounds": {f"{owner.public}/{LINE}": 9}}
    for again in (("train", old, *train), ("infer", old, *train[:2]), ("train", old, *train, "--key", old / "manifest.pub")):
        status, out, errors = call(*again)
        assert (status, out) == (2, "")
        told = f"{old}: is of round 1, and this device has met round 9 of it; get the newest bundle; --allow-older uses this one"
        assert errors == f"Error: {told}\n"
    assert call("train", old, *train, "--allow-older")[0] == 0
    assert call(of_round(tmp_path / "other", owner, 1, line="b" * 64))[0] == 0  # another run
    assert call(old)[0] == 2
    another = SigningKey.new(tmp_path / "another.pem")
    signed = of_round(tmp_path / "another", another, 1)
    assert call("trust", signed)[0] == call(signed)[0] == 0  # another publisher's rounds are others


def test_an_expired_bundle_is_refused_and_its_updates_say_until_when_they_count(owner, call, tmp_path):
    over, still = "2020-01-31T00:00:00Z", "2999-01-31T00:00:00Z"
    status, _, errors = call(of_round(tmp_path / "over", owner, 1, expires=over))
    assert (status, f"expired at {over}; get the newest bundle" in errors) == (2, True)
    assert call(tmp_path / "over", "--allow-older")[0] == 0
    bundle, state, out = of_round(tmp_path / "still", owner, 2, expires=still), tmp_path / "state", tmp_path / "update"
    assert call("train", bundle, "0.5", tmp_path / "data.npz", "--out", state)[0] == 0
    assert call("update", state, "--out", out, "--unsigned")[0] == 0
    assert header(out)["deadline"] == still
    manifest = json.loads((bundle / "manifest.json").read_text())
    shapes = {name: tuple(shape) for name, shape in manifest["tiers"][0]["train"]["upload"].items()}
    expected = ExpectedUpdate(manifest["manifest_sha256"], 2, {"0.5": shapes}, 3)
    assert read_update(out, expected).tier == "0.5"
    tensors = safetensors.numpy.load_file(out)
    for deadline in (over, "soon", "2999-13-01T00:00:00Z", ""):
        about = {**header(out), "deadline": deadline}
        (tmp_path / "late").write_bytes(safetensors.numpy.save(tensors, metadata=about))
        with pytest.raises(WireError, match="deadline: got .* expected a time in UTC that is still to come"):
            read_update(tmp_path / "late", expected)


@pytest.mark.parametrize("fresh", [{"line": 7}, {"line": "x"}, {"expires": "soon"}, {"expires": 7}, {"expires": "2027-01-31"}])
def test_what_a_bundle_says_wrongly_of_its_age_is_refused(fresh, owner, call, tmp_path):
    status, out, errors = call(of_round(tmp_path / "odd", owner, 1, **fresh))
    assert (status, out) == (2, "")
    assert f"{tmp_path}/odd/freshness.json: expected a line of rounds, and when the bundle expires" in errors


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"rounds": 7}', b'{"rounds": {"a": -1}}', b'{"rounds": {"a": true}}', b"{" * 9999]
)
def test_damaged_rounds_are_no_first_ones(content, owner, call, config, tmp_path):
    bundle = of_round(tmp_path / "one", owner, 1)
    assert call(bundle)[0] == 0
    (config / "rounds.json").write_bytes(content)
    status, out, errors = call(bundle)
    assert (status, out) == (2, "")
    assert f"{config}/rounds.json: expected the rounds that this device has met" in errors


@pytest.mark.parametrize("name", ["manifest.json", "manifest.sig", "manifest.pub"])
@pytest.mark.parametrize("kind", ["fifo", "zero", "huge"])
def test_what_is_no_regular_file_is_not_read(name, kind, bundle, call):
    (bundle / name).unlink()
    if kind == "fifo":
        os.mkfifo(bundle / name)
    elif kind == "zero":
        (bundle / name).symlink_to("/dev/zero")
    else:
        with (bundle / name).open("wb") as file:
            file.truncate(1 << 40)
    status, out, errors = call(bundle)
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert str(bundle) in errors
