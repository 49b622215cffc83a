"""A character-level LSTM on a text that every Python has: the source of a module."""

from __future__ import annotations

import inspect
import textwrap

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import wellcond as wc

STEPS, LENGTH, BATCH = 120, 16, 32


class Characters(Dataset):
    """Pieces of the text, and the same one character on."""

    def __init__(self) -> None:
        text = inspect.getsource(textwrap)
        self.vocabulary = sorted(set(text))
        index = {character: i for i, character in enumerate(self.vocabulary)}
        self.text = torch.tensor([index[character] for character in text])

    def __len__(self) -> int:
        return len(self.text) - LENGTH

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.text[i : i + LENGTH], self.text[i + 1 : i + LENGTH + 1]


class CharLSTM(nn.Module):
    def __init__(self, characters: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, 32)
        self.lstm = nn.LSTM(32, width, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, state = self.lstm(self.embedding(x), state)
        return self.head(h), state


def loss_of(outputs: tuple[Tensor, tuple[Tensor, Tensor]], targets: Tensor) -> Tensor:
    logits, _ = outputs
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: with plain SGD at a rate that is one for Adam."""
    torch.manual_seed(0)
    data = Characters()
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    model = CharLSTM(len(data.vocabulary))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    if planted:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    diagnosis = wc.diagnose(wc.Problem(model, loss_of, loader), optimizer)
    print(diagnosis.verdict())

    losses = []
    for step, (x, y) in zip(range(STEPS), loader, strict=False):
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 49:
            print(f"step {step + 1}: loss {sum(losses[-20:]) / 20:.3f}")
    return diagnosis, sum(losses[-20:]) / 20


if __name__ == "__main__":
    main()
