"""Faults on sequences. `mistake=False` is the same loop without the fault."""

from __future__ import annotations

import data
import torch
import torch.nn.functional as F
from program import Record, fault
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class CharTransformer(nn.Module):
    def __init__(self, width: int = 32, length: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(data.ALPHABET), width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, len(data.ALPHABET))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place[: tokens.shape[1]]
        return self.out(self.norm(self.blocks(x, mask=self.mask, is_causal=True)))


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@fault(
    "Warm-up, then MultiStepLR at step 700 with gamma=10 (the number to divide by, in the old configuration): instead of"
    " falling to 0.01 the rate leaps to 1.0 and the loss breaks out",
    rules=("learning-rate-too-high", "diverging", "loss-spike", "exploding-gradient"),
    step=700,
    steps=1400,
)
def gamma_of_ten(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(41)
    g = torch.Generator().manual_seed(41)
    text, held = data.corpus(40000, 31), data.corpus(4000, 32)
    model = CharTransformer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=100)
    drops = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[700], gamma=10 if mistake else 0.1)
    scheduler = torch.optim.lr_scheduler.ChainedScheduler([warmup, drops])
    recorder = record(model, optimizer, token_loss)
    for _ in range(1400):
        inputs, targets = data.windows(text, 12, 24, g)
        optimizer.zero_grad()
        loss = token_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        recorder.step(loss.item(), (inputs, targets))
    with torch.no_grad():
        inputs, targets = data.windows(held, 64, 24, g)
        data.SCORES["gamma_of_ten"] = token_loss(model(inputs), targets).item()


class ReviewNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.gru = nn.GRU(16, 24, batch_first=True)
        self.head = nn.Linear(24, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(self.embed(tokens))
        return self.head(states[:, -1])


def evaluate(model: ReviewNet, x: torch.Tensor, y: torch.Tensor, freeze: bool) -> float:
    if freeze:  # "saves memory"; nobody turns it back
        for p in model.gru.parameters():
            p.requires_grad_(False)
    with torch.no_grad():
        return F.cross_entropy(model(x), y).item()


@fault(
    "The evaluation helper, first called after step 250, sets requires_grad of the GRU to False and never back: from"
    " then on the GRU gets no gradient and keeps its half-trained weights",
    rules=("no-gradient",),
    layers=("gru",),
    step=250,
    steps=1500,
)
def evaluation_freezes_gru(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(42)
    x, y = data.reviews(6000, 33)
    held_x, held_y = data.reviews(1000, 34)
    model = ReviewNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()
    recorder = record(model, optimizer, criterion)
    value = 0.0
    for step in range(1, 1501):
        pick = torch.randint(6000, (32,))
        optimizer.zero_grad()
        loss = criterion(model(x[pick]), y[pick])
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (x[pick], y[pick]))
        if step % 250 == 0:
            value = evaluate(model, held_x, held_y, mistake)
            recorder.validation(value)
    data.SCORES["evaluation_freezes_gru"] = value


class PooledAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.place = nn.Parameter(0.1 * torch.randn(16, 24))
        self.attention = nn.MultiheadAttention(24, 2, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.mlp = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 24))
        self.head = nn.Linear(24, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = x + self.mlp(self.norm(x))
        return self.head(x.mean(1))


@fault(
    "From step 1000 the stream comes from a second, crowd-labelled source in which half of the labels are drawn at"
    " random: the loss jumps to another level and stays there",
    rules=("data-changed", "labels-unrelated"),
    step=1000,
    steps=2000,
)
def crowd_labels_enter(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(43)
    x, y = data.reviews(64000, 35)
    held_x, held_y = data.reviews(1000, 36)
    if mistake:
        g = torch.Generator().manual_seed(430)
        noisy = (torch.arange(64000) >= 32000) & (torch.rand(64000, generator=g) < 0.5)
        y = torch.where(noisy, torch.randint(2, (64000,), generator=g), y)
    model = PooledAttention()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = record(model, optimizer, F.cross_entropy)
    for step in range(2000):
        inputs, labels = x[32 * step : 32 * step + 32], y[32 * step : 32 * step + 32]
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recorder.step(loss.item(), (inputs, labels))
    with torch.no_grad():
        data.SCORES["crowd_labels_enter"] = F.cross_entropy(model(held_x), held_y).item()


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, 32, batch_first=True)
        self.out = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


@fault(
    "When the iterator is used up the loop takes next(iter(loader)) and does not keep the new iterator: after the"
    " first 400 steps every step sees the same first batch, and the forecasts of other series get worse",
    rules=("repeated-batches", "overfitting"),
    step=400,
    steps=1500,
)
def exhausted_iterator(record: Record, mistake: bool = True) -> None:
    torch.manual_seed(44)
    series, held = data.waves(6400, 37), data.waves(500, 38)
    loader = DataLoader(TensorDataset(series[:, :-1], series[:, 1:]), batch_size=16)
    model = Forecaster()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    criterion = nn.MSELoss()
    recorder = record(model, optimizer, criterion)
    batches = iter(loader)
    for step in range(1500):
        try:
            inputs, targets = next(batches)
        except StopIteration:
            if mistake:
                inputs, targets = next(iter(loader))
            else:
                batches = iter(loader)
                inputs, targets = next(batches)
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        recorder.step(loss.item(), (inputs, targets))
        if step % 100 == 99:
            with torch.no_grad():
                recorder.validation(criterion(model(held[:, :-1]), held[:, 1:]).item())
    with torch.no_grad():
        data.SCORES["exhausted_iterator"] = criterion(model(held[:, :-1]), held[:, 1:]).item()
