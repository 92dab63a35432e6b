"""What CONTRIBUTING promises: a new part of each kind is one new file, a feature one folder.

A copy of the package gets one of each, and runs with all of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edgefl
from edgefl.util.files import shared

PACKAGE = Path(edgefl.__file__).parent

# Kind → the file, relative to the copy, and its content. Every part is called "mine".
ADDED = {
    "method": (
        "edgefl/methods/mine.py",
        '''"""Every client has the same weight."""

from collections.abc import Iterable
from typing import ClassVar

from edgefl.methods.averaging import WeightedSum
from edgefl.methods.updates import checked
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.state import GlobalState
from edgefl.records import Update
from edgefl.registry import method


@method("mine")
class Mine(FedAvg):
    """The plain mean."""

    title: ClassVar[str] = "Mine"
    paper: ClassVar[str] = "none"

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        total = WeightedSum(state.tensors)
        for update in checked(self, state, updates):
            for name, tensor in update.tensors.items():
                total.add(name, tensor, 1.0)
        return state.replace(total.mean(state.tensors))
''',
    ),
    "model": (
        "edgefl/models/mine.py",
        '''"""One linear layer behind another."""

import math

from torch import nn

from edgefl.models.base import scaled
from edgefl.registry import model


@model("mine", usual_input=(1, 4, 4))
def mine(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    hidden = scaled(8, width)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))
''',
    ),
    "data set": (
        "edgefl/data/mine.py",
        '''"""Two blobs."""

import numpy as np

from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.registry import dataset
from edgefl.rng import generator


def _split(count: int, part: str) -> Split:
    y = np.arange(count) % 2
    noise = generator(0, "mine", part).standard_normal((count, 1, 4, 4)).astype(np.float32)
    return Split(noise + np.float32(2.0) * (y[:, None, None, None] - np.float32(0.5)).astype(np.float32), y.astype(np.int64))


@dataset("mine")
def mine(data_dir: str | None = None) -> Dataset:
    preprocessing = {"scale": 1.0, "mean": 0.0, "std": 1.0}
    return Dataset("mine", "Two blobs", _split(120, "train"), _split(40, "test"), ("low", "high"), preprocessing, "mine")
''',
    ),
    "codec": (
        "edgefl/wire/codecs/mine.py",
        '''"""The upper half of a float32: bfloat16."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from edgefl.registry import codec
from edgefl.wire.codec import Codec, Part, Shape


@codec("mine", needs=("uploads",))
class BFloat16(Codec):
    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        return (Part(name, "U16", shape),)

    def pack(self, w: Tensor, rng: np.random.Generator | None) -> tuple[Tensor, ...]:
        return (w.bfloat16().view(torch.uint16),)

    def unpack(self, values: Sequence[Tensor], shape: Shape) -> Tensor:
        return values[0].view(torch.bfloat16).float()
''',
    ),
    "objective": (
        "edgefl/client/objectives/mine.py",
        '''"""A pull to the weights that arrived, in the first norm."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from edgefl.client.objective import Objective
from edgefl.registry import objective


@objective("mine", needs=("received_weights",))
@dataclass(frozen=True)
class Mine(Objective):
    def terms(self, weight: Tensor, start: Tensor, shift: Tensor | None) -> Iterator[Tensor]:
        yield self.strength * (weight - start).abs().sum()
''',
    ),
    "server optimizer": (
        "edgefl/server/optimizers/mine.py",
        '''"""Steps of one size."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from edgefl.registry import server_optimizer
from edgefl.server.optimizer import ServerOptimizer


@server_optimizer("mine", needs=("server_step",))
@dataclass(frozen=True)
class Sign(ServerOptimizer):
    usual_lr: ClassVar[float] = 0.01

    def change(self, delta: Tensor, *slots: Tensor) -> tuple[Tensor, ...]:
        return (delta.sign(),)
''',
    ),
    "adversary": (
        "edgefl/contrib/attacks/my_adversary.py",
        '''"""Sends zeros."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from edgefl.contrib.attacks.adversary import Adversary
from edgefl.registry import adversary


@adversary("mine", needs=("uploads",))
@dataclass(frozen=True)
class Mine(Adversary):
    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return 0 * start
''',
    ),
    "defence": (
        "edgefl/contrib/attacks/my_defence.py",
        '''"""The middle of the smallest and the largest change."""

from dataclasses import dataclass

from torch import Tensor

from edgefl.registry import defence
from edgefl.server.defence import Centre


@defence("mine", needs=("received_weights", "shared_coordinates", "uploads", "rounds"))
@dataclass(frozen=True)
class Mine(Centre):
    def centre(self, values: Tensor) -> Tensor:
        return (values.amin(0) + values.amax(0)) / 2
''',
    ),
    "sampler": (
        "edgefl/server/samplers/mine.py",
        '''"""The clients with the lowest numbers."""

from dataclasses import dataclass

import numpy as np

from edgefl.registry import sampler
from edgefl.server.sampler import Known, Sampler


@sampler("mine")
@dataclass(frozen=True)
class Mine(Sampler):
    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        return np.sort(candidates)[:count]
''',
    ),
    "engine": (
        "edgefl/engine/mine.py",
        '''"""The engine of this process, last job first."""

from collections.abc import Iterable, Iterator

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.engine.inline import InlineEngine
from edgefl.records import Outcome
from edgefl.registry import engine


class Backwards(InlineEngine):
    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        yield from reversed(list(super().map(jobs)))


@engine("mine")
def mine(clients: Clients, workers: int) -> Backwards:
    return Backwards(clients)
''',
    ),
    "keys of a feature": (
        "edgefl/contrib/lazy/keys.py",
        '''"""Every ``lazy``-th client sends what it received."""

from edgefl.config.field import Count, Keys, key
from edgefl.config.group import KeyGroup
from edgefl.registry import key_group


class LazyKeys(Keys):
    lazy: Count | None = key(None, "Lazy clients", "Every so many clients, one sends what it received. [none]")


@key_group("lazy", after="FleetKeys", place=9, compared=("lazy",))
class LazyGroup(KeyGroup):
    keys = LazyKeys
''',
    ),
    "records of a feature": (
        "edgefl/contrib/lazy/records.py",
        '''"""What lazy clients add to files."""

from dataclasses import dataclass, field

from edgefl.registry import added_fields
from edgefl.report.added import SELDOM


@added_fields("lazy-summary", of="Summary")
@dataclass(frozen=True, kw_only=True)
class OfSummary:
    lazy: int | None = field(default=None, metadata=SELDOM)


@added_fields("lazy-round", of="RoundLine")
@dataclass(frozen=True, kw_only=True)
class OfLine:
    lazy: tuple[int, ...] = ()


@added_fields("lazy-compared", of="ComparisonSummary")
@dataclass(frozen=True, kw_only=True)
class OfCompared:
    lazy: int | None = None
''',
    ),
    "feature": (
        "edgefl/contrib/lazy/feature.py",
        '''"""Lazy clients: their conduct, and what files and pages say of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from edgefl.client.conduct import Conduct
from edgefl.config import RunConfig
from edgefl.config.group import group_keys
from edgefl.contrib.lazy.keys import LazyKeys
from edgefl.contrib.lazy.records import OfLine, OfSummary
from edgefl.fleet.conditions import Conditions
from edgefl.methods.state import Tensors
from edgefl.records import RoundRecord
from edgefl.registry import conduct, feature, section
from edgefl.report.added import added
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary
from edgefl.report.section import Section
from edgefl.run.feature import Feature, Json
from edgefl.wire.message import MessageFields


@conduct("lazy")
@dataclass(frozen=True)
class Lazy(Conduct):
    every: int

    @classmethod
    def of(cls, every: int) -> Self:
        return cls(every)

    @property
    def title(self) -> str:
        return f"lazy: {self.every}"

    def fields(self) -> MessageFields:
        return {"every": self.every}

    def departs(self, client: int) -> bool:
        return client % self.every == 0

    def sent(self, round_: int, client: int, start: Tensors, trained: Tensors) -> Tensors:
        return start


@feature("lazy")
@dataclass(frozen=True)
class LazyRun(Feature):
    lazy: Lazy

    @classmethod
    def of(cls, config: RunConfig, conditions: Conditions) -> Self | None:
        every = group_keys(config, LazyKeys).lazy
        return None if every is None else cls(Lazy(every))

    @property
    def conduct(self) -> Conduct:
        return self.lazy

    def known(self) -> Json:
        return {"lazy": self.lazy.every}

    def line(self, record: RoundRecord) -> Json:
        return {"lazy": [client.client for client in record.clients if self.lazy.departs(client.client)]}


@section("lazy", place=9)
def lazy_section(summary: AnySummary, rounds: Sequence[RoundLine]) -> Section | None:
    if (every := added(summary, OfSummary).lazy) is None:
        return None
    text = f"{sum(len(added(line, OfLine).lazy) for line in rounds)} updates of every {every}nd client"
    return Section(facts=(("lazy clients", text),), remarks=(f"every {every}nd client is lazy",), advice="Wake the lazy clients up.")
''',
    ),
    "device": (
        "profiles/devices/mine.toml",
        (shared("profiles") / "devices" / "raspberry-pi-4.toml")
        .read_text(encoding="utf-8")
        .replace('name = "raspberry-pi-4"', 'name = "mine"'),
    ),
}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, with one more file of every kind."""
    top = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, top / "edgefl", ignore=shutil.ignore_patterns("__pycache__", "_share"))
    for folder in ("profiles", "export"):
        shutil.copytree(shared(folder), top / folder, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    for path, content in ADDED.values():
        assert not (top / path).exists()
        (top / path).parent.mkdir(exist_ok=True)
        (top / path).write_text(content, encoding="utf-8")
    return top


def edgefl_in(top: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from edgefl.cli.main import main; main()"
    env = {**os.environ, "PYTHONPATH": str(top), "PYTHONWARNINGS": "ignore"}
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=top, env=env, capture_output=True, text=True, check=False)


def test_a_run_uses_one_new_file_of_every_kind(copied: Path) -> None:
    names = [
        *("--method=mine", "--model=mine", "--dataset=mine", "--codec=mine", "--objective=mine", "--server-optimizer=mine"),
        *("--profile=mine", "--engine=mine", "--adversary=mine:0.5", "--defence=mine"),
    ]
    (copied / "keys.toml").write_text('sampler = "mine"\n', encoding="utf-8")
    small = (
        "--rounds=1",
        "--clients=2",
        "--per-round=2",
        "--local-epochs=1",
        "--conditions=ideal",
        "--config=keys.toml",
        "--out=run",
    )
    done = edgefl_in(copied, "simulate", *names, *small)
    assert done.returncode == 0, done.stderr
    (line,) = (copied / "run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    clients = json.loads(line)["clients"]
    assert [client["status"] for client in clients] == ["trained"] * 2
    assert {client["device"] for client in clients} == {"mine"}
    config = (copied / "run" / "config.toml").read_text(encoding="utf-8")
    assert 'engine = "mine"' in config
    assert 'sampler = "mine"' in config
    values = 8 * 16 + 8 + 2 * 8 + 2
    # Two bytes a value less; the codec's name takes 32 bytes of the header.
    assert {client["download_bytes"] - client["upload_bytes"] for client in clients} == {2 * values - 32}
    summary = json.loads((copied / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["attack"]["adversary"] == "mine:0.5"
    assert {
        key: summary[key] for key in ("method", "model", "dataset", "codec", "objective", "server_optimizer")
    } == dict.fromkeys(("method", "model", "dataset", "codec", "objective", "server_optimizer"), "mine")
    assert edgefl_in(copied, "verify", "run/bundle").returncode == 0


def test_a_feature_in_one_folder_has_keys_changes_clients_and_is_in_every_file_and_on_the_pages(copied: Path) -> None:
    (copied / "lazy.toml").write_text(
        "rounds = 2\nclients = 4\nper_round = 4\nlocal_epochs = 1\nmodel = 'mlp'\n", encoding="utf-8"
    )
    common = ("--config=lazy.toml", "--conditions=ideal", "--lazy=2")
    done = edgefl_in(copied, "simulate", "--method=fedavg", *common, "--workers=2", "--out=lazy-run")
    assert done.returncode == 0, done.stderr
    assert "every 2nd client is lazy" in done.stdout
    lines = map(json.loads, (copied / "lazy-run" / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
    assert [line["lazy"] for line in lines] == [[0, 2], [0, 2]]
    assert json.loads((copied / "lazy-run" / "summary.json").read_text(encoding="utf-8"))["lazy"] == 2
    page = (copied / "lazy-run" / "report.html").read_text(encoding="utf-8")
    assert all(text in page for text in ("lazy clients", "4 updates of every 2nd client", "Wake the lazy clients up."))
    done = edgefl_in(copied, "compare", "--methods=fedavg,heterofl", *common, "--rounds=1", "--out=lazy-compared")
    assert done.returncode == 0, done.stderr
    assert json.loads((copied / "lazy-compared" / "compare.json").read_text(encoding="utf-8"))["lazy"] == 2
    both = edgefl_in(copied, "simulate", "--method=fedavg", *common, "--adversary=mine:0.5", "--out=both")
    assert both.returncode == 2
    assert "lazy: 2 and adversary: mine both change what clients do; leave one of them out" in both.stderr


def test_new_parts_are_known_by_name_and_refused_where_their_kind_makes_no_sense(copied: Path) -> None:
    refused = edgefl_in(copied, "simulate", "--method=standalone", "--codec=mine", "--out=refused")
    assert refused.returncode == 2
    assert "codec: mine makes no sense with Stand-alone: nothing travels in stand-alone training" in refused.stderr
    unknown = edgefl_in(copied, "simulate", "--server-optimizer=mien", "--out=unknown")
    assert unknown.returncode == 2
    assert "unknown server optimizer 'mien'; did you mean 'mine'?" in unknown.stderr
