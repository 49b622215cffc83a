"""A diagnosis against dense float64 references, what happens when a part of it fails, and the forms it is saved in."""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from references import dense_hessian
from suites import assert_progress_rises
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot

import wellcond as wc
from wellcond.diagnosis import diagnose as module
from wellcond.diagnosis.diagnose import diagnose
from wellcond.diagnosis.diagnosis import Diagnosis
from wellcond.errors import InvalidProblem, OutputError
from wellcond.report.table import Pivot, shown_columns
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


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return diagnose(problem(), budget="full")


# numbers


@pytest.mark.slow
def test_sharpness_trace_and_largest_rate_are_those_of_the_dense_hessian(diagnosis: Diagnosis) -> None:
    dense = torch.linalg.eigvalsh(wc.Hessian(problem()).dense())
    numbers = Pivot.of(diagnosis.rows()).network
    # 1 % is the asked error, of both ends; the trace's bar is a standard error, of which 4 are never left
    assert numbers[q.HESSIAN.lambda_max] == pytest.approx(float(dense[-1]), rel=1e-2)
    assert numbers[q.HESSIAN.lambda_min] == pytest.approx(float(dense[0]), rel=1e-2)
    assert abs(numbers[q.HESSIAN.trace] - float(dense.sum())) <= 4 * numbers[q.HESSIAN.trace_error] + 1e-9
    assert numbers[q.MOMENTUM] == 0.9
    assert numbers[q.MAX_LR] == pytest.approx(2 * 1.9 / float(dense[-1]), rel=1e-2)
    assert numbers[q.MAX_LR_LOW] <= 2 * 1.9 / float(dense[-1]) <= numbers[q.MAX_LR_HIGH]


@pytest.mark.parametrize("sizes", [[32], [20, 12]], ids=["one_batch", "uneven_batches"])
def test_loss_and_norms_are_those_of_autograd_on_all_examples(sizes: list[int]) -> None:
    model = network()
    x, y = data()
    pivot = Pivot.of(diagnose(problem(model, list(zip(x.split(sizes), y.split(sizes), strict=True)))).rows())
    loss = nn.functional.cross_entropy(model(x), y)
    params = list(model.parameters())
    gradients = torch.autograd.grad(loss, params)

    def norms(tensors: Sequence[Tensor]) -> dict[str, float]:
        """A layer's weight and bias count together."""
        layers = {"0": tensors[:2], "2": tensors[2:]}
        return {name: float(torch.cat([t.detach().flatten() for t in pair]).norm()) for name, pair in layers.items()}

    assert pivot.network[q.LOSS] == pytest.approx(loss.item())
    assert pivot.network[q.EXAMPLES] == 32
    assert pivot.column(q.GRADIENT_NORM) == pytest.approx(norms(gradients))
    assert pivot.column(q.WEIGHT_NORM) == pytest.approx(norms(params))


def test_rows_have_each_number_once_with_sizes_and_the_training_step(diagnosis: Diagnosis) -> None:
    keys = [(row.layer, row.quantity) for row in diagnosis.rows()]
    assert len(keys) == len(set(keys))
    assert Pivot.of(diagnosis.rows()).layers["0"][q.INPUT.dimension] == 4
    assert {row.step for row in diagnosis.rows(7)} == {7}


def test_a_model_that_is_itself_a_layer_has_a_name() -> None:
    d = diagnose(problem(nn.Linear(4, 3).double()))
    _, layers = shown_columns(Pivot.of(d.rows()))
    assert set(layers) == {"(model)"}
    assert "(model)" in str(d)


@pytest.mark.slow
def test_convolutions_whose_positions_count_as_examples_are_counted(diagnosis: Diagnosis) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)).double()
    x, y = torch.randn(5, 1, 4, 4, dtype=torch.float64), torch.arange(5) % 3
    assert Pivot.of(diagnose(problem(model, (x, y))).rows()).network[q.CONVOLUTIONS] == 1
    assert q.CONVOLUTIONS not in Pivot.of(diagnosis.rows()).network


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"momentum": 0.5}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_the_limit_is_that_of_the_optimizer_and_costs_no_further_product(options: dict[str, float]) -> None:
    model = network()
    d = diagnose(problem(model), torch.optim.SGD(model.parameters(), lr=0.05, **options))
    numbers = Pivot.of(d.rows()).network
    assert (numbers[q.LR], numbers[q.MOMENTUM]) == (0.05, options["momentum"])
    curvature = numbers[q.HESSIAN.lambda_max] + options.get("weight_decay", 0.0)
    assert numbers[q.MAX_LR] == pytest.approx(2 * (1 + options["momentum"]) / curvature)
    assert d.max_lr is not None
    assert d.max_lr.cost.matvecs == 0


@pytest.mark.slow
def test_adam_is_bounded_like_any_other_optimizer() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    d = diagnose(problem(model), optimizer, budget="full")
    assert d.max_lr is not None
    assert d.max_lr.value == pytest.approx(wc.max_lr(problem(model), optimizer).value, rel=1e-2)
    assert f"{d.max_lr.value:.3g}; the optimizer is at 0.01" in " ".join(str(d).split())


def test_the_cost_is_that_of_all_parts(diagnosis: Diagnosis) -> None:
    assert diagnosis.hessian is not None
    assert diagnosis.trace is not None
    assert diagnosis.cost.matvecs == diagnosis.hessian.matvecs + diagnosis.trace.matvecs
    assert diagnosis.about["cost"] in str(diagnosis.cost)


# failures


@pytest.mark.slow
def test_a_hessian_that_does_not_exist_is_said_and_the_rest_is_there() -> None:
    broken = without_hessian()
    d = diagnose(broken, torch.optim.SGD(broken.model.parameters(), lr=0.1), budget="full")
    assert set(d.failed) == {"Hessian eigenvalues", "Hessian trace"}
    assert "NaN" in d.failed["Hessian trace"]
    assert d.hessian is None
    assert d.max_lr is None
    assert d.conditioning is not None
    assert "Hessian eigenvalues, Hessian trace: " in str(d)
    assert "the optimizer is at" not in str(d)  # there is no limit to compare it with


class Pairwise(nn.Module):
    """`cdist` has no second derivative where it does not use a matrix product."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        distances = torch.cdist(outputs, outputs, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.mean() + 0 * targets.double().sum()


class Ctc(nn.Module):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        count = len(outputs)
        logs = outputs.reshape(count, 4, -1).log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(logs, targets[:, None] + 1, [4] * count, [1] * count)


WITHOUT_SECOND_DERIVATIVE = {
    "weight_norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3)),
        nn.CrossEntropyLoss(), r"'0' uses weight_norm.* Use wc\.GGN",
    ),
    "embedding_bag": (
        lambda: nn.Sequential(nn.EmbeddingBag(9, 4), nn.ReLU(), nn.Linear(4, 3)),
        nn.CrossEntropyLoss(), "no second derivative of 'embedding_bag'.* Measure a copy",
    ),
    "ctc_loss": (lambda: nn.Linear(4, 16), Ctc(), "no second derivative of 'ctc_loss'"),
    "cdist": (lambda: nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), Pairwise(), "no second derivative of 'cdist'"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("model", "loss", "why"), WITHOUT_SECOND_DERIVATIVE.values(), ids=WITHOUT_SECOND_DERIVATIVE)
@pytest.mark.parametrize("in_inference_mode", [False, True])
def test_what_needs_no_second_derivative_is_there_without_one(
    model: Any, loss: nn.Module, why: str, in_inference_mode: bool, tmp_path: Path
) -> None:
    x, y = data()
    network = model().double()
    indices = x.abs().long().clamp(max=8)
    broken = wc.Problem(network, loss, (indices if "EmbeddingBag" in repr(network) else x, y))
    with torch.inference_mode(in_inference_mode):
        d = diagnose(broken, torch.optim.SGD(network.parameters(), lr=0.1), budget="full")
    assert set(d.failed) == {"Hessian eigenvalues", "Hessian trace"}
    assert re.search(why, d.failed["Hessian trace"])
    assert d.hessian is d.trace is d.max_lr is None
    assert d.conditioning is not None
    assert d.neurons is not None
    assert d.gradients is not None
    assert all(norm > 0 for norm in d.weights.values())
    reason = " ".join(d.failed["Hessian trace"].split())
    assert reason in " ".join(str(d).split())
    assert json.loads(d.to_json())["values"]["failed"] == d.failed
    assert "Could not be measured" in d.save(tmp_path / "d.html").read_text(encoding="utf-8")
    with pytest.raises(InvalidProblem, match=why):
        wc.max_lr(broken)


def test_an_unknown_optimizer_is_named_and_the_rest_is_measured() -> None:
    class Unknown(torch.optim.Optimizer):
        pass

    model = network()
    d = diagnose(problem(model), Unknown(model.parameters(), {"lr": 0.25}))
    assert set(d.failed) == {"trial", "largest stable lr"}  # it has no step at all
    assert "Unknown" in d.failed["largest stable lr"]
    assert d.max_lr is None
    assert Pivot.of(d.rows()).network[q.LR] == 0.25


def test_any_exception_of_one_part_stays_in_that_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def burst(_: wc.Problem, **options: Any) -> None:
        raise RuntimeError("no such kernel\nwith a second line")

    monkeypatch.setattr(module, "layer_pass", burst)
    monkeypatch.setattr(module, "neurons", burst)
    d = diagnose(problem())
    assert d.failed == {"neurons": "RuntimeError: no such kernel"}
    assert d.neurons is None
    assert d.conditioning is not None
    assert d.hessian is not None


def test_nan_weights_are_named_and_nothing_is_made_up() -> None:
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    d = diagnose(problem(model))
    assert "parameter '0.weight' holds 1 values that are NaN" in d.failed["gradients"]
    assert math.isnan(d.weights["0"])
    assert q.LOSS not in Pivot.of(d.rows()).network
    assert d.hessian is d.trace is d.max_lr is None
    assert "parameter '0.weight' holds 1 values that are NaN" in " ".join(str(d).split())


def test_labels_that_the_model_has_no_outputs_for_are_a_finding() -> None:
    x, y = data()
    d = diagnose(problem(batches=(x, y + 5)))
    assert d.findings[0].severity == "severe"
    assert "targets run from" in d.failed["gradients"]
    assert d.verdict().startswith(f"Severe ({d.findings[0].rule}")


@pytest.mark.slow
def test_a_loader_that_shuffles_is_taken_as_it_is_and_that_is_said() -> None:
    x, y = data()
    d = diagnose(problem(batches=DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)))
    assert not d.failed
    assert "shuffle" in d.about["batches"]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_of_another_model_is_a_finding(kind: Any) -> None:
    d = diagnose(problem(), kind(network().parameters(), lr=0.1))
    assert (d.findings[0].rule, d.findings[0].severity, d.lr) == ("no-gradient", "severe", None)
    assert "holds none" in d.failed["trial"]


# manners


@pytest.mark.slow
def test_nothing_of_the_users_is_changed() -> None:
    model = network(norm=True).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, state = snapshot(model), copy.deepcopy(optimizer.state_dict())
    diagnose(problem(model), optimizer)
    assert_unchanged(before, snapshot(model))
    assert optimizer.state_dict() == state


@pytest.mark.slow
def test_progress_rises_from_zero_to_one_and_names_every_part() -> None:
    calls: list[tuple[str, float]] = []
    diagnose(problem(), budget="full", progress=lambda what, share: calls.append((what, share)))
    assert_progress_rises(calls)
    assert calls[0][1] == 0
    assert calls[-1][1] == pytest.approx(1.0)
    assert list(dict.fromkeys(what for what, _ in calls)) == [
        "inspection", "behavior", "layers", "trial", "Hessian eigenvalues", "largest stable lr", "Hessian trace",
    ]  # fmt: skip


def test_text_has_headlines_layers_and_what_is_missing_in_eighty_columns() -> None:
    d = diagnose(problem(network(norm=True)))
    text = str(d)
    assert "largest stable lr" in text
    assert any(line.startswith("0 ") and line.count("/") == 4 for line in text.splitlines())
    assert "not covered           1: BatchNorm1d scales each feature by itself" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "gradients through them" in d.about["batchnorm"]


def test_about_says_which_meaning_batchnorm_has(diagnosis: Diagnosis) -> None:
    assert diagnosis.about["batchnorm"] == "the model has none"
    running = wc.Problem(network(norm=True), nn.CrossEntropyLoss(), data(), batchnorm="running")
    assert diagnose(running).about["batchnorm"] == "running statistics, as in evaluation"


@pytest.mark.slow
def test_the_suffix_decides_the_form(diagnosis: Diagnosis, tmp_path: Path) -> None:
    content = json.loads(diagnosis.save(tmp_path / "d.json").read_text(encoding="utf-8"))
    assert content["result"] == "Diagnosis"
    assert [row["quantity"] for row in content["rows"]] == [row.quantity for row in diagnosis.rows()]
    assert diagnosis.hessian is not None
    assert content["values"]["evidence"]["hessian"]["values"] == diagnosis.hessian.values.tolist()
    assert "vectors" not in content["values"]["evidence"]["hessian"]  # twice the numbers of the network
    lines = diagnosis.save(tmp_path / "d.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "step,layer,quantity,value,unit"
    assert len(lines) == 1 + len(diagnosis.rows())
    begins = {"html": b"<!doctype html>", "png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for form, begin in begins.items():
        assert diagnosis.save(tmp_path / f"d.{form}").read_bytes().startswith(begin)
    for name in ("d.txt", "d", "d.pkl"):
        with pytest.raises(
            OutputError, match=r"has no known form; end it in one of \.html, \.png, \.svg, \.pdf, \.csv, \.json"
        ):
            diagnosis.save(tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"d.json", "d.csv", *(f"d.{form}" for form in begins)}


def test_the_lines_of_a_remedy_are_made_once_for_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A remedy is applied to a copy of the model, which a large model must not pay for at every part."""
    model = network()
    nn.init.zeros_(model[0].weight)
    asked: list[str] = []

    def counting(name: str, *rest: Any) -> str:
        asked.append(name)
        return f"# {name}"

    monkeypatch.setattr("wellcond.diagnosis.judge.lines_for", counting)
    parts: list[Diagnosis] = []
    last = diagnose(problem(model), torch.optim.SGD(model.parameters(), lr=0.1), on_part=parts.append)
    assert len(parts) > 3
    assert any(finding.remedy.startswith("# ") for finding in last.findings)
    assert len(asked) == len(set(asked)) > 0


# sums over a batch


def summed_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="sum")


@pytest.mark.slow
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="sum"), summed_loss], ids=["module", "function"])
def test_a_sum_over_a_batch_is_measured_as_the_mean_times_the_examples_of_a_batch(loss: Any) -> None:
    (x, y), model = data(24), network()
    batches, average = [(x[:16], y[:16]), (x[16:], y[16:])], 12
    of_sum = wc.Problem(model, loss, batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    summed, mean = (diagnose(each, optimizer) for each in (of_sum, problem(model, batches)))
    assert summed.failed == {}
    assert summed.max_lr is not None
    largest = torch.linalg.eigvalsh(dense_hessian(model, summed_loss, (x, y)) / len(batches))[-1]
    assert summed.max_lr.value == pytest.approx(2 / float(largest), rel=1e-2)
    assert summed.conditioning is not None
    assert mean.conditioning is not None
    assert summed.conditioning.layers.keys() == mean.conditioning.layers.keys() == {"0", "2"}
    for name, layer in mean.conditioning.layers.items():
        (x_of_sum, g_of_sum), (x_of_mean, g_of_mean) = summed.conditioning[name].by_group, layer.by_group
        torch.testing.assert_close(x_of_sum, x_of_mean)
        torch.testing.assert_close(g_of_sum, average**2 * g_of_mean)
    with pytest.raises(InvalidProblem, match="needs the mean over the batch"):
        wc.Hessian(of_sum).dense()
