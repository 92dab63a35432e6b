"""The command ``simulate``: Train a fleet under the budgets of its devices; write model, bundle and report."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgefl.cli.console import echo, loading, note_new, show, show_result, show_text
from edgefl.cli.flags import run_keys, run_options
from edgefl.cli.names import check_run
from edgefl.cli.options import Command, json_option, option, trust_option
from edgefl.cli.param_types import PATH
from edgefl.config import HOST, RunConfig, keys_of

if TYPE_CHECKING:
    from edgefl.report.run_files import DrySummary, RunSummary


@click.command(cls=Command)
@run_options
@option("--out", type=PATH, metavar="DIR", help="Folder of the run. [runs/NNNN-method-dataset]")
@option("--resume", is_flag=True, help="Continue the run in --out: an interrupted one, or with more --rounds a finished one.")
@option(
    "--trace",
    type=PATH,
    metavar="FILE",
    section=HOST,
    help="Write a profile of this computer's time, for ui.perfetto.dev or chrome://tracing; replaces FILE.",
)
@option("--dry-run", is_flag=True, help="Do not train: simulate only participation, time and energy, of populations of any size.")
@trust_option
@json_option
def command(
    config_file: Path | None, out: Path | None, resume: bool, trace: Path | None, dry_run: bool, as_json: bool, **flags: Any
) -> None:
    """Train a fleet of simulated devices under their budgets, and write model, bundle and report.

    \b
    edgefl simulate --profile phone
    edgefl simulate --profile phone --dataset fashion-mnist --rounds 3 --workers 2
    edgefl simulate --method fedavg --objective prox --codec int8
    edgefl simulate --model net.py:make --weights net.safetensors
    edgefl simulate --config run.toml --seed 1 --out runs/second
    edgefl simulate --out runs/second --resume
    edgefl simulate --out runs/second --resume --rounds 60
    edgefl simulate --workers 2 --trace trace.json
    edgefl simulate --dry-run --clients 1000000 --partition index:60
    """
    keys = run_keys(flags)
    if resume and dry_run:
        raise click.UsageError("--resume does not combine with --dry-run: a dry run starts anew, in another --out")
    if resume and out is None:
        raise click.UsageError("--resume needs --out: the folder of the run to continue")
    if trace is not None and dry_run:
        raise click.UsageError("--trace shows the time of training, and no client trains with --dry-run")
    started = resume and out is not None and (out / "config.toml").exists()
    if not started:
        config = RunConfig.load(config_file, keys)
        check_run(config)
        if resume and out is not None:
            note_new(out, "run")
    if trace is not None:
        from edgefl.timing.stages import check_trace

        check_trace(trace)
    # Torch takes seconds to import: what can be refused without it has been by now.
    from edgefl.client.isolation.limits import keep_freed_memory
    from edgefl.engine.contract import prepare_workers
    from edgefl.timing.spans import span

    if not dry_run and not started:
        prepare_workers(config.engine, config.workers, config.enforce, config.free_jobs)

    keep_freed_memory()
    with span("start"), loading():
        from edgefl.run.folder import resumed_config
        from edgefl.run.simulate import simulate

    if started and out is not None:
        config = resumed_config(out, keys_of(config_file, keys))
    from edgefl.cli.progress import Progress

    with Progress(config.rounds, quiet=as_json or dry_run) as progress:
        if dry_run:
            from edgefl.run.dry_run import dry_run as simulate_dry

            result = simulate_dry(config, out, notify=progress.say)
        else:
            result = simulate(config, out, resume=resume, on_round=progress.show, notify=progress.say, trace=trace)
    from edgefl.report.run_files import DrySummary

    if as_json:
        echo(json.dumps(result.summary, indent=2))
    elif isinstance(summary := result.record, DrySummary):
        _print_dry(summary, result.folder)
    else:
        _print_result(summary, result.folder)


def _print_dry(summary: "DrySummary", folder: Path) -> None:
    from edgefl.report.fleet_charts import participation_table
    from edgefl.util.units import human_count, human_percent, human_seconds

    show(participation_table(summary.participation))
    useful_s, wasted_s = summary.useful.device_s, summary.wasted.device_s
    share = useful_s / max(useful_s + wasted_s, 1e-12)
    distinct = sum(row.distinct for row in summary.participation)
    part = f"{human_count(distinct)} of {human_count(summary.clients)} clients took part"
    simulated = f"{human_seconds(summary.simulated_s)} simulated, {human_seconds(summary.host_s)} on this computer"
    show_text(f"{part}; {human_percent(share)} of the devices' time was useful; {simulated}")
    show_text(f"folder: {folder}  (report.html, summary.json, rounds.jsonl)")


def _print_result(summary: "RunSummary", folder: Path) -> None:
    from edgefl.report.answer import diverged, without_tier
    from edgefl.report.metric import metric_text
    from edgefl.report.run_tables import compact_tiers
    from edgefl.report.section import sections_of
    from edgefl.report.words import contents, energy_trust
    from edgefl.util.units import human_seconds

    show_result(compact_tiers(summary))
    for advice in filter(None, (diverged(summary), without_tier(summary))):
        show_text(advice)
    simulated_s, host_s = map(human_seconds, (summary.simulated_s, summary.host_s))
    whose, metric = "mean over clients" if summary.of_clients else "global model", summary.metric
    prefix = "" if metric.share else f"{metric.name} "
    after = f"{prefix}{metric_text(metric, summary.global_accuracy)} after {summary.rounds} round{'s' * (summary.rounds != 1)}"
    if (trained := summary.accuracy_after_training) is not None:
        after += f", {metric_text(metric, trained)} after local training"
    for section in sections_of(summary, ()):
        for line in section.remarks:
            show_text(line)
    show_text(f"{whose}: {after}; {simulated_s} simulated, {host_s} on this computer; energy: {energy_trust(summary.energy_j)}")
    if summary.no_bundle:
        show_text(f"no bundle: {summary.no_bundle}")
    show_text(f"run folder: {folder}  ({contents(summary.no_bundle)})")
