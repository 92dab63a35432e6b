"""Networks on sequences, made of common layers, a few of each kind."""

from __future__ import annotations

from torch import nn

from memory.blocks import Call, Recurrent, Residual, SelfAttention, classified
from memory.images import S
from memory.network import Network

SEQUENCES = (
    Network("LSTM", lambda: S(Recurrent(nn.LSTM(12, 64, batch_first=True)), classified(64)), (40, 12)),
    Network(
        "two-layer LSTM of tokens",
        lambda: S(nn.Embedding(200, 32), Recurrent(nn.LSTM(32, 96, 2, batch_first=True)), classified(96)),
        (30,),
        32,
        200,
    ),
    Network(
        "bidirectional LSTM",
        lambda: S(Recurrent(nn.LSTM(16, 48, batch_first=True, bidirectional=True)), classified(96)),
        (50, 16),
    ),
    Network("GRU", lambda: S(Recurrent(nn.GRU(16, 64, batch_first=True)), classified(64)), (40, 16)),
    Network(
        "bidirectional GRU of tokens",
        lambda: S(nn.Embedding(200, 24), Recurrent(nn.GRU(24, 32, batch_first=True, bidirectional=True)), classified(64)),
        (40,),
        16,
        200,
    ),
    Network("EmbeddingBag", lambda: S(nn.EmbeddingBag(500, 64), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), (24,), 64, 500),
    Network("EmbeddingBag, sum", lambda: S(nn.EmbeddingBag(500, 128, mode="sum"), nn.Linear(128, 10)), (100,), 32, 500),
    Network(
        "embedding and 1-D convolution",
        lambda: S(
            nn.Embedding(300, 32),
            Call(lambda x: x.transpose(1, 2)),
            nn.Conv1d(32, 64, 5),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(1),
            nn.Flatten(),
            nn.Linear(64, 10),
        ),
        (60,),
        32,
        300,
    ),
    Network(
        "self-attention", lambda: S(nn.Linear(16, 64), Residual(SelfAttention(64, 4)), nn.LayerNorm(64), classified(64)), (50, 16)
    ),
    Network(
        "transformer encoder",
        lambda: S(
            nn.Embedding(200, 64),
            nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), 2, enable_nested_tensor=False),
            classified(64),
        ),
        (40,),
        16,
        200,
    ),
    Network("long self-attention", lambda: S(nn.Linear(8, 32), Residual(SelfAttention(32, 2)), classified(32)), (400, 8), 4),
    Network(
        "convolution then LSTM",
        lambda: S(
            nn.Conv1d(8, 32, 5),
            nn.ReLU(),
            Call(lambda x: x.transpose(1, 2)),
            Recurrent(nn.LSTM(32, 32, batch_first=True)),
            classified(32),
        ),
        (8, 100),
    ),
)
