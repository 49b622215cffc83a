"""Steps in which two networks play against each other, and the hinges of their losses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.probes.goals import is_played_against


class Gan(nn.Module):
    def __init__(self, *, norm: bool = False) -> None:
        super().__init__()
        wrapped = nn.utils.spectral_norm if norm else nn.Identity()
        self.generator = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(wrapped(nn.Linear(2, 32)), nn.LeakyReLU(0.2), wrapped(nn.Linear(32, 1)))


def played(model: Gan, batch: tuple[Tensor]) -> Tensor:
    """A step of both: the discriminator's weights are frozen where it judges for the generator."""
    (real,) = batch
    fake = model.generator(torch.randn(len(real), 3))
    judge = model.discriminator
    of_judge = F.relu(1 - judge(real)).mean() + F.relu(1 + judge(fake.detach())).mean()
    judge.requires_grad_(False)
    of_generator = -judge(fake).mean()
    judge.requires_grad_(True)
    return of_judge + of_generator


def alone(model: Gan, batch: tuple[Tensor]) -> Tensor:
    return model.discriminator(model.generator(torch.randn(len(batch[0]), 3))).square().mean()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


BATCHES = [(1 + torch.randn(64, 2, generator=torch.Generator().manual_seed(k)),) for k in range(12)]


@pytest.mark.parametrize(("step", "expected"), [(played, True), (alone, False)])
def test_whether_weights_that_are_trained_judge_others_as_well(step: object, expected: bool) -> None:
    assert is_played_against(wc.Problem.from_step(Gan(), step, BATCHES)) is expected  # type: ignore[arg-type]


def test_losses_on_outputs_have_no_opponent() -> None:
    frozen = nn.Sequential(nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 2))
    assert not is_played_against(wc.Problem(frozen, nn.MSELoss(), [(torch.randn(8, 3), torch.randn(8, 2))]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_game_is_not_accused(seed: int) -> None:
    torch.manual_seed(seed)
    model = Gan(norm=True)
    rates = [{"params": model.generator.parameters(), "lr": 2e-3}, {"params": model.discriminator.parameters()}]
    optimizer = torch.optim.Adam(rates, lr=8e-3, betas=(0.0, 0.9))
    diagnosis = wc.diagnose(wc.Problem.from_step(model, played, BATCHES), optimizer)
    assert [each for each in diagnosis.findings if each.severity == "severe"] == []


def test_a_hinge_outside_of_the_model_has_no_units() -> None:
    """An energy far below the margin costs nothing: the hinge is off, and no unit of the network is."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    with torch.no_grad():
        model[2].bias.fill_(5.0)
    data = [(torch.randn(64, 4),) for _ in range(4)]

    def hinge(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        return F.relu(1 - model(batch[0])).mean() + model(batch[0] + 1).square().mean()

    def inside(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
        hidden = torch.relu(model[0](batch[0]) - 50)
        return (model[2](hidden) - batch[0].sum(1, keepdim=True)).square().mean()

    def dead(step: object) -> list[str]:
        problem = wc.Problem.from_step(model, step, data)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return [each.layer for each in wc.diagnose(problem, optimizer).findings if each.rule == "dying-neurons"]

    assert dead(hinge) == []
    assert dead(inside) == ["0"]  # a step may call the layers one after the other


@pytest.mark.slow
def test_what_the_code_cuts_off_is_not_explained_by_a_loss_that_rises() -> None:
    def cut(model: Gan, batch: tuple[Tensor]) -> Tensor:
        (real,) = batch
        fake = model.generator(torch.randn(len(real), 3)).detach()
        judge = model.discriminator
        of_judge = F.softplus(-judge(real)).mean() + F.softplus(judge(fake)).mean()
        judge.requires_grad_(False)
        of_generator = F.softplus(-judge(fake)).mean()
        judge.requires_grad_(True)
        return of_judge + of_generator

    model = Gan()
    diagnosis = wc.diagnose(
        wc.Problem.from_step(model, cut, BATCHES), torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.5, 0.99))
    )
    assert (diagnosis.findings[0].rule, diagnosis.findings[0].layer) == ("no-gradient", "generator.2")
