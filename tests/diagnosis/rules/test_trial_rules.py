"""Rules that a trial decides, each on a faulty network and on its healthy twin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import behavior
from wellcond.diagnosis.trial import trial

Factory = Callable[[nn.Module], Optimizer]


@functools.cache
def clusters(count: int = 512, features: int = 16, classes: int = 8) -> tuple[Tensor, Tensor]:
    """Classes around centers that share two directions, of features with standard deviation 1."""
    draw = torch.Generator().manual_seed(0)
    centers = torch.randn(classes, features, generator=draw) + 2 * torch.randn(
        classes, 2, generator=draw
    ) @ torch.randn(2, features, generator=draw)
    y = torch.randint(0, classes, (count,), generator=draw)
    x = centers[y] + 0.7 * torch.randn(count, features, generator=draw)
    return (x - x.mean(0)) / x.std(0), y


def network(*middle: Callable[[], nn.Module], depth: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k in range(depth):
        layers += [nn.Linear(16 if k == 0 else 48, 48), *(new() for new in middle), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(48, 8))


def findings(
    make: Factory | None, model: nn.Module | None = None, data: tuple[Tensor, Tensor] | None = None, size: int = 32
) -> dict[str, Finding]:
    """By rule, from a look and a trial; consequences too."""
    model = network() if model is None else model
    x, y = clusters() if data is None else data
    problem = wc.Problem(model, nn.CrossEntropyLoss(), list(zip(x.split(size), y.split(size), strict=True)))
    optimizer = None if make is None else make(model)
    evidence = Evidence(
        problem, optimizer, inspect(problem, optimizer), behavior(problem), trial=trial(problem, optimizer)
    )
    roots = judged(evidence)
    return {each.rule: each for root in reversed(roots) for each in (*root.consequences, root)}


def of(kind: Any, **options: Any) -> Factory:
    return lambda model: kind(model.parameters(), **options)


HEALTHY: dict[str, Factory | None] = {
    "none": None,
    "SGD": of(SGD, lr=0.1),
    "momentum": of(SGD, lr=0.05, momentum=0.9, weight_decay=5e-4),
    "Adam": of(Adam, lr=1e-3),
    "AdamW": of(AdamW, lr=3e-3, weight_decay=0.05),
    "RMSprop": of(torch.optim.RMSprop, lr=1e-3),
    "Adagrad": of(torch.optim.Adagrad, lr=0.01),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "norm"), [*((kind, False) for kind in HEALTHY), ("none", True), ("momentum", True), ("Adam", True)]
)
def test_a_healthy_network_has_no_more_than_notes(kind: str, norm: bool) -> None:
    model = network(lambda: nn.BatchNorm1d(48)) if norm else network()
    assert {rule for rule, each in findings(HEALTHY[kind], model).items() if each.severity != "note"} == set()


class Flipped(SGD):
    """Goes up the gradient."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.neg_()
        super().step()


def negative(model: nn.Module) -> Optimizer:
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lr"] = -0.1
    return optimizer


FAULTY: dict[str, tuple[str, Factory]] = {
    "SGD at 200": ("learning-rate-too-high", of(SGD, lr=200.0)),
    "Adam at 1": ("learning-rate-too-high", of(Adam, lr=1.0)),
    "a negative rate": ("learning-rate-too-high", negative),
    "SGD at 1e-6": ("learning-rate-too-low", of(SGD, lr=1e-6)),
    "Adam at 1e-6": ("learning-rate-too-low", of(Adam, lr=1e-6)),
    "no rate": ("learning-rate-too-low", of(SGD, lr=0.0)),
    "uphill": ("diverging", of(Flipped, lr=0.05)),
    "slowly uphill": ("diverging", of(Flipped, lr=1e-4)),
    "maximize": ("diverging", of(SGD, lr=0.05, maximize=True)),
    "decay of 1": ("weight-decay-dominates", of(SGD, lr=0.1, momentum=0.9, weight_decay=1.0)),
    "decoupled decay of 100": ("weight-decay-dominates", of(AdamW, lr=1e-3, weight_decay=100.0)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "make"), FAULTY.values(), ids=FAULTY)
def test_a_fault_of_the_optimizer_is_severe_and_its_remedy_is_code(rule: str, make: Factory) -> None:
    by_rule = findings(make)
    assert rule in by_rule, {name: str(each) for name, each in by_rule.items()}
    assert by_rule[rule].severity == "severe"
    compile(by_rule[rule].remedy, "remedy", "exec")


@pytest.mark.slow
def test_the_rate_that_is_advised_trains() -> None:
    for make in (of(SGD, lr=200.0), of(Adam, lr=1e-6)):
        (too,) = (each for name, each in findings(make).items() if name.startswith("learning-rate"))
        model = network()
        optimizer = make(model)
        loader = [(x.split(32)[k], y.split(32)[k]) for x, y in [clusters()] for k in range(16)]
        exec(
            too.remedy,
            {"optimizer": optimizer, "wc": wc, "model": model, "loss": nn.CrossEntropyLoss(), "loader": loader},
        )
        advised = findings(of(type(optimizer), lr=optimizer.param_groups[0]["lr"]))
        assert not any(each.severity == "severe" for each in advised.values())


@pytest.mark.slow
def test_a_warm_up_that_begins_at_zero_is_no_fault() -> None:
    def warmed(model: nn.Module) -> Optimizer:
        optimizer = Adam(model.parameters(), lr=1e-3)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
        return optimizer

    by_rule = findings(warmed)
    assert by_rule["learning-rate-too-low"].severity == "note"


@pytest.mark.slow
@pytest.mark.parametrize("is_passed", [True, False])
def test_a_factor_of_a_schedule_that_begins_at_zero_is_no_rate_that_is_too_high(is_passed: bool) -> None:
    x, y = clusters()
    model = network()
    optimizer = Adam(model.parameters(), lr=3.0)
    noam = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.03 * min(max(k, 1) ** -0.5, k * 80**-1.5))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), list(zip(x.split(32), y.split(32), strict=True)))
    diagnosis = wc.diagnose(problem, optimizer, scheduler=noam if is_passed else None)
    assert "learning-rate-too-high" not in [each.rule for each in diagnosis.findings]
    if is_passed:
        assert diagnosis.evidence.trial is not None
        assert diagnosis.evidence.trial.own is not None
        assert diagnosis.evidence.trial.own.lr == pytest.approx(3 * 0.03 / 80**0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=100, div_factor=1e5),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=1e-5, total_iters=100),
    ],
    ids=["one-cycle", "warm-up"],
)
def test_the_first_rate_of_a_schedule_is_not_called_too_low(schedule: Callable[[Optimizer], Any]) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    scheduler = schedule(optimizer)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-6)  # at which SGD is called too low
    assert "learning-rate-too-low" not in findings(lambda _: optimizer, model)
    x, y = clusters()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), list(zip(x.split(32), y.split(32), strict=True)))
    diagnosis = wc.diagnose(problem, scheduler=scheduler)
    assert diagnosis.lr == pytest.approx(1e-6)
    assert "learning-rate-too-low" not in [each.rule for each in diagnosis.findings]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "is_low"), [(1e-5, True), (1.0, False)])
def test_a_schedule_whose_highest_rate_is_too_low(factor: float, is_low: bool) -> None:
    x, y = clusters()
    model = network()
    optimizer = Adam(model.parameters(), lr=1e-2)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: factor * min((k + 1) / 100, (100 / (k + 1)) ** 0.5))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), list(zip(x.split(32), y.split(32), strict=True)))
    ill = [(each.rule, each.severity) for each in wc.diagnose(problem, optimizer, scheduler=rates).findings]
    assert (("learning-rate-too-low", "severe") in ill) == is_low


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 3])
def test_a_decay_that_is_soon_over_is_severe_if_it_is_stepped_after_every_batch(steps: int) -> None:
    x, y = clusters()
    model = network()
    optimizer = Adam(model.parameters(), lr=1e-4)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    batches = list(zip(x.split(32), y.split(32), strict=True))
    for inputs, targets in batches[:steps]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        decay.step()
    diagnosis = wc.diagnose(wc.Problem(model, nn.CrossEntropyLoss(), batches), optimizer, scheduler=decay)
    by_rule = {each.rule: each for each in diagnosis.findings}
    # before any step nobody knows how the schedule will be stepped
    assert by_rule["learning-rate-too-low"].severity == ("severe" if steps else "warning")


@pytest.mark.slow
def test_epsilon_that_vanishes_in_half_precision_is_named() -> None:
    class Half(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.half()).float()

    def model() -> nn.Module:
        return Half(*network()).half()

    assert "eps=1e-08 is zero in float16" in findings(of(Adam, lr=1e-3), model())["non-finite"].summary
    assert "non-finite" not in findings(of(Adam, lr=1e-3, eps=1e-4), model())


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "is_odd"), [(0.1, True), (1e-16, True), (1e-8, False), (1e-6, False)])
def test_epsilon_outside_of_ordinary_use_is_a_warning(eps: float, is_odd: bool) -> None:
    by_rule = findings(of(Adam, lr=1e-3, eps=eps))
    assert ("optimizer-setting" in by_rule) == is_odd


@pytest.mark.slow
def test_strong_dropout_is_named_with_its_layer_and_half_is_not() -> None:
    strong = findings(of(Adam, lr=3e-3), network(lambda: nn.Dropout(0.9), depth=3))["dropout-too-strong"]
    assert (strong.layer, strong.severity) == ("1", "severe")
    assert "dropout-too-strong" not in findings(of(Adam, lr=3e-3), network(lambda: nn.Dropout(0.5)))


@pytest.mark.slow
def test_norms_that_evaluate_in_training_are_named() -> None:
    model = network(lambda: nn.BatchNorm1d(48), depth=12).eval()
    finding = findings(of(SGD, lr=0.1), model)["batchnorm-mode-gap"]
    assert (finding.layer, finding.severity) == ("1", "severe")
    assert "batchnorm-mode-gap" not in findings(of(SGD, lr=0.1), model.train())


@pytest.mark.slow
@pytest.mark.parametrize(("momentum", "is_slow"), [(1 - 0.999, True), (0.001, True), (0.003, False), (0.1, False)])
def test_running_statistics_that_take_a_thousand_steps_are_a_warning(momentum: float, is_slow: bool) -> None:
    model = network(lambda: nn.BatchNorm1d(48, momentum=momentum))
    assert ("batchnorm-mode-gap" in findings(of(Adam, lr=3e-3), model)) is is_slow


@pytest.mark.slow
def test_wrong_running_statistics_are_a_warning_or_severe() -> None:
    model = network(lambda: nn.BatchNorm1d(48)).train()
    optimizer = Adam(model.parameters(), lr=1e-2)
    x, y = clusters()
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert "batchnorm-mode-gap" not in findings(of(Adam, lr=1e-3), model)
    scale = model[1].running_var.clone()
    severities = []
    for factor in (30, 1000):
        model[1].running_var.copy_(factor * scale)
        finding = findings(of(Adam, lr=1e-3), model)["batchnorm-mode-gap"]
        severities.append((finding.evidence["loss with running statistics"], finding.severity))
    model.eval()
    assert severities[0][1] == "warning"
    assert severities[1][1] == "severe"


@pytest.mark.slow
def test_a_batch_of_one_under_batchnorm_is_severe_and_of_two_a_warning() -> None:
    class Images(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.reshape(-1, 1, 4, 4))

    def images() -> nn.Module:
        torch.manual_seed(0)
        return Images(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 8))

    x, y = clusters()
    severity = {
        size: finding.severity
        if (finding := findings(of(SGD, lr=0.01), images(), (x[:64], y[:64]), size).get(rule))
        else None
        for rule in ("small-batch-batchnorm",)
        for size in (1, 2, 8)
    }
    assert severity == {1: "severe", 2: "warning", 8: None}


@pytest.mark.slow
def test_labels_that_inputs_do_not_tell_are_severe() -> None:
    x, y = clusters()
    shuffled = y[torch.randperm(512, generator=torch.Generator().manual_seed(1))]
    finding = findings(of(Adam, lr=1e-3), data=(x, shuffled))["labels-unrelated"]
    assert finding.severity == "severe"


@pytest.mark.slow
def test_noise_with_random_labels_is_no_more_than_a_warning() -> None:
    draw = torch.Generator().manual_seed(0)
    noise = torch.randn(512, 16, generator=draw), torch.randint(0, 8, (512,), generator=draw)
    assert findings(of(Adam, lr=1e-3), data=noise)["labels-unrelated"].severity == "warning"


@pytest.mark.slow
def test_unscaled_data_explain_the_rate_that_they_need() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.tensor([2000.0, 3.0, 5e4]) * torch.rand(256, 3, generator=draw)
    y = 100 * x.sum(1, keepdim=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 1))
    diagnosis = wc.diagnose(
        wc.Problem(model, nn.MSELoss(), list(zip(x.split(32), y.split(32), strict=True))),
        SGD(model.parameters(), lr=0.01),
    )
    assert {each.rule for each in diagnosis.findings if each.severity == "severe"} == {
        "unscaled-input",
        "unscaled-target",
    }
    assert diagnosis.findings[0].consequences
    assert "with_standardized_inputs" in diagnosis.findings[0].remedy


@pytest.mark.slow
def test_a_summed_loss_with_too_high_a_rate_stays_where_it_is() -> None:
    x, y = clusters()
    model = network()
    problem = wc.Problem(model, nn.CrossEntropyLoss(reduction="sum"), list(zip(x.split(64), y.split(64), strict=True)))
    diagnosis = wc.diagnose(problem, SGD(model.parameters(), lr=0.5))
    assert diagnosis.findings[0].rule == "learning-rate-too-high"
    assert diagnosis.failed == {}
    assert diagnosis.max_lr is not None
    assert diagnosis.max_lr.value < 0.5


STRONG_DECAY: dict[str, Factory] = {
    "Adam": of(Adam, lr=1e-3, weight_decay=1.0),
    "RMSprop": of(torch.optim.RMSprop, lr=1e-3, weight_decay=1.0),
    "Adagrad": of(torch.optim.Adagrad, lr=0.01, weight_decay=1.0),
    "AdamW": of(AdamW, lr=1e-3, weight_decay=30.0),
    "SGD": of(SGD, lr=0.05, momentum=0.9, weight_decay=0.3),
}
ORDINARY_DECAY: dict[str, Factory] = {
    "Adam": of(Adam, lr=1e-3, weight_decay=1e-3),
    "RMSprop": of(torch.optim.RMSprop, lr=1e-3, weight_decay=1e-4),
    "Adagrad": of(torch.optim.Adagrad, lr=0.01, weight_decay=1e-4),
    "AdamW": of(AdamW, lr=1e-3, weight_decay=1.0),
    "SGD": of(SGD, lr=0.05, momentum=0.9, weight_decay=5e-4),
}


def trained(make: Factory, epochs: int = 20) -> float:
    x, y = clusters()
    model = network()
    optimizer = make(model)
    for _ in range(epochs):
        for some, labels in zip(x.split(32), y.split(32), strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(some), labels).backward()
            optimizer.step()
    return float(nn.functional.cross_entropy(model(x), y).detach())


@pytest.mark.slow
@pytest.mark.parametrize("kind", STRONG_DECAY)
def test_decay_is_weighed_in_the_terms_of_its_optimizer(kind: str) -> None:
    assert findings(STRONG_DECAY[kind])["weight-decay-dominates"].severity == "severe"
    assert "weight-decay-dominates" not in findings(ORDINARY_DECAY[kind])
    assert trained(STRONG_DECAY[kind]) > 10 * trained(ORDINARY_DECAY[kind])


def regression(
    x: Tensor, y: Tensor, model: nn.Module, make: Factory, loss: nn.Module | None = None
) -> dict[str, Finding]:
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean(0)) / y.std(0)
    problem = wc.Problem(model, loss or nn.MSELoss(), list(zip(x.split(32), y.split(32), strict=True)))
    optimizer = make(model)
    roots = judged(
        Evidence(problem, optimizer, inspect(problem, optimizer), behavior(problem), trial=trial(problem, optimizer))
    )
    return {each.rule: each for root in reversed(roots) for each in (*root.consequences, root)}


def perceptron(features: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, 1))


@pytest.mark.slow
@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("order", ["right", "sorted", "shuffled"])
def test_numbers_that_inputs_do_not_tell(correlated: bool, order: str) -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(512, 10, generator=draw)
    x = x[:, :3] @ torch.randn(3, 10, generator=draw) + 0.3 * x if correlated else x
    y = torch.sin(x[:, :1]) + 0.5 * x[:, 1:2] * x[:, 2:3]
    if order != "right":
        y = y.sort(0)[0] if order == "sorted" else y[torch.randperm(512, generator=draw)]
    both = torch.randperm(512, generator=draw)  # as a loader does
    x, y = x[both], y[both]
    by_rule = regression(x, y, perceptron(10), of(Adam, lr=1e-3))
    assert ("labels-unrelated" in by_rule) == (order != "right")
    assert order == "right" or by_rule["labels-unrelated"].severity == "severe"


def powers() -> tuple[Tensor, Tensor]:
    t = 1.5 + 0.5 * (2 * torch.rand(512, 1, generator=torch.Generator().manual_seed(0)) - 1)
    return torch.cat([t**k for k in range(1, 11)], 1), torch.sin(6 * t)


@pytest.mark.slow
@pytest.mark.parametrize("make", [of(SGD, lr=0.05), of(Adam, lr=0.01)])
def test_powers_of_one_feature_are_slow_until_they_are_made_orthogonal(make: Factory) -> None:
    x, y = powers()
    torch.manual_seed(0)
    finding = regression(x, y, nn.Linear(10, 1), make)["ill-conditioned-input"]
    assert finding.severity == "warning"
    assert float(finding.evidence["λ_max / λ"]) > 1000
    orthogonal = torch.linalg.svd((x - x.mean(0)) / x.std(0), full_matrices=False)[0]
    assert "ill-conditioned-input" not in regression(orthogonal, y, nn.Linear(10, 1), make)


@pytest.mark.slow
def test_powers_do_not_matter_to_a_network_that_makes_its_own_features() -> None:
    assert "ill-conditioned-input" not in regression(*powers(), perceptron(10), of(Adam, lr=0.01))


@pytest.mark.slow
@pytest.mark.parametrize("is_centered", [False, True])
def test_a_year_that_varies_little_around_its_mean_is_slow(is_centered: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    year, others = 1990 + 30 * torch.rand(512, 1, generator=draw), torch.randn(512, 3, generator=draw)
    age = (year - 2005) / 9
    x = torch.cat([age if is_centered else year / 1000, others], 1)
    batches = list(zip(x.split(32), (age + 0.2 * others[:, :1]).split(32), strict=True))
    model = perceptron(4)
    diagnosis = wc.diagnose(wc.Problem(model, nn.MSELoss(), batches), SGD(model.parameters(), lr=0.03))
    by_rule = {each.rule: each for each in diagnosis.findings}
    assert ("ill-conditioned-input" in by_rule) is not is_centered
    if not is_centered:
        finding = by_rule["ill-conditioned-input"]
        assert finding.treatment == "scale-inputs"
        # along the year, of standard deviation 0.009 next to a mean of 2
        eigenvalue = float(x.var(0, correction=0).min())
        largest = float(torch.linalg.matrix_norm(x.double(), 2).square()) / 512
        assert float(finding.evidence["λ_max / λ"]) == pytest.approx(largest / eigenvalue, rel=0.05)


class Averaged(nn.Module):
    """A network that takes the mean over the wrong dimension; its BatchNorm hides that from a look at examples."""

    def __init__(self, dim: int | None) -> None:
        super().__init__()
        self.body, self.dim = network(lambda: nn.BatchNorm1d(48)), dim

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.body(x)
        return outputs if self.dim is None else outputs.mean(self.dim, keepdim=True).expand_as(outputs)


@pytest.mark.slow
def test_nothing_is_learned_at_any_rate_although_the_inputs_predict_the_targets() -> None:
    finding = findings(of(SGD, lr=0.01), Averaged(0))["loss-not-decreasing"]
    assert "although the inputs predict the targets" in finding.summary
    assert float(finding.evidence["best probe of the data, in σ"]) > 8
    assert "loss-not-decreasing" not in findings(of(SGD, lr=0.01), Averaged(None))


def batch_hard(outputs: Tensor, labels: Tensor) -> Tensor:
    """Triplets of the farthest example of a class and the nearest of another (Hermans et al. 2017)."""
    places = nn.functional.normalize(outputs)
    distances, same = torch.cdist(places, places), labels[:, None] == labels
    farthest, nearest = (distances * same).amax(1), (distances + 10 * same).amin(1)  # 10 is beyond any distance
    return (farthest - nearest + 0.3).relu().mean()


@pytest.mark.slow
def test_a_loss_that_stands_at_its_margin_at_first_is_said_to_start_slowly() -> None:
    torch.manual_seed(0)
    images, labels = wc.digits()
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 32),
    )  # fmt: skip
    data = TensorDataset(images.view(-1, 1, 8, 8), labels)
    batches = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    finding = wc.diagnose(wc.Problem(model, batch_hard, batches), optimizer).findings[0]
    assert (finding.rule, finding.severity) == ("loss-not-decreasing", "warning")
    assert "may only start slowly" in finding.reason
    for _ in range(12):
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = batch_hard(model(inputs), targets)
            loss.backward()
            optimizer.step()
    assert loss.item() < 0.15  # it leaves the margin, 0.3


@pytest.mark.slow
def test_dropout_that_changes_nothing_is_no_cause() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.9)

        def forward(self, x: Tensor) -> Tensor:
            return x + 0.0 * self.drop(x)

    assert findings(of(SGD, lr=0.01), network(Aside))["dropout-too-strong"].severity == "note"
