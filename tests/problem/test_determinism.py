"""Random numbers are the same on every pass; what only looks odd is measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from measuring import BATCH, loader, measure
from references import assert_same, dense_hessian
from torch import Tensor, nn
from zoo import ARCHITECTURES, Written, mlp, normal, seeded

import wellcond as wc


def functional_dropout() -> nn.Module:
    """`training=True` is the default."""
    forward = lambda m, x: m.fc2(F.dropout(m.fc1(x), 0.5))  # noqa: E731
    return seeded(lambda: Written(forward, fc1=nn.Linear(4, 5), fc2=nn.Linear(5, 3)))


def drawn_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs * torch.rand(3, dtype=outputs.dtype), targets)


# random numbers are fixed


def test_what_a_model_draws_is_fixed_and_said() -> None:
    problem = wc.Problem(functional_dropout(), nn.CrossEntropyLoss(), BATCH)
    hessian = wc.Hessian(problem).dense()
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the seed of batch 0
        mask = F.dropout(torch.ones(6, 5, dtype=torch.float64), 0.5)
    masked = seeded(lambda: Written(lambda m, x: m.fc2(m.fc1(x) * mask), fc1=nn.Linear(4, 5), fc2=nn.Linear(5, 3)))
    assert_same(hessian, dense_hessian(masked, nn.CrossEntropyLoss(), BATCH))
    assert problem.notes == ["random numbers of the model are fixed: every pass of a batch draws the same"]


def test_batches_draw_apart() -> None:
    noise = seeded(lambda: Written(lambda m, x: m.fc(x) + torch.rand(len(x), 3), fc=nn.Linear(4, 3)))
    problem = wc.Problem(noise, nn.CrossEntropyLoss(), [BATCH, BATCH])
    first, second = [e.outputs for e in problem.evaluations()]
    again, _ = [e.outputs for e in problem.evaluations()]
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


class OwnGenerator(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3, dtype=torch.float64)
        self.generator = torch.Generator().manual_seed(7)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(3, generator=self.generator)


def test_a_generator_of_the_models_own_is_fixed_too_and_left_where_it_was() -> None:
    model = OwnGenerator()
    before = model.generator.get_state()
    operator = wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), [BATCH, BATCH]))
    v = normal(operator.shape[0])
    assert torch.equal(operator @ v, operator @ v)
    assert torch.equal(model.generator.get_state(), before)


def test_what_a_loss_draws_is_fixed_and_said() -> None:
    problem = wc.Problem(mlp(), drawn_loss, [BATCH, BATCH])
    state = torch.get_rng_state()
    operator = wc.Hessian(problem)
    v = normal(problem.size)
    assert torch.equal(operator @ v, operator @ v)
    losses = [float(e.loss) for e in problem.evaluations()]
    assert losses[0] != losses[1]  # the same batch twice, with other draws
    assert problem.notes == ["random numbers of the loss are fixed: every pass of a batch draws the same"]
    assert torch.equal(torch.get_rng_state(), state)


# what looks odd and is right


def test_float64_targets_of_a_float32_model_work() -> None:
    expected = dense_hessian(mlp(), nn.MSELoss(), (BATCH[0], normal(6, 3))) @ torch.ones(43, dtype=torch.float64)
    result = measure(mlp().float(), nn.MSELoss(), (BATCH[0].float(), normal(6, 3)))
    assert result.dtype == torch.float32
    assert_same(result, expected, 1e-5)


@pytest.mark.slow
def test_dropout_with_a_seed_keeps_its_masks() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    model = nn.Sequential(case.model[0], nn.Dropout(0.5), case.model[1], case.model[2])
    case = replace(case, model=model)
    first, again, other, off = (wc.Hessian(case.problem(dropout=seed)).dense() for seed in (3, 3, 4, None))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert_same(off, dense_hessian(case.model, case.loss, case.batch))
    # the masks are those of the seed
    with torch.random.fork_rng():
        torch.manual_seed(3)
        mask = F.dropout(torch.ones(6, 5, dtype=torch.float64), 0.5)
    masked = nn.Sequential(case.model[0], Written(lambda _m, x: x * mask), case.model[2], case.model[3])
    assert_same(first, dense_hessian(masked, case.loss, case.batch))
    operator = wc.Hessian(case.problem(batches=loader(), dropout=3))  # and the same in every product over batches
    assert_same(operator.dense(), operator.dense(), 1e-15)
