"""Derives the golden signature of an update: bytes written out with struct and hashlib, signed by openssl. Nothing of edgefl is used.

Usage: python tests/signed_update_by_hand.py
"""

import base64
import hashlib
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

SECRET = bytes(range(1, 33))
PKCS8 = bytes.fromhex("302e020100300506032b657004220420")  # RFC 8410: what precedes the 32 bytes in a private key's DER
SPKI = bytes.fromhex("302a300506032b6570032100")  # the same of a public key
TENSORS = {"fc.weight": ("2,3", (1.5, -2.25, 0.0, 3.0, -0.125, 7.0)), "fc.bias": ("2", (-1.0, 0.5)), "über": ("", (4.0,))}
ABOUT = {
    "format": "edgefl-update", "version": "1", "bundle": "ab" * 32, "round": "3", "tier": "0.5", "samples": "120", "steps": "20",
    "client": "c0ffee", "labels": "0,3,7",
}  # fmt: skip


def main() -> None:
    data = b""
    for name in ("fc.bias", "fc.weight", "über"):  # by their bytes
        shape, values = TENSORS[name]
        data += name.encode() + b"\0" + shape.encode() + b"\0" + struct.pack(f"<{len(values)}f", *values)
    content = hashlib.sha256(data).hexdigest()
    with tempfile.TemporaryDirectory() as folder:
        secret, public, message = (Path(folder, name) for name in ("secret", "public", "message"))
        secret.write_bytes(PKCS8 + SECRET)
        subprocess.run(
            ["openssl", "pkey", "-inform", "DER", "-in", str(secret), "-pubout", "-outform", "DER", "-out", str(public)],
            check=True,
        )
        key = base64.b64encode(public.read_bytes().removeprefix(SPKI)).decode()
        lines = [
            "edgefl update signature 1", f"bundle={'ab' * 32}", "client=c0ffee", "format=edgefl-update", f"key={key}", "labels=0,3,7",
            "round=3", "samples=120", "steps=20", "tier=0.5", "version=1", f"content={content}",
        ]  # fmt: skip
        message.write_bytes("".join(line + "\n" for line in lines).encode())
        sign = ["openssl", "pkeyutl", "-sign", "-keyform", "DER", "-inkey", str(secret), "-rawin", "-in", str(message)]
        signature = subprocess.run(sign, capture_output=True, check=True).stdout
        message.write_bytes(f"edgefl enrolment 1\nname=phone-7\nkey={key}\n".encode())
        enrolment = subprocess.run(sign, capture_output=True, check=True).stdout
    signatures = {name: base64.b64encode(of).decode() for name, of in (("SIGNATURE", signature), ("ENROLMENT", enrolment))}
    for name, value in {"KEY": key, "CONTENT": content, **signatures}.items():
        sys.stdout.write(f'{name} = "{value}"\n')


if __name__ == "__main__":
    main()
