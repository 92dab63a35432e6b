"""Networks of timm and transformers, where they are installed: their bundles, compared with torch, verified and trained without torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from requirements import require

import edgefl
from edgefl.rng import generator, torch_seeded
from tests.tools.tool_modules import on_the_path  # noqa: F401  clock has a stand-in for torchvision

BERT = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def timm():
    require("timm")
    from clock.networks import timm_module

    return timm_module()


def of_timm(name: str, size: int):
    def made():
        options = {"img_size": size} if name.startswith("vit") else {}
        return timm().create_model(name, num_classes=3, **options), torch.randn(2, 3, size, size)

    return made


def bert():
    require("transformers")
    import transformers

    ids = torch.randint(BERT["vocab_size"], (2, 7))
    network = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **BERT))
    return network, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


NETWORKS = {
    "mobilenetv3_small_050": of_timm("mobilenetv3_small_050", 64),
    "efficientnet_b0": of_timm("efficientnet_b0", 64),
    "resnet18": of_timm("resnet18", 64),
    "vit_tiny_patch16_224": of_timm("vit_tiny_patch16_224", 32),
    "bert": bert,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_bundle_of_a_networks_library_is_verified_and_trains_without_torch(name, tmp_path):
    with torch_seeded(generator(0, name)):
        network, samples = NETWORKS[name]()
    bundle = edgefl.export_network(network, samples, tmp_path / "bundle", client=True, batch_size=2)
    assert edgefl.verify(bundle).max_loss_errors["1"] < 1e-3
    inputs = {"x": samples} if isinstance(samples, torch.Tensor) else samples
    twice = {name: torch.cat([tensor, tensor]).numpy() for name, tensor in inputs.items()}
    np.savez(tmp_path / "data.npz", y=np.arange(4) % 3, **twice)
    program = [
        sys.executable,
        str(bundle / "client/python/edgefl_client.py"),
        "train",
        str(bundle),
        "1",
        "data.npz",
        "--out",
        "state",
    ]
    subprocess.run(program, check=True, capture_output=True, cwd=tmp_path)
    trained = safetensors.torch.load_file(tmp_path / "state")
    before = safetensors.torch.load_file(bundle / "1/parameters.safetensors")
    assert any(not torch.equal(tensor, trained[key]) for key, tensor in before.items() if key in trained)
