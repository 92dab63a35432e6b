"""The keys of a fleet's devices: the file, requests to be in it, and the one who may write it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from signing import ENROLMENT, KEY, device_key, request

from edgefl.errors import InputError, WireError
from edgefl.run.enroll import enroll, enrolled, revoke
from edgefl.util.keys import PublicKey
from edgefl.wire import device_keys
from edgefl.wire.device_keys import DeviceKeys, Enrolment, signed_enrolment

ASKED = {"format": "edgefl-enrolment", "version": "1", "name": "phone-7", "key": KEY, "signature": ENROLMENT}


@pytest.fixture
def fleet(tmp_path):
    return tmp_path / "fleet.toml"


def test_devices_are_enrolled_listed_by_name_and_revoked(tmp_path, fleet):
    one, two = (device_key(tmp_path, number) for number in (1, 2))
    assert enroll(fleet, [request(tmp_path, "tablet", two), request(tmp_path, "phone.x", one)]) == {
        "tablet": two.public,
        "phone.x": one.public,
    }
    assert list(enrolled(fleet)) == ["phone.x", "tablet"]
    assert [line for line in fleet.read_text().splitlines() if line.startswith("[")] == [
        '[devices."phone.x"]',
        "[devices.tablet]",
    ]
    content = fleet.read_bytes()
    enroll(fleet, [request(tmp_path, "tablet", two)])  # the same again
    assert fleet.read_bytes() == content
    revoke(fleet, two.public)
    revoke(fleet, "phone.x")
    assert all(device.revoked for device in enrolled(fleet).values())
    with pytest.raises(InputError, match=r"has no device 'phone'; it has phone\.x, tablet"):
        revoke(fleet, "phone")


def test_a_name_or_key_in_use_is_refused_and_nothing_is_written(tmp_path, fleet):
    one, two = (device_key(tmp_path, number) for number in (1, 2))
    enroll(fleet, [request(tmp_path, "a", one)])
    content = fleet.read_bytes()
    for asked, message in (
        ([request(tmp_path, "b", two), request(tmp_path, "a", two)], "a: another device has this name, with key "),
        ([request(tmp_path, "c", one)], "this key is enrolled already, as a"),
    ):
        with pytest.raises(InputError, match=message):
            enroll(fleet, asked)
        assert fleet.read_bytes() == content
    revoke(fleet, "a")
    for asked, what in ((request(tmp_path, "a", two), "name"), (request(tmp_path, "c", one), "key")):
        with pytest.raises(
            InputError, match=f"a was revoked, and has this {what}; delete its table from the file to enrol it again"
        ):
            enroll(fleet, [asked])


def test_a_request_is_the_one_that_openssl_signs(tmp_path):
    path = tmp_path / "phone-7.json"
    path.write_text(json.dumps(ASKED))
    assert Enrolment.of_file(path) == Enrolment("phone-7", PublicKey.of_text(KEY))
    assert signed_enrolment("phone-7", PublicKey.of_text(KEY)).endswith(f"name=phone-7\nkey={KEY}\n".encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "phone-8"}, "signature: not one of this request by its key"),
        ({"key": "A" * 43 + "="}, "signature: not one of this request by its key"),
        ({"signature": "?"}, "signature: not one of this request by its key"),
        ({"key": "short"}, "key: expected a public key: the base64 of 32 bytes"),
        ({"name": "a\x1b[2J"}, r"name: expected a device's name: .*got 'a\\x1b\[2J'"),
        ({"name": 7}, "name"),
        ({"version": "2"}, "version"),
        ({"more": 1}, "more: unknown key"),
    ],
)
def test_requests_that_are_wrong_say_why(change, message, tmp_path, fleet):
    path = tmp_path / "r.json"
    path.write_text(json.dumps({**ASKED, **change}))
    with pytest.raises(WireError, match=rf"r\.json: {message}"):
        enroll(fleet, [path])
    assert not fleet.exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"[" * 3000, b"\xff", b" " * 5000])
def test_files_that_are_no_requests_are_refused(content, tmp_path, fleet):
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(WireError, match=r"r\.json: "):
        enroll(fleet, [tmp_path / "r.json"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "format: missing"),
        ("format = 2", "format"),
        ("format = 1\ndevice = 1", "device: unknown key"),
        ("format = 1\n[devices.a]", r"devices\.a\.key: missing"),
        ('format = 1\n[devices.a]\nkey = "x"', r"devices\.a\.key: expected a public key"),
        (f'format = 1\n[devices.a]\nkey = "{KEY}"\nrevoked = 1', r"devices\.a\.revoked"),
        (f'format = 1\n[devices."a b"]\nkey = "{KEY}"', "expected a device's name"),
        (
            f'format = 1\n[devices.a]\nkey = "{KEY}"\n[devices.b]\nkey = "{KEY}"',
            "devices: a and b have one key, expected one for each",
        ),
        ("format = ", "not valid TOML"),
    ],
)
def test_a_malformed_file_of_keys_is_named(content, message, fleet):
    fleet.write_text(content)
    with pytest.raises(InputError, match=rf"fleet\.toml.*{message}"):
        DeviceKeys.of(fleet)


def test_a_missing_file_of_keys_is_made_by_enroll_only(fleet):
    for use in (enrolled, lambda path: revoke(path, "a")):
        with pytest.raises(InputError, match=r"fleet\.toml: no such file"):
            use(fleet)
    assert not list(fleet.parent.iterdir())


def test_a_device_is_revoked_in_the_file_that_a_link_leads_to(tmp_path, fleet):
    enroll(fleet, [request(tmp_path, "phone-7", device_key(tmp_path, 1))])
    link = tmp_path / "link.toml"
    link.symlink_to(fleet)
    revoke(link, "phone-7")
    assert enrolled(fleet)["phone-7"].revoked
    assert link.is_symlink()


def test_a_file_without_an_end_is_not_read_whole():
    with pytest.raises(InputError, match=r"/dev/zero: [\d,]+ bytes, expected at most"):
        DeviceKeys.of(Path("/dev/zero"))


def test_there_is_one_writer_at_a_time(tmp_path, fleet, monkeypatch):
    monkeypatch.setattr(device_keys, "_WAIT_S", 0.1)
    holding = f"""
        from pathlib import Path
        from edgefl.wire.device_keys import changing
        with changing(Path({str(fleet)!r})):
            print("held", flush=True)
            input()
    """
    command = [sys.executable, "-c", textwrap.dedent(holding)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ) as holder:
        assert holder.stdout.readline() == "held\n"
        asked = request(tmp_path, "a", device_key(tmp_path, 1))
        with pytest.raises(InputError, match=r"fleet\.toml: another process is changing it"):
            enroll(fleet, [asked])
        holder.communicate("\n")
    assert enroll(fleet, [asked])


def test_the_commands_enrol_list_and_revoke(tmp_path, called):
    key = device_key(tmp_path, 1)
    asked = str(request(tmp_path, "phone-7", key))
    assert called("enroll", asked, "--keys", "fleet.toml")[:2] == (0, f"phone-7: enrolled in fleet.toml, key {key.public}\n")
    assert called("enroll", "--keys", "fleet.toml")[1] == f"phone-7\t{key.public}\n"
    assert called("revoke", "phone-7", "--keys", "fleet.toml")[:2] == (0, "phone-7: revoked in fleet.toml\n")
    assert called("enroll", "--keys", "fleet.toml")[1] == f"phone-7\t{key.public}\trevoked\n"
    assert called("enroll", asked, "--keys", "new/fleet.toml", "--name", "mine")[0] == 0
    assert list(enrolled(Path("new/fleet.toml"))) == ["mine"]
    for arguments, message in (
        (("enroll", asked), "Missing option '--keys'"),
        (("enroll", "--keys", "fleet.toml", "--name", "x"), "--name needs a REQUEST"),
        (("enroll", asked, asked, "--keys", "fleet.toml", "--name", "x"), "name: got 'x' for 2 requests"),
        (("enroll", asked, "--keys", "new/fleet.toml", "--name", "a b"), "name: got 'a b'"),
        (("revoke", "nobody", "--keys", "fleet.toml"), "has no device 'nobody'"),
        (("revoke", "nobody", "--keys", "none.toml"), "none.toml: no such file"),
    ):
        status, _, errors = called(*arguments)
        assert (status, bool(re.search(re.escape(message), errors))) == (2, True), errors
