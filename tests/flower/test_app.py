"""The app that ``edgefl flower new`` writes: its files, its configuration, and that a device needs neither torch nor edgefl."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import numpy as np
import pytest
from command import edgefl

from edgefl import RunConfig

SMALL = ("--clients", "3", "--model", "mlp", "--method", "fedavg", "--deadline-s", "60")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    home = tmp_path_factory.mktemp("app")
    told = edgefl("flower", "new", "app", *SMALL, "--shards", "data", cwd=home)
    assert told.returncode == 0, told.stderr
    assert "3 files, client-0.npz to client-2.npz" in told.stdout
    return home / "app"


def test_the_app_has_the_run_that_was_asked_for(app):
    project = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert project["config"]["out"] == str(app.parent / "app-run")
    assert project["config"]["files"] == str(app.parent)
    assert project["components"]["clientapp"] == "edgefl_app.client_app:app"
    config = RunConfig.load(app / "edgefl_app" / "run.toml", {})
    assert (config.clients, config.model, config.deadline_s) == (3, "mlp", 60.0)
    assert {path.name for path in (app.parent / "data").iterdir()} == {f"client-{n}.npz" for n in range(3)}
    with np.load(app.parent / "data" / "client-0.npz") as data:
        assert (data["x"].dtype, data["y"].dtype, len(data["x"])) == (np.float32, np.int64, len(data["y"]))


def test_a_device_imports_neither_torch_nor_edgefl(app):
    code = (
        "import sys; sys.modules.update(torch=None, edgefl=None); "
        "from flwr.app import Context; import edgefl_app.client_app as one; print(one.app, one.STARTED_S)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=app, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_flower_accepts_the_app_as_its_archive(app):
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.constant import FAB_MAX_SIZE

    archive = build_fab_from_disk(app)
    assert len(archive) < FAB_MAX_SIZE // 10
    for name in (b"edgefl_app/run.toml", b"edgefl_app/client/edgefl_client.py", b"edgefl_app/device.py"):
        assert name in archive


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("app", *SMALL), "app: exists and is not an empty folder; give another"),
        (("other", "--method", "fedhn"), "unknown method 'fedhn'; did you mean 'fedhm'?"),
        (
            ("other", *SMALL, "--method", "fedper", "--tiers", "1"),
            "method fedper: the clients have models or labels of their own",
        ),
        ((), "Missing argument 'DIR'"),
    ],
)
def test_wrong_arguments_write_nothing(app, arguments, message):
    told = edgefl("flower", "new", *arguments, cwd=app.parent)
    assert told.returncode == 2
    assert message in told.stderr
    assert not (app.parent / "other").exists()


def test_the_folders_of_two_runs_are_compared_and_nothing_else(app):
    for arguments, message in (
        (("one",), "give the folders of at least two runs"),
        (("one", "two", "--methods", "fedhm"), "only budgets, --rank-by, --format and --out beside them"),
        (("one", "two"), "one/summary.json: no such file"),
        ((), "give --out, the folder"),
    ):
        told = edgefl("compare", *arguments, cwd=app.parent)
        assert told.returncode == 2
        assert message in told.stderr


def test_flower_has_masks_in_its_legacy_interface_only():
    """Why the app refuses secure aggregation; docs/secure-aggregation.md says so."""
    import flwr.clientapp.mod
    import flwr.serverapp.strategy
    from flwr.client.mod import secaggplus_mod  # noqa: F401 - it is there
    from flwr.server.workflow import SecAggPlusWorkflow

    for module in (flwr.clientapp.mod, flwr.serverapp.strategy):
        assert not [name for name in dir(module) if "sec" in name.lower() and "agg" in name.lower()]
    with pytest.raises(TypeError, match="Expect a LegacyContext"):
        SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)(None, object())
