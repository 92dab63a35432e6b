"""Networks with several inputs, of a user's own file, from arrays to a device: the same bits by any engine, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from texts import texts, write_texts
from torch_free import CLIENT

import edgefl
from edgefl import Dataset, RunConfig, simulate
from edgefl.run.prepare import prepare
from edgefl.run.trained import engine_of, train
from edgefl.server.client_store import ClientStore
from tests.command import edgefl as command
from tests.command import flags_of
from tests.runs import lines_of, stopped_after

NETS = """
class Towers(nn.Module):
    def __init__(self, num_classes=2):
        super().__init__()
        self.conv, self.table, self.head = nn.Conv2d(1, 4, 3), nn.Linear(3, 4), nn.Linear(8, num_classes)

    def forward(self, image, table):
        return self.head(torch.cat([self.conv(image).relu().mean((2, 3)), self.table(table).relu()], 1))
"""
FLAGS = {
    "clients": 4, "per_round": 4, "rounds": 2, "local_epochs": 2, "batch_size": 8, "lr": 0.3, "partition": "iid", "conditions": "ideal",
    "tier_assignment": "uniform",
}  # fmt: skip


def towers(count: int = 48) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng, y = np.random.default_rng(0), np.arange(count) % 2
    images = (rng.integers(0, 100, (count, 6, 6)) + 100 * y[:, None, None]).astype(np.uint8)
    return images, (rng.standard_normal((count, 3)) * 5 + 7).astype(np.float32), y


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    write_texts(folder, NETS)
    return folder


@pytest.fixture
def client(monkeypatch):
    monkeypatch.syspath_prepend(str(CLIENT.parent))
    import edgefl_client

    return edgefl_client


def config(lab: Path, **changes: Any) -> RunConfig:
    own = {"dataset": lab / "texts.npz", "model": f"{lab}/nets.py:Text", "method": "heterofl", "tiers": (1.0, 0.5)}
    return RunConfig(**FLAGS | own | changes)


def last_state(config: RunConfig, folder: Path) -> dict[str, torch.Tensor]:
    run = prepare(config)
    with engine_of(run) as engine:
        (*_, (_, state, _)) = train(run, engine, ClientStore(folder / "clients.sqlite"))
    return dict(state.model.tensors)


def test_ids_and_a_mask_from_a_file_to_a_device_that_trains(lab, client):
    order = (
        "simulate",
        "--data",
        "texts.npz",
        "--model",
        "nets.py:Text",
        "--method",
        "heterofl",
        "--tiers",
        "1,0.5",
        *flags_of(FLAGS),
    )
    done = command(*order, "--out", "whole", cwd=lab)
    assert done.returncode == 0, done.stderr
    shared = stopped_after(config(lab, engine="pool", workers=2), lab / "shared", 1)
    simulate(config(lab, engine="pool", workers=2), shared, resume=True)
    assert (shared / "model.safetensors").read_bytes() == (lab / "whole/model.safetensors").read_bytes()
    assert lines_of(shared) == lines_of(lab / "whole")
    assert {client["tier"] for line in lines_of(shared) for client in line["clients"]} == {1, 0.5}

    bundle = lab / "whole/bundle"
    edgefl.verify(bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    ids = {"shape": [6], "dtype": "int64", "preprocessing": {}}
    assert (manifest["input_shape"], manifest["inputs"]) == ([], {"input_ids": ids, "attention_mask": ids})
    stored = safetensors.numpy.load((bundle / "0.5/reference.safetensors").read_bytes())
    assert stored.keys() == {"x.input_ids", "x.attention_mask", "logits"}
    assert (stored["x.attention_mask"][:, 0] == 1).all()
    assert stored["x.attention_mask"].max() == 1 < stored["x.input_ids"].max() < 9

    opened = client.read_bundle(bundle)
    x, y = client.read_data(lab / "texts.npz", opened.manifest, labels=True)
    state = client.train(opened, "0.5", x, y, client.Training(epochs=6, memory_bytes=0))
    assert state.losses[-1] < 0.5 * state.losses[0]
    assert (client.infer(opened, "0.5", x, state).argmax(1) == y).mean() > 0.9
    assert client.update(state)
    with pytest.raises(client.InputError, match="x: got input_ids, expected input_ids, attention_mask"):
        client.infer(opened, "1", {"input_ids": x["input_ids"]})
    np.savez(lab / "short.npz", input_ids=x["input_ids"], attention_mask=x["attention_mask"][:9], y=y)
    with pytest.raises(client.InputError, match="attention_mask: 9 samples, expected 96, as many as of input_ids"):
        client.read_data(lab / "short.npz", opened.manifest, labels=True)


def test_other_engines_train_the_same(lab, tmp_path):
    one = {"rounds": 1, "tiers": (1.0,), "method": "fedavg", "local_epochs": 1}
    plain = last_state(config(lab, **one), tmp_path)
    for changes in ({"engine": "group"}, {"runtime": "onnx"}, {"enforce": "meter", "micro_batch": 8}):
        for name, tensor in last_state(config(lab, **one | changes), tmp_path).items():
            torch.testing.assert_close(tensor, plain[name], atol=1e-5, rtol=1e-4, msg=f"{changes}: {name}")
    assert any(
        not torch.equal(tensor, plain[name])
        for name, tensor in last_state(config(lab, **one | {"method": "per-fedavg"}), tmp_path).items()
    )


def test_an_image_and_a_table_are_normalised_each_by_its_own_figures(lab, client):
    images, table, y = towers()
    samples = [({"image": image, "table": row}, label) for image, row, label in zip(images, table, y, strict=True)]
    data = Dataset.from_samples(Samples(samples), name="towers")
    costs = edgefl.profile(f"{lab}/nets.py:Towers", {"image": (1, 6, 6), "table": (3,)}, 2, batch_size=8)
    run = config(lab, dataset=data, model=f"{lab}/nets.py:Towers", method="fedavg", tiers=(1.0,), rounds=1, local_epochs=1)
    result = simulate(run, lab / "towers")
    assert result.tiers[0].macs_forward == costs[0].macs_forward
    opened = client.read_bundle(lab / "towers/bundle")
    about = opened.manifest["inputs"]
    assert about["image"]["preprocessing"].keys() == {"scale", "mean", "std"}
    assert [len(about["table"]["preprocessing"][key]) for key in ("mean", "std")] == [3, 3]
    np.savez(lab / "raw.npz", image=images[:, None], table=table, y=y)
    x, _ = client.read_data(lab / "raw.npz", opened.manifest, labels=True)
    whole = {name: np.concatenate([np.asarray(part.x[name]) for part in (data.train, data.test)]) for name in x}
    for name, prepared in x.items():
        np.testing.assert_allclose(np.sort(prepared, 0), np.sort(whole[name], 0), atol=1e-5)
    assert client.infer(opened, "1", x).shape == (48, 2)


class Samples:
    """Samples of a user, as torch's data sets have them."""

    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        return self.samples[number]


BAD = {
    "lengths": (
        {"attention_mask": texts()["attention_mask"][:90]},
        (),
        "90 samples of input attention_mask and labels of shape (96,)",
    ),
    "names": (
        {"attention_mask": None, "mask": texts()["attention_mask"]},
        (),
        "Text.forward has no argument 'mask'; did you mean 'attention_mask'? it takes input_ids, attention_mask",
    ),
    "missing": ({"attention_mask": None}, (), "Text.forward needs 'attention_mask', got input_ids"),
    "floats": (
        {"input_ids": texts()["input_ids"] / 2},
        (),
        "input input_ids has real numbers, and the network takes integers there",
    ),
    "ids": (
        {"input_ids": texts()["input_ids"] + 3},
        (),
        "input input_ids of bad have ids up to 11, and its embedding has 9 rows",
    ),
    "negative": ({"input_ids": texts()["input_ids"] - 1}, (), "input input_ids: token id -1, expected ids from 0"),
    "reference": ({}, ("--model", "mlp"), "mlp takes one input, and samples of bad have input_ids, attention_mask"),
    "none": ({}, ("--model", ""), "samples of bad have the inputs input_ids, attention_mask, and reference networks take one"),
    "augment": ({}, ("--augment", "flip"), "samples of bad are of shape input_ids 6, attention_mask 6, no images"),
    "held out": ({"input_ids_test": texts()["input_ids"][:9]}, (), "input_ids_test has no attention_mask_test beside it"),
}


@pytest.mark.parametrize("kind", BAD)
def test_inputs_that_do_not_fit_are_one_message_and_nothing_is_written(lab, kind):
    changes, flags, message = BAD[kind]
    arrays = {name: array for name, array in (texts() | changes).items() if array is not None}
    np.savez(lab / "bad.npz", **arrays)
    model = () if flags[:1] == ("--model",) else ("--model", "nets.py:Text")
    flags = () if flags == ("--model", "") else flags
    done = command("simulate", "--data", "bad.npz", *model, *flags, "--rounds", "1", "--out", "never", cwd=lab)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    assert message in done.stderr
    assert not (lab / "never").exists()
