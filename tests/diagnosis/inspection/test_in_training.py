"""Batches that are not measured, and branches that only training takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding
from wellcond.diagnosis.inspection import in_training
from wellcond.diagnosis.inspection.inspect import inspect
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import behavior


def data(count: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=draw)
    return x, (x @ torch.randn(6, classes, generator=draw)).argmax(1)


def loader(x: Tensor, y: Tensor, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, y), 32, **options)


def normed(norm: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8) if norm is None else norm, nn.ReLU(), nn.Linear(8, 3))


def severe(model: nn.Module, batches: Any, loss: Callable[..., Tensor] = nn.functional.cross_entropy) -> list[Finding]:
    problem = wc.Problem(model, loss, batches)
    evidence = Evidence(problem, None, inspect(problem), behavior(problem))
    return [finding for finding in judged(evidence) if finding.severity == "severe"]


class BatchSized(nn.Module):
    """It adds a state of 32 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("state", torch.zeros(32, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.state  # type: ignore[no-any-return]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("model", "count"), [(normed, 641), (BatchSized, 656)])
def test_a_last_batch_that_training_refuses(model: Callable[[], nn.Module], count: int, shuffle: bool) -> None:
    x, y = data(count)
    (finding,) = severe(model(), loader(x, y, shuffle=shuffle))
    assert finding.rule == "model-fails"
    assert "batch 20" in finding.summary
    assert severe(model(), loader(x, y, shuffle=shuffle, drop_last=True)) == []


def test_a_last_batch_that_the_time_does_not_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_training, "SECONDS", 0.0)
    (finding,) = severe(normed(), loader(*data(641)))
    assert "the last batch, of 1 instead of 32" in finding.summary
    assert severe(normed(), loader(*data(642))) == []


def test_labels_and_tokens_out_of_range_in_a_later_batch() -> None:
    x, y = data(960)
    y[-5] = 3
    assert [each.rule for each in severe(normed(), loader(x, y))] == ["model-fails"]
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(8, 3))
    tokens = torch.randint(0, 10, (960, 2), generator=torch.Generator().manual_seed(1))
    assert severe(model, loader(tokens, data(960)[1])) == []
    tokens[-5, 1] = 10
    assert [each.rule for each in severe(model, loader(tokens, data(960)[1]))] == ["model-fails"]


def test_nan_in_a_later_batch() -> None:
    x, y = data(960)
    x[-5, 2] = math.nan
    (finding,) = severe(normed(), loader(x, y))
    assert finding.rule == "non-finite"
    assert finding.evidence["values that are not finite"] == 1


class Pooled(nn.Module):
    """The mean of the tokens, by an attention or by a sum over a count, without padding."""

    def __init__(self, *, by_attention: bool, least: float = 0.0) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(10, 8), nn.Linear(8, 3)
        self.query = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True) if by_attention else None
        self.least = least

    def forward(self, tokens: Tensor) -> Tensor:
        values, is_real = self.table(tokens), (tokens > 0).float()
        if self.attention is not None:
            queries = self.query.expand(len(tokens), 1, 8)
            pooled: Tensor = self.attention(queries, values, values, key_padding_mask=tokens == 0)[0][:, 0]
        else:
            pooled = (values * is_real[..., None]).sum(1) / is_real.sum(1, keepdim=True).clamp_min(self.least)
        logits: Tensor = self.out(pooled)
        return logits


@pytest.mark.parametrize(
    ("by_attention", "least", "is_empty", "is_broken"),
    [
        (True, 0.0, True, True),
        (False, 0.0, True, True),
        (False, 1.0, True, False),
        (True, 0.0, False, False),
    ],
    ids=["attention", "mean of nothing", "mean over one at least", "no empty text"],
)
def test_a_text_of_padding_in_a_later_batch(by_attention: bool, least: float, is_empty: bool, is_broken: bool) -> None:
    tokens = torch.randint(1, 10, (320, 5), generator=torch.Generator().manual_seed(1))
    tokens[::2, 3:] = 0
    if is_empty:
        tokens[-5] = 0
    torch.manual_seed(0)
    findings = severe(Pooled(by_attention=by_attention, least=least), loader(tokens, data(320)[1]))
    assert [each.rule for each in findings] == ["non-finite"] * is_broken


def test_missing_targets_that_the_loss_leaves_out_are_meant_so() -> None:
    x, _ = data(960)
    targets = x.sum(1, keepdim=True)
    targets[-5] = math.nan

    def observed(outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.where(targets.isnan(), 0.0, outputs - targets.nan_to_num()).square().mean()

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    assert severe(model, loader(x, targets), observed) == []


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8).eval(), nn.LayerNorm(8), nn.GroupNorm(2, 8)])
def test_norms_that_take_a_last_batch_of_one(norm: nn.Module) -> None:
    assert severe(normed(norm), loader(*data(641))) == []


def test_a_later_batch_leaves_the_model_as_it_is() -> None:
    model = normed()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    inspect(wc.Problem(model, nn.CrossEntropyLoss(), loader(*data(641), shuffle=True)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert model.training


class Averaged(nn.Module):
    """It is evaluated by an average of its weights."""

    def __init__(self, shares: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(6, 16).requires_grad_(shares)
        self.head = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
        self.slow = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        if not self.training:
            return self.slow(x)  # type: ignore[no-any-return]
        with torch.no_grad():
            for slow, fast in zip(self.slow.parameters(), self.head.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.mark.parametrize("shares", [False, True])
def test_an_average_of_the_weights_for_evaluation_is_no_fault(shares: bool) -> None:
    model = Averaged(shares)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert severe(model, loader(*data(640))) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_loss_that_depends_on_no_weight_in_either_mode_is_one() -> None:
    class Cut(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).detach()

    assert [each.rule for each in severe(Cut(6, 3), loader(*data(640)))] == ["no-gradient"]


def test_a_step_that_compares_each_prediction_with_all_targets() -> None:
    x, _ = data(128)
    y = x.sum(1)

    def rules(step: Callable[[nn.Module, Any], Tensor]) -> list[str]:
        problem = wc.Problem.from_step(nn.Linear(6, 1), step, [(x[:64], y[:64]), (x[64:], y[64:])])
        return [each.rule for each in judged(Evidence(problem, None, inspect(problem))) if each.severity == "severe"]

    def torch_loss(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.smooth_l1_loss(model(batch[0]), batch[1])

    def module(model: nn.Module, batch: Any) -> Tensor:
        return nn.MSELoss()(model(batch[0]).squeeze(1), batch[1][:, None])  # type: ignore[no-any-return]

    def by_hand(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]) - batch[1]).pow(2).mean()  # type: ignore[no-any-return]

    def in_one_shape(model: nn.Module, batch: Any) -> Tensor:
        return (model(batch[0]).squeeze(1) - batch[1]).pow(2).mean()  # type: ignore[no-any-return]

    def of_all_pairs(model: nn.Module, batch: Any) -> Tensor:
        scores = model(batch[0])
        ahead = (batch[1][:, None] - batch[1]).sign()
        return nn.functional.softplus(-ahead * (scores - scores.squeeze(1))).mean()

    def with_one_label(model: nn.Module, batch: Any) -> Tensor:
        return nn.functional.mse_loss(model(batch[0]), torch.ones(1, 1))

    with pytest.warns(UserWarning, match="target size"):
        assert rules(torch_loss) == rules(module) == ["output-loss-mismatch"]
    assert rules(by_hand) == ["output-loss-mismatch"]
    assert rules(in_one_shape) == rules(of_all_pairs) == rules(with_one_label) == []
