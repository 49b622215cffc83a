"""lange2022: the norm of Ĝ and the factor q, by sampled random matrices in float64 with fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lange2022_matrices import extended
from torch import Tensor, nn
from zoo import normal

import wellcond as wc
from wellcond_papers.papers.lange2022.unit import Preconditioner

Sampler = Callable[[int, int, int], Tensor]


def uniform(m: int, n: int, seed: int) -> Tensor:
    return torch.rand(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rare(p: float) -> Sampler:
    """±1/√p with probability p, else 0: variance 1, fourth moment 1/p."""

    def sample(m: int, n: int, seed: int) -> Tensor:
        return torch.where(uniform(m, n, seed) < p, normal(m, n, seed=seed + 1000).sign() / math.sqrt(p), 0.0)

    return sample


ENTRIES: dict[str, Sampler] = {
    "Gaussian": lambda m, n, seed: normal(m, n, seed=seed),
    "signs": lambda m, n, seed: normal(m, n, seed=seed).sign(),
    "uniform": lambda m, n, seed: math.sqrt(3) * (2 * uniform(m, n, seed) - 1),
    "one in ten": rare(0.1),
}


def norm(A: Tensor) -> float:
    return float(torch.linalg.eigvalsh(A @ A.T if len(A) <= A.shape[1] else A.T @ A)[-1].sqrt())


def q(N: int, n: int) -> float:
    """Through the library: what BNP takes for a dense layer with n inputs and N examples."""
    layer = nn.Linear(n, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    bnp = wc.BNP(layer, optimizer)
    layer(torch.ones(N, n)).sum().backward()
    optimizer.step()
    bnp.remove()
    return math.sqrt(bnp.layers[""].q2)


@pytest.mark.parametrize("entries", [*ENTRIES, "one in fifty"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 3, 2), (10, 10, 2), (100, 30, 2), (100, 100, 4), (20, 400, 8)])
def test_lemma_a2_the_norm_is_that_of_the_longest_row_and_column(m: int, n: int, k: int, entries: str) -> None:
    """E‖G‖^k ≤ C^k (E max‖row‖^k + E max‖column‖^k), k ≤ 2 log max(m, n), whatever the distribution; C = 2 does."""
    assert k <= 2 * math.log(max(m, n))
    sample = ENTRIES.get(entries, rare(0.02))
    matrices = [sample(m, n, seed) for seed in range(20)]
    power = sum(norm(G) ** k for G in matrices)
    rows, columns = (sum(float(G.norm(dim=d).max()) ** k for G in matrices) for d in (1, 0))
    assert (rows + columns) / 2 <= power * (1 + 1e-12)
    assert power <= 2**k * (rows + columns)


WIDTHS = [3, 10, 30, 100, 300, 1000, 3000]


@pytest.mark.parametrize("N", [4, 16, 64])
@pytest.mark.parametrize("entries", ENTRIES)
def test_proposition_5_the_norm_over_q_is_of_order_root_n_for_all_widths(entries: str, N: int) -> None:
    """1 ≤ E‖Ĝ/q‖/√N ≤ 2, to a few per cent, for every width; without q it grows as √n."""
    sizes = {n: sum(norm(extended(ENTRIES[entries](N, n, seed))) for seed in range(5)) / 5 for n in WIDTHS}
    for n, size in sizes.items():
        assert 0.99 <= size / q(N, n) / math.sqrt(N) <= 2.1
    assert sizes[3000] / sizes[3] > 0.6 * math.sqrt(3000 / N)


@pytest.mark.parametrize("N", [16, 64])
def test_proposition_5_holds_for_features_normalized_over_the_batch(N: int) -> None:
    """ReLU features through P: eᵀG = 0, so ‖Ĝ‖ = max(√N, ‖G‖), and √max(N, n) ≤ ‖Ĝ‖ ≤ 2√max(N, n)."""
    for n in WIDTHS:
        h = normal(N, n, seed=n).add(1).relu()
        G_hat = Preconditioner.of(h).applied_to(extended(h))
        assert norm(G_hat) == pytest.approx(max(math.sqrt(N), norm(G_hat[:, 1:])), rel=1e-9)
        assert 0.99 <= norm(G_hat) / q(N, n) / math.sqrt(N) <= 2


def test_proposition_5s_proof_exchanges_a_mean_and_a_maximum() -> None:
    """ "E max‖gᵢ‖² = n" is false: rows of equal distribution differ, and the longest of 64 has twice that."""
    n, N = 16, 64
    longest = sum(float((normal(N, n, seed=seed) ** 2).sum(1).max()) for seed in range(100)) / 100
    assert longest > 1.9 * n


def test_proposition_5_has_no_constant_for_all_distributions() -> None:
    """The proof's C is universal, and mean 0 and variance 1 do not give one. (A C that may depend on N is √(N + 1),
    from ‖Ĝ‖ ≤ ‖Ĝ‖_F.)

    With one entry in N² nonzero, a square G has norm N with probability 1 − 1/e: E‖Ĝ/q‖/√N grows as √N.
    """
    ratios = []
    for N in (8, 32, 128):
        mean = sum(norm(extended(rare(1 / N**2)(N, N, seed))) for seed in range(60)) / 60
        ratios.append(mean / q(N, N) / math.sqrt(N))
    assert ratios[1] > 1.5 * ratios[0]
    assert ratios[2] > 1.5 * ratios[1]


@pytest.mark.parametrize("p", [1.0, 0.1, 0.01, 1e-3, 1e-4])
def test_proposition_5_holds_with_a_constant_for_each_fourth_moment(p: float) -> None:
    """E‖Ĝ/q‖ ≤ 2 (E g⁴)^¼ √N, as (√n + √N + (nN E g⁴)^¼) bounds E‖G‖ up to a constant (Latała, 2005)."""
    for N, n in [(10, 3), (10, 300), (60, 60), (100, 30)]:
        mean = sum(norm(extended(rare(p)(N, n, seed))) for seed in range(20)) / 20
        assert mean / q(N, n) <= 2 * (1 / p) ** 0.25 * math.sqrt(N)


@pytest.mark.parametrize(("N", "n"), [(16, 64), (64, 16), (64, 1000)])
def test_proposition_5_needs_features_that_are_independent(N: int, n: int) -> None:
    """One feature n times: ‖G‖ = √(nN), and q leaves √N · √min(n, N)."""
    h = normal(N, 1).expand(N, n)
    G_hat = Preconditioner.of(h).applied_to(extended(h))
    assert norm(G_hat) / q(N, n) == pytest.approx(math.sqrt(N * min(n, N)), rel=1e-9)
