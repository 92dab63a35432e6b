"""Learning-rate rules: those that have a name, several joined, and a function of the user's own."""

import numpy as np
import pytest
import safetensors.numpy

from edgefl import RunConfig, simulate
from edgefl.config import changed, lengthened
from edgefl.errors import ConfigError
from edgefl.run.prepare import prepare
from edgefl.run.resolved import shares_of, training_of

OWN = """
def half(round, rounds):
    return 0.5

def named(round, rounds):
    return round / rounds

def zero(round, rounds):
    return 1.0 if round < 3 else 0

def text(round, rounds):
    return "much"

def alone(round):
    return 1.0
"""
KEYS = {
    "model": "mlp", "method": "fedavg", "tiers": (1.0,), "profile": "lab", "clients": 3, "rounds": 2, "local_epochs": 1,
    "data_share": 0.2, "bundle": False,
}  # fmt: skip


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: f"{tmp_path / 'own.py'}:{name}"


@pytest.mark.parametrize(
    ("rule", "rates"),
    [
        ("constant", [1, 1, 1, 1]),
        ("step", [1, 1, 0.1, 0.1]),
        ("cosine", [1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4]),
        ("exponential", [1, 0.999, 0.999**2, 0.999**3]),
        ("exponential(fall=0.5)", [1, 0.5, 0.25, 0.125]),
        ("warmup(rounds=3)", [1 / 3, 2 / 3, 1, 1]),
        ("warmup(rounds=2)+step", [0.5, 1, 0.1, 0.1]),
        ("named", [0.25, 0.5, 0.75, 1]),
    ],
)
def test_a_rule_gives_each_round_its_rate(rule, rates, own):
    config = RunConfig(rounds=4, lr=1.0, lr_schedule=own(rule) if rule == "named" else rule)
    assert [training_of(config).at(t).lr for t in (1, 2, 3, 4)] == pytest.approx(rates)
    assert training_of(config).at(9).lr == pytest.approx(rates[-1])  # a round with devices after the run


def test_a_function_of_ones_own_trains_as_the_same_rate_does(own, tmp_path):
    """Workers get the rates, not the function."""
    runs = {"half": {"lr": 0.1, "lr_schedule": own("half")}, "plain": {"lr": 0.05}}
    runs["pool"] = runs["half"] | {"engine": "pool", "workers": 1}
    found = {}
    for name, keys in runs.items():
        folder = simulate(RunConfig(**KEYS | keys), tmp_path / name).folder
        found[name] = safetensors.numpy.load((folder / "model.safetensors").read_bytes())
    assert all(np.array_equal(found["half"][key], found["plain"][key]) for key in found["plain"])
    assert all(np.array_equal(found["half"][key], found["pool"][key]) for key in found["plain"])
    recorded = RunConfig.load(tmp_path / "half" / "config.toml", {"lr_schedule": own("half")})
    assert set(recorded.sources or {}) == {"lr_schedule"}


def test_the_server_steps_by_the_rate_of_the_round(tmp_path):
    def model(name, **keys):
        folder = simulate(RunConfig(**KEYS | {"server_lr": 0.5, **keys}), tmp_path / name).folder
        return safetensors.numpy.load((folder / "model.safetensors").read_bytes())

    one, two, falling = model("one", rounds=1), model("two"), model("falling", server_lr_schedule="step")
    for name, before in one.items():
        np.testing.assert_allclose(falling[name], before + 0.1 * (two[name] - before), rtol=1e-5, atol=1e-7)
    assert any(not np.array_equal(falling[name], two[name]) for name in one)


def test_a_server_without_a_step_has_no_rate_that_changes(own):
    with pytest.raises(ConfigError, match="server_lr_schedule: step makes no sense with FLoRA: "):
        prepare(RunConfig(method="flora", server_lr_schedule="step"))
    with pytest.raises(ConfigError, match="server_lr_schedule: expected a rule that has a name, such as cosine, got"):
        RunConfig(server_lr_schedule=own("half"))
    with pytest.raises(ConfigError, match="server_lr_schedule: got 'linear', expected constant"):
        RunConfig(server_lr_schedule="linear")


@pytest.mark.parametrize(
    "rule", ["linear", "warmup(rounds=0)", "warmup(2)", "exponential(fall=2)", "exponential(rate=1)", "cosine+"]
)
def test_a_rule_that_is_none_is_refused(rule):
    with pytest.raises(ConfigError, match="^lr_schedule: "):
        RunConfig(lr_schedule=rule)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zero", "lr_schedule: own.py:zero returned 0 for round 3 of 4, expected a positive number"),
        ("text", "lr_schedule: own.py:text returned 'much' for round 1 of 4"),
        ("alone", "lr_schedule: own.py:alone raised an error: TypeError: alone.* takes 1 positional argument but 2 were given"),
    ],
)
def test_a_function_that_is_no_rule_is_refused(name, message, own):
    with pytest.raises(ConfigError, match=message):
        shares_of(RunConfig(rounds=4, lr_schedule=own(name)))


def test_a_run_continues_if_its_first_rounds_keep_their_rates(own):
    short = RunConfig(rounds=3, lr_schedule="warmup(rounds=2)+exponential")
    assert lengthened(short, short.model_copy(update={"rounds": 5})) == ""
    assert changed(short, RunConfig(rounds=3)) == ["lr_schedule"]
    falling = RunConfig(rounds=3, server_lr_schedule="cosine")
    assert lengthened(falling, falling.model_copy(update={"rounds": 5})).startswith(
        "with server_lr_schedule cosine the learning rate"
    )
    mine = RunConfig(rounds=3, lr_schedule=own("half"))
    assert "the learning rate of every round depends on their number" in lengthened(mine, mine.model_copy(update={"rounds": 5}))
