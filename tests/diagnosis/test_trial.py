"""What short runs of copies tell: falls, rises, steps uphill, and what a constant prediction reaches."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot

import wellcond as wc
from wellcond.diagnosis import diagnose as diagnose_module
from wellcond.diagnosis import labels as labels_module
from wellcond.diagnosis import mini_batches as mini_batches_module
from wellcond.diagnosis.labels import relation
from wellcond.diagnosis.mini_batches import for_probes, mini_batches
from wellcond.diagnosis.token_labels import token_relation
from wellcond.diagnosis.trial import trial, trial_price
from wellcond.diagnosis.trial_result import FALLING, RISING, Attempt, Trial
from wellcond.errors import NonFinite, Unsupported
from wellcond.problem.batches import cut
from wellcond.problem.loss.constant import constant_loss
from wellcond.problem.loss.likelihoods import CrossEntropy
from wellcond.results.run import Run


def clusters(count: int = 256, classes: int = 4, features: int = 8) -> tuple[Tensor, Tensor]:
    """Classes around centers three standard deviations apart."""
    generator = torch.Generator().manual_seed(0)
    centers = 3 * torch.randn(classes, features, generator=generator)
    y = torch.arange(count) % classes
    return centers[y] + torch.randn(count, features, generator=generator), y


def network(*middle: nn.Module, features: int = 8, classes: int = 4) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(features, 32), *middle, nn.ReLU(), nn.Linear(32, classes))


def problem(model: nn.Module | None = None, batches: Any = None, loss: Any = None) -> wc.Problem:
    x, y = clusters()
    x = x / x.std()
    return wc.Problem(
        model or network(), loss or nn.CrossEntropyLoss(), batches or [(x[i::8], y[i::8]) for i in range(8)]
    )


def tried(of: wc.Problem, kind: Any = torch.optim.SGD, **options: Any) -> Trial:
    return trial(of, kind(of.model.parameters(), **options))


# runs


@pytest.mark.slow
def test_a_healthy_network_trains_and_fits_a_handful() -> None:
    result = tried(problem(), lr=0.1, momentum=0.9)
    assert result.trains
    assert result.own is not None
    assert result.outcome(result.own) == "learns"
    assert result.few is not None
    assert result.few.is_fitted
    assert not result.others
    assert result.constant == pytest.approx(math.log(4), abs=1e-6)


@pytest.mark.slow
def test_the_own_run_takes_the_steps_that_a_plain_loop_takes() -> None:
    of = problem()
    result = tried(of, torch.optim.Adam, lr=1e-2)
    model = copy.deepcopy(of.model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(len(result.own.run.losses)):  # type: ignore[union-attr]
        x, y = of.batches[step % 8]
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert result.own is not None
    assert result.own.run.losses == pytest.approx(losses, rel=1e-4)
    with torch.no_grad():
        assert result.own.after == pytest.approx([float(F.cross_entropy(model(x), y)) for x, y in of.batches], rel=1e-4)


def test_a_rate_that_is_too_high_rises_and_a_lower_one_falls() -> None:
    x = torch.linspace(-1, 1, 64)[:, None]
    of = wc.Problem(nn.Linear(1, 1, bias=False), nn.MSELoss(), [(x, 3 * x)] * 4)
    limit = 2 / (2 * float(x.square().mean()))
    result = tried(of, lr=20 * limit)
    assert result.own is not None
    assert result.outcome(result.own) in RISING
    assert [each.factor for each in result.others] == [0.1, 0.01]
    assert result.outcome(result.others[-1]) in FALLING
    assert result.uphill is None


class Uphill(torch.optim.SGD):
    """`p += lr * p.grad`."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["lr"] = -group["lr"]
        super().step()
        for group in self.param_groups:
            group["lr"] = -group["lr"]


@pytest.mark.slow
def test_steps_uphill_rise_in_proportion_to_their_rate() -> None:
    result = tried(problem(), Uphill, lr=0.05)
    assert result.uphill is not None
    assert result.trains is False


@pytest.mark.slow
def test_a_trained_network_is_not_said_to_stand_still() -> None:
    of = problem()
    optimizer = torch.optim.Adam(of.model.parameters(), lr=1e-2)
    for step in range(300):
        optimizer.zero_grad()
        F.cross_entropy(of.model(of.batches[step % 8][0]), of.batches[step % 8][1]).backward()
        optimizer.step()
    result = trial(of, optimizer)
    assert result.loss < 0.01
    assert result.has_learned
    assert result.trains


@pytest.mark.slow
def test_without_an_optimizer_only_the_handful_is_tried() -> None:
    result = trial(problem())
    assert result.own is None
    assert result.trains
    assert trial(problem(network(nn.Dropout(1.0)))).few is not None


def test_a_schedule_at_zero_is_tried_at_the_rate_that_it_belongs_to() -> None:
    of = problem()
    optimizer = torch.optim.SGD(of.model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 100)
    assert optimizer.param_groups[0]["lr"] == 0
    result = trial(of, optimizer)
    assert result.own is not None
    assert result.own.lr == 0.1


def test_falls_are_shares_of_the_loss_with_their_standard_error() -> None:
    known = Trial((1.0, 3.0), constant=1.0)
    attempt = Attempt(1.0, 0.1, Run([1.0]), (1.0, 3.0), (0.5, 1.5))
    fall, error = known.fall(attempt)
    assert fall == pytest.approx((2 - 1) / 2)
    assert error == pytest.approx(0.5 / 2)  # differences of ½ and 1½: s = 1/√2, over √2
    assert known.fall(attempt, early=True)[0] == 0
    assert math.isnan(known.fall(Attempt(1.0, 0.1, Run([], 1), (math.nan,) * 2, (math.nan,) * 2))[0])


# batches


def test_large_batches_are_cut_and_small_ones_are_not() -> None:
    x, y = clusters(200)
    assert [len(part[1]) for part in cut((x, y), 64)] == [50, 50, 50, 50]
    assert torch.equal(torch.cat([part[0] for part in cut((x, y), 64)]), x)
    assert len(cut((x[:60], y[:60]), 64)) == 1
    assert len(cut((x.reshape(8, 200, 1), y), 64)) == 1  # with its steps in front
    assert len(cut(({"a": x, "b": x}, y), 100)) == 2
    batches, of_pass = mini_batches(problem(batches=(x, y)))
    assert (len(batches), of_pass) == (4, 4)


@pytest.mark.parametrize("most", [50.0, 80.0, 400.0])
@pytest.mark.parametrize("size", [4, 32, 150])
@pytest.mark.parametrize("lr", [1e-6, 0.1, 1e6])
def test_a_trial_takes_no_more_steps_than_allowed_and_names_what_did_not_fit(most: float, size: int, lr: float) -> None:
    x, y = clusters(600)
    of = problem(batches=[*zip(x.split(size), y.split(size), strict=True)])
    result = trial(of, torch.optim.SGD(of.model.parameters(), lr=lr), most=most)
    assert of.cost.u <= most
    assert bool(result.left_out) == (result.few is None or any("rates" in what for what in result.left_out))


@pytest.mark.slow
@pytest.mark.parametrize("most", [43.0, 70.0])
def test_looks_after_the_last_run_that_fits_are_paid_for(most: float) -> None:
    """Weights that are all zero: every run fits up to the last step, and then norms and terms are looked at."""
    model = nn.Sequential(nn.Linear(8, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 4))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    x, y = clusters(640)
    of = problem(model, [*zip(x.split(16), y.split(16), strict=True)])
    trial(of, torch.optim.SGD(model.parameters(), lr=1e-9), most=most)
    assert of.cost.u <= most


@pytest.mark.slow
def test_the_estimate_of_a_healthy_trial_is_not_exceeded() -> None:
    x, y = clusters(600)
    for size, most in product((8, 32, 64, 150), (90.0, 400.0)):
        of = problem(batches=[*zip(x.split(size), y.split(size), strict=True)])
        assert trial(of, torch.optim.Adam(of.model.parameters(), lr=0.01), most=most).trains
        assert of.cost.u <= trial_price(size, len(of.batches), most)


# a constant


def test_the_best_constant_has_the_entropy_or_variance_of_the_targets() -> None:
    labels = torch.tensor([0] * 12 + [1] * 4)
    p = torch.tensor([0.75, 0.25])
    entropy = float(-(p * p.log()).sum())
    assert constant_loss(F.cross_entropy, None, [torch.zeros(16, 2)], [labels]) == pytest.approx(entropy, rel=1e-6)
    assert constant_loss(F.nll_loss, None, [torch.zeros(16, 2).log_softmax(1)], [labels]) == pytest.approx(
        entropy, rel=1e-4
    )
    y = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    assert constant_loss(F.mse_loss, None, [y[:20] * 0, y[20:] * 0], [y[:20], y[20:]]) == pytest.approx(
        float(y.var(0, correction=0).mean()), rel=1e-5
    )
    probabilities = torch.full((16, 1), 0.5)
    assert constant_loss(F.binary_cross_entropy, None, [probabilities], [labels[:, None].float()]) == pytest.approx(
        entropy, rel=1e-4
    )


def test_a_loss_without_a_least_value_has_no_best_constant() -> None:
    assert constant_loss(F.nll_loss, None, [torch.ones(4, 2)], [torch.tensor([0, 1, 0, 1])]) is None


# labels


def test_neighbors_and_a_linear_fit_tell_labels_from_shuffled_ones() -> None:
    x, y = clusters()
    related = relation(problem(batches=(x, y)))
    shuffled = relation(problem(batches=(x, y[torch.randperm(256, generator=torch.Generator().manual_seed(1))])))
    assert related is not None
    assert shuffled is not None
    assert min(related.neighbor, related.linear) > 10
    assert max(shuffled.neighbor, shuffled.linear) < 4
    assert related.structure == shuffled.structure > 1.5


def test_of_large_inputs_every_few_numbers_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = clusters()
    whole = relation(problem(network(features=4), (x[:, ::2].contiguous(), y)))
    monkeypatch.setattr(labels_module, "PROBED_FEATURES", math.ceil(x.shape[1] / 2))
    assert relation(problem(batches=(x, y))) == whole


def test_noise_has_no_structure_and_tokens_are_not_probed() -> None:
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    noise = relation(problem(batches=(x, torch.arange(256) % 4)))
    assert noise is not None
    assert noise.structure < 1.1
    tokens = wc.Problem(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)), nn.CrossEntropyLoss(),
                        (torch.arange(96).reshape(32, 3) % 9, torch.arange(32) % 3))  # fmt: skip
    assert relation(tokens) is None


WINDOWS = (torch.randint(0, 40, (256, 1), generator=torch.Generator().manual_seed(0)) + torch.arange(12)) % 40
OTHER_ORDER = torch.randperm(256, generator=torch.Generator().manual_seed(1))


def sequences(labels: Tensor, tokens: Tensor = WINDOWS) -> wc.Problem:
    """Tokens with a label for every position, in mini-batches, next to a mask as tokenizers give it."""
    model = nn.Sequential(nn.Embedding(41, 8), nn.Linear(8, 41))
    batches = [({"input": x, "mask": torch.ones_like(x)}, y)
               for x, y in zip(tokens.split(64), labels.split(64), strict=True)]  # fmt: skip
    return wc.Problem(model, nn.CrossEntropyLoss(), batches)


@pytest.mark.parametrize(
    ("labels", "are_related"),
    [
        (WINDOWS.roll(-1, 1), True),  # the next token
        (WINDOWS.flip(1), True),  # another order
        (WINDOWS % 3, True),  # a tag for each
        (torch.where(torch.arange(12) % 5 == 0, WINDOWS, -100), True),  # some positions only
        (40 - WINDOWS[:, :5], True),  # a translation that is shorter
        (WINDOWS[OTHER_ORDER], False),
        (WINDOWS[OTHER_ORDER].roll(-1, 1), False),
        (WINDOWS[OTHER_ORDER] % 3, False),
        (WINDOWS.sort(0).values, False),
    ],
)
def test_tokens_tell_the_labels_of_their_own_sequence(labels: Tensor, are_related: bool) -> None:
    related = token_relation(sequences(labels))
    assert related is not None
    assert related.structure > 1.5
    assert related.best > 8 if are_related else related.best < 4


def test_noise_labels_of_sequences_and_tokens_as_their_own_labels_are_left_alone() -> None:
    noise = torch.randint(0, 40, (256, 12), generator=torch.Generator().manual_seed(0))
    related = token_relation(sequences(noise[OTHER_ORDER], noise))
    assert related is not None
    assert related.structure < 1.5
    assert token_relation(sequences(WINDOWS, WINDOWS.float())) is None


@pytest.mark.parametrize(
    ("labels", "are_related"),
    [
        ((WINDOWS > 20).sum(1) > 6, True),  # which tokens there are
        (WINDOWS[:, 3] % 3, True),  # the token at one place
        (((WINDOWS > 20).sum(1) > 6)[OTHER_ORDER], False),
    ],
)
def test_tokens_tell_the_label_of_their_sequence(labels: Tensor, are_related: bool) -> None:
    related = token_relation(sequences(labels.long()))
    assert related is not None
    assert related.is_of_whole
    assert related.best > 8 if are_related else related.best < 4


# manners


@pytest.mark.slow
def test_nothing_of_the_users_is_changed() -> None:
    model = network(nn.BatchNorm1d(32), nn.Dropout(0.7)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)
    loss = nn.CrossEntropyLoss()
    loss(model(clusters()[0]), clusters()[1]).backward()
    optimizer.step()
    before, state = snapshot(model), copy.deepcopy(optimizer.state_dict())
    gradients = [p.grad for p in model.parameters()]
    result = trial(problem(model), optimizer)
    assert "no dropout" in result.variants
    assert_unchanged(before, snapshot(model))
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    after = optimizer.state_dict()
    assert after["param_groups"] == state["param_groups"]
    assert all(torch.equal(after["state"][k][n], v) for k, held in state["state"].items() for n, v in held.items())


def test_a_loss_that_is_not_finite_and_optimizer_hooks_are_refused() -> None:
    with pytest.raises(NonFinite):
        trial(problem(loss=lambda outputs, targets: F.cross_entropy(outputs, targets) / 0))
    of = problem()
    optimizer = torch.optim.SGD(of.model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(Unsupported, match="hooks"):
        trial(of, optimizer)


def test_ctrl_c_leaves_everything_as_it_was() -> None:
    of = problem()
    before = snapshot(of.model)
    shares: Iterator[int] = iter(range(100))

    def interrupt(_what: str, _share: float) -> None:
        if next(shares) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trial(of, torch.optim.SGD(of.model.parameters(), lr=0.1), progress=interrupt)
    assert_unchanged(before, snapshot(of.model))


def test_classes_that_do_not_occur_add_nothing_to_the_loss_of_a_constant() -> None:
    """Its logits of them would be −∞, which no optimizer reaches."""
    labels = torch.tensor([0, 0, 1, 1, -100])
    loss = constant_loss(nn.functional.cross_entropy, CrossEntropy(1), [torch.randn(5, 5)], [labels])
    assert loss == pytest.approx(math.log(2))


@pytest.mark.parametrize(("most", "examples"), [(96, 32), (95, 31), (30, 10), (1, 2)])
def test_probes_see_as_many_examples_as_have_few_outputs_but_two_at_least(
    most: int, examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini_batches_module, "PROBED_OUTPUTS", most)
    batches = [(torch.randn(32, 4), torch.randn(32, 3)) for _ in range(2)]
    of = wc.Problem(nn.Linear(4, 3), nn.MSELoss(), batches, dropout=3)
    fewer = for_probes(of, [(32, 3)])
    assert (fewer is of) == (examples == 32)
    with fewer.measuring(), contextlib.closing(fewer.data()) as data:
        _, (x, y) = next(data)
    assert torch.equal(x, batches[0][0][:examples])
    assert torch.equal(y, batches[0][1][:examples])
    assert fewer.dropout == 3


class StepsFirst(nn.Module):
    """Reads (examples, steps, features), and returns what each step says with the steps in front, as CTC takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(3, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rnn(x.transpose(0, 1))[0])
        return out


@pytest.mark.slow
def test_steps_in_front_are_no_examples_where_there_are_equally_many_of_both() -> None:
    torch.manual_seed(0)
    x, words = torch.randn(10, 10, 3), torch.randint(1, 5, (10, 3))
    lengths = torch.full((10,), 10), torch.full((10,), 3)

    def ctc(outputs: Tensor, y: Tensor) -> Tensor:
        return F.ctc_loss(outputs.log_softmax(2), y, lengths[0][: len(y)], lengths[1][: len(y)])

    of = wc.Problem(StepsFirst(), ctc, [(x, words)])
    findings = wc.diagnose(of, torch.optim.Adam(of.model.parameters(), 1e-2), select=["mixed-examples"]).findings
    assert not findings


def test_a_diagnosis_probes_a_part_of_a_batch_with_very_many_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_batches_module, "PROBED_OUTPUTS", 30)
    seen: list[int] = []
    real = diagnose_module.behavior

    def watched(of: wc.Problem) -> Any:
        seen.append(len(of.batches[0][0]))
        return real(of)

    monkeypatch.setattr(diagnose_module, "behavior", watched)
    of = wc.Problem(nn.Linear(4, 3), nn.MSELoss(), (torch.randn(32, 4), torch.randn(32, 3)))
    diagnosis = wc.diagnose(of, torch.optim.SGD(of.model.parameters(), 0.1))
    assert seen == [10]
    assert diagnosis.cost.u == pytest.approx(sum(part.cost.u for part in diagnosis.parts))


@pytest.mark.slow
def test_a_run_that_gets_out_of_hand_is_taken_again_on_whole_batches() -> None:
    """Factors of users and items get large steps in a small part of a batch; whole batches train at this rate."""
    torch.manual_seed(0)
    users, items = torch.randint(60, (2200,)), torch.randint(50, (2200,))
    ratings = (torch.randn(60, 4)[users] * torch.randn(50, 4)[items]).sum(1) / 2

    class Factors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = nn.Embedding(60, 8), nn.Embedding(50, 8)
            for table in (self.user, self.item):
                nn.init.normal_(table.weight, std=0.5)

        def forward(self, pair: Tensor) -> Tensor:
            return (self.user(pair[:, 0]) * self.item(pair[:, 1])).sum(1)

    loader = DataLoader(TensorDataset(torch.stack([users, items], 1), ratings), 256, shuffle=True)
    model = Factors()
    problem = wc.Problem(model, nn.MSELoss(), loader)
    tried = trial(problem, torch.optim.SGD(model.parameters(), lr=1.5, momentum=0.9))
    assert tried.own is not None
    assert tried.own.run.diverged_at is None
    assert tried.outcome(tried.own) == "learns"
    far_too_high = trial(problem, torch.optim.SGD(model.parameters(), lr=15.0, momentum=0.9))
    assert far_too_high.own is not None
    assert far_too_high.own.run.diverged_at is not None
