"""A small GPT of the kind that computes its loss itself: `logits, loss = model(x, y)`."""

from __future__ import annotations

import inspect
import textwrap

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc

STEPS, CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 120, 16, 16, 48, 4, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = (part.view(n, t, HEADS, d // HEADS).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters: int, std: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=std)

    def forward(self, x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.blocks(h)))
        return logits, None if y is None else F.cross_entropy(logits.flatten(0, 1), y.flatten())


def main(planted: bool = False) -> tuple[wc.Diagnosis, float]:
    """Train it; `planted`: with weights drawn from N(0, 1), not N(0, 0.02²)."""
    torch.manual_seed(0)
    text = inspect.getsource(textwrap)
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    data = torch.tensor([index[character] for character in text])

    def get_batch() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,))
        x = torch.stack([data[i : i + CONTEXT] for i in starts])
        return x, torch.stack([data[i + 1 : i + CONTEXT + 1] for i in starts])

    model = GPT(len(index), std=1.0 if planted else 0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    batches = [get_batch() for _ in range(8)]
    diagnosis = wc.diagnose(wc.Problem(model, None, batches), optimizer)
    print(diagnosis.verdict())

    losses = []
    for step in range(STEPS):
        _, loss = model(*get_batch())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 40 == 39:
            print(f"step {step + 1}: loss {sum(losses[-20:]) / 20:.3f}")
    return diagnosis, sum(losses[-20:]) / 20


if __name__ == "__main__":
    main()
