"""The bundle of a finished run, written anew."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edgefl.errors import BundleError
from edgefl.run.finished import finished
from edgefl.run.folder import MODEL, Notify, RunFolder
from edgefl.run.trained import tier_networks
from edgefl.util.files import check_free, sha256
from edgefl.util.keys import Chosen, SigningKey
from edgefl.util.scratch import sweep

# Exporting networks takes a second to import.
if TYPE_CHECKING:
    from edgefl.bundle.forms import Form


def export(
    run: Path | str,
    out: Path | str,
    *,
    form: Form = "auto",
    quantize: Literal["int8"] | None = None,
    fp16: bool = False,
    sign: Chosen = None,
    client: bool = False,
    also: Sequence[str] = (),
    operators: bool = False,
    lasts_s: float | None = None,
    notify: Notify | None = None,
) -> Path:
    """Write the bundle of a finished run to the folder ``out`` and return it.

    Args:
        run: the run's folder.
        out: must not exist, or be empty.
        form: of factorized layers: ``factored``, ``composed``, or ``auto``, layer by layer what suits the tier's device.
        quantize: "int8" writes 8-bit variants of each forward graph too, calibrated on training samples.
        fp16: whether 16-bit variants are written too.
        sign: PEM file of an Ed25519 private key to sign the bundle with; None: the user's own key, which is made at its first use; False:
            the bundle is not signed, and devices refuse it unless told otherwise.
        client: whether the Python, TypeScript and browser clients are put beside the graphs.
        also: export formats for other runtimes, ``executorch`` and ``litert``, for inference of one sample.
        operators: whether ``required_operators.config`` is written too, for a reduced build of onnxruntime.
        lasts_s: seconds after which devices refuse the bundle; None: there is no end.
        notify: called with a line about each tier that does not run on its device.

    Raises:
        CheckpointError: ``run`` holds no finished run.
        BundleError: ``out`` exists and is not empty, or the network cannot be exported.
        InputError: ``sign`` is no such key, or others may read it; or what a format of ``also`` needs is not installed.
    """
    from edgefl.bundle.other_formats import check_formats
    from edgefl.run.bundle import Source, Wanted, build_bundle
    from edgefl.run.line import record_in

    sweep()
    check_free(Path(out), BundleError)
    check_formats(also)
    sized = bool(record_in(RunFolder(Path(run))).get("sized", True))
    wanted = Wanted(form, quantize == "int8", fp16, client, tuple(also), operators, SigningKey.chosen(sign), lasts_s, sized)
    with finished(run, notify) as trained:
        source = Source(trained.state.round, sha256((Path(run) / MODEL).read_bytes()))
        build_bundle(trained.run, tier_networks(trained), source, Path(out), notify or (lambda message: None), wanted)
    return Path(out)
