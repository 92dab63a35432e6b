"""Set the simulated clock beside training steps that others measured on boards.

Every row of tools/clock/raspberry-pi-steps.csv is predicted with the shipped profile of its board. The report has predicted ÷ measured
per network, the median, 90th percentile and worst error, the pairs of networks in the wrong order, and the ratio of the boards. Exits
with status 1 when the held-out rows miss a bar, or when a shipped profile is not what the rows marked ``fit`` give.

Usage: python tools/validate_clock.py [--fit | --check | --write | --trace] [--steps FILE]

``--fit`` prints the tables of the boards' profiles; ``--check`` compares profiles and the page of docs/ with what is computed now;
``--write`` writes that page's table; ``--trace`` counts the networks' work again, which needs timm. ``--steps`` predicts the rows of
another file of the same columns, whose devices are names or paths of profiles.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from clock.boards import BOARDS, PI_4, PI_5, differences, left_out, steps_of, table_of
from clock.errors import APART, Prediction, Spread, between, inversions, order_of, page_table
from clock.networks import OVER_8_GB, write
from clock.rows import MEASURED, Row, read
from counters.markdown import publish, table

from edgefl.errors import EdgeflError
from edgefl.fleet.load import load_device


@dataclass(frozen=True)
class Bar:
    """The largest error of a board's held-out steps that is accepted: median and 90th percentile."""

    median: float
    nine_in_ten: float


BARS = {PI_4.name: Bar(0.08, 0.25), PI_5.name: Bar(0.15, 0.35)}
BOARDS_RATIO_BAR = 0.10
PAIRS_BAR = 0.95


def predicted(rows: Sequence[Row]) -> list[Prediction]:
    """Predict training steps, and steps that train the classifier only, with the profile of each row's device."""
    found = []
    for name in dict.fromkeys(row.device for row in rows):
        compute = load_device(name).compute
        rate = compute.training_gmacs_per_s.value * 1e9
        for row, work, seconds in steps_of(name, rows):
            one_rate_s = work.macs / rate
            costs = compute.training_step
            predicted_s = one_rate_s if costs is None else work.seconds(costs.seconds)
            found.append(Prediction(row, seconds == row.forward_s, seconds, predicted_s, one_rate_s))
    return found


def spreads(predictions: Sequence[Prediction]) -> list[tuple[str, Spread, tuple[float, float]]]:
    """Return the error of every device and split, of training steps, of forward passes, and of steps at one rate of MACs.

    Beside each error are τ and ρ of the order.
    """
    found = []
    for device in dict.fromkeys(p.row.device for p in predictions):
        for split in ("held-out", "fit"):
            own = [p for p in predictions if (p.row.device, p.row.split) == (device, split)]
            steps = [p for p in own if not p.forward]
            for what, rows, predicted_s in (
                ("training step", steps, [p.predicted_s for p in steps]),
                ("classifier only", forward := [p for p in own if p.forward], [p.predicted_s for p in forward]),
                ("training step at one rate of MACs", steps, [p.one_rate_s for p in steps]),
            ):
                measured_s = [p.measured_s for p in rows]
                if rows:
                    spread = Spread.of([of / measured for of, measured in zip(predicted_s, measured_s, strict=True)])
                    found.append((f"{device}, {split}: {what}", spread, order_of(measured_s, predicted_s)))
    return found


def summary(predictions: Sequence[Prediction]) -> str:
    """Return the errors as a table, with τ and ρ of the order."""
    rows = [
        [name, str(spread.rows), *str(spread).split(" | "), *map("{:.3f}".format, order)]
        for name, spread, order in spreads(predictions)
    ]
    return table(["", "rows", "median error", "90th percentile", "worst", "Kendall's τ", "Spearman's ρ"], rows)


def missed(predictions: Sequence[Prediction]) -> list[str]:
    """Return a line for every bar that held-out training steps miss."""
    held = [p for p in predictions if p.row.split == "held-out" and not p.forward]
    found = []
    for device, bar in BARS.items():
        spread = Spread.of([p.ratio for p in held if p.row.device == device])
        for what, error, limit in (
            ("median", spread.median, bar.median),
            ("90th percentile", spread.nine_in_ten, bar.nine_in_ten),
        ):
            if error > limit:
                found.append(f"{device}: {what} error {error:.1%}, expected at most {limit:.0%}")
    off = boards_ratio(held)[2]
    if off > BOARDS_RATIO_BAR:
        found.append(f"ratio of the boards: off by {off:.1%} at the median, expected at most {BOARDS_RATIO_BAR:.0%}")
    wrong, pairs = inversions(held)
    if len(wrong) > (1 - PAIRS_BAR) * pairs:
        found.append(f"{len(wrong)} of {pairs} pairs of networks in the wrong order, expected at most {1 - PAIRS_BAR:.0%}")
    return found


def boards_ratio(predictions: Sequence[Prediction]) -> tuple[float, float, float]:
    """Return the median ratio of the boards' steps, measured and predicted, and the median error of this ratio."""
    ratios = list(between(predictions, PI_4.name, PI_5.name).values())
    measured_ratio, predicted_ratio = (median(ratio[of] for ratio in ratios) for of in (0, 1))
    return measured_ratio, predicted_ratio, median(abs(b / a - 1) for a, b in ratios)


def order(predictions: Sequence[Prediction]) -> str:
    """Return what of the order of networks and of boards is predicted."""
    wrong, pairs = inversions(predictions)
    text = (
        f"{pairs - len(wrong)} of {pairs} pairs of networks whose steps differ by more than {APART}× are predicted in their order"
    )
    text += "".join(f"; not {one} and {other}" for one, other in wrong) + "."
    ratios = between(predictions, PI_4.name, PI_5.name)
    if not ratios:
        return text
    measured_ratio, predicted_ratio, off = boards_ratio(predictions)
    inverted = sum((a > 1) != (b > 1) for a, b in ratios.values())
    return (
        f"{text} The Raspberry Pi 5 is {measured_ratio:.2f} times as fast as the Raspberry Pi 4, predicted {predicted_ratio:.2f} (medians "
        f"of {len(ratios)} networks). The median error of this ratio is {off:.1%}; {inverted} networks are predicted to be faster on the "
        "wrong board."
    ).replace("%", " %")


def page(predictions: Sequence[Prediction], rows: Sequence[Row]) -> str:
    """Return what the page of docs/ says of the held-out rows."""
    held = [p for p in predictions if p.row.split == "held-out" and not p.forward]
    families = [
        [f"{device}, each family of `fit` left out once", str(len(ratios)), *str(Spread.of(ratios)).split(" | "), "", ""]
        for device, ratios in left_out(rows).items()
    ]
    lines = "\n".join(f"| {' | '.join(line)} |" for line in families)
    parts = (f"{summary(predictions)}\n{lines}", order(held), page_table(held, [board.name for board in BOARDS]))
    return "\n\n".join(parts)


def listing(predictions: Sequence[Prediction]) -> str:
    """Return a line for each prediction."""
    lines = [["network", "device", "split", "measured", "predicted", "predicted ÷ measured"]]
    for p in predictions:
        what = " (classifier only)" if p.forward else ""
        lines.append(
            [p.row.network + what, p.row.device, p.row.split, f"{p.measured_s:.2f} s", f"{p.predicted_s:.2f} s", f"{p.ratio:.2f}"]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Predicted seconds of training steps beside measured ones.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--fit", action="store_true", help="print the tables that the rows marked fit give")
    action.add_argument("--check", action="store_true", help="fail if a profile or the page has other figures")
    action.add_argument("--write", action="store_true", help="replace the table in the page")
    action.add_argument("--trace", action="store_true", help="count the networks' work again (needs timm)")
    action.add_argument("--steps", type=Path, help="predict the rows of this file instead")
    parser.add_argument("--page", type=Path, help="the file with the markers [the page of this checkout that has them]")
    return parser.parse_args()


def main() -> None:
    """Print the report, the fitted tables or the prediction of other rows."""
    chosen = options()
    rows = read(chosen.steps or MEASURED)
    if chosen.trace:
        write([*dict.fromkeys(row.network for row in rows), *OVER_8_GB])
        return
    if chosen.fit:
        print("\n\n".join(f"# {board.name}\n{table_of(board, rows)}" for board in BOARDS))
        return
    try:
        predictions = predicted(rows)
    except EdgeflError as error:
        sys.exit(str(error))
    if chosen.steps:
        print(f"{listing(predictions)}\n\n{summary(predictions)}\n\n{order([p for p in predictions if not p.forward])}")
        return
    if chosen.check or chosen.write:
        publish("clock", page(predictions, rows), chosen)
    else:
        print(f"{listing(predictions)}\n\n{page(predictions, rows)}")
    failures = missed(predictions)
    failures += [f"{b.name}: {key} is not what --fit gives" for b in BOARDS for key in differences(b, rows)]
    sys.exit("\n".join(failures) or 0)


if __name__ == "__main__":
    main()
