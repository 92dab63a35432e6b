"""The command ``export``: Write the bundle of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from edgefl.cli.console import busy, echo, loading, note, print_json
from edgefl.cli.flags import DATA, flag_of, given, run_flags
from edgefl.cli.names import check_names
from edgefl.cli.options import Command, json_option, option, sign_options, signing, sub_model_options, trust_option
from edgefl.cli.param_types import PATH, Listed, Within
from edgefl.cli.values import runs
from edgefl.errors import BundleError, InputError
from edgefl.onnxgrad.contexts import uncollected
from edgefl.registry import export_formats
from edgefl.util.files import check_free

if TYPE_CHECKING:
    from edgefl.bundle.forms import Form

_NETWORK, _DATA = "Network trained elsewhere", "Data that --model is evaluated on, instead of --input and --classes"


@click.command(cls=Command)
@click.argument("run", type=PATH, required=False, shell_complete=runs)
@option("--out", required=True, type=PATH, metavar="FOLDER", help="Folder to write; must be new or empty.")
@option(
    "--form",
    type=click.Choice(("factored", "composed", "auto")),
    default="auto",
    help="Form of factorized layers: factored (small factors), composed (multiplied), auto (for each layer the better one for the device).",
)
@option("--quantize", type=click.Choice(("int8",)), help="Also write 8-bit variants, with their accuracy.")
@option("--fp16", is_flag=True, help="Also write 16-bit variants, with their accuracy.")
@option(
    "--also",
    type=Listed(str, "FORMAT,…"),
    names=export_formats,
    metavar="FORMAT,…",
    help="Also write inference for other runtimes, compared with torch. {known}",
)
@option("--operators", is_flag=True, help="Also write required_operators.config, for a reduced build of onnxruntime.")
@sign_options
@option(
    *("--model", "--network", "network"),
    metavar="NAME",
    help="Instead of a run, a network trained elsewhere: package.module:factory, file.py:factory, a reference network, or another "
    "name that 'edgefl profile' accepts.",
)
@option(
    "--weights",
    type=PATH,
    metavar="FILE",
    help="Its weights, a safetensors file or a state_dict of torch. [as the factory makes them]",
)
@option(
    "--input",
    "inputs",
    multiple=True,
    metavar="[NAME=][TYPE:]SHAPE",
    help="Shape of one of its samples, such as 3x32x32 or int64:80; repeat it for several inputs of one shape and type.",
)
@option("--classes", type=Within(int, 1), metavar="N", help="Its number of labels, for a factory that takes it.")
@run_flags("loss", section=_NETWORK)
@run_flags(*DATA, section=_DATA, defaults={"dataset": "none"})
@sub_model_options("Tiers of --model")
@option(
    "--format",
    "kind",
    type=click.Choice(("bundle", "csv", "weights", "svg", "pdf")),
    default="bundle",
    help="bundle: for devices; csv: rounds, sessions, tiers, classes and clients of a run, or methods, verdict and pairs of a "
    "comparison, as tables; weights: a safetensors file per tier, for torch; svg, pdf: the charts of a comparison.",
)
@trust_option
@json_option
@option("--with-client", is_flag=True, help="Also write the Python, TypeScript and browser clients.")
def command(
    run: Path | None,
    out: Path,
    form: Form,
    quantize: Literal["int8"] | None,
    fp16: bool,
    also: tuple[str, ...] | None,
    operators: bool,
    sign: Path | None,
    unsigned: bool,
    lasts_s: float | None,
    network: str | None,
    weights: Path | None,
    kind: Literal["bundle", "csv", "weights", "svg", "pdf"],
    inputs: tuple[str, ...],
    classes: int | None,
    method: str | None,
    method_options: tuple[tuple[str, Any], ...],
    tiers: tuple[float, ...] | None,
    with_client: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Write the bundle, the tables or the weights of the finished run in the folder RUN, or the bundle of a network trained elsewhere.

    A bundle contains, for each tier, the graphs that infer and train, with reference outputs, costs and hashes. It is signed with your own
    key, which is made at its first use ('edgefl keys show').

    With the bundle of a network begins a line of rounds, in the folder OUT-run beside it: 'edgefl fed-round' aggregates the updates of
    devices. With --data, every round is evaluated.

    \b
    edgefl export runs/0001-fedhm-digits --out bundle
    edgefl export runs/0001-fedhm-digits --format csv --out tables
    edgefl export runs/0001-fedhm-digits --format weights --out weights
    edgefl export --model lab.py:net --input 3x32x32 --out bundle
    edgefl export --model lab.py:net --weights w.pt --data own.npz \\
      --preprocessing none --out bundle
    edgefl export --model lab.py:net --input 3x32x32 --method fedhm \\
      --tiers 1,0.5 --out bundle
    """
    if (run is None) == (network is None):
        raise click.UsageError("give either the folder of a run or --model")
    about = given(flags)
    if run is not None and (weights or inputs or classes or about or method or method_options or tiers):
        raise click.UsageError(
            "--weights, --input, --classes, --loss, --data, --method, --method-option and --tiers need --model"
        )
    if "dataset" in about and (inputs or classes):
        raise click.UsageError("--data gives the shape of a sample and the number of classes: leave --input and --classes out")
    for name in also or ():
        export_formats.check_installed(name, f"--also {name}")
    check_free(out, BundleError if kind == "bundle" else InputError)  # before torch is imported, and a tier exported
    more: dict[str, Any] = {"client": with_client, "also": also or (), "operators": operators}
    how: dict[str, Any] = {"form": form, "quantize": quantize, "fp16": fp16, "lasts_s": lasts_s}
    if kind != "bundle":
        if run is None or quantize or fp16 or sign or unsigned or lasts_s or form != "auto" or any(more.values()):
            raise click.UsageError(f"--format {kind} needs a run, and takes no options of a bundle")
        _files(run, out, kind)
    elif run is not None:
        _bundle_of_run(run, out, sign=signing(sign, unsigned), **how, **more)
    else:
        check_names(model=[network], method=[method])
        sized = {"method": method, "tiers": tiers, "method_options": dict(method_options), "weights": weights}
        shape = None if "dataset" in about else (inputs, classes)
        _bundle_of_network(str(network), shape, about, out, sign=signing(sign, unsigned), **sized, **how, **more)
    _written(out, as_json, bundle=kind == "bundle", line=network is not None)


def _bundle_of_run(run: Path, out: Path, **how: Any) -> None:
    with uncollected(), loading():
        from edgefl.run.export import export
    with uncollected(), busy("exporting and verifying"):
        export(run, out, notify=note, **how)


def _bundle_of_network(
    network: str, shape: tuple[tuple[str, ...], int | None] | None, about: dict[str, Any], out: Path, **how: Any
) -> None:
    """Write the bundle of a network, with the ``shape`` of its samples and its number of labels, or with keys ``about`` its data."""
    data, loss, preprocessing = (about.pop(key, None) for key in ("dataset", "loss", "preprocessing"))
    if data is None and (about or how["quantize"]):
        key = flag_of(next(iter(about), "quantize"))
        raise click.UsageError(f"{key} needs --data: {'8-bit ranges are measured on samples' if not about else 'it is about it'}")
    with uncollected(), loading():
        from edgefl.run.export_network import export_network, samples_for
    with uncollected(), busy("exporting and verifying"):
        samples = None if shape is None else samples_for(network, *shape)
        how |= {"loss": loss, "preprocessing": preprocessing, "classes": shape[1] if shape else None, "notify": note}
        export_network(network, samples, out, data=data, data_options=about, **how)


def _files(run: Path, out: Path, kind: Literal["csv", "weights", "svg", "pdf"]) -> None:
    """Write tables or weights of a run, or tables or charts of a comparison."""
    if kind == "weights":
        with uncollected(), loading():
            from edgefl.run.finished import write_weights
        with uncollected(), busy("reading the run"):
            write_weights(run, out)
        return
    from edgefl.run.comparison_result import is_comparison, load_comparison
    from edgefl.run.result import load_run

    if kind != "csv":
        load_comparison(run).to_figures(out, kind)
    else:
        (load_comparison(run) if is_comparison(run) else load_run(run)).to_csv(out)


def _written(out: Path, as_json: bool, bundle: bool, line: bool) -> None:
    """Say what was written, who signed it if it is a bundle, and how the next round aggregates updates if a line begins with it."""
    files = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    signer = _signer(out) if bundle else None
    if as_json:
        print_json({"folder": str(out), "files": files, "signer": signer})
    elif bundle:
        echo(f"{out}: written, {f'signed by {signer}' if signer else 'not signed'}; check it with: edgefl verify {out}")
        if line:
            echo(f"{out}-run: round 0; aggregate updates of devices with: edgefl fed-round {out} --updates DIR")
    else:
        from edgefl.report.words import joined

        echo(f"{out}: {joined(files)} written")


def _signer(out: Path) -> str | None:
    from edgefl.bundle.manifest import SIGNER
    from edgefl.util.keys import PublicKey

    return str(PublicKey.of_file(out / SIGNER)) if (out / SIGNER).is_file() else None
