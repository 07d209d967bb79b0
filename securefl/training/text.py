"""A recurrent model for text: codes of characters in, the next character out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from securefl.training.row_wise import of_rows

EMBEDDING = 32


@of_rows
class CharLSTM(nn.Module):
    """ADDS's Shakespeare model (section 4.1.3), on characters: (n, length) int64 -> (n, characters).

    An embedding of 32, two bidirectional LSTM layers of 256 units each way, scaled by `width`, and two dense
    layers behind the last place. The paper has one dense layer; the hidden one here is what is sampled, since
    recurrent layers stay whole. A code outside the vocabulary raises IndexError.
    """

    def __init__(self, characters: int, width: float = 1.0) -> None:
        super().__init__()
        units = max(1, round(256 * width))
        self.embedding = nn.Embedding(characters, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, units, num_layers=2, batch_first=True, bidirectional=True)
        self.fc1 = nn.Linear(2 * units, units)
        self.fc2 = nn.Linear(units, characters)

    def forward(self, x: Tensor) -> Tensor:
        places, _ = self.lstm(self.embedding(x))
        # what either direction knows behind its last character
        forth, back = places.chunk(2, dim=-1)
        logits: Tensor = self.fc2(torch.relu(self.fc1(torch.cat([forth[:, -1], back[:, 0]], dim=1))))
        return logits
