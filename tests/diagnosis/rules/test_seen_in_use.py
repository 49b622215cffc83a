"""Faults that only show in use: at the next step, on other examples, in what becomes of a number."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rule_cases import findings
from torch import Tensor, nn
from torch.optim import SGD, Adam

import wellcond as wc
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.judge import judged
from wellcond.diagnosis.probes.behavior import Behavior, behavior
from wellcond.diagnosis.probes.uneven_terms import UnevenTerms

X = torch.ones(2, 1)


def severities(diagnosis: wc.Diagnosis) -> dict[str, str]:
    return {each.rule: each.severity for each in diagnosis.findings if each.severity != "note"}


class Asking(nn.Module):
    """One query for each example, over some keys."""

    def __init__(self, dim: int, keys: int = 5) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 4)
        self.dim, self.keys = dim, keys

    def forward(self, x: Tensor) -> Tensor:
        k = x[:, : self.keys]
        weights = torch.bmm(self.query(x[:, -1:]), self.key(k).transpose(1, 2)).softmax(self.dim)
        out: Tensor = self.head(torch.bmm(weights, self.value(k))[:, 0])
        return out


@pytest.mark.parametrize(("dim", "keys", "is_faulty"), [(1, 5, True), (2, 5, False), (2, 1, False), (1, 1, False)])
def test_a_softmax_over_the_only_query(dim: int, keys: int, is_faulty: bool) -> None:
    x = torch.randn(32, 6, 8, generator=torch.Generator().manual_seed(0))
    every = findings(Asking(dim, keys), nn.CrossEntropyLoss(), (x, x[:, 0, :4].argmax(1)))
    assert ("wrong-softmax-dimension" in every) == is_faulty
    if is_faulty:
        assert every["wrong-softmax-dimension"].severity == "severe"
        assert "no-gradient" in [each.rule for each in every["wrong-softmax-dimension"].consequences]


class Remembering(nn.Module):
    """A recurrent network that hands its state on from batch to batch."""

    def __init__(self, *, detaches: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.out, self.detaches = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1), detaches
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        outputs, state = self.rnn(x, self.state if self.training else None)
        self.state = state.detach() if self.detaches else state
        out: Tensor = self.out(outputs[:, -1])
        return out


@pytest.mark.slow
def test_what_raises_at_the_second_step_at_any_rate_is_a_failure_and_not_a_divergence() -> None:
    x = torch.randn(4, 16, 6, 1, generator=torch.Generator().manual_seed(0))
    for detaches in (True, False):
        model = Remembering(detaches=detaches)
        problem = wc.Problem(model, nn.MSELoss(), [(each, each.mean(1)) for each in x])
        every = severities(wc.diagnose(problem, Adam(model.parameters(), 1e-2)))
        assert {"model-fails", "non-finite"} & every.keys() == (set() if detaches else {"model-fails"})


def test_seconds_since_1970_saturate_a_recurrent_layer_whose_last_state_is_read() -> None:
    class LastState(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.rnn, self.out = nn.GRU(2, 12, batch_first=True), nn.Linear(12, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.out(self.rnn(x)[1][0])
            return out

    x = torch.randn(64, 8, 2, generator=torch.Generator().manual_seed(0))
    y = x[:, :, 0].mean(1, keepdim=True)
    assert "no-gradient" not in findings(LastState(), nn.MSELoss(), (x, y))
    x[..., 1] = 1.7e9 + 3600 * torch.arange(8)
    every = findings(LastState(), nn.MSELoss(), (x, y))
    assert every["unscaled-input"].severity == "severe"
    assert "no-gradient" not in every


@pytest.mark.parametrize("heavy", [0, 2, 3])
def test_weights_that_hardly_move_are_seen_also_where_most_are_too_large(heavy: int) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for k in range(3):
        linear = nn.Linear(8, 8, bias=False)
        nn.init.normal_(linear.weight, std=20.0 if k < heavy else 8**-0.5)
        layers += [linear, nn.BatchNorm1d(8), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(8, 4))
    x = torch.randn(64, 8)
    every = findings(model, nn.CrossEntropyLoss(), (x, x[:, :4].argmax(1)), SGD(model.parameters(), 0.05))
    assert ("weight-domination" in every) == (heavy > 0)
    if heavy:  # before a norm, the gradient is proportional to 1/‖W‖
        assert every["weight-domination"].evidence["gain"] == pytest.approx(20 * 8**0.5, rel=0.3)


@pytest.mark.parametrize(("std", "is_heavy"), [(20.0, True), (0.5, False)])
def test_adam_turns_large_weights_before_a_norm_slowly(std: float, is_heavy: bool) -> None:
    """It changes every entry by about its rate: of weights of 20 a hundredth of what it is of others."""
    torch.manual_seed(0)
    linear = nn.Linear(8, 32)
    nn.init.normal_(linear.weight, std=std)
    model = nn.Sequential(linear, nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))
    x = torch.randn(64, 8)
    every = findings(model, nn.CrossEntropyLoss(), (x, x[:, :4].argmax(1)), Adam(model.parameters(), 3e-3))
    assert ("weight-domination" in every) is is_heavy
    if is_heavy:
        finding = every["weight-domination"]
        assert finding.layer == "0"
        assert finding.evidence["relative update"] == pytest.approx(
            3e-3 / float(linear.weight.detach().square().mean().sqrt())
        )


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1.0, 4000.0])
def test_values_of_actions_in_cents(unit: float) -> None:
    draw = torch.Generator().manual_seed(0)
    s, a = torch.randn(512, 4, generator=draw), torch.randint(0, 3, (512,), generator=draw)
    r = unit * s.gather(1, a[:, None])[:, 0].sin() - unit
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))

    def step(m: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        return F.mse_loss(m(batch[0]).gather(1, batch[1][:, None])[:, 0], batch[2])

    batches = list(zip(s.split(64), a.split(64), r.split(64), strict=True))
    every = severities(wc.diagnose(wc.Problem.from_step(model, step, batches), Adam(model.parameters(), 1e-3)))
    assert "output-loss-mismatch" not in every
    assert every.get("unscaled-target") == ("severe" if unit > 1 else None)


class Coder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(32, 64), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(64, 8), nn.Linear(64, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        mean, log_variance = self.mean(h), self.log_variance(h)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


@pytest.mark.slow
@pytest.mark.parametrize("is_faulty", [True, False])
def test_a_divergence_that_is_summed_next_to_a_mean_is_the_term_that_dominates(is_faulty: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(512, 4, generator=draw) @ torch.rand(4, 32, generator=draw) / 2
    model = Coder()

    def step(m: nn.Module, batch: Tensor) -> Tensor:
        out, mean, log_variance = m(batch)
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
        return F.mse_loss(out, batch) + 0.01 * (divergence.sum() if is_faulty else divergence.mean())

    problem = wc.Problem.from_step(model, step, list(x.split(64)))
    every = severities(wc.diagnose(problem, Adam(model.parameters(), 3e-3)))
    assert every == ({"term-dominates": "severe"} if is_faulty else {})


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.number, self.label = nn.Linear(32, 1), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.number(h), self.label(h)


def uneven(unit: float, penalty: float = 0.0) -> UnevenTerms | None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(64, 6, generator=draw)

    def step(m: nn.Module, batch: Tensor) -> Tensor:
        number, label = m(batch)
        if penalty:
            return F.cross_entropy(label, batch[:, :3].argmax(1)) + penalty * number.square().mean()
        return F.mse_loss(number, unit * batch[:, :1]) + F.cross_entropy(label, batch[:, :3].argmax(1))

    return behavior(wc.Problem.from_step(TwoHeads(), step, [x])).uneven_terms


def test_the_pull_of_a_term_is_its_gradient_in_what_it_shares() -> None:
    terms, model = uneven(1000.0), TwoHeads().double()
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(0)).double()
    number, label = model(x)
    each = F.mse_loss(number, 1000 * x[:, :1]), F.cross_entropy(label, x[:, :3].argmax(1))
    shared = list(model.trunk.parameters())
    norms = [
        torch.cat([g.flatten() for g in torch.autograd.grad(term, shared, retain_graph=True)]).norm() for term in each
    ]
    assert terms is not None
    assert terms.ratio == pytest.approx(float((norms[0] / norms[1]).detach()), rel=1e-4)
    assert (terms.largest, terms.smallest) == pytest.approx([float(term.detach()) for term in each], rel=1e-4)


@pytest.mark.parametrize(
    ("unit", "penalty", "expected"),
    [(3000.0, 0.0, ["severe"]), (1000.0, 0.0, ["warning"]), (1.0, 0.0, []), (1.0, 1e-6, [])],
)
def test_an_error_in_thousands_pulls_harder_than_a_cross_entropy(
    unit: float, penalty: float, expected: list[str]
) -> None:
    terms = uneven(unit, penalty)
    evidence = Evidence(wc.Problem(nn.Linear(1, 1), nn.MSELoss(), (X, X)), None, behavior=Behavior(uneven_terms=terms))
    assert [each.severity for each in judged(evidence)] == expected
