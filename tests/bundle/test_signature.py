"""Who made a bundle: keys made by openssl, signatures that openssl and edgefl agree on."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from requirements import needs
from small_bundle import contents, manifest, written

from edgefl.bundle.verify import verify
from edgefl.bundle.write import write
from edgefl.errors import BundleError, InputError
from edgefl.run.simulate import _own_key
from edgefl.util.files import shared
from edgefl.util.keys import PublicKey, SigningKey

pytestmark = pytest.mark.usefixtures("in_process")
PEM, PRIVATE, PUBLIC = (
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo,
)  # fmt: skip


def pair(folder, name, key, passphrase=None):
    """Write a key and its public half as PEM files."""
    folder.mkdir(exist_ok=True)
    how = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    (folder / f"{name}.pem").write_bytes(key.private_bytes(PEM, PRIVATE, how))
    (folder / f"{name}.pem").chmod(0o600)
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(PEM, PUBLIC))
    return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture
def keys(tmp_path):
    return pair(tmp_path / "keys", "own", ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


@pytest.fixture
def signed(tmp_path, keys):
    write(tmp_path / "bundle", manifest(), contents(), SigningKey.of_file(keys[0]))
    return tmp_path / "bundle"


def test_a_signature_is_that_of_the_published_test_vector(tmp_path):
    """RFC 8032, section 7.1, test 3."""
    secret = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
    expected = (
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    private, public = pair(tmp_path, "rfc", ed25519.Ed25519PrivateKey.from_private_bytes(secret))
    assert SigningKey.of_file(private).sign(b"\xaf\x82").hex() == expected
    key = PublicKey.of_file(public)
    assert key.raw.hex() == "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    assert key == SigningKey.of_file(private).public == PublicKey.of_text(str(key))
    assert key.verifies(b"\xaf\x82", bytes.fromhex(expected))
    assert not key.verifies(b"\xaf\x83", bytes.fromhex(expected))


def test_a_signed_bundle_is_known_by_its_owners_key(signed, keys):
    assert (signed / "manifest.sig").stat().st_size == 64
    report = verify(signed, keys[1])
    assert (report.signed, report.files) == (True, 7)
    assert (verify(signed).signed, verify(signed).signer) == (False, str(PublicKey.of_file(keys[1])))
    assert sorted(path.name for path in signed.iterdir()) == ["0.5", "1", "manifest.json", "manifest.pub", "manifest.sig"]


def test_a_signature_by_somebody_else_or_of_another_manifest_is_refused(signed, keys, tmp_path, monkeypatch):
    monkeypatch.setattr("edgefl.bundle.verify.parse", None)  # nothing of it is read first
    _, other = pair(tmp_path / "keys", "other", ed25519.Ed25519PrivateKey.generate())
    message = rf"manifest\.sig: not the signature of this manifest\.json by the owner of {re.escape(str(other))}"
    with pytest.raises(BundleError, match=message):
        verify(signed, other)
    text = (signed / "manifest.json").read_bytes()
    (signed / "manifest.json").write_bytes(text.replace(b'"round": 0', b'"round": 1'))
    for key in (None, keys[1]):
        with pytest.raises(BundleError, match="not the signature of this manifest"):
            verify(signed, key)


def test_the_key_beside_a_bundle_must_be_the_one_that_signed(signed, keys, tmp_path):
    """Whoever trusts a key at its first use takes it from there."""
    _, other = pair(tmp_path / "keys", "other", ed25519.Ed25519PrivateKey.generate())
    (signed / "manifest.pub").write_bytes(other.read_bytes())
    for key in (None, keys[1]):
        with pytest.raises(BundleError, match=r"not the signature of this manifest\.json by the owner of manifest\.pub"):
            verify(signed, key)
    (signed / "manifest.pub").write_bytes(2 * keys[1].read_bytes())
    with pytest.raises(BundleError, match=r"manifest\.pub: holds more than one Ed25519 public key"):
        verify(signed)
    (signed / "manifest.pub").unlink()
    assert (verify(signed).signed, verify(signed).signer) == (False, None)
    assert verify(signed, keys[1]).signed
    (signed / "manifest.pub").symlink_to(keys[1])
    with pytest.raises(BundleError, match=r"manifest\.pub: a link"):
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
    with pytest.raises(BundleError, match=r"bundle: has manifest\.pub, but no manifest\.sig"):
        verify(signed)
    (signed / "manifest.pub").unlink()
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
    (tmp_path / "open.pem").write_bytes(private.read_bytes())
    (tmp_path / "open.pem").chmod(0o640)
    wrong = {
        SigningKey: {
            secret: r"a key of another kind \(RSA\), expected an Ed25519 private key", locked: "has a passphrase",
            public: "no private key in PEM form", text: "no private key in PEM form", large: "131,072 bytes, expected at most 65,536",
            tmp_path: "cannot be read", tmp_path / "none": r"cannot be read \(No such file or directory\)",
            tmp_path / "open.pem": "others may read or change this private key: chmod 600",
        },
        PublicKey: {
            open_rsa: r"a key of another kind \(RSA\), expected an Ed25519 public key", private: "a private key, expected the public one",
            text: "no public key in PEM form", tmp_path / "none": "cannot be read",
        },
    }  # fmt: skip
    for kind, cases in wrong.items():
        for path, message in cases.items():
            with pytest.raises(InputError, match=rf"{re.escape(str(path))}: {message}"):
                kind.of_file(path)


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A user who has no key yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "edgefl"


def test_your_own_key_is_made_once_for_you_alone(config):
    first = SigningKey.own()
    assert (config / "signing.pem").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in config.iterdir()] == ["signing.pem"]
    assert SigningKey.own() == first == SigningKey.chosen(None)
    assert SigningKey.chosen(False) is None
    assert "PrivateKey" not in repr(first)
    with pytest.raises(InputError, match=r"signing\.pem: exists"):
        SigningKey.new(config / "signing.pem")


def test_without_a_place_for_your_own_key_the_message_says_what_else_to_do(config):
    config.parent.write_text("a file where a folder is expected")
    with pytest.raises(
        InputError,
        match=r"no key to sign with: .*cannot be written.*give one with --sign KEY, or leave the signature out with --unsigned",
    ):
        SigningKey.own()


def test_keys_are_made_and_shown_by_the_command_line(config, called, signed, keys):
    status, out, _ = called("keys", "new", "team.pem")
    assert status == 0
    public = PublicKey.of_file(Path("team.pub"))
    assert out.splitlines()[1] == f"team.pub: written; public key {public}, for --key"
    assert SigningKey.of_file(Path("team.pem")).public == public
    for path in ("team.pem", "team.pub"):
        assert called("keys", "show", path)[1] == f"{path}: public key {public}\n"
    assert called("keys", "show", str(signed))[1] == f"{signed}: public key {PublicKey.of_file(keys[1])}\n"
    status, out, _ = called("keys", "show", "--out", "my.pub")
    assert (status, PublicKey.of_file(Path("my.pub"))) == (0, SigningKey.own().public)
    for arguments, message in (
        (("new", "team.pem"), "team.pub: exists"),
        (("new", "own.pub"), "own.pub: exists, or is the private key itself"),
        (("show", "0.5"), "0.5: cannot be read"),
        (("show", "."), "has no manifest.pub: not signed, or no bundle"),
    ):
        status, _, errors = called("keys", *arguments)
        assert (status, message in errors) == (2, True), errors


def test_the_command_line_says_who_signed(config, signed, keys, tmp_path, called):
    def last_line(*arguments):
        status, out, _ = called("verify", *map(str, arguments))
        assert status == 0
        return out.splitlines()[-1]

    text = PublicKey.of_file(keys[1])
    assert last_line(signed, "--key", keys[1]) == f"{signed}: 7 files verified; signed by the owner of {keys[1]}"
    assert last_line(signed) == f"{signed}: 7 files verified; signed by {text}, whose owner --key can check"
    config.mkdir(parents=True)
    shutil.copy(keys[0], config / "signing.pem")
    assert last_line(signed) == f"{signed}: 7 files verified; signed by {text}, your own key"
    (signed / "manifest.pub").unlink()
    assert last_line(signed) == f"{signed}: 6 files verified; its signature was not checked: give --key"
    plain = written(tmp_path / "plain")
    assert last_line(plain) == f"{plain}: 5 files verified; not signed"
    status, out, errors = called("verify", str(plain), "--key", str(keys[1]))
    assert (status, out) == (2, "")
    assert errors.startswith(f"Error: {plain}: not signed: has no manifest.sig")


@needs("openssl")
def test_the_commands_of_the_readme_make_keys_and_check_signatures(tmp_path):
    text = (shared("export") / "README.md").read_text(encoding="utf-8")
    commands = [line.strip() for line in text.splitlines() if line.startswith("    openssl ")]
    assert len(commands) == 3

    def run(command):
        return subprocess.run(command.split(), cwd=tmp_path, capture_output=True, text=True, check=False)

    for command in commands[:2]:
        assert run(command).returncode == 0, command
    write(tmp_path / "bundle", manifest(), contents(), SigningKey.of_file(tmp_path / "key.pem"))
    assert verify(tmp_path / "bundle", tmp_path / "key.pub").signed
    assert run(commands[2]).returncode == 0
    (tmp_path / "bundle" / "manifest.json").write_bytes((tmp_path / "bundle" / "manifest.json").read_bytes() + b" ")
    assert run(commands[2]).returncode != 0


def test_a_finished_run_is_not_lost_for_want_of_a_key(config):
    said = []
    assert _own_key(said.append) == SigningKey.own()
    assert not said
    (config / "signing.pem").chmod(0o644)
    assert _own_key(said.append) is None
    assert said[0].startswith("the run's bundle is not signed: ")
    assert "signing.pem: others may read or change this private key: chmod 600" in said[0]
