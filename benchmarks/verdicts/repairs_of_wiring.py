"""Faults of what is connected with what, in networks that are written in different ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, program, r2
from benchmarks.verdicts.repair_cases import on_digits, repair
from benchmarks.verdicts.repair_networks import (
    Block,
    Convolutions,
    Perceptron,
    Rows,
    Tokens,
    on_tokens,
    transformer,
)

# attention


@repair("attention-saturation", "scores that are not divided by √d, and queries that have grown", 250)
def unscaled_scores(faulty: bool) -> Program:
    model = transformer(1, 64, 2.0 if faulty else 0.25)
    if faulty:
        with torch.no_grad():
            model.blocks[0].attention.q.weight *= 20
            model.blocks[0].attention.k.weight *= 20
    return on_tokens(model, Adam, lr=1e-3)


class Torch(nn.Module):
    """torch's attention, which returns a pair."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.inner(x, x, x, need_weights=False)[0]
        return outputs


@repair("attention-saturation", "torch's attention in a block of one's own, with weights 15 times too large", 250)
def grown_module(faulty: bool) -> Program:
    model = Tokens([Block(Torch(32), 32, prenorm=True)])
    if faulty:
        with torch.no_grad():
            model.blocks[0].attention.inner.in_proj_weight[:64] *= 15
    return on_tokens(model, AdamW, lr=1e-3, weight_decay=0.1)


class Fused(nn.Module):
    """Queries, keys and values from one layer, and torch's function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        outputs: Tensor = self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return outputs


@repair("attention-saturation", "a fused layer of queries, keys and values with weights 15 times too large", 250)
def grown_fused(faulty: bool) -> Program:
    model = Tokens([Block(Fused(32), 32, prenorm=True)])
    if faulty:
        with torch.no_grad():
            model.blocks[0].attention.qkv.weight[:64] *= 15
    return on_tokens(model, Adam, lr=1e-3)


# nonlinearity


def products() -> data.Data:
    """The sign of a product of two numbers, among six."""
    x = torch.randn(1024, 6, generator=torch.Generator().manual_seed(2))
    return x, (x[:, 0] * x[:, 1] > 0).long()


class Dropped(nn.Module):
    """The result of an activation that is not used."""

    def __init__(self, is_dropped: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 2)
        self.is_dropped = is_dropped

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        y = torch.relu(x)
        x = self.fc2(x if self.is_dropped else y)
        y = torch.relu(x)
        outputs: Tensor = self.fc3(x if self.is_dropped else y)
        return outputs


@repair("no-nonlinearity", "activations whose results are dropped")
def dropped_results(faulty: bool) -> Program:
    numbers = products()
    return program(Dropped(faulty), F.cross_entropy, numbers, 32, AdamW, accuracy(numbers), lr=1e-2)


@repair("no-nonlinearity", "layers in a list without a function between them")
def linear_list(faulty: bool) -> Program:
    numbers = products()
    model = Perceptron(3, (lambda x: x) if faulty else F.relu, 6, 32, 2)
    return program(model, F.cross_entropy, numbers, 32, SGD, accuracy(numbers), lr=0.1, momentum=0.9)


@repair("no-nonlinearity", "BatchNorm after each layer and nothing else")
def norms_alone(faulty: bool) -> Program:
    numbers = products()
    layers = [each for i in range(2) for each in (nn.Linear(32 if i else 6, 32), nn.BatchNorm1d(32),
                                                  nn.Identity() if faulty else nn.ReLU())]  # fmt: skip
    model = nn.Sequential(*layers, nn.Linear(32, 2))
    return program(model, F.cross_entropy, numbers, 32, Adam, accuracy(numbers), lr=1e-2)


# gradient


@repair("no-gradient", "convolutions and head are frozen, and the stem is random")
def frozen_convolutions(faulty: bool) -> Program:
    model = Convolutions(3, 16, norm=nn.BatchNorm2d)
    nn.init.zeros_(model.fc.weight)
    if faulty:
        model.requires_grad_(False)
        model.stem.requires_grad_()
    return on_digits(model, lr=0.05, momentum=0.9, weight_decay=1e-4)


@repair("no-gradient", "an optimizer that holds the embedding alone", 250)
def embedding_alone(faulty: bool) -> Program:
    model = transformer(1)
    built = on_tokens(model)
    if faulty:
        nn.init.normal_(model.embedding.weight, 0, 1e-3)
        for block in model.blocks:
            nn.init.zeros_(block.attention.o.weight)
        built.optimizer = AdamW(model.embedding.parameters(), lr=3e-3, weight_decay=0.05)
    return built


@repair("no-gradient", "an LSTM under no_grad, by requires_grad_(False)", 300)
def frozen_lstm(faulty: bool) -> Program:
    model = Rows(nn.LSTM)
    if faulty:
        model.rnn.requires_grad_(False)
        with torch.no_grad():
            for p in model.rnn.parameters():
                p *= 0.1
    return on_digits(model, Adam, lr=3e-3, amsgrad=True)


# shared layers


@repair("shared-weight", "one expert four times", 400)
def one_expert(faulty: bool) -> Program:
    draw = torch.Generator().manual_seed(3)
    x, kind = torch.randn(1024, 4, generator=draw), torch.randint(0, 4, (1024,), generator=draw)
    numbers = torch.cat([x, F.one_hot(kind, 4).float()], 1), x.gather(1, kind[:, None])
    return program(Experts(faulty), F.mse_loss, numbers, 64, Adam, r2(numbers), lr=1e-2)


class Experts(nn.Module):
    """An expert for each kind of example."""

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        expert = nn.Linear(4, 1)
        self.experts = nn.ModuleList([expert if is_shared else nn.Linear(4, 1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = (torch.cat([expert(x[:, :4]) for expert in self.experts], 1) * x[:, 4:]).sum(1, keepdim=True)
        return outputs


class TwoHeads(nn.Module):
    """Two tasks with a head each."""

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 32)
        self.a = nn.Linear(32, 1)
        self.b = self.a if is_shared else nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.fc(x))
        return torch.cat([self.a(hidden), self.b(hidden)], 1)


@repair("shared-weight", "two tasks whose heads are one layer")
def one_head(faulty: bool) -> Program:
    x, _ = products()
    numbers = x, torch.stack([x[:, 0] + x[:, 1], x[:, 2] - x[:, 0]], 1)
    return program(TwoHeads(faulty), F.mse_loss, numbers, 32, SGD, r2(numbers), lr=0.05, momentum=0.9)


# dropout


class Functional(nn.Module):
    """A perceptron whose dropout is a function."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.relu(self.fc1(x.flatten(1))), self.share, self.training)
        x = F.dropout(F.relu(self.fc2(x)), self.share, self.training)
        outputs: Tensor = self.fc3(x)
        return outputs


@repair("dropout-too-strong", "a function that drops 97 %")
def dropout_function(faulty: bool) -> Program:
    return on_digits(Functional(0.97 if faulty else 0.1), lr=0.1, momentum=0.9)


@repair("dropout-too-strong", "Dropout2d of 0.95 after every convolution", 300)
def dropped_channels(faulty: bool) -> Program:
    model = Convolutions(3, norm=lambda width: nn.Dropout2d(0.95 if faulty else 0.05))
    return on_digits(model, AdamW, lr=3e-3)


@repair("dropout-too-strong", "an LSTM of three layers with dropout of 0.95 between them", 300)
def dropped_states(faulty: bool) -> Program:
    return on_digits(Rows(nn.LSTM, num_layers=3, dropout=0.97 if faulty else 0.1), Adam, lr=5e-3)


@repair("dropout-too-strong", "torch's encoder layers with dropout of 0.9", 250)
def dropped_attention(faulty: bool) -> Program:
    share = 0.9 if faulty else 0.0
    blocks = [nn.TransformerEncoderLayer(32, 4, 64, share, batch_first=True, norm_first=True) for _ in range(2)]
    return on_tokens(Tokens(blocks), Adam)


# BatchNorm


@repair("batchnorm-mode-gap", "convolutions whose statistics were loaded from elsewhere, trained in evaluation mode")
def convolutions_in_evaluation(faulty: bool) -> Program:
    model = Convolutions(4, norm=nn.BatchNorm2d)
    for norm in model.norms:
        nn.init.constant_(norm.running_mean, 3.0)
    built = on_digits(model, momentum=0.9, lr=0.02)
    if faulty:
        model.eval()
    return built


@repair("batchnorm-mode-gap", "BatchNorms frozen by eval() in a list of modules")
def frozen_statistics(faulty: bool) -> Program:
    layers = [each for _ in range(4) for each in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh())]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10))
    built = on_digits(model, Adam)
    if faulty:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
                nn.init.constant_(module.running_var, 1e4)
    return built


@repair("batchnorm-mode-gap", "running statistics of other weights, which hardly move", 250)
def stale_statistics(faulty: bool) -> Program:
    model = Convolutions(3, norm=lambda width: nn.BatchNorm2d(width, momentum=1e-4 if faulty else 0.1))
    for norm in model.norms:
        nn.init.constant_(norm.running_mean, -20.0)
    return on_digits(model, AdamW, lr=3e-3)


@repair("small-batch-batchnorm", "BatchNorm after pooled convolutions, and batches of two", 600)
def pairs_of_images(faulty: bool) -> Program:
    norm: Any = nn.BatchNorm1d if faulty else nn.LayerNorm
    body = [nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()]
    head = [nn.Linear(128, 32), norm(32), nn.ReLU(), nn.Linear(32, 32), norm(32), nn.ReLU(), nn.Linear(32, 10)]
    return _one_by_one(nn.Sequential(*body, *head))


@repair("small-batch-batchnorm", "a table with BatchNorm at a rate of 0.1, and batches of two", 200)
def pairs_of_patients(faulty: bool) -> Program:
    x, y = data.table("wine", scaled=True)
    norm: Any = nn.BatchNorm1d if faulty else nn.LayerNorm
    layers = [each for i in range(3) for each in (nn.Linear(32 if i else 13, 32), norm(32), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(32, 3))
    return program(model, F.cross_entropy, (x, y), 2, SGD, accuracy((x, y)), lr=0.1)


@repair("small-batch-batchnorm", "a perceptron with BatchNorm and batches of two", 600)
def pairs_of_rows(faulty: bool) -> Program:
    norm: Any = nn.BatchNorm1d if faulty else nn.LayerNorm
    layers = [each for _ in range(3) for each in (nn.Linear(64, 64), norm(64), nn.ReLU())]
    return _one_by_one(nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10)))


def _one_by_one(model: nn.Module) -> Program:
    return on_digits(model, SGD, batch=2, lr=0.01, momentum=0.9)


# examples


@repair("sorted-batches", "rows in the order of their labels, by Adam, with a loader that was told not to shuffle")
def sorted_rows(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    order = y.argsort()
    built = on_digits(Perceptron(3), Adam, lr=3e-3)
    if faulty:
        built.loader = DataLoader(TensorDataset(x[order], y[order]), batch_size=32)
    return built


@repair("sorted-batches", "images by class, in a data set of one's own", 400)
def sorted_images(faulty: bool) -> Program:
    x, y = data.digit_images(8)
    order = y.argsort() if faulty else torch.randperm(len(y))
    built = on_digits(Convolutions(2, norm=nn.BatchNorm2d), momentum=0.9, lr=0.1)
    built.loader = DataLoader(Images(x[order], y[order]), batch_size=32, shuffle=not faulty, drop_last=True)
    return built


class Images(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Images and labels."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]
