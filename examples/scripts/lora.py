"""LoRA: a small language model that has read one text is adapted to another by low-rank updates of its weights."""

from __future__ import annotations

import inspect
import json.decoder
import textwrap

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

PRETRAINING, STEPS, BATCH, LENGTH, WIDTH, RANK = 150, 250, 16, 32, 64, 8
VOCABULARY = 128  # ASCII


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.feed_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, 4, -1)).movedim((2, 3), (0, 2))
        x = x + self.join(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.feed_norm(x))))


class SmallLM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


class LoRA(nn.Module):
    """A frozen layer, and B A x next to it."""

    def __init__(self, layer: nn.Linear, both_zero: bool) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(layer.out_features, RANK))
        if both_zero:
            nn.init.zeros_(self.a)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2 * x @ self.a.T @ self.b.T


def batches(text: str) -> list[tuple[Tensor, Tensor]]:
    codes = torch.tensor([min(ord(c), VOCABULARY - 1) for c in text])
    starts = torch.randint(len(codes) - LENGTH - 1, (64, BATCH, 1)) + torch.arange(LENGTH)
    return [(codes[each], codes[each + 1]) for each in starts]


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(model: nn.Module, data: list[tuple[Tensor, Tensor]], optimizer: torch.optim.Optimizer, steps: int) -> float:
    losses = []
    for step in range(steps):
        x, y = data[step % len(data)]
        loss = loss_of(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-20:]) / 20


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: both factors of an update start at zero, and block each other's gradient."""
    torch.manual_seed(0)
    model = SmallLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    print(f"one text: loss {train(model, batches(inspect.getsource(textwrap)), optimizer, PRETRAINING):.2f}")

    model.requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.widen = LoRA(block.qkv, planted), LoRA(block.widen, planted)
    data = batches(json.decoder.__doc__ + inspect.getsource(json.decoder))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    diagnosis = wc.diagnose(wc.Problem(model, loss_of, data), optimizer)
    print(diagnosis.verdict())

    loss = train(model, data, optimizer, STEPS)
    print(f"the other text: loss {loss:.2f}")
    return diagnosis, loss


if __name__ == "__main__":
    main()
