"""The command ``fed-round``: Aggregate the updates of real devices into the next model and bundle."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from edgefl.cli.console import busy, echo, loading, note, print_json, show
from edgefl.cli.flags import given, run_flags
from edgefl.cli.options import Command, json_option, option, sign_options, signing, trust_option
from edgefl.cli.param_types import PATH, Within
from edgefl.cli.values import runs
from edgefl.config import SCREENING


@click.command("fed-round", cls=Command)
@click.argument("bundle", type=PATH, shell_complete=runs)
@option("--updates", required=True, type=PATH, metavar="DIR", help="Folder with the update files of devices.")
@option("--run", type=PATH, metavar="RUN", help="Folder of the run that BUNDLE was exported from. [BUNDLE-run, or its parent]")
@option("--out", type=PATH, metavar="NEXT", help="Folder to write. [runs/NNNN-method-round-R]")
@option("--skip-bad", is_flag=True, help="Skip invalid updates, with a line each, instead of refusing all.")
@option(
    "--keys", type=PATH, metavar="FILE", help="Accept updates of the devices in FILE only; see 'edgefl enroll'. [of every sender]"
)
@sign_options
@option(
    *("--max-drop", "max_drop"),
    type=Within(float, 0),
    metavar="X",
    help="Refuse a model whose accuracy is lower than the best so far by more than X. [0.03: 3 points]",
)
@option("--keep-anyway", is_flag=True, help="Write a model that gets worse by more than --max-drop.")
@run_flags(*SCREENING)
@trust_option
@json_option
def command(
    bundle: Path,
    updates: Path,
    run: Path | None,
    out: Path | None,
    skip_bad: bool,
    keys: Path | None,
    sign: Path | None,
    unsigned: bool,
    lasts_s: float | None,
    max_drop: float | None,
    keep_anyway: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Aggregate the updates that devices trained from BUNDLE; write the next global model and its bundle.

    \b
    edgefl fed-round runs/0001-fedhm-digits/bundle --updates inbox --out next
    edgefl fed-round next/bundle --updates inbox-2 --out after-next

    Every update is checked first: names, shapes, finite values, bundle, round and signature. NEXT is then the RUN of the following round.
    Its bundle is signed with your own key.
    Updates are screened as the run's config.toml says; flags under "Trust in updates" win, in this round. Without a defence in both,
    norm-filter drops updates with far too large changes; --defence none averages them as they are.
    """
    from edgefl.report.metric import metric_text
    from edgefl.report.outliers import remarks, update_table
    from edgefl.report.tables import PlainTable, under
    from edgefl.report.words import tier_label

    with loading():
        from edgefl.run.device_round import fed_round
        from edgefl.run.guarded import MAX_DROP
    most = MAX_DROP if max_drop is None else max_drop
    screened: dict[str, Any] = {"screening": given(flags), "max_drop": most, "keep_anyway": keep_anyway}
    keyed: dict[str, Any] = {"keys": keys, "sign": signing(sign, unsigned), "lasts_s": lasts_s}
    with busy("checking and aggregating the updates"):
        result = fed_round(bundle, updates, out, run=run, skip_bad=skip_bad, notify=note, **keyed, **screened)
    if as_json:
        print_json(asdict(result))
        return
    metric, shown = result.metric, partial(metric_text, result.metric)
    columns = (
        *under("tier", tier_label, tier=""),
        *under("updates", "{:,}".format, updates=""),
        *under("samples", "{:,}".format, samples=""),
        *under(metric.name, shown, before="before", after="after"),
    )
    show(update_table(result.updates))
    show(PlainTable.of(columns, result.tiers))
    before, after = map(shown, result.accuracy)
    prefix = "" if metric.share else f"{metric.name} "
    count = sum(row.updates for row in result.tiers)
    for row in result.updates:
        if row.dropped:
            echo(f"left out by the defence: {row.file} ({', '.join(remarks(row))})")
    left_out = f", {len(result.refused)} left out" if result.refused else ""
    counted = f"{count} {'update' if count == 1 else 'updates'}{left_out}"
    scores = f"{prefix}{before} before, {after} after" if None not in result.accuracy else "not evaluated in"
    echo(f"global model: {scores} round {result.round}, of {counted}")
    echo(f"folder: {result.folder}  (model.safetensors, bundle/)")
