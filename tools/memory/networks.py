"""The networks of the comparison: our reference models, networks made of common layers, and some of timm and transformers.

Add one ``Network`` to a tuple. The rules of the cost model are made with the networks that are not held out.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from typing import Any

from clock.networks import timm_module
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Tier
from memory.blocks import Output
from memory.images import IMAGES
from memory.network import Network
from memory.sequences import SEQUENCES

VOCABULARY = 80


def _reference(model: str, shape: tuple[int, ...], batch_size: int = 32, method: str = "fedavg", ratio: float = 1.0) -> Network:
    made, place = create(method), (Architecture(model, shape, 10), Tier(ratio))
    name = model if method == "fedavg" else f"{model}, {method} {ratio:g}"
    vocabulary = VOCABULARY if len(shape) == 1 else 0
    return Network(
        name, partial(made.network, *place), shape, batch_size, vocabulary, deployed=partial(made.device_network, *place)
    )


FASHION, CIFAR = (1, 28, 28), (3, 32, 32)
REFERENCE = (
    _reference("cnn-digits", (1, 8, 8)),
    _reference("cnn-fashion", FASHION),
    _reference("cnn-fashion", FASHION, 32, "heterofl", 0.5),
    _reference("cnn-fashion", FASHION, 32, "fedhm", 0.5),
    _reference("cnn-femnist", FASHION),
    _reference("cnn-5x5", FASHION),
    _reference("cnn-tiny", FASHION),
    _reference("mlp", (1, 8, 8)),
    _reference("resnet9", CIFAR, 8),
    _reference("resnet18", CIFAR, 8),
    _reference("resnet18", CIFAR, 8, "heterofl", 0.25),
    _reference("resnet18", CIFAR, 8, "fedhm", 0.25),
    _reference("resnet18", CIFAR, 8, "fedpara", 0.5),
    _reference("resnet34", CIFAR, 8),
    _reference("vgg11", CIFAR, 8),
    _reference("deit-tiny", CIFAR, 8),
    _reference("lstm-shakespeare", (80,), 16),
    _reference("rnn-shakespeare", (80,), 16),
)


def _timm(name: str, options: dict[str, Any]) -> nn.Module:
    timm = timm_module()
    timm.layers.set_fused_attn(True)
    with unset_fake_temporarily():  # some networks compute with numbers while they are built
        network: nn.Module = timm.create_model(name, num_classes=10, **options)
    return network


def _of_timm(name: str, side: int, batch_size: int = 8, **options: Any) -> Network:
    return Network(f"timm {name}", partial(_timm, name, options), (3, side, side), batch_size, needs="timm")


TIMM = (
    _of_timm("mobilenetv2_050", 96),
    _of_timm("mobilenetv3_small_050", 96),
    _of_timm("efficientnet_b0", 64),
    _of_timm("resnet18", 64),
    _of_timm("resnext26ts", 64, 4),
    _of_timm("regnetx_002", 64),
    _of_timm("ghostnet_050", 96),
    _of_timm("densenet121", 64, 4),
    _of_timm("convnext_atto", 64),
    _of_timm("vit_tiny_patch16_224", 224, 4),
    _of_timm("mixer_s32_224", 224, 4),
    _of_timm("mobilevit_xxs", 64),
    _of_timm("edgenext_xx_small", 64),
    _of_timm("levit_128s", 224, 4),
)

LATER = tuple(
    replace(network, unseen=True)
    for network in (
        _of_timm("coat_lite_tiny", 224, 2),
        _of_timm("fastvit_t8", 64, 4),
        _of_timm("mixnet_s", 64, 4),
        _of_timm("mobileone_s0", 64, 4),
        _of_timm("poolformer_s12", 64, 4),
        _of_timm("resnest14d", 64, 4),
        _of_timm("volo_d1_224", 224, 1),
        _of_timm("xcit_nano_12_p16_224", 224, 2),
    )
)


def _transformer(config: str, network: str, options: dict[str, Any]) -> nn.Module:
    transformers: Any = importlib.import_module("transformers")
    with unset_fake_temporarily():
        made = getattr(transformers, config)(vocab_size=VOCABULARY, attn_implementation="eager", **options)
        return Output(getattr(transformers, network)(made), "logits")


def _of_transformers(config: str, network: str, **options: Any) -> Network:
    return Network(
        f"transformers {network}", partial(_transformer, config, network, options), (64,), 8, VOCABULARY, "transformers"
    )


_BERT: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "num_labels": 10,
    "pad_token_id": None,
}
_DISTILBERT: dict[str, Any] = {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 512, "num_labels": 10, "pad_token_id": None}
TRANSFORMERS = (
    _of_transformers("BertConfig", "BertForSequenceClassification", **_BERT),
    _of_transformers("DistilBertConfig", "DistilBertForSequenceClassification", **_DISTILBERT),
    _of_transformers("AlbertConfig", "AlbertForSequenceClassification", embedding_size=32, **_BERT),
    _of_transformers("GPT2Config", "GPT2LMHeadModel", n_embd=128, n_layer=2, n_head=4, use_cache=False),
)

NETWORKS = (*REFERENCE, *IMAGES, *SEQUENCES, *TIMM, *LATER, *TRANSFORMERS)
