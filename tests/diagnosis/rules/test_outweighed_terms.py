"""Terms of a loss of which the larger one is all that steps follow, also where it is never satisfied."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

import wellcond as wc
from wellcond.diagnosis.probes.paired import depends_on_pairs, terms_of_pairs
from wellcond.diagnosis.swamped import _outweighed

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(512, 4, generator=DRAW) @ torch.randn(4, 48, generator=DRAW)
KINDS = (X @ torch.randn(48, 3, generator=DRAW)).argmax(1)
WAVES = [(x, y) for x, y in zip(X.split(64), KINDS.split(64), strict=True)]


class Watch(nn.Module):
    """Rebuilds its inputs, and tells their kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encode, self.decode, self.kind = nn.Linear(48, 8), nn.Linear(8, 48), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = torch.tanh(self.encode(x))
        return self.decode(code), self.kind(code)


def by_mean(rebuilt: Tensor, x: Tensor) -> Tensor:
    return F.mse_loss(rebuilt, x)


def by_sum(rebuilt: Tensor, x: Tensor) -> Tensor:
    return 10 * F.mse_loss(rebuilt, x, reduction="sum") / len(x)


@pytest.mark.slow
@pytest.mark.parametrize(("error", "expected"), [(by_sum, ["warning"]), (by_mean, [])])
def test_a_sum_over_features_next_to_the_mean_of_a_cross_entropy(
    error: Callable[[Tensor, Tensor], Tensor], expected: list[str]
) -> None:
    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        rebuilt, kind = model(batch[0])
        return error(rebuilt, batch[0]) + F.cross_entropy(kind, batch[1])

    model = Watch()
    problem = wc.Problem.from_step(model, step, WAVES)
    d = wc.diagnose(problem, Adam(model.parameters(), 1e-3), select=["term-dominates"])
    assert [each.severity for each in d.findings] == expected
    if expected:
        (finding,) = d.findings
        before = finding.evidence["term before"]
        fresh = F.cross_entropy(Watch()(WAVES[0][0])[1], WAVES[0][1])
        assert before == pytest.approx(float(fresh.detach()), rel=1e-5)
        assert float(finding.evidence["term alone"]) < 0.75 * float(finding.evidence["term with the others"])
        assert float(finding.evidence["others after"]) > 0.01 * float(finding.evidence["others before"])


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([600.0, 1.4], [450.0, 1.5], 1),
        ([600.0, 1.4], [450.0, 0.7], None),  # it is learned next to the other
        ([600.0, 0.004], [450.0, 0.5], None),  # a divergence that is nearly met at first
        ([60.0, 1.0], [45.0, 1.0], None),  # the other is of an ordinary size
        ([600.0, 20.0], [450.0, 20.0], None),  # they are of like size
        ([600.0, 1.4, 3.0, 0.0], [450.0, 1.5, 3.0, 0.0], 2),  # the larger of two
    ],
)
def test_which_term_may_be_outweighed(before: list[float], after: list[float], expected: int | None) -> None:
    assert _outweighed(before, after) == expected


def latent(weight: float) -> wc.Problem:
    """An autoencoder whose outputs are (rebuilt, mean, logarithm of the variance)."""

    class Variational(Watch):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
            code = self.encode(x)
            return self.decode(code), code, code.neg()

    def loss(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
        rebuilt, mean, log_variance = outputs
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        return F.mse_loss(rebuilt, x) + weight * divergence

    return wc.Problem(Variational(), loss, [(X[:64], X[:64])])


@pytest.mark.parametrize("weight", [1e-3, 1.0, 1e3])
def test_an_error_is_compared_with_its_example_however_large_a_divergence_is(weight: float) -> None:
    problem = latent(weight)
    assert terms_of_pairs(problem, (X[:64], X[:64])) == [True, False]
    assert depends_on_pairs(problem, (X[:64], X[:64]))


@pytest.mark.slow
def test_terms_of_a_step_that_returns_several_losses() -> None:
    """A dict of losses is compared term by term, as their sum is."""

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        rebuilt, kind = model(batch[0])
        return {"error": by_sum(rebuilt, batch[0]), "kind": F.cross_entropy(kind, batch[1])}

    model = Watch()
    diagnosis = wc.diagnose(wc.Problem.from_step(model, step, WAVES), Adam(model.parameters(), 1e-3))
    assert diagnosis.failed == {}
    assert "term-dominates" in {each.rule for each in diagnosis.findings}
