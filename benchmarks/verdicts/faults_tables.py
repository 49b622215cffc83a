"""Faults of small networks on tables: scales of inputs and targets, outputs that do not fit the loss, rates."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

from benchmarks.verdicts import data
from benchmarks.verdicts.case import Program, accuracy, binary_accuracy, case, named, program, r2, r2_of_probabilities


@case(1, "4-4-3 on raw Iris, sigmoid outputs under cross-entropy, far too small",
      rules=["output-loss-mismatch"], layers=["out", "sigmoid"], steps=200)  # fmt: skip
def iris_sigmoid(faulty: bool) -> Program:
    iris = data.table("iris", scaled=not faulty)
    if faulty:
        model = named(fc1=nn.Linear(4, 4), act1=nn.ReLU(), out=nn.Linear(4, 3), sigmoid=nn.Sigmoid())
    else:
        model = named(fc1=nn.Linear(4, 32), act1=nn.ReLU(), out=nn.Linear(32, 3))
    return program(model, nn.CrossEntropyLoss(), iris, 16, Adam, accuracy(iris), lr=1e-2 if not faulty else 1e-3)


@case(2, "8-12-8-1 on raw medical features of very different scales",
      rules=["unscaled-input"], layers=["", "fc1"], steps=1500)  # fmt: skip
def medical_raw(faulty: bool) -> Program:
    patients = data.medical(scaled=not faulty)
    model = named(fc1=nn.Linear(8, 12), act1=nn.ReLU(), fc2=nn.Linear(12, 8), act2=nn.ReLU(), out=nn.Linear(8, 1),
                  sigmoid=nn.Sigmoid())  # fmt: skip
    return program(model, nn.BCELoss(), patients, 10, SGD, binary_accuracy(patients, 0.5), lr=0.05)


@case(4, "3-12-3-1 regression on an unscaled table",
      rules=["unscaled-input", "unscaled-target"], layers=["", "fc1", "out"], steps=600)  # fmt: skip
def houses_raw(faulty: bool) -> Program:
    houses = data.houses(scaled=not faulty)
    model = named(fc1=nn.Linear(3, 12), act1=nn.ReLU(), fc2=nn.Linear(12, 3), act2=nn.ReLU(), out=nn.Linear(3, 1))
    return program(model, nn.MSELoss(), houses, 32, SGD, r2(houses), lr=0.05)


def keras_binary_crossentropy(p: Tensor, y: Tensor) -> Tensor:
    """With probabilities clipped away from 0 and 1, as Keras has it, whatever they are."""
    p = p.clamp(1e-7, 1 - 1e-7)
    return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


def _eleven_columns(scaled: bool) -> data.Data:
    """The first eleven columns of the wine table; whether it is the first cultivar."""
    x, y = data.table("wine", scaled=scaled)
    return x[:, :11], (y == 0).float()[:, None]


def _eleven_12_12_1() -> dict[str, nn.Module]:
    return {"fc1": nn.Linear(11, 12), "act1": nn.ReLU(), "fc2": nn.Linear(12, 12), "act2": nn.ReLU(),
            "out": nn.Linear(12, 1)}  # fmt: skip


@case(5, "11-12-12-1, ReLU output under binary cross-entropy, unscaled",
      rules=["output-loss-mismatch", "unscaled-input"], layers=["", "out", "relu", "fc1"], steps=400)  # fmt: skip
def relu_probability(faulty: bool) -> Program:
    wine = _eleven_columns(scaled=not faulty)
    model = named(**_eleven_12_12_1(), **({"relu": nn.ReLU()} if faulty else {"sigmoid": nn.Sigmoid()}))
    loss = keras_binary_crossentropy if faulty else nn.BCELoss()
    return program(model, loss, wine, 10, Adam, binary_accuracy(wine, 0.5), lr=1e-2)


@case(5, "the same with a ReLU on the logits",
      rules=["output-loss-mismatch"], layers=["out", "relu"], steps=400)  # fmt: skip
def relu_logit(faulty: bool) -> Program:
    wine = _eleven_columns(scaled=True)
    model = named(**_eleven_12_12_1(), **({"relu": nn.ReLU()} if faulty else {}))
    return program(model, nn.BCEWithLogitsLoss(), wine, 10, Adam, r2_of_probabilities(wine), lr=1e-2)


@case(9, "XOR 2-4-1 with the mean absolute error and SGD at 0.05",
      rules=["learning-rate-too-low", "output-loss-mismatch", "loss-not-decreasing", "vanishing-gradient"],
      layers=["", "fc1", "out", "sigmoid"], steps=1000)  # fmt: skip
def xor_mae(faulty: bool) -> Program:
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    xor = x, (x.sum(1, keepdim=True) == 1).float()
    if faulty:
        model = named(fc1=nn.Linear(2, 4), act1=nn.Sigmoid(), out=nn.Linear(4, 1), sigmoid=nn.Sigmoid())
        return program(model, nn.L1Loss(), xor, 4, SGD, binary_accuracy(xor, 0.5), lr=0.05)
    model = named(fc1=nn.Linear(2, 16), act1=nn.Tanh(), out=nn.Linear(16, 1), sigmoid=nn.Sigmoid())
    return program(model, nn.BCELoss(), xor, 4, Adam, binary_accuracy(xor, 0.5), lr=0.05)


@case(10, "2-2-2 on synthetic data at a low rate, for too few epochs",
      rules=["learning-rate-too-low", "loss-not-decreasing"], steps=160)  # fmt: skip
def too_few_epochs(faulty: bool) -> Program:
    clouds = data.blobs()
    model = named(fc1=nn.Linear(2, 2), act1=nn.Tanh(), out=nn.Linear(2, 2))
    return program(
        model, nn.CrossEntropyLoss(), clouds, 32, SGD, r2_of_probabilities(clouds), lr=1e-4 if faulty else 0.5
    )


@case(11, "8-8-8-8 between bit patterns, a stack of sigmoids under the squared error",
      rules=["vanishing-gradient", "saturated-activation", "learning-rate-too-low", "output-loss-mismatch"],
      layers=["", "fc1", "fc2", "act1", "act2", "out", "sigmoid"], steps=2000)  # fmt: skip
def bits_sigmoids(faulty: bool) -> Program:
    codes = data.bits()
    if faulty:
        model = named(fc1=nn.Linear(8, 8), act1=nn.Sigmoid(), fc2=nn.Linear(8, 8), act2=nn.Sigmoid(),
                      out=nn.Linear(8, 8), sigmoid=nn.Sigmoid())  # fmt: skip
        return program(model, nn.MSELoss(), codes, 16, SGD, binary_accuracy(codes, 0.5), lr=0.1)
    model = named(fc1=nn.Linear(8, 32), act1=nn.ReLU(), fc2=nn.Linear(32, 32), act2=nn.ReLU(), out=nn.Linear(32, 8))
    return program(model, nn.BCEWithLogitsLoss(), codes, 16, SGD, binary_accuracy(codes, 0.0), lr=0.1)


@case(13, "a network without any nonlinearity",
      rules=["no-nonlinearity"], layers=["", "fc1", "fc2", "fc3", "out"], steps=400)  # fmt: skip
def linear_stack(faulty: bool) -> Program:
    rings = data.circles()
    between = nn.Identity if faulty else nn.ReLU
    model = named(fc1=nn.Linear(2, 16), act1=between(), fc2=nn.Linear(16, 16), act2=between(), fc3=nn.Linear(16, 16),
                  act3=between(), out=nn.Linear(16, 2))  # fmt: skip
    if faulty:
        model = named(**{name: module for name, module in model.named_children() if not name.startswith("act")})
    return program(model, nn.CrossEntropyLoss(), rings, 32, Adam, accuracy(rings), lr=1e-2)


@case(17, "targets [N] against outputs [N, 1]",
      rules=["output-loss-mismatch"], layers=["", "out"], steps=600)  # fmt: skip
def broadcast_targets(faulty: bool) -> Program:
    x, y = data.houses(scaled=True)
    model = named(fc1=nn.Linear(3, 32), act1=nn.ReLU(), out=nn.Linear(32, 1))
    return program(model, nn.MSELoss(), (x, y[:, 0] if faulty else y), 32, Adam, r2((x, y)), lr=1e-2)


@case(19, "all weights start at one constant",
      rules=["symmetric-initialisation"], layers=["fc1", "fc2", "out"], steps=500)  # fmt: skip
def constant_weights(faulty: bool) -> Program:
    digits = data.table("digits", scaled=False)
    digits = digits[0] / 16, digits[1]
    model = named(fc1=nn.Linear(64, 32), act1=nn.ReLU(), fc2=nn.Linear(32, 32), act2=nn.ReLU(), out=nn.Linear(32, 10))
    if faulty:
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.05)
    return program(model, nn.CrossEntropyLoss(), digits, 32, Adam, accuracy(digits), lr=1e-2)


@case(21, "an accuracy that thresholds the logit at 0.5: a fault of the metric",
      rules=[], steps=500, is_shown=False)  # fmt: skip
def metric_threshold(faulty: bool) -> Program:
    x, y = data.table("breast_cancer", scaled=True)
    patients = x, y.float()[:, None]
    model = named(fc1=nn.Linear(30, 16), act1=nn.ReLU(), out=nn.Linear(16, 1))
    threshold = 0.5 if faulty else 0.0
    return program(model, nn.BCEWithLogitsLoss(), patients, 32, Adam, binary_accuracy(patients, threshold), lr=1e-2)


@case(23, "an index that shuffles the features and not the labels", rules=["labels-unrelated"], steps=600)
def shuffled_features(faulty: bool) -> Program:
    x, y = data.table("digits", scaled=False)
    x, seen = x / 16, slice(1437)
    train = x[seen], y[seen]
    if faulty:
        train = x[seen][torch.randperm(1437)], y[seen]
    model = named(fc1=nn.Linear(64, 64), act1=nn.ReLU(), out=nn.Linear(64, 10))
    return program(model, nn.CrossEntropyLoss(), train, 32, Adam, accuracy((x[1437:], y[1437:])), lr=1e-3)


class TwoHeads(nn.Module):
    """A trunk, and a head for each of two targets."""

    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 32), nn.ReLU())
        self.sugar, self.pressure = nn.Linear(32, 1), nn.Linear(32, 1)
        if shared:
            self.pressure.weight = self.sugar.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        return torch.cat([self.sugar(x), self.pressure(x)], 1)


@case(30, "two layers that share a weight by accident",
      rules=["shared-weight"], layers=["sugar", "pressure", "sugar.weight", "pressure.weight"], steps=600)  # fmt: skip
def shared_weight(faulty: bool) -> Program:
    x, _ = data.table("diabetes", scaled=True)
    mix = torch.randn(10, 2, generator=torch.Generator().manual_seed(1))
    targets = data.standardized(torch.relu(x) @ mix)
    return program(TwoHeads(faulty), nn.MSELoss(), (x, targets), 32, Adam, r2((x, targets)), lr=1e-2)
