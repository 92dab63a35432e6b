"""Networks on images and signals, made of common layers, a few of each kind."""

from __future__ import annotations

from torch import nn

from memory.blocks import (
    Beside,
    Dense,
    PerSampleConv,
    Residual,
    UNet,
    conv,
    head,
    inverted,
    squeeze,
)
from memory.network import Network

S = nn.Sequential

CONVOLUTIONS = (
    Network("three plain convolutions", lambda: S(conv(3, 32), conv(32, 64), conv(64, 64), head(64))),
    Network("small convolutions, batch 2", lambda: S(conv(3, 4), conv(4, 8), head(8)), (3, 8, 8), 2),
    Network("small convolutions, batch 128", lambda: S(conv(1, 8), conv(8, 8), head(8)), (1, 8, 8), 128),
    Network("wide kernels 7×7", lambda: S(conv(3, 16, 7, 2), conv(16, 32, 5, 2), conv(32, 32, 5), head(32)), (3, 64, 64), 8),
    Network("1×1 convolutions", lambda: S(conv(3, 64, 1), conv(64, 128, 1), conv(128, 64, 1), head(64)), (3, 16, 16)),
    Network(
        "dilated convolutions",
        lambda: S(
            conv(3, 24),
            nn.Conv2d(24, 32, 3, padding=2, dilation=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=4, dilation=4),
            head(32),
        ),
    ),
    Network("grouped convolutions", lambda: S(conv(3, 32), conv(32, 64, groups=4), conv(64, 64, groups=8), head(64))),
    Network(
        "depthwise convolutions",
        lambda: S(conv(3, 32), conv(32, 32, groups=32), conv(32, 64, 1), conv(64, 64, 5, groups=64), head(64)),
    ),
    Network(
        "transposed convolutions",
        lambda: S(
            conv(3, 32, stride=2), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 8, 2, 2), head(8)
        ),
    ),
    Network(
        "grouped transposed convolution",
        lambda: S(conv(3, 32, stride=2), nn.ConvTranspose2d(32, 32, 3, 2, 1, output_padding=1, groups=4), nn.ReLU(), head(32)),
    ),
    Network(
        "autoencoder",
        lambda: S(
            conv(3, 16, stride=2),
            conv(16, 32, stride=2),
            nn.ConvTranspose2d(32, 16, 2, 2),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 2, 2),
        ),
    ),
    Network(
        "1-D convolutions",
        lambda: S(
            nn.Conv1d(6, 32, 9, 2),
            nn.ReLU(),
            nn.Conv1d(32, 64, 5, 2),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        ),
        (6, 256),
    ),
    Network(
        "depthwise 1-D convolutions",
        lambda: S(
            nn.Conv1d(8, 64, 1),
            nn.Conv1d(64, 64, 15, padding=7, groups=64),
            nn.SiLU(),
            nn.Conv1d(64, 32, 1),
            nn.Flatten(),
            nn.Linear(32 * 128, 10),
        ),
        (8, 128),
    ),
    Network(
        "3-D convolutions",
        lambda: S(
            nn.Conv3d(1, 8, 3, padding=1),
            nn.BatchNorm3d(8),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(8, 16, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
            nn.Linear(16, 10),
        ),
        (1, 16, 16, 16),
        4,
    ),
    Network(
        "asymmetric convolutions",
        lambda: S(
            conv(3, 16), nn.Conv2d(16, 32, (1, 7), padding=(0, 3)), nn.Conv2d(32, 32, (7, 1), padding=(3, 0)), nn.ReLU(), head(32)
        ),
    ),
    Network(
        "reflect padding", lambda: S(nn.Conv2d(3, 16, 3, padding=1, padding_mode="reflect"), nn.ReLU(), conv(16, 32), head(32))
    ),
    Network(
        "per-sample weights",
        lambda: S(conv(3, 32), PerSampleConv(32, 64), nn.ReLU(), PerSampleConv(64, 64), nn.ReLU(), head(64)),
        (3, 16, 16),
    ),
)

NORMS = (
    Network(
        "BatchNorm without affine",
        lambda: S(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32, affine=False), nn.ReLU(), conv(32, 32), head(32)),
    ),
    Network(
        "GroupNorm and SiLU",
        lambda: S(
            nn.Conv2d(3, 32, 3), nn.GroupNorm(8, 32), nn.SiLU(), nn.Conv2d(32, 64, 3), nn.GroupNorm(8, 64), nn.SiLU(), head(64)
        ),
    ),
    Network(
        "InstanceNorm",
        lambda: S(
            nn.Conv2d(3, 32, 3),
            nn.InstanceNorm2d(32, affine=True),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.InstanceNorm2d(32),
            nn.ReLU(),
            head(32),
        ),
    ),
    Network(
        "LayerNorm MLP",
        lambda: S(nn.Flatten(), nn.Linear(3072, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 10)),
        batch_size=64,
    ),
    Network(
        "BatchNorm1d MLP with dropout",
        lambda: S(nn.Flatten(), nn.Linear(3072, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 10)),
        batch_size=64,
    ),
    Network("local response norm", lambda: S(conv(3, 16), nn.LocalResponseNorm(5), nn.Conv2d(16, 32, 3), nn.ReLU(), head(32))),
)

ACTIVATIONS = (
    Network("Hardswish after convolutions", lambda: S(conv(3, 32, act=nn.Hardswish), conv(32, 64, act=nn.Hardswish), head(64))),
    Network("Mish after convolutions", lambda: S(conv(3, 32, act=nn.Mish), conv(32, 64, act=nn.Mish), head(64))),
    Network(
        "SiLU after depthwise",
        lambda: S(conv(3, 32, act=nn.SiLU), conv(32, 32, groups=32, act=nn.SiLU), conv(32, 64, 1, act=nn.SiLU), head(64)),
    ),
    Network(
        "GELU, ELU and PReLU", lambda: S(conv(3, 32, act=nn.GELU), conv(32, 32, act=nn.ELU), conv(32, 32, act=nn.PReLU), head(32))
    ),
    Network("softplus and tanh", lambda: S(nn.Conv2d(3, 32, 3), nn.Softplus(), nn.Conv2d(32, 32, 3), nn.Tanh(), head(32))),
)

BLOCKS = (
    Network(
        "squeeze and excite",
        lambda: S(conv(3, 32), Residual(conv(32, 32), squeeze(32, 8)), Residual(conv(32, 32), squeeze(32, 8)), head(32)),
    ),
    Network(
        "inverted residuals",
        lambda: S(conv(3, 16, stride=2), inverted(16, 16, 4), inverted(16, 24, 4, 2), inverted(24, 24, 4), head(24)),
        (3, 64, 64),
        8,
    ),
    Network(
        "inverted residuals with excite",
        lambda: S(
            conv(3, 16, stride=2),
            inverted(16, 16, 4, excite=True),
            inverted(16, 24, 4, 2, excite=True),
            inverted(24, 24, 6),
            head(24),
        ),
        (3, 64, 64),
        8,
    ),
    Network(
        "dense block",
        lambda: S(conv(3, 16), Dense(conv(16, 16)), Dense(conv(32, 16)), Dense(conv(48, 16)), Dense(conv(64, 16)), head(80)),
    ),
    Network(
        "inception block",
        lambda: S(
            conv(3, 32),
            Beside(conv(32, 16, 1), conv(32, 16), conv(32, 16, 5), S(nn.MaxPool2d(3, 1, 1), conv(32, 16, 1))),
            head(64),
        ),
    ),
    Network("U-Net, transposed", lambda: UNet(12, lambda i, o: nn.ConvTranspose2d(i, o, 2, 2)), (3, 64, 64), 4),
    Network("U-Net, nearest", lambda: UNet(12, lambda i, o: S(nn.Upsample(scale_factor=2), nn.Conv2d(i, o, 1))), (3, 64, 64), 4),
    Network(
        "PixelShuffle", lambda: S(conv(3, 32, 5), conv(32, 32), nn.Conv2d(32, 12, 3, padding=1), nn.PixelShuffle(2)), batch_size=8
    ),
    Network(
        "bilinear upsampling",
        lambda: S(conv(3, 16), nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 3, 3)),
        batch_size=8,
    ),
    Network(
        "residual, 112×112 images",
        lambda: S(
            conv(3, 16, 7, 2), nn.MaxPool2d(3, 2, 1), Residual(conv(16, 16), conv(16, 16)), conv(16, 32, stride=2), head(32)
        ),
        (3, 112, 112),
        8,
    ),
    Network(
        "separable convolutions",
        lambda: S(conv(3, 16), *(S(conv(16, 16, groups=16), conv(16, 16, 1)) for _ in range(4)), head(16)),
        (3, 28, 28),
        64,
    ),
    Network(
        "shuffled groups",
        lambda: S(
            conv(3, 32),
            conv(32, 64, 1, groups=4),
            nn.ChannelShuffle(4),
            conv(64, 64, groups=64),
            conv(64, 64, 1, groups=4),
            head(64),
        ),
    ),
)

POOLS = (
    Network("max pooling", lambda: S(conv(3, 32), nn.MaxPool2d(2), conv(32, 64), nn.MaxPool2d(3, 2, 1), head(64))),
    Network("average pooling", lambda: S(conv(3, 32), nn.AvgPool2d(2), conv(32, 64), nn.AvgPool2d(3, 2, 1), head(64))),
    Network("adaptive max pooling", lambda: S(conv(3, 32), nn.AdaptiveMaxPool2d(5), nn.Flatten(), nn.Linear(800, 10))),
    Network(
        "adaptive average pooling 6×6",
        lambda: S(conv(3, 64), nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(64 * 36, 128), nn.ReLU(), nn.Linear(128, 10)),
    ),
    Network("LP pooling", lambda: S(conv(3, 32), nn.LPPool2d(2, 2), conv(32, 32), head(32))),
)

IMAGES = (*CONVOLUTIONS, *NORMS, *ACTIVATIONS, *BLOCKS, *POOLS)
