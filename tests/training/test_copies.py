"""Training of copies against plain torch loops; whatever is trained, nothing of the user's changes."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from small_problems import BATCHES, losses_by_torch, network, problem, quadratic
from torch import nn
from torch.optim import SGD, Adam, Optimizer, SparseAdam
from zoo import ARCHITECTURES, CLASSES, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, Unsupported
from wellcond.learning_rate.race.in_step import in_step
from wellcond.training.copy_run import CopyRun
from wellcond.training.copy_trainer import CopyTrainer


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_tanh", "cnn_batch", "transformer"])
@pytest.mark.parametrize("several", [False, True], ids=["one_batch", "uneven_batches"])
@pytest.mark.parametrize(
    ("make", "settings", "has_optimizer"),
    [(SGD, {"momentum": 0.5, "weight_decay": 0.01}, True), (Adam, {}, True), (SGD, {"momentum": 0.9}, False)],
    ids=["sgd", "adam", "default"],
)
def test_runs_in_step_are_those_of_the_optimizer_on_the_batches_in_turn(
    name: str, several: bool, make: Any, settings: Any, has_optimizer: bool
) -> None:
    case = ARCHITECTURES[name]()
    batches = split(case.batch, [len(case.batch[1]) - 2, 2]) if several else [case.batch]
    optimizer = make(case.model.parameters(), lr=0.1, **settings) if has_optimizer else None
    trainer = CopyTrainer(case.problem(batches=batches), optimizer)
    first, second, late = (trainer.start(lr) for lr in (0.01, 0.1, 0.03))
    with in_step(trainer) as field:
        field.join(first)
        field.join(second)
        for _ in range(3):
            field.advance([first, second])
        field.join(late)
        field.close()
        for _ in range(2):
            field.advance([second, late])
    for lr, run, steps in ((0.01, first, 3), (0.1, second, 5), (0.03, late, 5)):
        model = copy.deepcopy(case.model)
        expected = losses_by_torch(model, make(model.parameters(), lr=lr, **settings), steps, batches, case.loss)
        assert run.losses == pytest.approx(expected, rel=1e-10)
    assert trainer.cost.backwards == 3 * 3 + 2 * 2


def test_a_run_goes_on_where_it_stopped_and_is_evaluated_on_every_batch() -> None:
    model = network()
    run = CopyTrainer(problem(model), SGD(model.parameters(), lr=0.1)).start()
    first = run.run(2)
    assert run.run(3).losses[:2] == first.losses
    plain = copy.deepcopy(model)
    expected = losses_by_torch(plain, SGD(plain.parameters(), lr=0.1), 5)
    assert run.losses == pytest.approx(expected, rel=1e-12)
    with torch.no_grad():
        evaluated = [float(nn.functional.cross_entropy(plain.train()(x), y)) for x, y in BATCHES]
    assert run.evaluate() == pytest.approx(evaluated, rel=1e-12)


def test_a_seed_decides_the_batch_to_begin_with() -> None:
    model = network()
    trainer = CopyTrainer(problem(model), SGD(model.parameters(), lr=0.1))
    losses = [trainer.start(0.0, seed=seed).run(3).losses for seed in range(4)]
    assert losses[1] == (*losses[0][1:], losses[0][0])
    assert losses[3] == losses[0]


def test_copies_are_trained_with_dropout_unless_it_is_turned_off() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES)))
    trainer = CopyTrainer(problem(model), SGD(model.parameters(), lr=0.1))
    dropped, same, plain = trainer.start(), trainer.start(), trainer.start(dropout=False)
    assert dropped.run(4) == same.run(4)
    assert dropped.losses[0] != plain.run(4).losses[0]
    assert trainer.depends_on_seed()


def test_settings_are_changed_in_every_group_that_has_them() -> None:
    model = network()
    trainer = CopyTrainer(problem(model), SGD(model.parameters(), lr=0.1, weight_decay=0.3))
    run = trainer.start(factor=0.5, weight_decay=0.0, no_such_setting=1.0)
    assert run.optimizer.param_groups[0]["weight_decay"] == 0.0
    assert run.optimizer.param_groups[0]["lr"] == 0.05
    assert "no_such_setting" not in run.optimizer.param_groups[0]


def test_running_statistics_of_the_copy_alone_are_updated() -> None:
    model = network()
    own = model[1].running_mean.clone()  # type: ignore[operator, union-attr]
    run = CopyTrainer(problem(model), SGD(model.parameters(), lr=0.1)).start()
    with run.training():
        run.step(BATCHES[0])
        assert not torch.equal(run.model[1].running_mean, own)  # type: ignore[index]
    assert torch.equal(model[1].running_mean, own)  # type: ignore[arg-type]


def test_sparse_gradients_reach_the_optimizer_that_needs_them() -> None:
    model = seeded(lambda: nn.Embedding(5, 2, sparse=True).double())
    x = torch.arange(24) % 5
    of = wc.Problem(model, nn.MSELoss(), [(x, normal(24, 2))])
    losses = CopyTrainer(of, SparseAdam(model.parameters(), lr=0.1)).start().run(5).losses
    assert losses[-1] < losses[0]


class WithWeight(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(CLASSES, dtype=torch.float64))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs * self.weight, targets)


def test_the_gradient_of_a_parameter_of_the_loss_is_as_before() -> None:
    model, loss = network(), WithWeight()
    loss.weight.grad = gradient = torch.full_like(loss.weight, 7.0)
    CopyTrainer(problem(model, loss=loss), SGD(model.parameters(), lr=0.1)).start().run(3)
    assert loss.weight.grad is gradient
    assert torch.equal(gradient, torch.full_like(gradient, 7.0))


def test_a_run_that_diverges_ends_and_names_the_cause() -> None:
    of = quadratic()
    run = CopyTrainer(of, SGD(of.model.parameters(), lr=1e200)).start()
    run.run(9)
    assert run.losses == [2.0]  # then w = 2 − 2e200, whose square is inf
    assert run.diverged_at == 2
    assert "inf" in run.cause
    assert all(map(math.isnan, run.evaluate()))


def test_a_sum_is_trained_as_it_is() -> None:
    model = network()
    of = problem(model, loss=nn.CrossEntropyLoss(reduction="sum"))
    run = CopyTrainer(of, SGD(model.parameters(), lr=0.01)).start()
    assert run.run(2).losses[0] == pytest.approx(5 * CopyTrainer(problem(model)).first_loss, rel=1e-12)


@pytest.mark.slow
def test_rates_and_remedies_of_a_sum_are_found() -> None:
    """Five examples add up to five times the gradient of their mean, so a sum wants a fifth of the rate."""
    model = network()
    rates = []
    for reduction in ("mean", "sum"):
        of = problem(model, BATCHES[:1], nn.CrossEntropyLoss(reduction=reduction))
        optimizer = SGD(model.parameters(), lr=0.01)
        rates.append(wc.suggest_lr(of, optimizer, max_steps=400).lr)
        assert wc.treat(of, optimizer, steps=3, seeds=[0], remedies=["clip"]).best is not None
    assert 2 < rates[0] / rates[1] < 12


def test_each_copy_is_prepared_with_the_seed_of_its_run() -> None:
    model, seeds = network(), []

    def prepare(copied: nn.Module, optimizer: Optimizer, seed: int) -> None:
        assert copied is not model
        assert optimizer.param_groups[0]["params"][0] is next(copied.parameters())
        seeds.append(seed)

    trainer = CopyTrainer(problem(model), SGD(model.parameters(), lr=0.1), before_training=[prepare])
    for seed in (3, 5):
        trainer.start(0.1, seed=seed)
    assert seeds == [3, 5]


def test_what_no_copy_could_train_is_refused() -> None:
    model = network()
    with pytest.raises(InvalidProblem, match="holds none of the model's trainable parameters"):
        CopyTrainer(problem(model), SGD(network().parameters(), lr=0.1))
    own = model[0].weight
    with pytest.raises(InvalidProblem, match="the loss reads the weights of the model itself"):
        CopyTrainer(problem(model, loss=lambda f, y: nn.functional.cross_entropy(f, y) + own.square().mean()))
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="SGD has hooks on its step"):
        CopyTrainer(problem(model), optimizer)


class PassesForAGpu:
    """Equal to the CPU, but of another type: what lies here lies on a GPU."""

    type = "cuda"

    def __eq__(self, other: object) -> bool:
        return other == torch.device("cpu")

    __hash__ = None  # type: ignore[assignment]


def test_a_run_that_was_parked_goes_on_as_if_it_had_not_been(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    trainer = CopyTrainer(problem(model), Adam(model.parameters(), lr=0.1))
    straight, parked = trainer.start(), trainer.start()
    straight.run(6)
    parked.run(3)
    places: list[tuple[str, set[str]]] = []
    move = CopyRun._move

    def moved(self: CopyRun, device: Any, states: Any) -> None:
        places.append((getattr(device, "type", device), {name for _, name in states}))
        move(self, torch.device("cpu"), states)

    monkeypatch.setattr(CopyRun, "_move", moved)
    with monkeypatch.context() as patch:
        patch.setattr(parked.problem, "device", PassesForAGpu())
        patch.setattr(torch.cuda, "memory_allocated", lambda _: 10**6)
        context = parked.parked()
        context.__enter__()
    assert places == [("cpu", {"step", "exp_avg", "exp_avg_sq"})]
    assert all(p.grad is None for p in parked.model.parameters())
    context.__exit__(None, None, None)
    assert places[1:] == [("cuda", {"step", "exp_avg", "exp_avg_sq"})]
    parked.run(3)
    assert parked.losses == straight.losses
    assert all(map(torch.equal, parked.model.parameters(), straight.model.parameters()))


@pytest.mark.parametrize("activations", [0, 5])
@pytest.mark.parametrize("room", [-1, 0])
def test_a_run_stays_on_a_gpu_if_another_like_it_fits_into_two_training_steps(
    activations: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    run = CopyTrainer(problem(model), Adam(model.parameters(), lr=0.1)).start()
    run.run(1)
    weights = [*model.parameters()]  # each has a gradient and two moments in float64, and a count of steps in float32
    size = 4 * 8 * sum(p.numel() for p in weights) + 4 * len(weights) + sum(b.nbytes for b in model.buffers())
    monkeypatch.setattr(run.problem, "device", PassesForAGpu())
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: (1 + activations) * size - room)
    monkeypatch.setattr(run, "_activations", activations * size)
    moves: list[Any] = []
    monkeypatch.setattr(CopyRun, "_move", lambda *args: moves.append(args))
    with run.parked():
        pass
    assert len(moves) == (2 if room < 0 else 0)


def test_on_a_cpu_a_parked_run_stays_where_it_is_with_its_gradients() -> None:
    model = network()
    run = CopyTrainer(problem(model), SGD(model.parameters(), lr=0.1)).start()
    run.run(1)
    addresses = [p.data_ptr() for p in run.model.parameters()]
    with run.parked():
        assert [p.data_ptr() for p in run.model.parameters()] == addresses
    assert all(p.grad is not None for p in run.model.parameters())
