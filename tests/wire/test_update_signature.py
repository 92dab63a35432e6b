"""Who sent an update: signatures over fixed bytes, and every way to count twice or as somebody else."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from signed_update_by_hand import ABOUT, TENSORS
from signing import CONTENT, KEY, SIGNATURE, device_key, signed_update

from edgefl.errors import WireError
from edgefl.util.keys import PublicKey
from edgefl.wire.device_keys import DeviceKeys
from edgefl.wire.update_content import content_sha256, signed_content, signer
from edgefl.wire.update_file import ExpectedUpdate, read_update, receive

FIXED = {
    name: np.array(values, np.float32).reshape([int(side) for side in shape.split(",") if side])
    for name, (shape, values) in TENSORS.items()
}
EXPECTED = ExpectedUpdate("ab" * 32, 3, {"0.5": {name: tensor.shape for name, tensor in FIXED.items()}}, 10)
GIVEN = {key: ABOUT[key] for key in ABOUT}


def test_the_signature_is_the_one_that_openssl_makes_of_the_same_bytes():
    assert content_sha256(FIXED) == CONTENT
    assert content_sha256(dict(reversed(FIXED.items()))) == CONTENT
    own = {**ABOUT, "key": KEY, "signature": SIGNATURE}
    assert signer(own, CONTENT) == PublicKey.of_text(KEY)
    assert signed_content(own, CONTENT).decode().splitlines()[0] == "edgefl update signature 1"


def test_the_client_makes_the_same_bytes(tmp_path):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from edgefl_keys import DeviceKey, signed

    key = DeviceKey(KEY, Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33))))
    assert signed(ABOUT, FIXED, key) == {**ABOUT, "key": KEY, "signature": SIGNATURE}


@pytest.fixture
def inbox(tmp_path):
    (tmp_path / "inbox").mkdir()
    return tmp_path / "inbox"


@pytest.fixture
def devices(tmp_path):
    return [device_key(tmp_path, number) for number in (1, 2, 3)]


@pytest.fixture
def fleet(tmp_path, devices):
    """Phones 1 and 2 are enrolled, phone 2 is revoked, phone 3 is nobody's."""
    keys = DeviceKeys(tmp_path / "fleet.toml")
    for number, key in enumerate(devices[:2], 1):
        keys = keys.with_device(f"phone-{number}", PublicKey.of_text(key.public))
    return replace(EXPECTED, keys=keys.without("phone-2"))


def update(key, tensors=FIXED, **changes) -> bytes:
    return signed_update({**ABOUT, **changes}, tensors, key)


def edited(content: bytes, **changes) -> bytes:
    """Return the file with other metadata (None: without the key), its tensors as they were."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    about = {key: value for key, value in {**header["__metadata__"], **changes}.items() if value is not None}
    text = json.dumps({**header, "__metadata__": about}).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def test_an_enrolled_device_is_known_by_its_key(inbox, devices, fleet):
    (inbox / "a").write_bytes(update(devices[0]))
    found = read_update(inbox / "a", fleet)
    assert (found.device, str(found.key), found.content) == ("phone-1", devices[0].public, CONTENT)
    assert (read_update(inbox / "a", EXPECTED).device, read_update(inbox / "a", EXPECTED).key) == (None, found.key)


@pytest.mark.parametrize(
    "change",
    [
        {"samples": "999999999"}, {"steps": "21"}, {"client": "c0ffef"}, {"labels": "0,3,8"}, {"labels": None},
        {"signature": base64.b64encode(bytes(64)).decode()},
    ],
)  # fmt: skip
@pytest.mark.parametrize("with_keys", [True, False])
def test_whatever_changed_after_the_signature_is_seen(change, with_keys, inbox, devices, fleet):
    (inbox / "a").write_bytes(edited(update(devices[0]), **change))
    message = rf"a: signature: not one of this update by {re.escape(devices[0].public)}: the file was changed after it was signed"
    with pytest.raises(WireError, match=message):
        read_update(inbox / "a", fleet if with_keys else EXPECTED)


def test_changed_tensors_are_seen_and_so_are_exchanged_ones(inbox, devices, fleet):
    content = update(devices[0])
    swapped = {**FIXED, "fc.bias": FIXED["fc.bias"][::-1].copy()}
    others = edited(safetensors.numpy.save(swapped, metadata=ABOUT), **json.loads(_header(content))["__metadata__"])
    flipped = bytearray(content)
    flipped[-1] ^= 1
    for other in (others, bytes(flipped)):
        (inbox / "a").write_bytes(other)
        with pytest.raises(WireError, match="changed after it was signed"):
            read_update(inbox / "a", fleet)


def _header(content: bytes) -> bytes:
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def test_a_signature_under_another_devices_key_is_refused(inbox, devices, fleet):
    (inbox / "a").write_bytes(edited(update(devices[2]), key=devices[0].public))
    with pytest.raises(WireError, match="a: signature: not one of this update by"):
        read_update(inbox / "a", fleet)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"signature": None}, "key: expected key and signature, or neither"),
        ({"key": None}, "signature: expected key and signature, or neither"),
        ({"key": "AAAA"}, "key: expected a public key: the base64 of 32 bytes, 44 characters"),
        ({"key": "é" * 44}, "key: expected a public key"),
        ({"key": "A" * 101}, "key: got 'A+'?…?.*, expected a public key in base64"),
        ({"signature": "AAAA"}, "signature: expected the base64 of 64 bytes"),
        ({"signature": "!" * 88}, "signature: expected the base64 of 64 bytes"),
        ({"signature": "é" * 88}, "signature: expected the base64 of 64 bytes"),
        # The last character of 32 bytes in base64 has two bits that say nothing: one key must have one text.
        ({"key": KEY[:-2] + "R="}, "key: expected a public key"),
    ],
)
def test_malformed_keys_and_signatures_are_named(change, message, inbox, devices, fleet):
    (inbox / "a").write_bytes(edited(update(devices[0]), **change))
    for expected in (EXPECTED, fleet):
        with pytest.raises(WireError, match=f"a: {message}"):
            read_update(inbox / "a", expected)


def test_strangers_revoked_devices_and_unsigned_files_are_refused_by_keys(inbox, devices, fleet):
    (inbox / "a").write_bytes(update(devices[1]))
    (inbox / "b").write_bytes(update(devices[2]))
    (inbox / "c").write_bytes(safetensors.numpy.save(FIXED, metadata=ABOUT))
    found = receive(inbox, fleet)
    assert not found.updates
    revoked, stranger, unsigned = found.problems
    assert "a: key: phone-2 was revoked in " in revoked
    assert f"b: key: {devices[2].public} is of no device in " in stranger
    assert "c: not signed, expected an update of a device in " in unsigned


def test_replays_of_another_round_or_bundle_are_refused_and_cannot_be_renamed(inbox, devices, fleet):
    old = update(devices[0], round="2", bundle="cd" * 32)
    (inbox / "a").write_bytes(old)
    (inbox / "b").write_bytes(edited(old, round="3", bundle="ab" * 32))
    first, second = receive(inbox, fleet).problems
    assert "a: round: got '2', expected '3'" in first
    assert "b: signature: not one of this update" in second


def test_a_device_counts_once_by_its_key_whatever_names_it_invents(inbox, devices, fleet):
    for number in range(3):
        (inbox / f"{number}").write_bytes(update(devices[0], client=f"name-{number}"))
    for expected, who in ((fleet, "phone-1"), (EXPECTED, devices[0].public)):
        found = receive(inbox, expected)
        assert [one.client for one in found.updates] == ["name-0"]
        assert len(found.problems) == 2
        assert f"1: key: {who} sent 0 already, expected one update of each" in found.problems[0]


def test_with_keys_nobody_is_kept_out_by_another_who_takes_its_name(inbox, devices, fleet):
    keys = fleet.keys.with_device("phone-3", PublicKey.of_text(devices[2].public))
    (inbox / "a").write_bytes(update(devices[2], client="victim"))
    (inbox / "b").write_bytes(update(devices[0], client="victim"))
    assert [one.device for one in receive(inbox, replace(fleet, keys=keys)).updates] == ["phone-3", "phone-1"]
    assert "b: client: 'victim' sent a already" in receive(inbox, EXPECTED).problems[0]


def test_fifty_copies_under_invented_names_count_fifty_times_without_keys_and_never_with(tmp_path, inbox, devices, fleet):
    (inbox / "honest").write_bytes(update(devices[0]))
    for number in range(50):
        forged = {"unsigned": safetensors.numpy.save(FIXED, metadata={**ABOUT, "client": f"sybil-{number}"})}
        forged["self-signed"] = update(device_key(tmp_path, 100 + number), client=f"sybil-{number}")
        forged["copied"] = edited(update(devices[0]), client=f"sybil-{number}")
        for kind, content in forged.items():
            (inbox / f"{kind}-{number}").write_bytes(content)
    found = receive(inbox, fleet)
    assert [one.device for one in found.updates] == ["phone-1"]
    assert len(found.problems) == 150
    without = receive(inbox, EXPECTED)
    assert len(without.updates) == 51  # the copies of signed files are seen even so, and one of each name counts
    assert {one.content for one in without.updates} == {CONTENT}
