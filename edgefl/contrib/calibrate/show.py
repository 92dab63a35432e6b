"""The predictions of a profile beside this machine, for ``edgefl devices --validate``."""

import json
from dataclasses import asdict

from edgefl.cli.console import echo, loading, note, show
from edgefl.fleet.load import load_device
from edgefl.registry import view
from edgefl.report.tables import Column, PlainTable, under
from edgefl.util.units import human_count, human_difference, human_seconds


@view("validation")
def validate_profile(profile: str, threads: int | None, as_json: bool) -> None:
    """Print the training times that a profile predicts beside this machine's."""
    device = None if profile == "host" else load_device(profile)
    with loading():
        from edgefl.contrib.calibrate.calibrate import measure
        from edgefl.contrib.calibrate.device import MachineRates
        from edgefl.contrib.calibrate.validate import APART, BAR, validate

    compute = device.compute if device else MachineRates.of(measure(threads=threads, notify=note))
    result = validate(compute, threads, notify=note)
    if as_json:
        echo(json.dumps({"profile": profile} | result.to_json(), indent=2))
        return
    show(f"A training step on this machine: predicted from {profile}, and measured\n")
    columns = (
        Column("model", "", lambda row: row["model"] + " (calibrated on)" * row["calibrated_on"], numeric=False),
        Column("tier", "", lambda row: row["tier"], numeric=False),
        *under("batch", str, batch_size=""),
        *under("MACs", human_count, macs=""),
        *under("predicted", human_seconds, predicted_s=""),
        *under("measured", human_seconds, measured_s=""),
        Column("range", "", lambda row: f"{human_seconds(row['low_s'])} to {human_seconds(row['high_s'])}"),
        *under("repeats", str, repeats=""),
        Column("error", "", lambda row: human_difference(row["predicted_s"], row["measured_s"])),
        Column("by one rate", "", lambda row: human_difference(row["predicted_by_rate_s"], row["measured_s"])),
    )
    show(PlainTable.of(columns, map(asdict, result.rows)))
    near, ordered = ("not met" if missed else "met" for missed in (result.median_error > BAR, result.inversions))
    show(
        f"\nmedian error {result.median_error:.1%}, at most {BAR:.0%} wanted: {near}; 90th percentile {result.largest_errors:.1%}"
    )
    wrong = f"in the wrong order: {len(result.inversions)}, none wanted: {ordered}"
    show(f"tiers predicted {APART:g} times as fast as others: {len(result.pairs)}; {wrong}")
    for inversion in result.inversions:
        show(f"  {inversion}")
    show(
        f"without the models that calibration uses {result.median_error_elsewhere:.1%}; by one rate {result.median_error_by_rate:.1%}"
    )
    show(f"other programs took {result.busy:.0%} of this machine meanwhile")
