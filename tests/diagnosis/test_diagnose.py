"""A diagnosis against dense float64 references, and its behaviour when a part of it cannot be had."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.diagnosis import diagnose as module
from wellcond.diagnosis.diagnose import diagnose
from wellcond.report.pivot import Pivot
from wellcond.errors import InvalidProblem, NotDeterministic


def data(count: int = 32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (count,), generator=generator)


def network(norm: bool = False) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(6), nn.ReLU()] if norm else [nn.ReLU()]
        return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 3)).double()


def problem(model: nn.Module | None = None, batches: Any = None) -> wc.Problem:
    return wc.Problem(model or network(), nn.CrossEntropyLoss(), batches or data())


class FlatAtZero(nn.Module):
    """|f|^1.5 at f = 0: the gradient is 0, the second derivative does not exist."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.abs() ** 1.5).mean() + 0 * targets.double().sum()


def without_hessian() -> wc.Problem:
    model = network()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    return wc.Problem(model, FlatAtZero(), data())


# numbers


def test_sharpness_trace_and_step_limit_are_those_of_the_dense_hessian() -> None:
    d = diagnose(problem())
    dense = torch.linalg.eigvalsh(wc.Hessian(problem()).dense())
    found = Pivot.of(d.rows()).network
    # 1 % is the asked error, of both ends; the trace's bar is a standard error, of which 4 are never left
    assert found["lambda_max(H)"] == pytest.approx(float(dense[-1]), rel=1e-2)
    assert found["lambda_min(H)"] == pytest.approx(float(dense[0]), rel=1e-2)
    assert abs(found["trace(H)"] - float(dense.sum())) <= 4 * found["trace_error(H)"] + 1e-9
    assert found["max_lr"] == pytest.approx(2 / float(dense[-1]), rel=1e-2)
    assert found["max_lr"] + found["max_lr_error"] >= 2 / float(dense[-1])


@pytest.mark.parametrize("sizes", [[32], [20, 12]], ids=["one_batch", "uneven_batches"])
def test_loss_and_gradient_norms_are_those_of_autograd_on_all_examples(sizes: list[int]) -> None:
    model = network()
    x, y = data()
    d = diagnose(problem(model, list(zip(x.split(sizes), y.split(sizes), strict=True))))
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    first, last = (torch.cat([g.flatten() for g in pair]).norm() for pair in (gradients[:2], gradients[2:]))
    pivot = Pivot.of(d.rows())
    assert pivot.network["loss"] == pytest.approx(loss.item())
    assert pivot.network["examples"] == 32
    assert pivot.column("gradient_norm") == pytest.approx({"0": float(first), "2": float(last)})


def test_weight_norms_take_a_layers_weight_and_bias_together() -> None:
    model = network()
    both = torch.cat([model[0].weight.flatten(), model[0].bias]).norm()
    assert diagnose(problem(model)).weights["0"] == pytest.approx(both.item())


def test_rows_say_each_thing_once_and_name_the_matrix_sizes() -> None:
    rows = diagnose(problem()).rows()
    keys = [(row.layer, row.quantity) for row in rows]
    assert len(keys) == len(set(keys))
    assert Pivot.of(rows).layers["0"]["dimension(Σx)"] == 4


def test_a_model_that_is_itself_a_layer_has_a_name() -> None:
    d = diagnose(problem(nn.Linear(4, 3).double()))
    assert set(Pivot.of(d.rows()).layers) == {"(model)"}
    assert "(model)" in str(d)


def test_convolutions_whose_positions_count_as_examples_are_counted() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    x, y = torch.randn(5, 1, 4, 4, dtype=torch.float64), torch.arange(5) % 3
    assert Pivot.of(diagnose(problem(model, (x, y))).rows()).network["convolutions"] == 1
    assert "convolutions" not in Pivot.of(diagnose(problem()).rows()).network


def test_the_optimizers_lr_stands_beside_its_own_limit() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found = Pivot.of(diagnose(problem(model), optimizer).rows()).network
    assert (found["lr"], found["momentum"]) == (0.05, 0.9)
    assert found["max_lr(optimizer)"] == pytest.approx(1.9 * found["max_lr"])


def test_memory_bounds_the_products_on_a_large_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BASIS_BYTES", 1)
    d = diagnose(problem())
    assert d.hessian is not None
    assert d.hessian.matvecs <= 10


# failures


def test_a_hessian_that_does_not_exist_is_said_and_the_rest_is_there() -> None:
    d = diagnose(without_hessian())
    assert set(d.failed) == {"Hessian eigenvalues", "Hessian trace"}
    assert "NaN" in d.failed["Hessian trace"]
    assert d.hessian is None
    assert d.step.plain is None
    assert d.conditioning is not None
    assert "Hessian eigenvalues, Hessian trace: " in str(d)


def test_an_optimizers_lr_is_shown_without_a_hessian_too() -> None:
    broken = without_hessian()
    d = diagnose(broken, torch.optim.SGD(broken.model.parameters(), lr=0.1))
    assert "the optimizer is at 0.1" in str(d)


def test_any_exception_of_one_part_stays_in_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(_: wc.Problem) -> None:
        raise RuntimeError("no such kernel\nwith a second line")

    monkeypatch.setattr(module, "neurons", burst)
    d = diagnose(problem())
    assert d.failed == {"neurons": "RuntimeError: no such kernel"}
    assert d.neurons is None
    assert d.hessian is not None


def test_nan_weights_are_named_and_nothing_is_made_up() -> None:
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    d = diagnose(problem(model))
    assert "'0.weight' holds NaN" in d.failed["gradients"]
    assert math.isnan(d.weights["0"])
    assert "loss" not in Pivot.of(d.rows()).network
    assert "'0.weight' holds NaN" in " ".join(str(d).split())


def test_a_problem_that_cannot_be_measured_raises() -> None:
    x, y = data()
    with pytest.raises(InvalidProblem, match="targets run from"):
        diagnose(problem(batches=(x, y + 5)))
    with pytest.raises(NotDeterministic, match="shuffle"):
        diagnose(problem(batches=DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)))


def test_an_optimizer_of_another_model_is_refused_before_the_work() -> None:
    calls: list[str] = []
    other = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(InvalidProblem, match="made for another model"):
        diagnose(problem(), other, progress=lambda what, share: calls.append(what))
    assert calls == []


# manners


def test_nothing_of_the_users_is_changed() -> None:
    model = network(norm=True).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    random = torch.random.get_rng_state()
    diagnose(problem(model), optimizer)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert optimizer.state_dict() == state
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_progress_rises_from_zero_to_one_and_names_every_part() -> None:
    calls: list[tuple[str, float]] = []
    diagnose(problem(), progress=lambda what, share: calls.append((what, share)))
    shares = [share for _, share in calls]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1.0)
    assert list(dict.fromkeys(what for what, _ in calls)) == [
        "gradients", "conditioning", "neurons", "Hessian eigenvalues", "Hessian trace",
    ]  # fmt: skip


def test_about_says_which_meaning_batchnorm_has() -> None:
    assert diagnose(problem()).about["batchnorm"] == "the model has none"
    x, y = data()
    running = wc.Problem(network(norm=True), nn.CrossEntropyLoss(), (x, y), batchnorm="running")
    assert diagnose(running).about["batchnorm"] == "running statistics, as in evaluation"
    assert "gradients through them" in diagnose(problem(network(norm=True))).about["batchnorm"]


def test_text_has_headlines_a_line_a_layer_and_what_is_missing_in_eighty_columns() -> None:
    text = str(diagnose(problem(network(norm=True))))
    assert "largest stable lr" in text
    assert any(line.startswith("0 ") and line.count("/") == 4 for line in text.splitlines())
    assert "not covered           1: BatchNorm1d scales each feature by itself" in text
    assert max(map(len, text.splitlines())) <= 80
