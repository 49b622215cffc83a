"""Programs over sequences, each written in some other way: language models, taggers, encoders, recurrent networks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH, N, T = 12, 16, 24, 10


def text(*, begin: int = 0, n: int = N, t: int = T + 1) -> Tensor:
    """(n, t) tokens of a Markov chain, from `begin` on."""
    draw = torch.Generator().manual_seed(0)
    following = torch.softmax(2 * torch.randn(WORDS, WORDS, generator=draw), 1)
    steps = [torch.randint(0, WORDS, (n,), generator=draw)]
    while len(steps) < t:
        steps.append(torch.multinomial(following[steps[-1]], 1, generator=draw)[:, 0])
    return torch.stack(steps, 1) + begin


def padded_text() -> tuple[Tensor, Tensor]:
    """Tokens from 1 on, filled with 0 at their ends, and where they are real."""
    tokens = text(begin=1, t=T)
    lengths = torch.randint(3, T - 1, (N,), generator=torch.Generator().manual_seed(1))
    is_real = torch.arange(T) < lengths[:, None]
    return tokens * is_real, is_real


def by_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of outputs (N, T, V)."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(0.5 * torch.randn(4 * T, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


class Torchs(nn.Module):
    """torch's own encoder, with a mask for the future or for padding, which is token 0."""

    def __init__(self, mask: str, read: str = "each", *, with_positions: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mask, self.read = mask, read
        self.embedding = nn.Embedding(WORDS + 1, WIDTH)
        self.positions = Positions() if with_positions else nn.Identity()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS + 1)

    def forward(self, tokens: Tensor, is_real: Tensor | None = None) -> Tensor:
        h = self.positions(self.embedding(tokens))
        is_real = tokens != 0 if is_real is None else is_real
        if self.mask == "causal":
            h = self.encoder(h, mask=nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]), is_causal=True)
        else:
            hidden = {"right": ~is_real, "inverted": is_real, "none": None}[self.mask]
            h = self.encoder(h, src_key_padding_mask=hidden)
        if self.read == "mean":
            weight = is_real[..., None].to(h) if self.mask != "none" else torch.ones_like(h[..., :1])
            h = (h * weight).sum(1) / weight.sum(1)
        elif self.read == "first":
            h = h[:, 0]
        out: Tensor = self.head(h)
        return out


class Own(nn.Module):
    """Attention by hand: by einsum, matmul or the kernel; `keep` makes the places that a step may see."""

    def __init__(self, how: str, keep: str = "past", form: str = "NTV") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.keep, self.form = how, keep, form
        self.embedding, self.positions, self.norm = nn.Embedding(WORDS + 1, WIDTH), Positions(), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, WORDS + 1)

    def kept(self, tokens: Tensor) -> Tensor:
        every = torch.ones(tokens.shape[1], tokens.shape[1])
        is_real = tokens.ne(0)
        places = {
            "past": every.tril().bool(),
            "one ahead": every.tril(1).bool(),
            "future": every.triu().bool(),
            "all": every.bool(),
            "prefix": every.tril().bool() | (torch.arange(len(every)) < 4),
            "real": is_real[:, None, :].expand(-1, len(every), -1),
            "padding": (~is_real)[:, None, :].expand(-1, len(every), -1),
        }
        return places[self.keep].expand(len(tokens), -1, -1)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.positions(self.embedding(tokens))
        x = self.norm(h)
        q, k, v, keep = self.q(x), self.k(x), self.v(x), self.kept(tokens)
        if self.how == "kernel":
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        else:
            scores = torch.einsum("btd,bsd->bts", q, k) if self.how == "einsum" else q @ k.transpose(1, 2)
            scores = (scores / math.sqrt(WIDTH)).masked_fill(~keep, -math.inf if self.how == "einsum" else -1e9)
            mixed = scores.softmax(-1) @ v
        out: Tensor = self.head(h + self.out(mixed))
        return {"NTV": out, "NVT": out.transpose(1, 2), "flat": out.flatten(0, 1)}[self.form]


class Recurrent(nn.Module):
    """A recurrent layer over tokens, with an answer for each step, or for the sequence."""

    def __init__(self, kind: str = "GRU", *, both: bool = False, steps_first: bool = False, read: str = "each") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.read = nn.Embedding(WORDS + 1, WIDTH), read
        self.rnn = getattr(nn, kind)(WIDTH, WIDTH, batch_first=not steps_first, bidirectional=both)
        self.head = nn.Linear(WIDTH * (1 + both), WORDS + 1)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None) -> Any:
        h = self.embedding(tokens)
        lengths = tokens.ne(0).sum(1) if lengths is None else lengths
        if self.read == "packed":
            packed = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
            return self.head(self.rnn(packed)[1][-1])
        states, last = self.rnn(h)
        if self.read == "with state":
            return self.head(states), last
        if self.read == "last":
            return self.head(states[:, -1])
        if self.read == "last real":
            return self.head(states[torch.arange(len(tokens)), lengths - 1])
        return self.head(states)


class Convolution(nn.Module):
    """Two convolutions over time, padded on both sides or on the left."""

    def __init__(self, *, left: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.left = nn.Embedding(WORDS + 1, WIDTH), left
        self.first, self.second = nn.Conv1d(WIDTH, WIDTH, 3), nn.Conv1d(WIDTH, WORDS + 1, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        h, sides = self.embedding(tokens).transpose(1, 2), (2, 0) if self.left else (1, 1)
        out: Tensor = self.second(F.pad(torch.relu(self.first(F.pad(h, sides))), sides))
        return out


class OwnLoss(nn.Module):
    """Returns outputs and the loss, as small language models do."""

    def __init__(self, keep: str = "past", *, shifts: bool = False) -> None:
        super().__init__()
        self.network, self.shifts = Own("einsum", keep), shifts

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        out = self.network(tokens)
        return out, by_token(out[:, :-1], targets[:, 1:]) if self.shifts else by_token(out, targets)


class Translator(nn.Module):
    """An encoder, and a decoder that gets the tokens before each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.positions = nn.Embedding(WORDS + 1, WIDTH), Positions()
        self.network = nn.Transformer(WIDTH, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS + 1)

    def forward(self, source: Tensor, before: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1])
        source, before = (self.positions(self.embedding(t)) for t in (source, before))
        out: Tensor = self.head(self.network(source, before, tgt_mask=mask, tgt_is_causal=True))
        return out


class Autoencoder(nn.Module):
    """Reads tokens into one state, and writes them again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS + 1, WIDTH)
        self.reader, self.writer = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS + 1)

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.reader(self.embedding(tokens))[1][-1]
        out: Tensor = self.head(self.writer(state[:, None].expand(-1, tokens.shape[1], -1))[0])
        return out


class Loop(nn.Module):
    """A state that is carried from step to step, and cut off or not."""

    def __init__(self, kind: str, cut: str = "", every: int = 1, read: str = "last") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.cut, self.every, self.read = kind, cut, every, read
        self.embedding = nn.Embedding(WORDS + 1, 4) if kind == "tokens" else nn.Identity()
        if kind == "by hand":
            self.look, self.turn = nn.Linear(4, WIDTH), nn.Linear(WIDTH, WIDTH)
        elif kind == "GRU":
            self.cell = nn.GRU(4, WIDTH, batch_first=True)
        else:
            self.cell = nn.RNNCell(4, WIDTH) if kind == "RNNCell" else nn.GRUCell(4, WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def next(self, x: Tensor, h: Tensor) -> Tensor:
        if self.kind == "by hand":
            return torch.tanh(self.look(x) + self.turn(h))
        out: Tensor = self.cell(x[:, None], h[None])[1][0] if self.kind == "GRU" else self.cell(x, h)
        return out

    def forward(self, x: Tensor) -> Tensor:
        h, states = torch.zeros(len(x), WIDTH), []
        for step, now in enumerate(x.unbind(1)):
            now = self.embedding(now)
            if self.cut in ("detach", "data", "list") and step % self.every == 0:
                h = torch.tensor(h.tolist()) if self.cut == "list" else h.data if self.cut == "data" else h.detach()
            with torch.set_grad_enabled(self.cut != "no_grad" or step == x.shape[1] - 1):
                h = self.next(now, h)
            states.append(h)
        out: Tensor = self.head(torch.stack(states, 1)).transpose(1, 2) if self.read == "each" else self.head(h)
        return out
