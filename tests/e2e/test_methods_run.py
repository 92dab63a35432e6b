"""Every method of the registry: a run through all rooms; and runs that are stopped in any state and go on to the same bits."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import Page
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig, simulate, verify
from edgefl.bundle.manifest_file import read
from edgefl.methods.capabilities import label_rows
from edgefl.methods.create import create
from edgefl.registry import methods
from edgefl.server.checkpoint import of_file

SMALL = {
    "profile": "phone", "rounds": 2, "clients": 6, "per_round": 3, "local_epochs": 1, "data_share": 0.25, "model": "mlp", "eval_every": 2,
    "seed": 1,
}  # fmt: skip


# FedFOMO downloads other clients' models, which over a phone's link misses so small a run's deadline. A perceptron has one block only.
OTHERWISE: dict[str, dict[str, object]] = {
    "fedfomo": {"profile": "lab"},
    "depthfl": {"model": "cnn-tiny"},
    "last-blocks": {"model": "cnn-tiny"},
}


def config_of(name: str) -> RunConfig:
    return RunConfig.of({**SMALL, **OTHERWISE.get(name, {}), "method": name})


@pytest.mark.parametrize("name", methods.names())
def test_a_run_comes_to_its_end(name: str, tmp_path: Path) -> None:
    result = simulate(config_of(name), tmp_path / "run")
    lines, model = lines_of(result.folder), of_file(result.folder / "model.safetensors")
    kept = of_file(checkpoint_of(result.folder, 2))
    assert (kept.round, kept.clock_s, kept.options, kept.clients) == (model.round, model.clock_s, model.options, model.clients)
    parts, others = kept.model.parts(), model.model.parts()
    assert parts.keys() == others.keys()
    for part, tensors in parts.items():
        assert tensors.keys() == others[part].keys()
        assert all(torch.equal(tensor, others[part][key]) for key, tensor in tensors.items())

    outcomes = [client["status"] for line in lines for client in line["clients"]]
    assert "trained" in outcomes
    assert "diverged" not in outcomes
    assert 0 <= result.global_accuracy <= 1
    assert result.summary["accuracy_of"] == ("clients" if create(name).personalised else "global")
    verified, labels = verify(result.folder / "bundle"), [f"{row.tier:g}" for row in result.tiers]
    assert list(verified.max_abs_errors) == list(verified.max_loss_errors) == labels
    stated = bool(label_rows(create(name), model.model.architecture))
    trains = [entry.train for entry in read(result.folder / "bundle").tiers if entry.train is not None]
    assert all(train.labels == (stated and not train.no_update) for train in trains)
    assert name in Page((result.folder / "report.html").read_text(encoding="utf-8")).headings[0][1]


def test_the_summary_has_the_energy_of_the_final_weights(tmp_path: Path) -> None:
    small = {**SMALL, "profile": "lab", "conditions": "ideal", "tier_assignment": "uniform"}
    config = RunConfig.of({**small, "method": "fedhm", "tiers": (1.0, 0.5, 0.25), "model": "cnn-digits"})
    result = simulate(config, tmp_path / "run")
    tensors = of_file(result.folder / "model.safetensors").model.tensors
    energies = torch.zeros(4, dtype=torch.float64)
    for layer, ranks in {"conv2": (0, 16, 32), "conv3": (0, 16, 32)}.items():
        weight = tensors[f"{layer}.weight"]
        n, m, k, _ = weight.shape
        squares = torch.linalg.svdvals(weight.permute(1, 2, 0, 3).reshape(m * k, n * k).double()) ** 2
        energies += torch.tensor([squares[rank:].sum() for rank in (*ranks, len(squares))])
    shares = -energies.diff() / energies[0]
    assert [row.energy_share for row in reversed(result.tiers)] == pytest.approx(shares.tolist(), abs=1e-5)
    observed = [line["observed"]["energy"] for line in lines_of(result.folder)]
    names = [f"energy first held by tier {tier}" for tier in ("0.25", "0.5", "1")]
    assert [list(of) for of in observed] == [names, names]
    assert observed[0] != observed[1] != pytest.approx(shares.tolist())


def test_masks_and_rows_by_label_are_options_of_their_own_on_every_engine(tmp_path: Path) -> None:
    found = {}
    for mask, rows, engine in itertools.product((True, False), (True, False), ("inline", "pool")):
        options = {"mask_labels": mask, "label_rows": rows}
        values = {
            **SMALL,
            "method": "heterofl",
            "method_options": options,
            "partition": "classes:3",
            "clients": 4,
            "per_round": 2,
        }
        config = RunConfig.of({**values, "engine": engine, "conditions": "ideal"})
        folder = stopped_after(config, tmp_path / f"{mask}-{rows}-{engine}", 2)
        found[mask, rows, engine] = lines_of(folder), of_file(checkpoint_of(folder, 2)).model.tensors
    for mask, rows in itertools.product((True, False), repeat=2):
        (lines, tensors), (others, same) = found[mask, rows, "inline"], found[mask, rows, "pool"]
        assert lines == others
        assert all(torch.equal(tensor, same[name]) for name, tensor in tensors.items())
    weights = [found[mask, rows, "inline"][1]["fc.weight"] for mask, rows in itertools.product((True, False), repeat=2)]
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(weights, 2))
    sessions = [client for lines, _ in found.values() for line in lines for client in line["clients"]]
    assert len({(client["tier"], client["upload_bytes"]) for client in sessions}) == len({client["tier"] for client in sessions})


AXES: dict[str, dict[str, Any]] = {
    "what FedDyn remembers": {"method": "fedavg", "objective": "dyn"},
    "control variates": {
        "method": "heterofl",
        "objective": "scaffold",
        "optimizer": "sgd",
        "weight_decay": 0,
        "tiers": (1.0, 0.5),
    },
    "server momentum": {"method": "fedhm", "server_optimizer": "avgm", "tiers": (1.0, 0.5)},
    "server Yogi": {"method": "heterofl", "server_optimizer": "yogi", "tiers": (1.0, 0.5)},
    "ranks planned anew": {"method": "fedhm", "tiers": (1.0, 0.5), "method_options": {"allocate": "spectral", "plan_every": 2}},
    "kernels drawn after a warm-up": {
        "method": "prism",
        "tiers": (0.4, 0.2),
        "method_options": {"warmup_rounds": 1, "outputs": 0.4},
    },
    "a phase after the warm-up": {"method": "pufferfish", "method_options": {"warmup_rounds": 1}},
    "permuted labels and a falling rate": {"method": "pfedpara", "permute_labels": True, "lr_schedule": "cosine"},
    "mirrored images": {"method": "heterofl", "tiers": (1.0, 0.5), "augment": "flip"},
    "classifiers at home, in clusters": {
        "method": "clustered-fl",
        "method_options": {"personal_classifier": True, "eps1": 100.0, "eps2": 0.01},
        "permute_labels": True,
    },
    "factors matched for permuted labels": {"method": "factorized-fl", "permute_labels": True},
    "exits of depths that change": {
        "method": "depthfl",
        "tier_assignment": "dynamic",
        "tiers": (1.0, 0.5),
        "tier_shares": (0.3, 0.7),
    },
    "blocks that nobody trains, and memory": {"method": "last-blocks", "tiers": (0.6, 0.3), "objective": "dyn"},
    "sampled widths": {"method": "fjord", "tier_assignment": "dynamic", "tiers": (1.0, 0.5), "tier_shares": (0.3, 0.7)},
}


@pytest.mark.parametrize("what", AXES)
def test_a_run_stopped_in_any_state_goes_on_to_the_same_bits(what: str, tmp_path: Path) -> None:
    values = {**SMALL, "rounds": 3, "profile": "lab", "model": "cnn-digits", "data_share": 0.1, "eval_every": 3, **AXES[what]}
    config = RunConfig.of(values)
    whole = stopped_after(config, tmp_path / "whole", 3)
    last = checkpoint_of(whole, 3)
    folder = stopped_after(config, tmp_path / "stopped", 1)
    for stop in (2, 3):
        stopped_after(config, folder, stop, resume=True)
        # The file's name ends in its content's hash: memory of clients and server included, to the last bit.
        assert checkpoint_of(folder, stop).name == checkpoint_of(whole, stop).name
    assert lines_of(folder) == lines_of(whole)
    kept = of_file(last)
    assert bool(kept.clients) == (
        create(values["method"], values.get("method_options")).personalised or values.get("objective") in ("dyn", "scaffold")
    )
    assert bool(kept.memory) == ("objective" in values or "server_optimizer" in values)


def test_kernels_at_full_width_are_trained_by_two_workers_and_run_on_a_device(tmp_path: Path) -> None:
    values = {**SMALL, "model": "cnn-digits", "data_share": 0.1, **AXES["kernels drawn after a warm-up"]}
    one, two = (simulate(RunConfig.of({**values, "workers": workers}), tmp_path / str(workers)) for workers in (1, 2))
    assert lines_of(one.folder) == lines_of(two.folder)
    assert checkpoint_of(one.folder, 2).name == checkpoint_of(two.folder, 2).name
    assert list(verify(one.folder / "bundle").max_abs_errors) == ["0.4", "0.2"]
    draws = [line["observed"]["kernels"]["conv2.weight"]["draws"] for line in lines_of(one.folder)]
    assert not any(draws[0][26:]), "only the first kernels in the warm-up"
    assert any(draws[1][26:])


@pytest.mark.parametrize("name", ["clustered-fl", "factorized-fl-beta"])
def test_options_about_what_travels_and_what_is_composed_give_the_same_bits_on_every_engine(name: str, tmp_path: Path) -> None:
    options = {
        "clustered-fl": {"personal_classifier": True, "eps1": 100.0, "eps2": 0.01},
        "factorized-fl-beta": {"reshape": "flat"},
    }
    values = {**SMALL, "method": name, "method_options": options[name], "model": "cnn-digits", "permute_labels": True}
    found = []
    for engine in ("inline", "pool"):
        config = RunConfig.of({**values, "profile": "lab", "data_share": 0.1, "engine": engine, "conditions": "ideal"})
        folder = stopped_after(config, tmp_path / engine, 2)
        found.append((lines_of(folder), of_file(checkpoint_of(folder, 2)).model.parts()))
    (lines, parts), (others, same) = found
    assert lines == others
    assert parts.keys() == same.keys()
    assert all(torch.equal(tensor, same[part][key]) for part, tensors in parts.items() for key, tensor in tensors.items())


def test_a_method_that_evaluates_before_it_trains_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """The last bits of a convolution depend on its memory layout, which therefore does not wait for the first step."""
    config = RunConfig.of(
        {**SMALL, "profile": "lab", "method": "fedfomo", "model": "cnn-digits", "rounds": 4, "clients": 8, "per_round": 4}
    )
    whole = stopped_after(config, tmp_path / "whole", 3)
    other = stopped_after(config, stopped_after(config, tmp_path / "other", 1), 3, resume=True)
    assert checkpoint_of(whole, 3).name == checkpoint_of(other, 3).name
