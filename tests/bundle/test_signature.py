"""Who made a bundle: keys made by openssl, signatures that openssl and edgefl agree on."""

import re
import shutil
import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from small_bundle import contents, manifest, written

from edgefl.bundle.verify import public_key, signed_by, signer, verify
from edgefl.bundle.write import write
from edgefl.errors import BundleError, InputError
from edgefl.util.files import shared

pytestmark = pytest.mark.usefixtures("in_process")
PEM, PRIVATE, PUBLIC = (
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo,
)  # fmt: skip


def pair(folder, name, key, passphrase=None):
    """Write a key and its public half as PEM files."""
    folder.mkdir(exist_ok=True)
    how = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    (folder / f"{name}.pem").write_bytes(key.private_bytes(PEM, PRIVATE, how))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(PEM, PUBLIC))
    return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture
def keys(tmp_path):
    return pair(tmp_path / "keys", "own", ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture
def signed(tmp_path, keys):
    write(tmp_path / "bundle", manifest(), contents(), signer(keys[0]))
    return tmp_path / "bundle"


def test_a_signature_is_that_of_the_published_test_vector(tmp_path):
    """RFC 8032, section 7.1, test 3."""
    secret = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
    expected = (
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    private, public = pair(tmp_path, "rfc", ed25519.Ed25519PrivateKey.from_private_bytes(secret))
    assert signer(private)(b"\xaf\x82").hex() == expected
    assert signed_by(public_key(public), b"\xaf\x82", bytes.fromhex(expected))
    assert not signed_by(public_key(public), b"\xaf\x83", bytes.fromhex(expected))


def test_a_signed_bundle_is_known_by_its_owners_key(signed, keys):
    assert (signed / "manifest.sig").stat().st_size == 64
    report = verify(signed, keys[1])
    assert (report.signed, report.files) == (True, 6)
    assert verify(signed).signed is False
    assert sorted(path.name for path in signed.iterdir()) == ["0.5", "1", "manifest.json", "manifest.sig"]


def test_a_signature_by_somebody_else_or_of_another_manifest_is_refused(signed, keys, tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.bundle.verify.parse", None)  # nothing of it is read first
    _, other = pair(tmp_path / "keys", "other", ed25519.Ed25519PrivateKey.generate())
    message = rf"manifest\.sig: not the signature of this manifest\.json by the owner of {re.escape(str(other))}"
    with pytest.raises(BundleError, match=message):
        verify(signed, other)
    text = (signed / "manifest.json").read_bytes()
    (signed / "manifest.json").write_bytes(text.replace(b'"round": 0', b'"round": 1'))
    with pytest.raises(BundleError, match="not the signature of this manifest"):
        verify(signed, keys[1])


@pytest.mark.parametrize("size", [0, 63, 65, 1 << 20])
def test_a_signature_of_another_size_is_refused_with_and_without_a_key(signed, keys, size):
    (signed / "manifest.sig").write_bytes(bytes(size))
    for key in (None, keys[1]):
        with pytest.raises(BundleError, match=r"manifest\.sig: expected a plain file of 64 bytes"):
            verify(signed, key)


def test_a_signature_that_is_a_link_or_missing_is_refused(signed, keys, tmp_path):
    (signed / "manifest.sig").rename(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match=r"bundle: not signed: has no manifest\.sig, expected one by the owner of .*own\.pub"):
        verify(signed, keys[1])
    assert verify(signed).signed is None
    (signed / "manifest.sig").symlink_to(tmp_path / "elsewhere")
    for key in (None, keys[1]):
        with pytest.raises(BundleError, match=r"manifest\.sig: expected a plain file of 64 bytes"):
            verify(signed, key)


def test_keys_of_other_kinds_are_refused(tmp_path, keys):
    private, public = keys
    secret, open_rsa = pair(tmp_path / "keys", "rsa", rsa.generate_private_key(65537, 1024))
    locked, _ = pair(tmp_path / "keys", "locked", ed25519.Ed25519PrivateKey.generate(), b"word")
    text, large = tmp_path / "text", tmp_path / "large"
    text.write_text("hello")
    large.write_bytes(bytes(1 << 17))
    wrong = {
        signer: {
            secret: r"a key of another kind \(RSA\), expected an Ed25519 private key", locked: "has a passphrase",
            public: "no private key in PEM form", text: "no private key in PEM form", large: "131,072 bytes, expected at most 65,536",
            tmp_path: "cannot be read", tmp_path / "none": r"cannot be read \(No such file or directory\)",
        },
        public_key: {
            open_rsa: r"a key of another kind \(RSA\), expected an Ed25519 public key", private: "a private key, expected the public one",
            text: "no public key in PEM form", tmp_path / "none": "cannot be read",
        },
    }  # fmt: skip
    for read, cases in wrong.items():
        for path, message in cases.items():
            with pytest.raises(InputError, match=rf"{re.escape(str(path))}: {message}"):
                read(path)


def test_without_the_library_the_message_says_what_to_install(keys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    for read, path in zip((signer, public_key), keys, strict=True):
        with pytest.raises(InputError, match=r"signatures need the package cryptography: pip install 'edgefl-sim\[sign\]'"):
            read(path)


def test_what_cannot_be_signed_is_not_written(tmp_path):
    def fail(content):
        raise InputError("no key")

    with pytest.raises(InputError, match="no key"):
        write(tmp_path / "bundle", manifest(), contents(), fail)
    assert not list(tmp_path.iterdir())


def test_the_command_line_says_who_signed(signed, keys, tmp_path, called):
    status, out, _ = called("verify", str(signed), "--key", str(keys[1]))
    assert (status, out.splitlines()[-1]) == (0, f"{signed}: 6 files verified; signed by the owner of {keys[1]}")
    _, out, _ = called("verify", str(signed))
    assert out.splitlines()[-1] == f"{signed}: 6 files verified; its signature was not checked: give --key"
    status, out, errors = called("verify", str(written(tmp_path / "plain")), "--key", str(keys[1]))
    assert (status, out) == (2, "")
    assert errors.startswith(f"Error: {tmp_path / 'plain'}: not signed: has no manifest.sig")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl, as the section of the README does")
def test_the_commands_of_the_readme_make_keys_and_check_signatures(tmp_path):
    text = (shared("export") / "README.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in text.splitlines() if line.startswith("    openssl ")]
    assert len(commands) == 3

    def run(command):
        return subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, check=False)

    for command in commands[:2]:
        assert run(command).returncode == 0, command
    write(tmp_path / "bundle", manifest(), contents(), signer(tmp_path / "key.pem"))
    assert verify(tmp_path / "bundle", tmp_path / "key.pub").signed
    assert run(commands[2]).returncode == 0
    (tmp_path / "bundle" / "manifest.json").write_bytes((tmp_path / "bundle" / "manifest.json").read_bytes() + b" ")
    assert run(commands[2]).returncode != 0
