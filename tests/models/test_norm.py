"""Normalisation policies and reference networks."""

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.errors import ConfigError
from edgefl.models.base import Architecture, scaled, small_models, stem_and_classifier, weighted_layers
from edgefl.models.norm import BatchStatisticsNorm, StaticBatchNorm, calibrate, groups_of, needs_statistics, norm2d


def tensor(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


@pytest.mark.parametrize("policy", [StaticBatchNorm, BatchStatisticsNorm])
def test_training_is_batchnorm_of_the_batch(policy):
    x, mine, reference = 3 * tensor(5, 4, 2, 3) + 1, policy(4), nn.BatchNorm2d(4)
    torch.testing.assert_close(mine.train()(x), reference.train()(x))


def test_batch_statistics_are_used_in_evaluation_too():
    x, norm = 3 * tensor(5, 4, 2, 3) + 1, BatchStatisticsNorm(4)
    torch.testing.assert_close(norm.eval()(x), norm.train()(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", [StaticBatchNorm, BatchStatisticsNorm])
def test_a_batch_of_one_value_per_channel_becomes_the_bias(policy):
    norm = policy(3).train()
    with torch.no_grad():
        norm.bias.copy_(torch.tensor([1.0, -2.0, 0.5]))
    assert norm(tensor(1, 3, 1, 1)).flatten().tolist() == [1.0, -2.0, 0.5]


def test_static_statistics_are_those_of_all_queried_samples():
    network = nn.Sequential(StaticBatchNorm(3), nn.Conv2d(3, 2, 1), StaticBatchNorm(2)).eval()
    x = 2 * tensor(10, 3, 4, 4) - 1
    calibrate(network, [x[:7], x[7:]])
    flat = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(network[0].mean.double(), flat.mean(1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network[0].variance.double(), flat.var(1, unbiased=False), rtol=1e-5, atol=1e-6)
    assert not network.training
    # With one batch that holds everything, evaluation is what training computes.
    calibrate(network, [x])
    evaluated = network(x)
    torch.testing.assert_close(evaluated, network.train()(x), rtol=1e-4, atol=1e-5)


def test_static_statistics_do_not_travel():
    network = Architecture("cnn-digits", (1, 8, 8), 10, "static").build()
    assert needs_statistics(network)
    assert not [name for name in network.state_dict() if "mean" in name or "variance" in name]
    assert not needs_statistics(Architecture("cnn-digits", (1, 8, 8), 10).build())


@pytest.mark.parametrize("channels", range(1, 130))
def test_groups_divide_the_channels_and_hold_eight_where_they_can(channels):
    groups = groups_of(channels)
    assert channels % groups == 0
    assert groups == 1 or channels // groups >= 8
    assert norm2d("group", channels)(torch.ones(2, channels, 2, 2)).shape == (2, channels, 2, 2)


@pytest.mark.parametrize(
    ("channels", "width", "expected"), [(64, 0.25, 16), (30, 0.1, 3), (10, 0.25, 3), (5, 0.01, 1), (7, 1, 7)]
)
def test_widths_round_up_but_not_for_binary_rounding(channels, width, expected):
    assert scaled(channels, width) == expected


SIZES = {
    "cnn-5x5": ((1, 28, 28), 10, 582_026),
    "cnn-deep": ((1, 28, 28), 10, 130_538),
    "cnn-digits": ((1, 8, 8), 10, 66_154),
    "cnn-fashion": ((1, 28, 28), 10, 285_186),
    "cnn-femnist": ((1, 28, 28), 10, 54_602),
    "cnn-flanc": ((1, 28, 28), 10, 284_554),
    "cnn-pooled": ((1, 28, 28), 10, 371_402),
    "cnn-tiny": ((1, 28, 28), 10, 20_490),
    "deit-tiny": ((3, 32, 32), 10, 5_362_762),
    "lstm-imdb": ((500,), 2, 920_642),
    "lstm-shakespeare": ((80,), 80, 819_920),
    "mlp": ((1, 28, 28), 10, 203_530),
    "resnet18": ((3, 32, 32), 10, 11_173_962),
    "resnet34": ((3, 32, 32), 100, 21_328_292),
    "resnet9": ((3, 32, 32), 10, 2_571_338),
    "rnn-shakespeare": ((80,), 80, 742_864),
    "vgg11": ((3, 32, 32), 10, 9_228_362),
    "vgg16": ((3, 32, 32), 10, 15_253_578),
}


@pytest.mark.parametrize("name", small_models())
def test_every_model_has_its_size_and_runs_at_every_width(name):
    shape, classes, params = SIZES[name]
    architecture = Architecture(name, shape, classes)
    assert sum(p.numel() for p in architecture.skeleton().parameters()) == params
    for width in (1.0, 0.5, 0.1):
        assert architecture.build(width)(architecture.samples(2)).shape == (2, classes)


def test_flanc_table_1_p_width_sizes_of_the_fashion_cnn():
    """FLANC, Table 1, column p-width: 43, 106, 186 and 285 K. This network is within 0.7 K; ``cnn-flanc`` is the authors'."""
    architecture = Architecture("cnn-fashion", (1, 28, 28), 10)
    for width, printed_k in ((0.25, 43), (0.5, 106), (0.75, 186), (1.0, 285)):
        params = sum(p.numel() for p in architecture.skeleton(width).parameters())
        assert params / 1000 == pytest.approx(printed_k, abs=0.7)


def test_stem_and_classifier_are_told_apart():
    assert stem_and_classifier(Architecture("resnet18", (3, 32, 32), 10).skeleton()) == ("conv1", "fc")
    assert stem_and_classifier(Architecture("mlp", (1, 8, 8), 10).skeleton()) == (None, "fc")
    assert len(list(weighted_layers(Architecture("resnet18", (3, 32, 32), 10).skeleton()))) == 21


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cnn-digits", (1, 8, 8), 10, "grop"), "norm: got 'grop', expected one of group, static, batch, none, layer"),
        (("mlp", (1, 8, 8), 10, "group"), "model mlp has no feature maps"),
        (("resnet18", (3, 4, 4), 10), "sides of at least 8, got 3x4x4"),
        (("resnet18", (3072,), 10), "takes channels x height x width"),
        (("mlp", (1, 0, 8), 10), "sizes must be positive"),
        (("mlp", (1, 8, 8), 0), "sizes must be positive"),
    ],
)
def test_wrong_architectures_say_what_is_expected(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Architecture(*arguments).build()
