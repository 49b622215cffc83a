"""One BatchNorm at several places, and places that may share one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from statistics import fmean

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis import trial
from wellcond.diagnosis.after_runs import SharedNorm
from wellcond.diagnosis.attempts import Allowance
from wellcond.diagnosis.shared_norms import difference_of_places, shared_norm
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer

G = torch.Generator().manual_seed(0)
X = torch.randn(256, 8, generator=G)
Y = (X @ torch.randn(8, 4, generator=G)).argmax(1)


class Stack(nn.Module):
    """Layers with one BatchNorm after all of them, or with one for each; signals have different sizes."""

    def __init__(self, norms: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 24), nn.Linear(24, 24), nn.Linear(24, 24)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(24) for _ in range(norms)])
        self.last = nn.Linear(24, 4)
        for place, layer in enumerate(self.layers):
            nn.init.constant_(layer.bias, 3.0 * place)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            x = F.relu(self.norms[place % len(self.norms)](layer(x)))
        out: Tensor = self.last(x)
        return out


class Steps(nn.Module):
    """A recurrence that normalizes its state at every step, which grows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.into, self.last = nn.BatchNorm1d(24), nn.Linear(8, 24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 24)
        total = torch.zeros(len(x), 24)
        for step in range(3):
            state = state + (step + 1) ** 2 * self.into(x) + 9 * step
            total = total + torch.tanh(self.norm(state))
        out: Tensor = self.last(total)
        return out


class Siamese(nn.Module):
    """Both halves of the features go through one network."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Sequential(nn.Linear(4, 24), nn.BatchNorm1d(24), nn.ReLU())
        self.last = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.cat([self.side(half) for half in x.chunk(2, 1)], 1))
        return out


class Triplets(nn.Module):
    """A margin between an example of the same class and one of another, each embedded by one network."""

    def __init__(self) -> None:
        super().__init__()
        self.side = nn.Sequential(nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = F.normalize(self.side(x), dim=1)
        return out


def verdict(build: Callable[[], nn.Module]) -> list[wc.Finding]:
    torch.manual_seed(0)
    model = build()
    batches = [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 256, 32)]
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    return list(wc.diagnose(wc.Problem(model, nn.CrossEntropyLoss(), batches), optimizer).findings)


@pytest.mark.slow
@pytest.mark.parametrize("build", [lambda: Stack(1), Steps])
def test_a_norm_at_places_that_differ(build: Callable[[], nn.Module]) -> None:
    first = verdict(build)[0]
    assert first.rule == "shared-weight"
    assert first.severity != "note"
    assert first.layer.startswith("norm")


@pytest.mark.slow
@pytest.mark.parametrize("build", [lambda: Stack(3), Siamese])
def test_a_norm_for_each_place_or_for_places_alike(build: Callable[[], nn.Module]) -> None:
    assert not [each for each in verdict(build) if each.severity != "note"]


@pytest.mark.slow
def test_running_statistics_are_those_of_all_calls_on_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand: list[tuple[float, float]] = []
    measured: list[SharedNorm | None] = []

    def noted(trainer: CopyTrainer, run: CopyRun, allowed: Allowance) -> SharedNorm | None:
        model = copy.deepcopy(run.model)
        loss, batches = nn.CrossEntropyLoss(), [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 256, 32)]
        norm = model.get_submodule("norms.0")
        norm.reset_running_stats()  # type: ignore[operator]
        norm.momentum = None  # type: ignore[assignment]
        with torch.no_grad():
            of_batch = [float(loss(model.train()(x), y)) for x, y in batches]
            running = [float(loss(model.eval()(x), y)) for x, y in batches]
        by_hand.append((fmean(of_batch), fmean(running)))
        measured.append(shared_norm(trainer, run, allowed))
        return measured[-1]

    monkeypatch.setattr(trial, "shared_norm", noted)
    verdict(lambda: Stack(1))
    (norm,) = measured
    assert norm is not None
    assert (norm.name, norm.calls) == ("norms.0", 3)
    assert (norm.batch, norm.running) == pytest.approx(by_hand[0], rel=1e-4)


@pytest.mark.slow
def test_a_triplet_network_may_share_its_norms() -> None:
    torch.manual_seed(0)
    model = Triplets()
    of_class = [X[each == Y] for each in range(4)]
    positive = torch.stack([of_class[int(y)][i % len(of_class[int(y)])] for i, y in enumerate(Y)])
    negative = torch.stack([of_class[(int(y) + 1) % 4][i % len(of_class[(int(y) + 1) % 4])] for i, y in enumerate(Y)])
    batches = [tuple(each[i : i + 32] for each in (X, positive, negative)) for i in range(0, 256, 32)]

    def step(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.TripletMarginLoss(margin=0.5)(*map(model, batch))

    problem = wc.Problem.from_step(model, step, batches)
    diagnosis = wc.diagnose(problem, torch.optim.Adam(model.parameters(), 2e-2))
    assert "shared-weight" not in [each.rule for each in diagnosis.findings]


def test_the_difference_of_places_by_hand() -> None:
    statistics = torch.tensor([[[0.0, 0.0], [1.0, 4.0]], [[2.0, 0.0], [1.0, 4.0]]])  # means of one channel differ
    assert difference_of_places(statistics) == pytest.approx((1 / 2) ** 0.5)
    assert difference_of_places(statistics[:1].repeat(3, 1, 1)) == 0
    wide = torch.tensor([[[0.0], [1.0]], [[0.0], [9.0]]])  # deviations 1 and 3, of all places √5
    assert difference_of_places(wide) == pytest.approx((5**0.5 - 1) / 5**0.5)


@pytest.mark.slow
def test_a_layer_whose_name_is_a_number_is_called_a_layer() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    model = nn.Sequential(norm, nn.Linear(8, 8), norm, nn.ReLU(), nn.Linear(8, 4))
    nn.init.constant_(model[1].bias, 9.0)  # type: ignore[arg-type]
    batches = [(X[i : i + 32], Y[i : i + 32]) for i in range(0, 256, 32)]
    diagnosis = wc.diagnose(
        wc.Problem(model, nn.CrossEntropyLoss(), batches), torch.optim.Adam(model.parameters(), 0.02)
    )
    (finding,) = (each for each in diagnosis.findings if each.rule == "shared-weight")
    assert finding.summary.startswith("layer 0 is called 2 times in a pass")
