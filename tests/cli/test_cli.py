"""The command line's edges: exit statuses, and failures that no command foresees."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from edgefl.cli.console import show
from edgefl.cli.main import group, main
from edgefl.cli.methods import AXES, facts_of
from edgefl.config import RunConfig
from edgefl.errors import AggregationError, BudgetError, ConfigError, Interrupted
from edgefl.registry import methods


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ConfigError("a wrong key"), 2, "Error: a wrong key"),
        (BudgetError("too small"), 3, "Error: too small"),
        (AggregationError("nothing"), 1, "Error: nothing"),
        (click.UsageError("wrong flag"), 2, "Error: wrong flag"),
        (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), 2, "Error: /tmp/x: No space left on device"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "aaa"), 2, "Error: aaa: File name too long"),
        (OSError(errno.EIO, "Input/output error"), 1, "Error: standard output, or a temporary file: Input/output error"),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (Interrupted("edgefl simulate --out x --resume"), 130, "Continue with: edgefl simulate --out x --resume"),
    ],
)
def test_every_failure_is_one_message_and_its_status(error, status, message, monkeypatch, capsys):
    def fail(**_):
        raise error

    monkeypatch.setattr(group, "main", fail)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == status
    assert message in capsys.readouterr().err


def test_a_file_that_ends_too_early_is_not_taken_for_an_interruption(monkeypatch, capsys):
    def cut(*_):
        raise EOFError("marshal data too short")

    monkeypatch.setattr(type(group), "get_command", cut)
    monkeypatch.setattr("sys.argv", ["edgefl", "devices"])
    with pytest.raises(EOFError, match="marshal data"):
        main()
    assert "Interrupted" not in capsys.readouterr().err


@pytest.mark.parametrize("name", group.list_commands(None))
def test_help_shows_each_example_on_a_line_of_its_own(name):
    text = CliRunner().invoke(group, [name, "--help"], terminal_width=200, max_content_width=200).output
    assert "\\b" not in text
    assert not any(line.count("edgefl ") > 1 and line.strip().startswith("edgefl ") for line in text.splitlines())


@pytest.mark.parametrize("arguments", [[], *([name] for name in group.list_commands(None))], ids=str)
def test_help_fits_a_terminal_of_80_columns(arguments):
    text = CliRunner().invoke(group, [*arguments, "--help"], terminal_width=80, max_content_width=80).output
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_short_help_has_a_line_for_each_option_and_its_headings(width):
    def headings(form):
        text = CliRunner().invoke(group, ["simulate", form], terminal_width=width, max_content_width=width).output
        return text, [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]

    (short, of_short), (_, of_full) = headings("-h"), headings("--help")
    assert of_short == of_full
    options = short.partition(of_short[0])[2].partition("\nThe values and the default")[0].splitlines()
    listed = [line for line in options if line and line not in of_short]
    assert all(line.startswith(("  --", "  -h, --help ")) for line in listed)
    command = group.get_command(None, "simulate")
    assert len(listed) == len(command.params) + 1
    assert max(map(len, short.splitlines())) <= max(width, 80)
    assert "  --data " in short
    assert "[digits]" not in short


def test_a_short_help_is_the_whole_one_where_there_is_one_section():
    short, full = (CliRunner().invoke(group, ["verify", form]).output for form in ("-h", "--help"))
    assert short == full


@pytest.mark.parametrize(
    "name", ["simulate --model", "profile mlp --out", "profile mlp --device", "calibrate --link", "serve x --host"]
)
def test_an_empty_value_is_a_usage_error(name):
    result = CliRunner().invoke(group, [*name.split(), ""])
    assert result.exit_code == 2
    assert f"Invalid value for '{name.split()[-1]}': expected a value, got ''" in result.output


def test_an_empty_key_of_a_run_is_refused():
    with pytest.raises(ConfigError, match="model must be text of 1 or more characters, got ''"):
        RunConfig(model="")


def test_a_reader_that_leaves_is_no_failure(monkeypatch):
    def leave(*_, **__):
        raise SystemExit(1)  # what rich does when the pipe is broken

    monkeypatch.setattr("rich.console.Console.print", leave)
    with pytest.raises(BrokenPipeError):
        show("a table")


def invoked(*arguments: str) -> Any:
    return CliRunner().invoke(group, list(arguments), terminal_width=200, max_content_width=200)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """The configurations that ``simulate`` was called with, instead of runs."""
    seen: list[RunConfig] = []

    def simulate(config: RunConfig, *_: Any, **__: Any) -> None:
        seen.append(config)
        raise ConfigError("seen")

    monkeypatch.setattr("edgefl.run.simulate.simulate", simulate)
    monkeypatch.setattr("edgefl.cli.names.check_given", lambda args: None)  # names such as "x"
    monkeypatch.setattr("edgefl.cli.simulate.check_run", lambda config: None)
    return seen


VALUES: dict[str, tuple[str, Any]] = {
    "permute_labels": ("", True),
    "eval_after_training": ("", True),
    "tiers": ("1,0.5", (1.0, 0.5)),
    "tier_shares": ("0.25,0.75", (0.25, 0.75)),
    "tier_assignment": ("uniform", "uniform"),
    "data_share": ("0.5", 0.5),
    "preprocessing": ("none", "none"),
    "validation_share": ("0.1", 0.1),
    "momentum": ("0.5", 0.5),
    "weight_decay": ("0", 0.0),
    "server_lr": ("0.1", 0.1),
    "objective_strength": ("0.3", 0.3),
    "lr": ("0.2", 0.2),
    "objective": ("prox", "prox"),
    "server_optimizer": ("yogi", "yogi"),
    "lr_schedule": ("cosine", "cosine"),
    "server_lr_schedule": ("step", "step"),
    "metric": ("macro-f1", "macro-f1"),
    "augment": ("flip", "flip"),
    "clip_gradient": ("1.5", 1.5),
    "optimizer": ("sgd", "sgd"),
    "codec": ("fp16", "fp16"),
    "adversary": ("sybil:0.2", "sybil:0.2"),
    "sample_cap": ("90", 90),
    "clip_norm": ("adaptive", "adaptive"),
    "clip_start": ("0.5", 0.5),
    "clip_quantile": ("0.8", 0.8),
    "clip_rate": ("0.1", 0.1),
    "defence": ("none", "none"),  # the others refuse mode async
    "defence_strength": ("0.3", 0.3),
    "outliers": ("", True),
    "runtime": ("onnx", "onnx"),
    "engine": ("pool", "pool"),
    "device": ("cuda", "cuda"),
    "conditions": ("ideal", "ideal"),
    "deadline_s": ("2.5", 2.5),
    "availability": ("daily", "daily"),
    "eligible_when": ("idle,charging", ("idle", "charging")),
    "start_hour": ("7.5", 7.5),
    "dynamic_devices": ("", True),
    "new_classifier": ("", True),
    "ray_auth": ("", True),
    "bundle": ("", True),
    "mixed_nodes": ("", True),
    "mode": ("async", "async"),
    "over_selection": ("1", 1.0),  # async has no other
    "secure_aggregation": ("off", "off"),
    "staleness_power": ("0.25", 0.25),
    "enforce": ("hard", "hard"),
    "on_shortfall": ("tier,send", ("tier", "send")),
    "cpu_limit_s": ("60", 60.0),
    "features": ("a,b", ("a", "b")),
    "log": ("wandb", ("wandb",)),
}
TEXTS = {
    "profile",
    "method",
    "model",
    "weights",
    "norm",
    "dataset",
    "data_dir",
    "partition",
    "label",
    "owner",
    "held_out",
    "loss",
    "ray_address",
}
PRIVACY = ("privacy", "noise_multiplier", "target_epsilon", "delta", "privacy_clip")
"""Keys that contradict others: a test of their own sets them."""


def test_every_key_of_a_run_has_a_flag_that_sets_it(asked: list[RunConfig]) -> None:
    given = {
        key: VALUES.get(key, ("x", "x") if key in TEXTS else ("3", 3))
        for key in RunConfig.model_fields
        if key not in ("method_options", "sampler", "sources", "stages", "plugins", "tier", *PRIVACY)
    }
    flags = [f"--{key.replace('_', '-')}" + (f"={text}" if text else "") for key, (text, _) in given.items()]
    invoked("simulate", *flags, "--method-option", "a=1")
    (config,) = asked
    files = dict.fromkeys(("weights", "data_dir"), str(Path("x").resolve()))  # the same files from any folder
    assert config.model_dump() == {
        **{key: value for key, (_, value) in given.items()}, **files, "method_options": {"a": 1}, "sources": None,
        "plugins": None, "sampler": "uniform", "stages": (), "tier": None, **{key: RunConfig.model_fields[key].default for key in PRIVACY},
    }  # fmt: skip


def test_every_tier_may_be_given_its_network(asked: list[RunConfig]) -> None:
    invoked("simulate", "--tier", "0.250=net.py:small", "--tier=1=resnet18")
    (config,) = asked
    assert config.tier == {"1": "resnet18", "0.25": f"{Path('net.py').resolve()}:small"}
    assert config.named_tiers == (1.0, 0.25)


@pytest.mark.parametrize("noise", ["noise_multiplier", "target_epsilon"])
def test_the_keys_of_privacy_have_flags_that_set_them(noise: str, asked: list[RunConfig]) -> None:
    texts = {"privacy": "local", noise: "2.5", "delta": "0.0001", "privacy_clip": "0.5"}
    invoked("simulate", *(f"--{key.replace('_', '-')}={text}" for key, text in texts.items()))
    (config,) = asked
    given = {key: value for key in PRIVACY if (value := getattr(config, key)) is not None}
    assert given == {key: text if key == "privacy" else float(text) for key, text in texts.items()}


@pytest.mark.parametrize("key", sorted(RunConfig.model_fields.keys() - {"sampler", "sources", "stages"}))  # which have no flag
def test_help_shows_the_default_of_every_key(key: str) -> None:
    default = RunConfig.model_fields[key].default
    command = group.get_command(None, "simulate")  # type: ignore[arg-type]
    (option,) = [p for p in command.params if p.name == key]  # type: ignore[union-attr]
    shown = str(option.help).rpartition("[")[2]  # type: ignore[attr-defined]
    if default is not None and key != "method_options":
        listed = ",".join(default) if isinstance(default, tuple) else default
        plain = {
            "permute_labels": "no",
            "new_classifier": "no",
            "dynamic_devices": "static",
            "ray_auth": "yes",
            "bundle": "yes",
            "mixed_nodes": "no",
            "outliers": "no",
            "workers": "1; on a cluster: 0",
        }.get(key, listed)
        assert shown == f"{plain:g}]" if isinstance(default, float) else shown == f"{plain}]"


def test_help_groups_the_flags_in_the_order_of_a_run() -> None:
    text = invoked("simulate", "--help").output
    headings = [line.rstrip(":") for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Method, model and data set", "Clients and their data", "Rounds and evaluation", "Tiers", "Training on a client",
        "Server and codec", "Trust in updates", "Secure aggregation", "Differential privacy",
        "Fleet and conditions", "Simulated attacks", "This computer", "This command",
    ]  # fmt: skip
    assert "a+b" in text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=0.5", 0.5), ("k=true", True), ("k=word", "word"), ('k="two words"', "two words"), ("k=[1, 2]", [1, 2]), ("k = 3", 3),
        ("k={a.b = 1}", {"a": {"b": 1}}), ("k=inf", float("inf")),
    ],
)  # fmt: skip
def test_an_option_of_a_method_is_a_toml_value_or_a_word(text: str, value: object, asked: list[RunConfig]) -> None:
    invoked("simulate", "--method-option", text)
    assert asked[0].method_options == {"k": value}


@pytest.mark.parametrize("text", ["k", "=1", "k=", "k=two words", "k=[1", "k=1\nother = 2"])
def test_anything_else_is_a_usage_error(text: str) -> None:
    result = invoked("simulate", "--method-option", text)
    assert result.exit_code == 2
    assert "is not of the form KEY=VALUE" in result.output or "is not a TOML value" in result.output


def test_options_of_a_method_go_over_those_of_the_file(asked: list[RunConfig], tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("permute_labels = true\n[method_options]\na = 1\nb = 2\n")
    invoked(
        "simulate",
        "--config",
        str(tmp_path / "run.toml"),
        "--method-option",
        "b=3",
        "--method-option",
        "c=4",
        "--no-permute-labels",
    )
    assert asked[0].method_options == {"a": 1, "b": 3, "c": 4}
    assert asked[0].permute_labels is False


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objective", "proxy"], "objective: unknown objective 'proxy'; did you mean 'prox'? Known: dyn, none, prox, scaffold"),
        (["--server-optimizer", "sgd"], "server_optimizer: unknown server optimizer 'sgd'; known: adam, avg, avgm, yogi"),
        (["--data-share", "1.5"], "data_share must be at most 1, got 1.5"),
        (["--tier-shares", "0.5,0.5"], "tier_shares: with tier_assignment auto the devices decide"),
        (["--tier-shares", "a"], "'a' is not a list of numbers such as 0.5,0.3,0.2"),
        (["--objective", "scaffold"], "give optimizer sgd and weight_decay 0"),
        (["--momentum", "1"], "momentum must be below 1"),
        (["--lr-schedule", "linear"], "lr_schedule: got 'linear', expected constant, cosine, step, exponential(fall=0.001)"),
    ],
)
def test_wrong_values_are_said_in_the_words_of_the_configuration(flags: list[str], message: str) -> None:
    result = invoked("simulate", *flags)
    assert message in f"{result.output}{result.exception}"


def test_methods_lists_every_method_with_what_travels_and_what_combines() -> None:
    rows = json.loads(invoked("methods", "--json").output)
    assert [row["name"] for row in rows] == methods.names()
    for row in rows:
        assert all(row[key] for key in ("title", "paper", "travels", "tier_meaning", "default_tiers"))
        assert row["combines"].keys() == AXES.keys()
        assert not {value for values in row["combines"].values() for value in values} & row["refuses"].keys()
        assert all(option["about"] for option in row["options"]), f"an option of {row['name']} is not in its class's Attributes"
    plain = invoked("methods").output.splitlines()
    assert [line.partition(":")[0] for line in plain] == methods.names()
    fedhm = plain[methods.names().index("fedhm")]
    assert "travels: two factors of each factorized layer" in fedhm
    assert fedhm.endswith("not with: dyn, scaffold, secagg, secagg+")


def test_a_method_is_shown_with_its_options_and_the_reasons_of_what_it_refuses() -> None:
    text = " ".join(invoked("methods", "fedhm").output.split())
    assert "not with dyn a client's factors are a fresh decomposition every round" in text
    assert "frobenius_decay float 0.0001 λ of λ/2·‖UVᵀ‖²_F" in text
    assert "``" not in text
    facts = facts_of("fedhm")
    assert json.loads(invoked("methods", "fedhm", "--json").output) == json.loads(json.dumps(facts.to_dict()))
    assert facts.combines["objective"] == ["prox"]
    assert "one tier only" in invoked("methods", "fedavg").output
    assert "did you mean 'fedhm'" in str(invoked("methods", "fedhn").exception)


@pytest.mark.parametrize("columns", [80, 140])
def test_the_table_of_methods_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from pages import printed

    from edgefl.cli.methods import methods_table

    table = methods_table([facts_of("fedhm"), facts_of("fedavg")], columns)
    text = printed(table, columns)
    assert max(map(len, text.splitlines())) <= columns
    assert "…" not in text
    assert ("Yao et al." in text) == (columns == 140)


@pytest.mark.parametrize("value", [None, object(), [1.0, None], {"a": None}])
def test_an_option_of_a_method_is_a_value_that_a_file_can_have(value: object) -> None:
    with pytest.raises(
        ConfigError, match=r"^method_options: k: expected a number, text, .*, got .*; leave it out for its default$"
    ):
        RunConfig(method_options={"k": value})
    assert "k = inf" in RunConfig(method_options={"k": float("inf")}).to_toml()


def test_files_of_a_configuration_are_the_same_in_every_folder() -> None:
    config = RunConfig(profile="my/fleet.toml", availability="trace.csv", data_dir="images")
    assert (config.profile, config.availability, config.data_dir) == tuple(
        str(Path.cwd() / name) for name in ("my/fleet.toml", "trace.csv", "images")
    )
    assert RunConfig(profile=Path("phone.toml")).profile == str(Path.cwd() / "phone.toml")
    assert (RunConfig(availability="daily").availability, RunConfig(profile="phone").profile) == ("daily", "phone")
