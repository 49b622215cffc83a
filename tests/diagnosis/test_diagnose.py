"""A diagnosis against dense float64 references, what happens when a part of it fails, and the forms it is saved in."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from suites import assert_progress_rises
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.diagnosis import diagnose as module
from wellcond.diagnosis.diagnose import diagnose
from wellcond.errors import InvalidProblem, NotDeterministic, OutputError
from wellcond.report.table import Pivot
from wellcond.results import quantities as q


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


def test_sharpness_trace_and_largest_rate_are_those_of_the_dense_hessian() -> None:
    d = diagnose(problem())
    dense = torch.linalg.eigvalsh(wc.Hessian(problem()).dense())
    found = Pivot.of(d.rows()).network
    # 1 % is the asked error, of both ends; the trace's bar is a standard error, of which 4 are never left
    assert found[q.HESSIAN.lambda_max] == pytest.approx(float(dense[-1]), rel=1e-2)
    assert found[q.HESSIAN.lambda_min] == pytest.approx(float(dense[0]), rel=1e-2)
    assert abs(found[q.HESSIAN.trace] - float(dense.sum())) <= 4 * found[q.HESSIAN.trace_error] + 1e-9
    assert found[q.MOMENTUM] == 0.9
    assert found[q.MAX_LR] == pytest.approx(2 * 1.9 / float(dense[-1]), rel=1e-2)
    assert found[q.MAX_LR_LOW] <= 2 * 1.9 / float(dense[-1]) <= found[q.MAX_LR_HIGH]


@pytest.mark.parametrize("sizes", [[32], [20, 12]], ids=["one_batch", "uneven_batches"])
def test_loss_and_gradient_norms_are_those_of_autograd_on_all_examples(sizes: list[int]) -> None:
    model = network()
    x, y = data()
    d = diagnose(problem(model, list(zip(x.split(sizes), y.split(sizes), strict=True))))
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    first, last = (torch.cat([g.flatten() for g in pair]).norm() for pair in (gradients[:2], gradients[2:]))
    pivot = Pivot.of(d.rows())
    assert pivot.network[q.LOSS] == pytest.approx(loss.item())
    assert pivot.network[q.EXAMPLES] == 32
    assert pivot.column(q.GRADIENT_NORM) == pytest.approx({"0": float(first), "2": float(last)})


def test_weight_norms_take_a_layers_weight_and_bias_together() -> None:
    model = network()
    both = torch.cat([model[0].weight.flatten(), model[0].bias]).norm()
    assert diagnose(problem(model)).weights["0"] == pytest.approx(both.item())


def test_rows_say_each_thing_once_and_name_the_matrix_sizes() -> None:
    rows = diagnose(problem()).rows()
    keys = [(row.layer, row.quantity) for row in rows]
    assert len(keys) == len(set(keys))
    assert Pivot.of(rows).layers["0"][q.INPUT.dimension] == 4


def test_a_model_that_is_itself_a_layer_has_a_name() -> None:
    d = diagnose(problem(nn.Linear(4, 3).double()))
    assert set(Pivot.of(d.rows()).layers) == {"(model)"}
    assert "(model)" in str(d)


def test_convolutions_whose_positions_count_as_examples_are_counted() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    x, y = torch.randn(5, 1, 4, 4, dtype=torch.float64), torch.arange(5) % 3
    assert Pivot.of(diagnose(problem(model, (x, y))).rows()).network[q.CONVOLUTIONS] == 1
    assert q.CONVOLUTIONS not in Pivot.of(diagnose(problem()).rows()).network


@pytest.mark.parametrize("options", [{"momentum": 0.5}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_the_limit_is_that_of_the_optimizer_and_costs_no_further_product(options: dict[str, float]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **options)
    d = diagnose(problem(model), optimizer)
    found = Pivot.of(d.rows()).network
    assert (found[q.LR], found[q.MOMENTUM]) == (0.05, options["momentum"])
    decay = options.get("weight_decay", 0.0)
    assert found[q.MAX_LR] == pytest.approx(2 * (1 + options["momentum"]) / (found[q.HESSIAN.lambda_max] + decay))
    assert d.max_lr is not None
    assert d.max_lr.cost.matvecs == 0


def test_adam_is_bounded_like_any_other_optimizer() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    d = diagnose(problem(model), optimizer)
    assert d.max_lr is not None
    assert d.max_lr.value == pytest.approx(wc.max_lr(problem(model), optimizer=optimizer).value, rel=1e-2)
    assert f"{d.max_lr.value:.3g} with momentum 0.9; the optimizer is at 0.01" in " ".join(str(d).split())


def test_an_optimizer_whose_step_is_not_known_is_named_and_the_rest_is_there() -> None:
    class Unknown(torch.optim.Optimizer):
        pass

    model = network()
    d = diagnose(problem(model), Unknown(model.parameters(), {"lr": 0.25}))
    assert set(d.failed) == {"largest stable lr"}
    assert "Unknown" in d.failed["largest stable lr"]
    assert d.max_lr is None
    assert Pivot.of(d.rows()).network[q.LR] == 0.25


def test_the_cost_is_that_of_all_parts() -> None:
    d = diagnose(problem())
    assert d.hessian is not None
    assert d.trace is not None
    assert d.cost.matvecs == d.hessian.matvecs + d.trace.matvecs
    assert d.about["cost"] in str(d.cost)


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
    assert d.max_lr is None
    assert d.conditioning is not None
    assert "Hessian eigenvalues, Hessian trace: " in str(d)


def test_an_optimizers_lr_is_shown_without_a_hessian_too() -> None:
    broken = without_hessian()
    d = diagnose(broken, torch.optim.SGD(broken.model.parameters(), lr=0.1))
    assert "the optimizer is at 0.1" in str(d)


def test_any_exception_of_one_part_stays_in_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(_: wc.Problem, **options: Any) -> None:
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
    assert q.LOSS not in Pivot.of(d.rows()).network
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
    with pytest.raises(InvalidProblem, match=r"made for another\s+model"):
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
    assert_progress_rises(calls)
    assert calls[0][1] == 0
    assert calls[-1][1] == pytest.approx(1.0)
    assert list(dict.fromkeys(what for what, _ in calls)) == [
        "gradients", "conditioning", "neurons", "Hessian eigenvalues", "Hessian trace", "largest stable lr",
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


# forms


def test_the_suffix_decides_the_form(tmp_path: Path) -> None:
    d = diagnose(problem())
    content = json.loads(d.save(tmp_path / "d.json").read_text(encoding="utf-8"))
    assert content["result"] == "Diagnosis"
    assert [row["quantity"] for row in content["rows"]] == [row.quantity for row in d.rows()]
    assert d.hessian is not None
    assert content["values"]["hessian"]["values"] == d.hessian.values.tolist()
    assert "vectors" not in content["values"]["hessian"]  # twice as many numbers as the network has
    lines = d.save(tmp_path / "d.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "step,layer,quantity,value,unit"
    assert len(lines) == 1 + len(d.rows())
    assert d.save(tmp_path / "d.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert d.save(tmp_path / "d.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["d.txt", "d", "d.pkl"])
def test_a_suffix_without_a_form_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"has no known form; end it in one of \.csv, \.json, \.html, \.png"):
        diagnose(problem()).save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_rows_carry_the_training_step() -> None:
    assert {row.step for row in diagnose(problem()).rows(7)} == {7}
