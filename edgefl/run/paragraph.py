"""The methods paragraph of a comparison for a paper: every setting that matters, and the command that makes the comparison again."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.config import FLAGS, HOST_KEYS, RunConfig
from edgefl.registry import methods as known_methods
from edgefl.report.comparison import ComparisonSummary, MethodResult
from edgefl.report.verdict_words import rule_text
from edgefl.report.words import joined
from edgefl.run.compare_entries import ComparisonRequest
from edgefl.run.folder import RunFolder
from edgefl.util.networks import title_of

ASKED = "comparison.toml"
_OF_METHOD = {"method", "method_options", "seed", "sources", "plugins"}
_SAID = {
    *(
        "dataset",
        "model",
        "loss",
        "metric",
        "clients",
        "partition",
        "data_share",
        "rounds",
        "per_round",
        "tiers",
        "profile",
        "mode",
    ),
    *("local_epochs", "batch_size", "optimizer", "lr", "lr_schedule", "momentum", "weight_decay", "codec", "server_optimizer"),
    *("eval_every", "eval_samples", "conditions"),
}
"""Keys that the sentences say; every other key is listed if its value is not the default."""


def paragraph(folder: Path, found: ComparisonSummary) -> str:
    """Return a paragraph on how the comparison in ``folder`` was made, and below it the command that makes it again.

    The settings are those that the runs recorded. Settings that are not named have edgefl's defaults.

    Raises:
        InputError: a run of the comparison is missing, or names code that the user has not consented to.
    """
    rows = [row for row in found.methods if row.seeds]
    configs = {row.label: RunFolder(_home(folder, row)).config() for row in rows}
    same = _same(list(configs.values()))
    sentences = [
        f"We compared {joined(map(_cited, rows))} with edgefl {found.edgefl_version}.",
        *_of_task(configs, same),
        *_own(configs, same),
        f"Each method trained with {_seeds(found.seeds)}.",
        rule_text(found),
    ]
    return f"{' '.join(sentences)}\n\n{command(folder, found)}"


def command(folder: Path, found: ComparisonSummary) -> str:
    """Return the command that makes the comparison in ``folder`` again."""
    if folders := [of for row in found.methods for of in row.folders]:
        return f"edgefl compare {' '.join(map(shlex.quote, folders))} --out again"
    asked = ComparisonRequest.of_file(folder / ASKED)
    words = ["edgefl", "compare", "--methods", ",".join(asked.methods), "--seeds", ",".join(map(str, asked.seeds))]
    for key, value in _given(dict(asked.config), {*_OF_METHOD, *HOST_KEYS} - {"plugins", "bundle", "data_dir"}):
        words += _flag(key, value)
    for key, own in (("--method-option", asked.options), ("--set", asked.settings)):
        words += [
            word for name, of in own.items() for option, value in of.items() for word in (key, f"{name}.{option}={_text(value)}")
        ]
    for key, limit in vars(asked.budget).items():
        words += (
            [] if limit is None else [f"--budget-{key}", f"{limit:.17g}{'' if key == 's' else {'bytes': 'B', 'j': 'J'}[key]}"]
        )
    words += [] if asked.target_accuracy is None else ["--target-accuracy", f"{asked.target_accuracy:g}"]
    return shlex.join([*words, "--rank-by", asked.rank_by, "--out", "again"])


def _home(folder: Path, row: MethodResult) -> Path:
    return Path(row.folders[0]) if row.folders else folder / row.label / f"seed-{row.seeds[0]}"


def _same(configs: Sequence[RunConfig]) -> dict[str, Any]:
    """Return the keys that have one value in all runs, with the value."""
    first = configs[0]
    return {
        key: value for key, value in first if all(getattr(config, key) == value for config in configs) and key not in _OF_METHOD
    }


def _cited(row: MethodResult) -> str:
    paper = known_methods.load(row.method).paper
    title = row.title if row.label == row.method else f"{row.title} ({row.label})"
    return f"{title} ({paper})" if paper else title


def _of_task(configs: Mapping[str, RunConfig], same: Mapping[str, Any]) -> Iterator[str]:
    """Yield what all methods have in common."""

    def said(text: str, *keys: str) -> str:
        """Return a text with the values of the keys, "its own KEY" of those that differ between methods."""
        return text.format(*(_text(same[key]) if key in same else f"its own {key.replace('_', ' ')}" for key in keys))

    own = "".join(f", with {key} {title_of(same[key])}" for key in ("loss", "metric") if same.get(key))
    yield said(
        "Each method trained {} on {}" + own + ", divided among {} clients by {}", "model", "dataset", "clients", "partition"
    ) + (f", each with {100 * same['data_share']:g} % of its samples." if same.get("data_share", 1.0) != 1.0 else ".")
    yield said("In each of {} rounds, {} clients were selected (mode {}).", "rounds", "per_round", "mode")
    momentum = said(", momentum {}", "momentum") if same.get("optimizer") == "momentum" else ""
    yield said(
        "A client trained {} local epochs with {}, learning rate {} ({})", "local_epochs", "optimizer", "lr", "lr_schedule"
    ) + (momentum + said(", batches of {} and weight decay {}.", "batch_size", "weight_decay"))
    yield said("The tiers were {} on the devices of the fleet {}", "tiers", "profile") + said(" (conditions {}).", "conditions")
    yield said("Updates were encoded as {}, and the server's step was {}.", "codec", "server_optimizer")
    samples = "all" if same.get("eval_samples") in (None, 0) else _text(same["eval_samples"])
    yield f"Models were evaluated on {samples} held-out samples every {_text(same.get('eval_every'))} rounds."
    others = [f"{key.replace('_', ' ')} {_text(value)}" for key, value in _given(same, {*_OF_METHOD, *HOST_KEYS, *_SAID})]
    yield (
        f"Settings other than edgefl's defaults: {'; '.join(others)}." if others else "All other settings are edgefl's defaults."
    )


def _own(configs: Mapping[str, RunConfig], same: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each method has for itself."""
    for label, config in configs.items():
        found = [
            f"{key.replace('_', ' ')} {_text(value)}" for key, value in config if key not in {*same, *_OF_METHOD, *HOST_KEYS}
        ]
        found += [f"option {key} {_text(value)}" for key, value in config.method_options.items()]
        if found:
            yield f"{label} had {'; '.join(found)}."


def _seeds(seeds: Sequence[int]) -> str:
    return f"the seed{'s' * (len(seeds) > 1)} {joined(map(str, seeds))}"


def _given(values: Mapping[str, Any], hidden: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a run whose values are not the defaults, without the ``hidden`` ones."""
    for key, value in values.items():
        if key not in hidden and value != RunConfig.model_fields[key].default:
            yield key, value


def _flag(key: str, value: Any) -> list[str]:
    flag = f"--{key.replace('_', '-')}"
    if key == "plugins":
        return [word for source in value for word in ("--plugin", source)]
    if isinstance(value, bool):
        return [flag if value else FLAGS[key].switch or flag.replace("--", "--no-", 1)]
    return [flag, _text(value)]


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(_text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else "none" if value is None else str(value)
