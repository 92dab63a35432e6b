"""Networks of token ids: recurrent ones for Shakespeare's plays and film reviews, and BERT-small and GPT-2, for costs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.models.base import scaled, window
from edgefl.models.deit import HEAD_SIZE, Attention
from edgefl.models.deit import Block as PreNormBlock
from edgefl.registry import model

GPT2_TOKENS, GPT2_CONTEXT = 50257, 1024
BERT_WORD_PIECES, BERT_CONTEXT, BERT_SEGMENTS, BERT_HEADS, BERT_BLOCKS, BERT_EXPANSION = 30522, 512, 2, 8, 4, 4
CHARACTERS = 80
WORDS = 1001


class Recurrent(nn.Module):
    """An embedding, LSTM layers, and a linear classifier on the last step. Embedding and hidden state scale with the width."""

    def __init__(self, vocabulary: int, embedding: int, hidden: int, layers: int, classes: int, width: float) -> None:
        super().__init__()
        units = scaled(hidden, width)
        self.embedding = nn.Embedding(vocabulary, scaled(embedding, width))
        self.rnn = nn.LSTM(scaled(embedding, width), units, layers, batch_first=True)
        self.fc = nn.Linear(units, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map token ids (batch, length) int64 to logits (batch, classes)."""
        return self.fc(self.rnn(self.embedding(x))[0][:, -1])


@model("lstm-shakespeare", usual_input=(80,), usual_classes=CHARACTERS, vocabulary=CHARACTERS)
def lstm_shakespeare(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return the 2-layer LSTM for the next of 80 characters (FedPara, Appendix C.2), without weight normalisation: 819,920 parameters."""
    window("lstm-shakespeare", input_shape, norm)
    return Recurrent(CHARACTERS, 8, 256, 2, classes, width)


@model("lstm-imdb", usual_input=(500,), usual_classes=2, vocabulary=WORDS)
def lstm_imdb(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return the LSTM for IMDB (PriSM, Table 8) with two outputs, not one: 920,642 parameters, 1001 words; id 0 pads in front."""
    window("lstm-imdb", input_shape, norm)
    return Recurrent(WORDS, 64, 256, 2, classes, width)


@model("rnn-shakespeare", usual_input=(80,), usual_classes=CHARACTERS, vocabulary=CHARACTERS)
def rnn_shakespeare(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return a 1-layer recurrent network for the next character like FLANC's: 742,864 parameters at width 1.

    The paper prints only sizes at widths .25 to 1 (Table 1: 49, 214, 443 and 787 K). This network has LSTM cells (McMahan et al. 2017),
    LEAF's embedding of 8, and the number of hidden units with the least deviation, 416: 53.5, 195.1, 424.9 and 742.9 K. The printed sizes
    leave no room for an embedding and a classifier: all except 214 K are those of one ``nn.RNN`` layer of 1024 inputs and 512 units, which
    FLANC sends as 48, 187, 417 and 740 K with R₁ = 32 and R₂ = 30.
    """
    window("rnn-shakespeare", input_shape, norm)
    return Recurrent(CHARACTERS, 8, 416, 1, classes, width)


class Decoder(nn.Module):
    """Embeddings of tokens and positions, causal blocks, and logits by the embedding's own weight: the classifier has none."""

    def __init__(self, blocks: int, heads: int, width: float) -> None:
        super().__init__()
        size = heads * scaled(HEAD_SIZE, width)
        self.tokens = nn.Embedding(GPT2_TOKENS, size)
        self.positions = nn.Parameter(torch.empty(GPT2_CONTEXT, size))
        self.blocks = nn.Sequential(*(PreNormBlock(size, heads, causal=True) for _ in range(blocks)))
        self.norm = nn.LayerNorm(size, eps=1e-5)
        for parameter in (self.tokens.weight, self.positions):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map token ids (batch, length) int64 to logits (batch · length, tokens): each token's row predicts the next."""
        x = self.tokens(x) + self.positions[: x.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight).flatten(0, 1)


def _decoder(name: str, blocks: int, heads: int, input_shape: tuple[int, ...], classes: int, width: float, norm: str) -> Decoder:
    window(name, input_shape, norm)
    if input_shape[0] > GPT2_CONTEXT or classes != GPT2_TOKENS:
        raise ConfigError(
            f"model {name} takes at most {GPT2_CONTEXT} tokens and has {GPT2_TOKENS} classes, "
            f"got {input_shape[0]} tokens and {classes} classes"
        )
    return Decoder(blocks, heads, width)


@model("gpt2-small", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_small(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 small: 124,439,808 parameters. All sizes have GELU without its approximation, and no dropout."""
    return _decoder("gpt2-small", 12, 12, input_shape, classes, width, norm)


@model("gpt2-medium", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_medium(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 medium: 354,823,168 parameters."""
    return _decoder("gpt2-medium", 24, 16, input_shape, classes, width, norm)


@model("gpt2-large", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_large(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 large: 774,030,080 parameters."""
    return _decoder("gpt2-large", 36, 20, input_shape, classes, width, norm)


@model("gpt2-xl", usual_input=(1024,), usual_classes=50257, vocabulary=50257, large=True, per_token=True)
def gpt2_xl(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return GPT-2 XL: 1,557,611,200 parameters."""
    return _decoder("gpt2-xl", 48, 25, input_shape, classes, width, norm)


class Block(nn.Module):
    """Attention, then a perceptron of four times the channels, each with a shortcut and before a LayerNorm."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.attention = Attention(channels, BERT_HEADS)
        self.norm1 = nn.LayerNorm(channels, eps=1e-12)
        self.expand = nn.Linear(channels, BERT_EXPANSION * channels)
        self.contract = nn.Linear(BERT_EXPANSION * channels, channels)
        self.norm2 = nn.LayerNorm(channels, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, length, channels) to the same shape."""
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.contract(F.gelu(self.expand(x))))


class Encoder(nn.Module):
    """Embeddings of word pieces, positions and one segment, blocks, and a pooled linear classifier on the first token."""

    def __init__(self, classes: int, width: float) -> None:
        super().__init__()
        size = BERT_HEADS * scaled(HEAD_SIZE, width)
        self.tokens = nn.Embedding(BERT_WORD_PIECES, size)
        self.positions = nn.Parameter(torch.empty(BERT_CONTEXT, size))
        self.segments = nn.Parameter(torch.empty(BERT_SEGMENTS, size))
        self.norm = nn.LayerNorm(size, eps=1e-12)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(BERT_BLOCKS)))
        self.pool = nn.Linear(size, size)
        self.fc = nn.Linear(size, classes)
        layers = (module.weight for module in self.modules() if isinstance(module, (nn.Linear, nn.Embedding)))
        for parameter in (self.positions, self.segments, *layers):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Map ids of word pieces (batch, length) int64 to logits (batch, classes)."""
        x = self.norm(self.tokens(x) + self.positions[: x.shape[1]] + self.segments[0])
        return self.fc(torch.tanh(self.pool(self.blocks(x)[:, 0])))


@model("bert-small", usual_input=(128,), usual_classes=2, vocabulary=30522, large=True)
def bert_small(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """Return BERT-small without dropout: 28,763,648 parameters and the classifier's."""
    window("bert-small", input_shape, norm)
    if input_shape[0] > BERT_CONTEXT:
        raise ConfigError(f"model bert-small takes at most {BERT_CONTEXT} tokens, got {input_shape[0]}")
    return Encoder(classes, width)
