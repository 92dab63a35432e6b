"""Shared pieces of the tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from requirements import CHROMIUM, require, unavailable

import edgefl.testing.options  # noqa: F401 - asserts of the contract are rewritten
from edgefl.cli.main import main
from edgefl.errors import InputError

os.environ["HF_HUB_OFFLINE"] = "1"  # no test waits for the hub's computer; read when the package datasets is imported
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

LONGEST = (
    "contract/test_contract.py",
    "flower/test_federation.py",
    "engine/test_ray.py",
    "engine/test_ray_refusals.py",
    "e2e/test_same_bits.py",
    "e2e/test_methods_run.py",
    "e2e/test_own_network_run.py",
    "engine/test_pool_processes.py",
    "engine/test_pool.py",
    "contract/test_outside.py",
    "e2e/test_fleet_resume.py",
    "e2e/test_tiny_devices.py",
    "e2e/test_dry_run.py",
    "e2e/test_simulate.py",
    "onnxgrad/test_memory.py",
    "factor/test_factorization.py",
    "planning/test_plan.py",
    "tools/test_paper_queue.py",
    "tools/test_tools.py",
    "tools/test_attack.py",
    "client/test_isolate.py",
    "tools/test_speed.py",
    "planning/test_auto_tiers.py",
    "planning/test_profile_onnx.py",
    "planning/test_inspect.py",
    "run/test_device_round_model.py",
    "planning/test_profile_networks.py",
    "run/test_export_network.py",
    "report/test_pages_in_chromium.py",
    "export/test_ts_package.py",
    "client/test_grouping.py",
    "run/test_privacy.py",
    "e2e/test_onnx_run.py",
    "server/test_fedbuff.py",
    "planning/test_profile_memory.py",
    "planning/test_plan_command.py",
    "calibrate/test_measuring.py",
    "calibrate/test_calibrate_on_board.py",
    "server/test_secure_sums.py",
    "server/test_micro_batches.py",
    "contract/test_parts.py",
    "run/test_integrity.py",
    "contract/test_one_file.py",
    "export/test_python_data.py",
    "export/test_ts_refusals.py",
    "e2e/test_stages_run.py",
    "flower/test_fleet_rounds.py",
    "e2e/test_fed_round.py",
    "export/test_device_timing.py",
    "serve/test_measure.py",
    "tools/test_paper_protocol.py",
    "tools/test_paper_probe.py",
    "contract/test_engines.py",
    "run/test_checkpoint_writer.py",
    "models/test_models.py",
    "client/test_onnx_loop.py",
    "engine/test_fingerprint.py",
    "run/test_other_formats.py",
)
"""The files of tests that take longest, the longest first."""

collect_ignore_glob = ["*conftest.py"]  # loaded as plugins; as doctest modules they would share one name

settings.register_profile("edgefl", deadline=None, max_examples=40)
settings.load_profile("edgefl")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that take longest, so that no process works on one of them alone in the end; files are in random order else."""
    ranks = {Path(__file__).parent / file: rank for rank, file in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run tests in this process if each is named on the command line: others would import torch first."""
    return 0 if config.args and all("::" in argument for argument in config.args) else None


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run: sums come out to the same bits whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The command line, called in an empty folder: arguments → exit status, standard output, standard error."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["edgefl", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        output, errors = capsys.readouterr()
        return int(left.value.code or 0), output, errors

    return call


@pytest.fixture(scope="session")
def ort_web() -> Path:
    """The folder with onnxruntime-web's files, fetched by npm the first time."""
    from edgefl.serve.runtime import runtime

    try:
        return runtime(lambda _: None)
    except InputError as error:
        unavailable("onnxruntime-web", error)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium: one per process of tests, as Playwright allows only one at a time."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: pip install 'edgefl-sim[web]'")
    require("Chromium")
    with sync_api.sync_playwright() as playwright:
        # Its folder for the user's data is fresh and removed afterwards.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()
