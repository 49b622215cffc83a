"""Scales of inputs and targets, and whether they vary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from rule_cases import FEATURES, N, findings, perceptron, severe, table
from torch import Tensor, nn

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.rules.sorted_batches import sorted_batches


@pytest.mark.parametrize("scale", [0.3, 1.0, 2.0])
def test_inputs_of_ordinary_scale_are_silent(scale: float) -> None:
    assert "unscaled-input" not in findings(perceptron(), nn.CrossEntropyLoss(), table(scale=scale))


def test_raw_pixels_are_divided_by_255() -> None:
    x = torch.randint(0, 256, (N, 1, 8, 8), generator=torch.Generator().manual_seed(0)).float()
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    finding = findings(model, nn.CrossEntropyLoss(), (x, table()[1]))["unscaled-input"]
    assert finding.severity == "severe"
    assert finding.advice == "Divide the inputs by 255 where the data set is made."
    assert severe(model, nn.CrossEntropyLoss(), (x / 255, table()[1])) == []


def test_one_feature_that_outweighs_all_others() -> None:
    x, y = table()
    x = x * torch.tensor([1000.0] + [1.0] * (FEATURES - 1))
    finding = findings(perceptron(), nn.CrossEntropyLoss(), (x, y))["unscaled-input"]
    assert finding.severity == "severe"


def test_a_norm_in_front_scales_the_inputs() -> None:
    model = nn.Sequential(nn.BatchNorm1d(FEATURES), *perceptron())
    assert "unscaled-input" not in findings(model, nn.CrossEntropyLoss(), table(scale=1000.0))


def test_weights_that_are_made_for_large_inputs() -> None:
    model = perceptron()
    with torch.no_grad():
        model[0].weight /= 1000
    assert severe(model, nn.CrossEntropyLoss(), table(scale=1000.0)) == []


def test_standardized_inputs_are_tried_and_the_loss_is_told() -> None:
    finding = findings(perceptron(), nn.CrossEntropyLoss(), table(scale=1000.0))["unscaled-input"]
    assert float(finding.evidence["loss with standardized inputs"]) < 0.1 * float(finding.evidence["loss as it is"])


def test_house_prices_are_one_finding_each_for_inputs_and_targets() -> None:
    x, _ = table()
    prices = 2e5 + 1e5 * x.sum(1, keepdim=True)
    assert set(severe(perceptron(outputs=1), nn.MSELoss(), (1e4 * x, prices))) == {"unscaled-input", "unscaled-target"}
    assert severe(perceptron(outputs=1), nn.MSELoss(), (x, (prices - prices.mean()) / prices.std())) == []


def test_a_network_that_gives_large_values_may_have_large_targets() -> None:
    x, _ = table()
    model = perceptron(outputs=1)
    with torch.no_grad():
        model[-1].weight *= 500
        y = model(x)
    assert "unscaled-target" not in findings(model, nn.MSELoss(), (x, y + 1))


def test_inputs_that_are_all_the_same() -> None:
    x, y = table()
    assert severe(perceptron(), nn.CrossEntropyLoss(), (x[:1].expand(N, -1).clone(), y))[0] == "constant-feature"


@pytest.mark.parametrize(("size", "severities"), [(16, ["severe"]), (4, [])])
def test_batches_of_one_example(size: int, severities: list[str]) -> None:
    """A data set fills one buffer: a batch holds its last values only. A few copies may be on purpose."""
    x, y = table()
    batches = [(a[:1].expand_as(a).clone(), b) for a, b in batches_of(x, y, size)]
    by_rule = findings(perceptron(), nn.CrossEntropyLoss(), batches)
    assert [each.severity for name, each in by_rule.items() if name == "constant-feature"] == severities


def test_pixels_that_are_always_zero_are_a_note_if_they_are_many() -> None:
    x, y = table()
    x[:, :7] = 0
    assert findings(perceptron(), nn.CrossEntropyLoss(), (x, y))["constant-feature"].severity == "note"


@pytest.mark.parametrize(("value", "is_named"), [(0.0, False), (-9.0, False), (2020.0, True), (1.0, True)])
def test_a_feature_that_never_varies_may_be_background(value: float, is_named: bool) -> None:
    x, y = table()
    x[:, :3] = value
    assert ("constant-feature" in findings(perceptron(), nn.CrossEntropyLoss(), (x, y))) is is_named


def masked(f: Tensor, y: Tensor) -> Tensor:
    there = y > -900
    return ((f - y).square() * there).sum() / there.sum()


def filled(f: Tensor, y: Tensor) -> Tensor:
    return nn.functional.smooth_l1_loss(torch.where(y < -900, 0, f), torch.where(y < -900, 0, y))


def chosen(f: Tensor, y: Tensor) -> Tensor:
    return nn.functional.mse_loss(f[y > -900], y[y > -900])


@pytest.mark.parametrize("loss", [masked, filled, chosen])
def test_a_code_for_missing_targets_that_the_loss_leaves_out_is_no_scale(loss: Any) -> None:
    x, _ = table()
    y = x[:, :4].sin()
    y[::5, 1] = y[3::7, 2] = -999
    assert "unscaled-target" not in findings(perceptron(), loss, (x, y))
    assert findings(perceptron(), nn.MSELoss(), (x, y))["unscaled-target"].severity == "severe"
    assert "unscaled-target" in findings(perceptron(), loss, (x, 50 * x[:, :4]))


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_a_label_and_a_number_in_two_columns(scale: float) -> None:
    """Each loss takes its own column: numbers are no targets of the binary cross-entropy."""
    x, _ = table()
    y = torch.stack([(x[:, 0] > 0).float(), 1000 * x[:, 1]], 1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        label = nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets[:, 0])
        return label + nn.functional.mse_loss(outputs[:, 1], targets[:, 1] / scale)

    by_rule = findings(perceptron(outputs=2), loss, (x, y))
    assert "output-loss-mismatch" not in by_rule
    assert ("unscaled-target" in by_rule) is (scale == 1)


def test_sorted_batches() -> None:
    x, y = table()
    order = y.argsort()
    batches = [(x[order[k : k + 16]], torch.full((16,), k // 32)) for k in range(0, N, 16)]
    assert severe(perceptron(), nn.CrossEntropyLoss(), batches) == ["sorted-batches"]
    mixed = [(x[k : k + 16], y[k : k + 16]) for k in range(0, N, 16)]
    assert severe(perceptron(), nn.CrossEntropyLoss(), mixed) == []


class TwoHeads(nn.Module):
    def __init__(self, named: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kind, self.price = nn.Linear(10, 16), nn.Linear(16, 4), nn.Linear(16, 1)
        self.named = named

    def forward(self, x: torch.Tensor) -> object:
        h = self.body(x).relu()
        return {"kind": self.kind(h), "price": self.price(h)} if self.named else (self.kind(h), self.price(h))


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2e5])
def test_every_target_of_several_has_its_scale(named: bool, scale: float) -> None:
    x, y = table()
    price = scale * (1 + 0.3 * x[:, :1])
    keys = ("kind", "price") if named else (0, 1)
    targets = {"kind": y, "price": price} if named else (y, price)

    def loss(outputs: dict, targets: dict) -> torch.Tensor:
        parts = nn.functional.cross_entropy, nn.functional.mse_loss
        return sum(part(outputs[key], targets[key]) for part, key in zip(parts, keys, strict=True))

    by_rule = findings(TwoHeads(named), loss, [(x, targets)])
    assert ("unscaled-target" in by_rule) == (scale > 1)
    if scale > 1:
        assert by_rule["unscaled-target"].severity == "severe"
        assert ("targets['price']" if named else "targets[1]") in by_rule["unscaled-target"].summary


def test_a_model_that_fails_on_a_later_batch_is_reported() -> None:
    class Tired(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(FEATURES, 4), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("enough of it")
            out: torch.Tensor = self.layer(x)
            return out

    x, y = table()
    by_rule = findings(Tired(), nn.CrossEntropyLoss(), list(zip(x.split(16), y.split(16), strict=True)))
    assert by_rule["model-fails"].severity == "severe"
    assert "enough of it" in by_rule["model-fails"].summary


def test_raw_sensors_into_a_cell_are_unscaled() -> None:
    class Cells(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.cell, self.head = nn.LSTMCell(4, 16), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = None
            for now in x.unbind(1):
                state = self.cell(now, state)
            out: torch.Tensor = self.head(state[0])
            return out

    x, y = torch.randn(64, 12, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 4
    loss = nn.CrossEntropyLoss()
    assert findings(Cells(), loss, [(1013 + 50 * x, y)])["unscaled-input"].severity == "severe"
    assert "unscaled-input" not in findings(Cells(), loss, [(x, y)])


def test_inputs_are_no_cause_if_standardizing_them_changes_nothing() -> None:
    """Sigmoids pass so little of the inputs on that loss and gradient are those of standardized ones."""
    torch.manual_seed(0)
    layers = [module for k in range(5) for module in (nn.Linear(16 if k else FEATURES, 16), nn.Sigmoid())]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    by_rule = findings(model, nn.CrossEntropyLoss(), table(scale=8.0))
    assert by_rule["unscaled-input"].severity == "note"
    assert by_rule["vanishing-gradient"] not in by_rule["unscaled-input"].consequences
    assert findings(perceptron(), nn.CrossEntropyLoss(), table(scale=8.0))["unscaled-input"].severity != "note"


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("error", [nn.functional.mse_loss, nn.functional.l1_loss])
def test_targets_that_the_loss_standardizes_are_scaled(error: Any, inside: bool) -> None:
    x, _ = table()
    y = 300 + 50 * x.sum(1, keepdim=True)
    mean, std = (y.mean(), y.std()) if inside else (0.0, 1.0)
    by_rule = findings(perceptron(outputs=1), lambda f, y: error(f, (y - mean) / std), (x, y))
    assert ("unscaled-target" in by_rule) is not inside
    if not inside:
        assert ("squared error" in by_rule["unscaled-target"].reason) is (error is nn.functional.mse_loss)


def test_a_model_that_standardizes_targets_in_its_own_loss() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = perceptron(outputs=1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            outputs = self.body(x)
            return {"logits": outputs, "loss": nn.functional.mse_loss(outputs, (labels - 300) / 50)}

    x, _ = table()
    batch = {"x": x, "labels": 300 + 50 * x[:, :1]}
    assert "unscaled-target" not in findings(Model(), None, [batch])


@pytest.mark.parametrize(
    ("outputs", "loss", "target", "severity"),
    [
        (4, nn.CrossEntropyLoss(), torch.tensor(1), "severe"),
        (2, nn.CrossEntropyLoss(), torch.tensor(1), "warning"),
        (1, nn.MSELoss(), torch.tensor([3.0]), "warning"),
        (1, nn.BCEWithLogitsLoss(), torch.tensor([1.0]), "note"),
    ],
)
def test_targets_that_are_all_the_same(outputs: int, loss: nn.Module, target: torch.Tensor, severity: str) -> None:
    """Labels of fraud may all be 0 in what is read, and those of a GAN are all 1."""
    x, _ = table()
    y = target.expand(N, *target.shape)
    assert findings(perceptron(outputs=outputs), loss, (x, y))["constant-target"].severity == severity
    assert "constant-target" not in findings(perceptron(outputs=outputs), loss, (x[:32], y[:32]))


@pytest.mark.parametrize("later", [0, 1])
def test_targets_that_differ_only_later_in_an_epoch_are_sorted(later: int) -> None:
    """The first thousand examples are of one class: what comes after them decides what is wrong."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2048, FEATURES, generator=draw), torch.zeros(2048, dtype=torch.long)
    y[1024:] = later
    by_rule = findings(perceptron(outputs=2), nn.CrossEntropyLoss(), batches_of(x, y, 32))
    expected, other = ("sorted-batches", "constant-target") if later else ("constant-target", "sorted-batches")
    assert by_rule[expected].severity == "severe"
    assert other not in by_rule


def batches_of(x: torch.Tensor, y: torch.Tensor, size: int = 16) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


@pytest.mark.parametrize("classes", [2, 4, 40])
def test_sorted_labels_with_batches_across_boundaries(classes: int) -> None:
    x, _ = table()
    y = torch.arange(N) * classes // N
    y[:8] = 0  # no boundary between classes is one between batches
    y[8:] = y[:-8].clone()
    model = perceptron(outputs=classes)
    assert severe(model, nn.CrossEntropyLoss(), batches_of(x, y)) == ["sorted-batches"]
    order = torch.randperm(N, generator=torch.Generator().manual_seed(0))
    assert "sorted-batches" not in findings(model, nn.CrossEntropyLoss(), batches_of(x[order], y[order]))


@pytest.mark.parametrize(("is_shuffled", "expected"), [(False, ["warning"]), (True, [])])
def test_sorted_labels_of_a_contrastive_step(is_shuffled: bool, expected: list[str]) -> None:
    """Batches of one class have no negatives. Whole numbers of a step may be tasks that take turns: a warning."""
    x, y = table()
    order = torch.randperm(N) if is_shuffled else y.argsort(stable=True)

    def step(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        codes, labels = nn.functional.normalize(model(batch[0]), dim=1), batch[1]
        likeness = (codes @ codes.T / 0.2).masked_fill(torch.eye(len(labels), dtype=torch.bool), -1e4)
        partners = (labels[:, None] == labels).float().fill_diagonal_(0)
        return -(likeness.log_softmax(1) * partners).sum(1).div(partners.sum(1).clamp(min=1)).mean()

    model = perceptron(outputs=8)
    problem = wc.Problem.from_step(model, step, batches_of(x[order], y[order], 16))
    sorted_ones = sorted_batches(Evidence(problem, None, inspect(problem)))
    assert [each.severity for each in sorted_ones] == expected


def test_rare_labels_are_not_sorted() -> None:
    x, _ = table()
    y = torch.zeros(N, dtype=torch.long)
    y[-3] = 1
    assert "sorted-batches" not in findings(perceptron(outputs=2), nn.CrossEntropyLoss(), batches_of(x, y))


def test_sorted_numbers_are_a_warning() -> None:
    x, _ = table()
    y = x[:, :1].sort(0).values
    assert findings(perceptron(outputs=1), nn.MSELoss(), batches_of(x, y))["sorted-batches"].severity == "warning"
    assert "sorted-batches" not in findings(perceptron(outputs=1), nn.MSELoss(), batches_of(x, x[:, :1]))


@pytest.mark.parametrize(("coarse", "expected"), [(1, "severe"), (4, "note")])
def test_masks_without_foreground_and_labels_of_patches(coarse: int, expected: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(N, 1, 8, 8)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, coarse, stride=coarse))
    y = torch.zeros(N, 1, 8 // coarse, 8 // coarse)
    assert findings(model, nn.BCEWithLogitsLoss(), (x, y))["constant-target"].severity == expected
    y[:, :, 0, 0] = 1.0
    assert "constant-target" not in findings(model, nn.BCEWithLogitsLoss(), (x, y))


class Timed(nn.Module):
    """It takes the time step as a number."""

    def __init__(self, scale: float, *, embeds: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.time = scale, nn.Embedding(1000, 1) if embeds else None
        self.first, self.last = nn.Linear(FEATURES + 1, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        time = step[:, None] / self.scale if self.time is None else self.time(step)
        return self.last(self.first(torch.cat([x, time], 1)).tanh())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "is_found"), [(Timed(1.0), True), (Timed(1000.0), False), (Timed(1.0, embeds=True), False)]
)
def test_a_whole_number_that_is_used_as_it_is(model: nn.Module, is_found: bool) -> None:
    x, y = table()
    steps = torch.randint(0, 1000, (N,), generator=torch.Generator().manual_seed(0))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [({"x": x, "step": steps}, y)])
    evidence = Evidence(problem, None, inspect(problem), conditioning=wc.conditioning(problem))
    ill = [(each.rule, each.layer) for each in judged(evidence) if each.severity == "severe"]
    assert ill == ([("unscaled-input", "first")] if is_found else [])


class Scaling(nn.Module):
    """Scales its inputs before its first layer."""

    def __init__(self, mean: Tensor | float, std: Tensor | float, first: nn.Module) -> None:
        super().__init__()
        self.mean, self.std, self.first, self.last = mean, std, first, nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first((x - self.mean) / self.std)
        return self.last(torch.relu(h[0] if isinstance(h, tuple) else h))


SCALES = torch.tensor([1e4] + [1.0] * (FEATURES - 1))


@pytest.mark.parametrize(
    ("scales", "offset", "mean", "std", "is_reported"),
    [
        (3e3, 4e4, 4e4, 3e3, False),
        (SCALES, 0.0, 0.0, SCALES, False),
        (3e3, 4e4, 0.0, 1e3, True),  # what varies is of size 3, and 40 is added to it
        (SCALES, 0.0, 0.0, 3e3, True),  # one feature outweighs the others as before
    ],
    ids=["one scale", "each its own", "not centered", "one scale for all"],
)
@pytest.mark.parametrize("kind", [nn.Linear, nn.RNN])
def test_inputs_that_the_model_scales_itself(
    kind: type[nn.Module], scales: Tensor | float, offset: float, mean: float, std: Tensor | float, is_reported: bool
) -> None:
    torch.manual_seed(0)
    x, y = table()
    model = Scaling(mean, std, kind(FEATURES, 16))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(x * scales + offset, y)])
    rules = [each.rule for each in wc.diagnose(problem, torch.optim.Adam(model.parameters(), 1e-2)).findings]
    assert ("unscaled-input" in rules) == is_reported
