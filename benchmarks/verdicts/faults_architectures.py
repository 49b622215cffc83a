"""Faults of transformers, recurrent and residual networks, and of a GAN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, case, named, program


class Transformer(nn.Module):
    """torch's own encoder over tokens; the label is read off the first of them."""

    def __init__(self, depth: int, width: int = 32, *, prenorm: bool, vocabulary: int = 16, length: int = 10) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=prenorm)
        last = nn.LayerNorm(width) if prenorm else None
        self.encoder = nn.TransformerEncoder(layer, depth, last, enable_nested_tensor=False)
        for p in self.encoder.parameters():  # or every layer would be a copy of the first
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        self.head = nn.Linear(width, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.tokens(tokens) + self.positions)[:, 0])


_PARTS = ("", ".self_attn", ".self_attn.out_proj", ".linear1", ".linear2", ".norm1", ".norm2")
POSTNORM_LAYERS = tuple(f"encoder.layers.{k}{part}" for k in range(24) for part in _PARTS)


@case(24, "a deep post-norm transformer at 1e-3 without a warm-up",
      rules=["learning-rate-too-high", "vanishing-gradient", "exploding-gradient"],
      layers=["", "tokens", "head", *POSTNORM_LAYERS], steps=150)  # fmt: skip
def postnorm(faulty: bool) -> Program:
    tokens = data.marked_tokens()
    model = Transformer(24, prenorm=not faulty)
    return program(model, nn.CrossEntropyLoss(), tokens, 16, Adam, accuracy(tokens), lr=1e-3)


@case(24, "attention logits that have grown until every position looks at one other",
      rules=["attention-saturation"],
      layers=[f"encoder.layers.0{part}" for part in ("", ".norm1", ".self_attn", ".self_attn.in_proj_weight")],
      steps=200)  # fmt: skip
def grown_attention(faulty: bool) -> Program:
    tokens = data.marked_tokens()
    model = Transformer(1, prenorm=True)
    if faulty:
        with torch.no_grad():
            model.encoder.layers[0].self_attn.in_proj_weight[:64] *= 12  # queries and keys
    return program(model, nn.CrossEntropyLoss(), tokens, 64, Adam, accuracy(tokens), lr=1e-3)


class Adversaries(nn.Module):
    """A generator of digits, judged by a discriminator that its own optimizer trains."""

    def __init__(self, is_probability: bool) -> None:
        super().__init__()
        self.generator = named(fc1=nn.Linear(16, 64), act1=nn.ReLU(), out=nn.Linear(64, 64), sigmoid=nn.Sigmoid())
        judge: dict[str, nn.Module] = {"fc1": nn.Linear(64, 128), "act1": nn.LeakyReLU(0.2), "out": nn.Linear(128, 1)}
        if is_probability:
            judge["sigmoid"] = nn.Sigmoid()
        self.discriminator = named(**judge)

    def forward(self, noise: Tensor) -> Tensor:
        return self.discriminator(self.generator(noise))

    def train_discriminator(self, images: Tensor, steps: int, noise: float) -> None:
        """Against the generator as it is, on images with instance noise."""
        optimizer = Adam(self.discriminator.parameters(), lr=3e-3)
        for _ in range(steps):
            real = images[torch.randint(0, len(images), (64,))]
            fake = self.generator(torch.randn(64, 16)).detach()
            both = torch.cat([real, fake])
            logits = self.discriminator[:3](both + noise * torch.randn(both.shape))
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(logits, torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])).backward()
            optimizer.step()


def minimax(probability: Tensor, _: Tensor) -> Tensor:
    return (1 - probability).clamp_min(1e-12).log().mean()


@case(25, "a GAN whose discriminator saturates: nothing is left to its generator",
      rules=["saturated-output", "vanishing-gradient", "saturated-activation"],
      layers=["", "discriminator.sigmoid", "discriminator.out", *(f"generator.{k}" for k in ("fc1", "out", "sigmoid"))],
      steps=300)  # fmt: skip
def saturated_discriminator(faulty: bool) -> Program:
    images = data.digit_images(8)[0].flatten(1)
    model = Adversaries(is_probability=faulty)
    model.train_discriminator(images, 1000 if faulty else 60, noise=0.0 if faulty else 0.5)
    model.discriminator.requires_grad_(False)
    noise = torch.randn(1024, 16)
    start = (model.generator(noise).mean(0) - images.mean(0)).norm().item()

    def closer(trained: nn.Module) -> float:
        """How much of the way to the mean image the generator has gone."""
        return 1 - (trained.generator(noise).mean(0) - images.mean(0)).norm().item() / start  # type: ignore[operator]

    loader = DataLoader(TensorDataset(noise, torch.ones(1024, 1)), batch_size=64, shuffle=True)
    loss = minimax if faulty else nn.BCEWithLogitsLoss()
    return Program(model.train(), loss, loader, SGD(model.generator.parameters(), lr=0.1, momentum=0.5), closer)


class LastState(nn.Module):
    """An LSTM over a long sequence; the label is read off its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def open_forget_gates(self) -> None:
        """σ(7) of the state is kept at every step, and little is written unless the input asks for it."""
        nn.init.zeros_(self.lstm.bias_hh_l0)
        with torch.no_grad():
            self.lstm.bias_ih_l0.view(4, 24)[:] = torch.tensor([-3.0, 7.0, 0.0, 0.0])[:, None]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


@case(26, "an LSTM over 500 steps whose gates do not stay open",
      rules=["vanishing-gradient"], layers=["lstm", "lstm.weight_ih_l0", "lstm.weight_hh_l0"], steps=150)  # fmt: skip
def closed_gates(faulty: bool) -> Program:
    sequences = data.first_value()
    model = LastState()
    if not faulty:
        model.open_forget_gates()
    return program(model, nn.CrossEntropyLoss(), sequences, 32, Adam, accuracy(sequences), lr=3e-3)


class Residual(nn.Module):
    """x + branch(x); or, with the bug, x."""

    def __init__(self, width: int, is_added: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.is_added = is_added

    def forward(self, x: Tensor) -> Tensor:
        update = self.branch(x)
        return x + update if self.is_added else x


@case(29, "residual branches that are computed and never added",
      rules=["no-gradient"],
      layers=[f"block{k}{part}" for k in (1, 2, 3) for part in ("", ".branch", ".branch.0", ".branch.2",
              ".branch.0.weight", ".branch.2.weight")], steps=400)  # fmt: skip
def branch_not_added(faulty: bool) -> Program:
    rings = data.circles()
    blocks = {f"block{k}": Residual(16, is_added=not faulty) for k in (1, 2, 3)}
    model = named(fc1=nn.Linear(2, 16), **blocks, out=nn.Linear(16, 2))
    return program(model, nn.CrossEntropyLoss(), rings, 32, SGD, accuracy(rings), lr=0.05)
