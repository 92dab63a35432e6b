"""Recurrent networks on windows of token ids: next characters of Shakespeare's plays, and sentiment of film reviews."""

from __future__ import annotations

from torch import Tensor, nn

from edgefl.models.base import scaled, window
from edgefl.registry import model

CHARACTERS = 80
WORDS = 1001


class Recurrent(nn.Module):
    """An embedding, LSTM layers, and a linear classifier on the last step; the embedding and the hidden state scale with the width."""

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
    """The 2-layer LSTM for the next of 80 characters (FedPara, Appendix C.2, without its weight normalisation): 819,920 parameters."""
    window("lstm-shakespeare", input_shape, norm)
    return Recurrent(CHARACTERS, 8, 256, 2, classes, width)


@model("lstm-imdb", usual_input=(500,), usual_classes=2, vocabulary=WORDS)
def lstm_imdb(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """The LSTM for IMDB (PriSM, Table 8), with two outputs instead of one: 1001 words, id 0 pads in front; 920,642 parameters."""
    window("lstm-imdb", input_shape, norm)
    return Recurrent(WORDS, 64, 256, 2, classes, width)


@model("rnn-shakespeare", usual_input=(80,), usual_classes=CHARACTERS, vocabulary=CHARACTERS)
def rnn_shakespeare(input_shape: tuple[int, ...], classes: int, width: float = 1.0, norm: str = "none") -> nn.Module:
    """FLANC's 1-layer recurrent network for the next character: 742,960 parameters at width 1.

    The paper prints sizes at width .25 to 1 only (Table 1, p-width: 49, 214, 443 and 787 K). Taken here: LSTM cells (McMahan et al. 2017),
    LEAF's embedding of 8, and 416 hidden units, with which the largest deviation of the four is least: 53.5, 195.2, 424.9 and 743.0 K.
    """
    window("rnn-shakespeare", input_shape, norm)
    return Recurrent(CHARACTERS, 8, 416, 1, classes, width)
