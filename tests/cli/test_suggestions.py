"""Names and options of other simulators: what they are here."""

import pytest
from click.testing import CliRunner

from edgefl.cli.profile import command as profile
from edgefl.cli.simulate import command as simulate
from edgefl.data.partition import parse
from edgefl.errors import ConfigError, UnknownNameError
from edgefl.registry import datasets, methods


@pytest.mark.parametrize(
    ("parts", "kind", "name", "hint"),
    [
        (datasets, "dataset", "fmnist", "did you mean 'fashion-mnist'?"),
        (datasets, "dataset", "FMNIST", "did you mean 'fashion-mnist'?"),
        (datasets, "dataset", "femnst", "did you mean 'femnist'?"),
        (methods, "method", "fedprox", "it combines with any method: --objective prox."),
        (methods, "method", "FedAdam", "it combines with any method: --server-optimizer adam."),
        (methods, "method", "scaffold", "it combines with any method: --objective scaffold."),
        (methods, "method", "fedhn", "did you mean 'fedhm'?"),
    ],
)
def test_a_name_of_the_field_is_translated(parts, kind, name, hint):
    with pytest.raises(UnknownNameError, match=f"unknown {kind} {name!r}; {hint.replace('?', '.')}"):
        parts.check(name)


@pytest.mark.parametrize("name", ["noniid", "non-iid", "non_iid", "niid"])
def test_a_partition_that_is_not_iid_is_not_taken_for_iid(name):
    with pytest.raises(ConfigError, match="did you mean 'dirichlet'"):
        parse(name)


@pytest.mark.parametrize(
    ("flag", "instead"),
    [("--gpu", "--device cuda"), ("--alpha=0.3", "--partition dirichlet:ALPHA"), ("--num-rounds=3", "--rounds")],
)
def test_an_option_of_other_simulators_is_translated(flag, instead):
    found = CliRunner().invoke(simulate, [flag])
    assert found.exit_code == 2
    assert f"no such option '{flag.partition('=')[0]}'; give {instead}" in " ".join(found.output.split())


def test_an_option_is_translated_only_if_the_command_has_the_other_one():
    assert "No such option" in CliRunner().invoke(profile, ["--num-rounds=3"]).output
