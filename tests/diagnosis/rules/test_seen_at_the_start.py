"""Copies of one layer, scores of a pooling, products of columns, outputs far too large, critics and their relatives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rule_cases import FEATURES, findings, table
from torch import Tensor, nn

import wellcond as wc


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def first(problem: wc.Problem, optimizer: torch.optim.Optimizer) -> tuple[str, str, str]:
    worst = wc.diagnose(problem, optimizer).findings[:1]
    return next(((each.rule, each.severity, each.layer) for each in worst), ("", "", ""))


class Experts(nn.Module):
    """Four layers whose outputs a gate weighs."""

    def __init__(self, are_copies: bool, gate: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        one = nn.Linear(FEATURES, 4)
        self.experts = nn.ModuleList(copy.deepcopy(one) if are_copies else nn.Linear(FEATURES, 4) for _ in range(4))
        self.gate = nn.Linear(FEATURES, 4)
        with torch.no_grad():
            self.gate.weight.mul_(gate)
            self.gate.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(1)
        return (torch.stack([expert(x) for expert in self.experts], 1) * shares[..., None]).sum(1)


@pytest.mark.parametrize(("are_copies", "gate", "is_symmetric"), [(True, 0, True), (False, 0, False), (True, 1, False)])
def test_layers_that_start_and_stay_copies(are_copies: bool, gate: float, is_symmetric: bool) -> None:
    """A gate that differs between examples gives each copy another gradient."""
    every = findings(Experts(are_copies, gate), nn.CrossEntropyLoss(), table())
    assert ("symmetric-initialisation" in every) is is_symmetric
    if is_symmetric:
        assert every["symmetric-initialisation"].layer == "experts.0"
        assert every["symmetric-initialisation"].evidence["units"] == 4


def test_a_stack_of_copies_is_not_reported() -> None:
    """As `nn.TransformerEncoder` makes it: gradients differ from layer to layer."""
    one = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh())
    model = nn.Sequential(*(copy.deepcopy(one) for _ in range(3)), nn.Linear(FEATURES, 4))
    assert "symmetric-initialisation" not in findings(model, nn.CrossEntropyLoss(), table())


class Pooled(nn.Module):
    """Steps weighed by one query."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.key, self.out, self.scale = nn.Linear(16, 64), nn.Linear(16, 4), scale
        self.query = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.key(x) @ self.query * self.scale).softmax(1)
        return self.out((weights[..., None] * x).sum(1))


@pytest.mark.parametrize(("scale", "is_sharp"), [(8.0, True), (0.125, False)])
def test_a_pooling_by_attention_may_be_saturated_too(scale: float, is_sharp: bool) -> None:
    x = drawn(64, 12, 16)
    every = findings(Pooled(scale), nn.CrossEntropyLoss(), (x, x.mean(1)[:, :4].argmax(1)))
    assert ("attention-saturation" in every) is is_sharp


def policy(as_column: bool) -> Callable[[nn.Module, Any], Tensor]:
    def step(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        choice = torch.distributions.Categorical(logits=model(x))
        action = choice.sample()
        reward = (action == y).float()
        advantage = (reward - reward.mean())[:, None] if as_column else reward - reward.mean()
        return -(choice.log_prob(action) * advantage).mean()

    return step


@pytest.mark.slow
@pytest.mark.parametrize("as_column", [True, False])
def test_rewards_that_are_multiplied_with_the_actions_of_all_examples(as_column: bool) -> None:
    x, y = table()
    model = nn.Linear(FEATURES, 4)
    problem = wc.Problem.from_step(model, policy(as_column), [(x, y)])
    result = first(problem, torch.optim.Adam(model.parameters(), 1e-2))
    assert (result[:2] == ("output-loss-mismatch", "severe")) is as_column


class Towers(nn.Module):
    """Vectors of two views, and the scale of their similarities."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = nn.Linear(12, 16), nn.Linear(12, 16)
        self.log_scale = nn.Parameter(torch.tensor(scale))

    def forward(self, view: Tensor, side: str) -> Tensor:
        return F.normalize((self.left if side == "left" else self.right)(view), dim=1)


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "is_far"), [(14.0, True), (2.6, False)])
def test_a_loss_that_falls_from_far_above_to_no_answer(scale: float, is_far: bool) -> None:
    def step(model: Towers, batch: Any) -> Tensor:
        left, right = model(batch[0], "left"), model(batch[1], "right")
        logits = model.log_scale.exp() * left @ right.T
        return F.cross_entropy(logits, torch.arange(len(logits)))

    x = drawn(256, 12)
    batches = [(part, part + 0.1 * drawn(64, 12, seed=1)) for part in x.split(64)]
    model = Towers(scale)
    result = first(wc.Problem.from_step(model, step, batches), torch.optim.SGD(model.parameters(), 0.1))
    assert (result[:2] == ("bad-initialisation", "severe")) is is_far
    assert is_far or result[1] != "severe"


class Matched(nn.Module):
    """A generator, and a layer that looks at what it gives and at the data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8))
        self.critic = nn.Linear(8, 32)


@pytest.mark.slow
@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_critic_that_another_optimizer_may_hold_is_not_accused(is_frozen: bool) -> None:
    def step(model: Matched, batch: Any) -> Tensor:
        generated = model.critic(model.generator(torch.randn(len(batch), 4))).relu().mean(0)
        return F.mse_loss(generated, model.critic(batch).relu().mean(0))

    model = Matched()
    model.critic.requires_grad_(not is_frozen)
    problem = wc.Problem.from_step(model, step, list((1 + drawn(256, 8)).split(64)))
    assert first(problem, torch.optim.Adam(model.generator.parameters(), 1e-3))[1] not in ("severe", "warning")


class Decoder(nn.Module):
    """A decoder that is taught with the right tokens, which it shifts by itself, or not."""

    def __init__(self, shifts: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.rnn, self.out = nn.Embedding(9, 16), nn.GRU(16, 32, batch_first=True), nn.Linear(32, 8)
        self.shifts = shifts

    def forward(self, tokens: Tensor) -> Tensor:
        begin = torch.full_like(tokens[:, :1], 8)
        return self.out(self.rnn(self.embed(torch.cat([begin, tokens[:, :-1]], 1) if self.shifts else tokens))[0])


@pytest.mark.parametrize("shifts", [True, False])
def test_targets_at_the_same_step_that_the_model_does_not_see(shifts: bool) -> None:
    tokens = torch.randint(0, 8, (64, 10), generator=torch.Generator().manual_seed(0))
    loss = lambda outputs, targets: F.cross_entropy(outputs.transpose(1, 2), targets)  # noqa: E731
    assert ("label-shift" in findings(Decoder(shifts), loss, (tokens, tokens))) is not shifts


def test_a_loss_whose_exponential_outweighs_the_targets_compares_them_all_the_same() -> None:
    """Counts under Poisson's likelihood, and a last layer of zeros with the right mean."""
    x, _ = table()
    counts = torch.poisson((1.3 + 0.7 * x[:, 0].tanh()).exp(), generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    nn.init.zeros_(model[2].weight)
    nn.init.constant_(model[2].bias, float(counts.mean().log()))
    assert "output-loss-mismatch" not in findings(model, nn.PoissonNLLLoss(), (x, counts))


def test_targets_of_a_hundred_thousandth_are_seen() -> None:
    x, _ = table()
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1), nn.Flatten(0))
    every = findings(model, nn.MSELoss(), (x, 1e-5 * x[:, 0]))
    assert "output-loss-mismatch" not in every
    assert "unscaled-target" in every


@pytest.mark.parametrize("are_squared", [False, True])
def test_targets_that_the_loss_standardizes_are_compared_with_their_sign(are_squared: bool) -> None:
    x, _ = table()
    y = 4e5 + 1e5 * x[:, :1]
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 1))

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs.square() if are_squared else outputs, (targets - 4e5) / 1e5)

    assert ("output-loss-mismatch" in findings(model, loss, (x, y))) is are_squared


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "is_lost"), [(1, True), (7, False)])
def test_an_order_that_only_neighbors_show(kernel: int, is_lost: bool) -> None:
    """Rising and falling tones with random phases: no linear fit tells them apart, and sorted they are alike."""
    draw = torch.Generator().manual_seed(0)
    time, y = torch.linspace(0, 1, 32), torch.arange(512) % 2
    rising = torch.sin(6.28 * (2 * time**2 + torch.rand(512, 1, generator=draw)))
    x = torch.where(y[:, None] == 1, rising, rising.flip(1))[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(1, 16, kernel, padding="same"), nn.ReLU(), nn.Conv1d(16, 16, kernel, padding="same"), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip
    problem = wc.Problem(model, nn.CrossEntropyLoss(), [(x[i : i + 64], y[i : i + 64]) for i in range(0, 512, 64)])
    result = first(problem, torch.optim.Adam(model.parameters(), 3e-3))
    assert (result[0] == "order-lost") is is_lost


@pytest.mark.slow
def test_a_state_that_is_kept_with_its_graph_fails_at_the_second_step() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 3)
            self.state: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            outputs, self.state = self.rnn(x, self.state)
            return self.out(outputs[:, -1])

    x = drawn(128, 5, 4)
    batches = [(part, part[:, 0, :3].argmax(1)) for part in x.split(32)]
    model = Stateful()
    result = first(wc.Problem(model, nn.CrossEntropyLoss(), batches), torch.optim.Adam(model.parameters(), 1e-3))
    assert result[:2] == ("model-fails", "severe")


@pytest.mark.slow
@pytest.mark.parametrize(("eps", "severity"), [(1.0, "severe"), (1e-3, "warning")])
def test_an_epsilon_of_one_is_severe_where_nothing_is_learned(eps: float, severity: str) -> None:
    x, y = table()
    model = nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2, eps=eps)
    assert first(wc.Problem(model, nn.CrossEntropyLoss(), (x, y)), optimizer)[:2] == ("optimizer-setting", severity)


@pytest.mark.parametrize(("mean", "std", "is_offset"), [(120 / 255, 60 / 255, False), (120.0, 60.0, True)])
def test_pixels_that_are_normalized_by_the_statistics_of_bytes(mean: float, std: float, is_offset: bool) -> None:
    pixels = torch.rand(64, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4))
    every = findings(model, nn.CrossEntropyLoss(), ((pixels - mean) / std, torch.arange(64) % 4))
    assert ("unscaled-input" in every) is is_offset


def test_the_order_of_a_bag_and_blocks_that_are_blank() -> None:
    """Sets of vectors have no order, and two black corners of a picture can change places."""
    bags = drawn(256, 6, 4)
    pooled = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), Mean(), nn.Linear(16, 2))
    assert "order-lost" not in findings(pooled, nn.CrossEntropyLoss(), (bags, (bags.prod(2).sum(1) > 0).long()))
    pictures = torch.zeros(256, 1, 8, 8)
    pictures[..., 4:, :] = drawn(256, 1, 4, 8)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
    assert "order-lost" not in findings(flat, nn.CrossEntropyLoss(), (pictures, (pictures[:, 0, 4, 0] > 0).long()))


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)
