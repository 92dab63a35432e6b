"""Recurrent networks on windows of token ids: next characters of Shakespeare's plays, and sentiment of film reviews."""

from torch import Tensor, nn

from edgefl.models.base import scaled, window
from edgefl.registry import model

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
