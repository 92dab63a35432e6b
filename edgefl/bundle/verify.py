"""Verification of a bundle: its files are those of the manifest, its signature is valid, its graphs compute their stored references."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from edgefl.bundle.manifest import MANIFEST, SIGNATURE, SIGNER, Manifest
from edgefl.bundle.manifest_file import content_of, differences, parse
from edgefl.bundle.sandbox import SandboxLimits, check_tiers
from edgefl.bundle.signature import check_signature
from edgefl.errors import BundleError, printable

MAX_BUNDLE_BYTES = 1 << 36
_MAX_PROBLEMS, _MAX_REASON = 50, 300


@dataclass(frozen=True)
class VerifyReport:
    """The report of a bundle that passed.

    Attributes:
        files: how many files were checked, the manifest and the signature included.
        max_abs_errors, max_loss_errors: label of a tier → largest difference of its outputs, and relative one of its losses.
        signed: True: by the owner of the given key; False: there is a signature, but no key was given; None: there is no signature.
        signer: text of the signer's public key. Unless ``signed`` is True, it is only the bundle's own claim; None: not known.
        no_update: why devices that train send no updates; empty if they do, or do not train.
    """

    files: int
    max_abs_errors: Mapping[str, float]
    max_loss_errors: Mapping[str, float]
    signed: bool | None = None
    signer: str | None = None
    no_update: str = ""


Problem = tuple[str, str]
"""(file or tier, its problem)"""


def verify(bundle: Path | str, key: Path | str | None = None, limits: SandboxLimits | None = None) -> VerifyReport:
    """Check every file of a bundle, and run every graph on its stored reference, in a process with limited memory and time.

    Args:
        bundle: the folder.
        key: a PEM file with an Ed25519 public key. The bundle must then be signed with its private half, which is checked first.
        limits: memory and seconds of the process; None: memory by the bundle's size, and 60 seconds for each file.

    Raises:
        BundleError: a file is missing, extra, changed or wrong. The message has a line for each problem, 50 at most.
        InputError: ``key`` cannot be used, or the process for the graphs does not start.
    """
    folder = Path(bundle)
    content = content_of(folder)
    signature = check_signature(folder, content, None if key is None else Path(key))
    manifest = parse(folder / MANIFEST, content)
    total_bytes = sum(entry.bytes for entry in manifest.files.values())
    if total_bytes > MAX_BUNDLE_BYTES:
        raise BundleError(f"{folder}: {total_bytes:,} bytes by its manifest, expected at most {MAX_BUNDLE_BYTES:,}")
    problems = [*_extra(folder, manifest), *_missing_or_changed(folder, manifest)]
    if not problems:  # a changed graph must not run
        checks = check_tiers(folder, [tier.label for tier in manifest.tiers], limits or SandboxLimits(), total_bytes)
        problems = checks.problems
    if problems:
        raise BundleError(_listed(folder, problems))
    outputs = {label: output for label, (output, _) in checks.errors.items()}
    losses = {label: loss for label, (_, loss) in checks.errors.items() if loss is not None}
    signed = (key is not None) if signature.files else None
    signer = None if signature.signer is None else str(signature.signer)
    no_update = next((tier.train.no_update for tier in manifest.tiers if tier.train and tier.train.no_update), "")
    return VerifyReport(
        len(manifest.files) + 1 + signature.files, outputs, losses, signed, signer, printable(no_update, layout="")[:_MAX_REASON]
    )


def _listed(folder: Path, problems: Sequence[Problem]) -> str:
    lines = [f"{folder}: {printable(f'{name}: {what}', layout='')}" for name, what in problems[:_MAX_PROBLEMS]]
    return "\n".join([*lines, f"{folder}: and more"] if len(problems) > _MAX_PROBLEMS else lines)


def _extra(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Yield links, and files and folders that the manifest does not list."""
    listed = {*manifest.files, MANIFEST, SIGNATURE, SIGNER}
    folders = {parent.as_posix() for path in manifest.files for parent in Path(path).parents}
    count = 0
    for name in _walk(folder):
        path = folder / name
        if path.is_symlink():
            yield name, "a symbolic link; a bundle holds plain files only"
        elif path.is_dir() and name not in folders:
            yield f"{name}/", "not in the manifest"
        elif not path.is_dir() and name not in listed:
            yield name, "not in the manifest"
        else:
            continue
        count += 1
        if count > _MAX_PROBLEMS:
            return


def _walk(top: Path) -> Iterator[str]:
    """Yield the path of every file and folder below ``top``, hidden ones too; BundleError if a folder cannot be listed."""

    def fail(error: OSError) -> None:
        raise BundleError(f"{printable(str(error.filename), layout='')}: cannot be listed ({error.strerror})") from None

    for folder, folders, files in os.walk(top, onerror=fail):
        folders.sort(reverse=True)
        for name in sorted([*folders, *files]):
            yield (Path(folder) / name).relative_to(top).as_posix()


def _missing_or_changed(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    def opened(name: str) -> BufferedReader:
        path = folder / name
        if path.is_symlink():
            raise OSError(None, "a symbolic link")
        if not path.is_file():
            raise FileNotFoundError
        return path.open("rb")

    return (problem for problem in differences(manifest, opened) if not (folder / problem[0]).is_symlink())
