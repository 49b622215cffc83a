"""A training step of one's own: what has a loss and layers is measured as ever, and the rest says why it is not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import assert_same
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot
from zoo import integers, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem, NoLoss, Unsupported, WellcondError
from wellcond.remedies import REMEDIES, Setup

X, Y = normal(96, 6), integers(3, 96)
BATCHES = [(X[:48], Y[:48]), (X[48:], Y[48:])]


class Net(nn.Module):
    """A network as a Lightning module writes it, with the step as a method."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 16), norm(16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.encoder(x))
        return outputs

    def training_step(self, batch: Any, _index: int) -> dict[str, Tensor]:
        x, y = batch
        return {"loss": F.cross_entropy(self(x), y)}


def supervised(model: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


def lightning(module: Any, batch: Any) -> Any:
    return module.training_step(batch, 0)


def by_parts(model: Any, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(model.head(model.encoder(x)), y)


def simclr(model: nn.Module, x: Tensor) -> Tensor:
    views = torch.cat([model(x + 0.1 * torch.randn_like(x)) for _ in range(2)])
    z = F.normalize(views, dim=1)
    similar = (z @ z.T / 0.5).fill_diagonal_(-1e9)
    return F.cross_entropy(similar, torch.arange(len(z)).roll(len(x)))


def dqn() -> tuple[nn.Module, Callable[[Any, Any], Tensor], nn.Module, list[dict[str, Tensor]]]:
    """A Q-network, its step, and the target network that the step takes from outside, which is in training mode."""
    model = seeded(Net)
    target = copy.deepcopy(model).requires_grad_(False)

    def td_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            goal = batch["reward"] + 0.9 * target(batch["next"]).max(1).values
        return F.smooth_l1_loss(model(batch["state"]).gather(1, batch["action"][:, None])[:, 0], goal)

    batch = {"state": X[:48], "action": Y[:48], "reward": 50 * normal(48), "next": X[48:]}
    return model, td_loss, target, [batch]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("step", [supervised, lightning, by_parts])
def test_a_step_gives_the_numbers_of_model_and_loss_apart(step: Any) -> None:
    model = seeded(Net)
    apart, whole = wc.Problem(model, nn.CrossEntropyLoss(), BATCHES), wc.Problem.from_step(model, step, BATCHES)
    for problem in (apart, whole):
        assert list(problem.params) == [name for name, _ in model.named_parameters()]
    with apart.measuring(), whole.measuring():
        expected, measured = apart.loss_and_gradients(), whole.loss_and_gradients()
    assert_same(measured[0], expected[0])
    assert all(torch.allclose(measured[1][name], g) for name, g in expected[1].items())  # type: ignore[arg-type]
    assert_same(wc.Hessian(whole).dense(), wc.Hessian(apart).dense())
    assert [*wc.conditioning(whole)] == [*wc.conditioning(apart)] == ["encoder.0", "head"]
    assert wc.max_lr(whole, adam(model)).value == pytest.approx(wc.max_lr(apart, adam(model)).value, rel=1e-3)


def two_terms(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor, int, Tensor]:
    """Two losses of one step, with a count and a rate of errors, which are for printing."""
    outputs = model(batch[0])
    errors = (outputs.argmax(1) != batch[1]).float().mean()
    return F.cross_entropy(outputs, batch[1]), outputs.square().mean(), len(batch[1]), errors


def test_several_losses_of_a_step_are_summed() -> None:
    model = seeded(Net)
    several = wc.Problem.from_step(model, two_terms, BATCHES)
    summed = wc.Problem.from_step(model, lambda m, batch: sum(two_terms(m, batch)[:2]), BATCHES)
    with several.measuring(), summed.measuring():
        assert_same(several.mean_loss(), summed.mean_loss())
    assert "the loss returns 2 terms, and their sum is measured" in several.notes


def test_a_diagnosis_says_what_a_step_does_not_show() -> None:
    model = seeded(Net)
    diagnosis = wc.diagnose(wc.Problem.from_step(model, lightning, BATCHES), adam(model))
    assert not diagnosis.failed
    for what in ("the outputs", "the targets"):
        assert diagnosis.not_covered[what] == "a training step returns its loss alone"
    assert diagnosis.verdict().endswith("Not covered: the outputs and the targets.")
    assert "not covered           the outputs, the targets: a training step returns its" in str(diagnosis)
    assert "the data and the gradients of every layer" in diagnosis.verdict()
    assert None not in (diagnosis.trial, diagnosis.max_lr, diagnosis.neurons)
    assert diagnosis.about["loss"] == "lightning"


@pytest.mark.slow
def test_inputs_are_what_the_step_calls_the_model_with() -> None:
    """Of a DQN's batch the rewards are no inputs, whatever their size; pixels from 0 to 255 are, however named."""
    model, step, _, batches = dqn()
    inspection = wc.diagnose(wc.Problem.from_step(model, step, batches)).evidence.inspection
    assert inspection is not None
    assert [(fact.name, fact.shape) for fact in inspection.inputs] == [("inputs", (48, 6))]
    raw = [{**batch, "state": 255 * batch["state"].sigmoid()} for batch in batches]
    findings = wc.diagnose(wc.Problem.from_step(model, step, raw), adam(model)).findings
    assert "unscaled-input" in [each.rule for finding in findings for each in (finding, *finding.consequences)]


@pytest.mark.slow
def test_what_the_step_takes_from_outside_is_as_before() -> None:
    model, step, target, batches = dqn()
    optimizer = adam(model)
    before = snapshot(model, *batches[0].values()), snapshot(target)
    problem = wc.Problem.from_step(model, step, batches)
    wc.diagnose(problem, optimizer)
    wc.suggest_lr(problem, optimizer, max_steps=30)
    for own, was in zip((snapshot(model, *batches[0].values()), snapshot(target)), before, strict=True):
        assert_unchanged(was, own)


@pytest.mark.parametrize(
    "measure",
    [
        lambda p: wc.GGN(p).dense(),
        lambda p: wc.Fisher(p).dense(),
        lambda p: wc.Fisher(p, labels="data").dense(),
        lambda p: wc.meanfield.predict(p),
    ],
    ids=["ggn", "fisher", "moments", "predict"],
)
@pytest.mark.parametrize("step", [supervised, lightning])
def test_what_needs_outputs_says_so(measure: Any, step: Any) -> None:
    with pytest.raises(WellcondError, match=r"step returns its loss alone.*Write wc\.Problem\(model, loss"):
        measure(wc.Problem.from_step(seeded(Net), step, BATCHES))


# batches


@pytest.mark.slow
def test_a_step_gets_a_batch_as_it_is() -> None:
    seen: list[Any] = []

    def step(model: nn.Module, batch: Any) -> Tensor:
        seen.append(batch)
        return model(batch[0] if isinstance(batch, (tuple, list)) else batch).square().mean()  # type: ignore[no-any-return]

    loader = DataLoader(TensorDataset(X, Y), batch_size=48)
    for batches, kind, count in (
        (X, Tensor, 1),
        ((X, None), tuple, 1),
        ([X[:48], X[48:]], Tensor, 2),
        ([(X, None)], tuple, 1),
        (loader, list, 2),
    ):
        seen.clear()
        problem = wc.Problem.from_step(seeded(Net), step, batches)
        with problem.measuring():
            problem.mean_loss()
        assert len(seen) == count
        assert all(isinstance(batch, kind) for batch in seen)
        assert kind is not tuple or seen[0][1] is None
        assert wc.diagnose(problem).trial is not None


# copies and remedies


def test_copies_are_what_the_step_is_called_with() -> None:
    model = seeded(Net)
    called: set[int] = set()

    def step(model: nn.Module, batch: Any) -> Tensor:
        called.add(id(model))
        return supervised(model, batch)

    before = snapshot(model)
    suggested = wc.suggest_lr(wc.Problem.from_step(model, step, BATCHES), adam(model), max_steps=30)
    assert suggested.race is not None
    assert len(called) > 2
    assert_unchanged(before, snapshot(model))


def test_a_step_that_does_not_use_its_argument_is_refused() -> None:
    model = seeded(Net)
    problem = wc.Problem.from_step(model, lambda _, batch: supervised(model, batch), BATCHES)
    with pytest.raises(InvalidProblem, match=r"training_step uses the model itself.*Let it use its first argument"):
        wc.suggest_lr(problem, adam(model))


@pytest.mark.parametrize(
    ("step", "name", "lines"),
    [
        (lightning, "leaky-relu", 'set_submodule("encoder.2"'),
        (lightning, "layernorm", "training_step"),
        (supervised, "scale-inputs", "training_step"),
    ],
)
def test_remedies_reach_the_step(step: Any, name: str, lines: str) -> None:
    model = seeded(lambda: Net(nn.Identity))
    setup = Setup.of(wc.Problem.from_step(model, step, [(10 * x, y) for x, y in BATCHES]), adam(model))
    treated = REMEDIES[name].apply(setup)
    assert treated is not None
    assert lines in treated.code
    with treated.problem.measuring(), setup.problem.measuring():
        assert not torch.isclose(treated.problem.mean_loss(), setup.problem.mean_loss())
    names = {"model": model, "training_step": step, "loader": BATCHES, "wc": wc, "nn": nn, "torch": torch}
    exec(treated.code.replace("{lr}", "0.1"), names | {"optimizer": setup.optimizer})


def test_a_remedy_around_the_model_that_the_step_passes_by_is_refused() -> None:
    setup = Setup.of(wc.Problem.from_step(seeded(Net), lightning, [(10 * x, y) for x, y in BATCHES]))
    with pytest.raises(Unsupported, match="training_step calls what is inside"):
        REMEDIES["scale-inputs"].apply(setup)
    setup = Setup.of(wc.Problem.from_step(seeded(lambda: Net(nn.Identity)), by_parts, BATCHES))
    with pytest.raises(Unsupported, match="calls parts of Net, not the model itself"):
        REMEDIES["layernorm"].apply(setup)


@pytest.mark.slow
def test_two_calls_in_a_step_can_be_treated() -> None:
    model = seeded(Net)
    problem = wc.Problem.from_step(model, simclr, [X])
    treatment = wc.treat(problem, adam(model), steps=5, seeds=[0], remedies=["leaky-relu", "clip"])
    assert not treatment.refused
    assert {"leaky-relu", "clip"} <= treatment.arms.keys()


# refusals


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("dqn", "training_step is a str; write a function training_step"),
        (lambda batch: batch, "takes 1 arguments.*wrap it: lambda model, batch"),
        (lambda model, batch, index: batch, "takes 3 arguments.*wrap it: lambda model, batch"),
        (lambda _m, _b: None, "training_step returns a NoneType; let it return the loss"),
        (lambda m, b: supervised(m, b).item(), r"training_step returns a float; .*without \.item\(\)"),
        (lambda m, b: m(b[0]), r"training_step returns a Tensor of shape \(48, 3\)"),
    ],
)
def test_what_is_no_step_is_refused_in_one_line(step: Any, says: str) -> None:
    with pytest.raises(InvalidProblem, match=says) as refusal:
        wc.eigenvalues(wc.Hessian(wc.Problem.from_step(seeded(Net), step, BATCHES)))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("returns", "says"),
    [(lambda loss: loss.item(), r"returns a float; .*without \.item\(\)"), (None, "calls backward")],
)
def test_a_diagnosis_refuses_a_step_without_a_loss_before_it_trains_anything(returns: Any, says: str) -> None:
    """A step as a training loop has it: it calls backward() and the optimizer, and returns a number for printing."""
    model = seeded(Net)
    optimizer = adam(model)
    supervised(model, BATCHES[0]).backward()  # type: ignore[no-untyped-call]

    def step(model: nn.Module, batch: Any) -> Any:
        loss = supervised(model, batch)
        if returns is not None:
            return returns(loss)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    before = snapshot(model)
    with pytest.raises(NoLoss, match=says):
        wc.diagnose(wc.Problem.from_step(model, step, BATCHES), optimizer)
    assert_unchanged(before, snapshot(model))
    assert not optimizer.state


def test_a_step_that_trains_is_said_to_be_sound() -> None:
    """It calls the model once, so its outputs are compared with what the loss takes for targets."""
    torch.manual_seed(0)
    x = torch.randn(64, 8) @ torch.randn(8, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    problem = wc.Problem.from_step(model, lambda m, batch: (m(batch) - batch).square().mean(), list(x.split(16)))
    verdict = wc.diagnose(problem, torch.optim.Adam(model.parameters(), lr=1e-3)).verdict()
    assert verdict.startswith("Nothing is wrong in what was checked: the data, the outputs and the gradients of")
    assert "Could not be checked" not in verdict
