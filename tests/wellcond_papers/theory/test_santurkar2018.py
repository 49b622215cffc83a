"""Facts C.1 and C.2, theorems 4.1, 4.2, 4.4 and C.1 and lemma 4.5 of santurkar2018, in float64.

One unit over a batch of m examples: y → ŷ = (y − μ)/σ → z = γŷ + β → loss. The network without BN has the same loss
of the same activations, so its gradient g and Hessian H with respect to them are ∂ℓ/∂z and ∂²ℓ/∂z². Everything
"through BN" is autograd's, through `nn.BatchNorm1d` in training mode.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from references import assert_same
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from zoo import normal

import wellcond as wc

Loss = Callable[[Tensor], Tensor]

every_size = pytest.mark.parametrize(("seed", "m"), [(0, 4), (1, 9), (2, 32)])


def batchnorm(gamma: float, beta: float) -> nn.Module:
    # ε breaks every identity here, by its own size
    bn = nn.BatchNorm1d(1, eps=1e-30).double().requires_grad_(False)
    nn.init.constant_(bn.weight, gamma)
    nn.init.constant_(bn.bias, beta)
    return bn


class Unit:
    """The quantities of the source for one unit, named as there; L̂ is the loss with BN before it."""

    def __init__(self, y: Tensor, gamma: float, beta: float, loss: Loss) -> None:
        self.y, self.gamma, self.m, self.loss = y, gamma, len(y), loss
        self.sigma = float(y.std(correction=0))
        self.y_hat = (y - y.mean()) / self.sigma
        self.bn = batchnorm(gamma, beta)
        self.g = jacobian(loss, self.normalized(y))
        self.H = hessian(loss, self.normalized(y))
        self.gradient, self.hessian = (of(lambda y: loss(self.normalized(y)), y) for of in (jacobian, hessian))
        self.g_bar = self.g - self.g.mean()
        self.g_y = float(self.g @ self.y_hat)
        self.I, self.M = torch.eye(self.m, dtype=torch.float64), torch.ones(self.m, self.m, dtype=torch.float64)
        self.YY = torch.outer(self.y_hat, self.y_hat)
        self.P = self.I - self.M / self.m - self.YY / self.m

    def normalized(self, y: Tensor) -> Tensor:
        """z"""
        return self.bn(y[:, None])[:, 0]

    def of_weights(self, X: Tensor) -> Loss:
        """L̂ of the weights w of a linear layer with the inputs X, y = Xw."""
        return lambda w: self.loss(self.normalized(X @ w))

    def curvature(self) -> float:
        """∇L̂ᵀ (∂²L̂/∂y²) ∇L̂, the left side of theorem 4.2."""
        return float(self.gradient @ self.hessian @ self.gradient)

    def separation(self) -> float:
        """κ = ⟨ĝ, ŷ⟩ ‖∇L̂‖² / (mγ)"""
        return self.g_y * float(self.gradient @ self.gradient) / (self.m * self.gamma)


def bent(m: int, seed: int) -> Loss:
    """A loss that is neither quadratic, convex nor a sum over the batch."""
    a, b, t = normal(m, m, seed=seed + 10), normal(m, m, seed=seed + 20), normal(m, seed=seed + 30)
    return lambda z: torch.logsumexp(a @ z, 0) + (b @ z).sin().sum() + t @ z


def unit(seed: int, m: int, gamma: float = 0.7, beta: float = 0.3) -> Unit:
    return Unit(2.5 * normal(m, seed=seed) + 1.0, gamma, beta, bent(m, seed))


def prescribed(y: Tensor, gamma: float, g: Tensor, H: Tensor) -> Unit:
    """A unit whose loss has gradient g and Hessian H at its activations."""
    z = batchnorm(gamma, 0.0)(y[:, None])[:, 0].detach()
    return Unit(y, gamma, 0.0, lambda at: g @ (at - z) + 0.5 * (at - z) @ H @ (at - z))


# C.1: facts


@every_size
def test_fact_c_1_is_the_gradient_through_batchnorm(seed: int, m: int) -> None:
    u = unit(seed, m)
    computed = [
        u.gamma / (m * u.sigma) * (m * u.g[b] - u.g.sum() - u.y_hat[b] * (u.g * u.y_hat).sum())  # eqs. 3, 4
        for b in range(m)
    ]
    assert_same(torch.stack(computed), u.gradient, 1e-12)


@every_size
def test_fact_c_2_is_the_jacobian_of_batchnorm(seed: int, m: int) -> None:
    """Eqs. 1, 2 and 33."""
    u = unit(seed, m)
    assert_same(u.gamma / u.sigma * (u.I - 1 / m - u.YY / m), jacobian(u.normalized, u.y), 1e-12)
    assert_same(
        (u.I - 1 / m - u.YY / m) / u.sigma, jacobian(lambda y: (y - y.mean()) / y.std(correction=0), u.y), 1e-12
    )


# C.2: Lipschitzness


def theorem_4_1(u: Unit, last: float) -> float:
    """γ²/σ² (‖∇L‖² − ⟨1, ∇L⟩²/m − last · ⟨∇L, ŷ⟩²)"""
    return u.gamma**2 / u.sigma**2 * float(u.g @ u.g - u.g.sum() ** 2 / u.m - last * u.g_y**2)


@every_size
def test_equations_5_to_8_the_gradient_is_centered_and_projected(seed: int, m: int) -> None:
    u = unit(seed, m)
    direction = u.y_hat / u.y_hat.norm()
    assert float(u.y_hat.norm()) == pytest.approx(math.sqrt(m), rel=1e-13)
    assert_same(u.gamma / u.sigma * (u.g_bar - u.y_hat * (u.g_bar @ u.y_hat) / m), u.gradient, 1e-12)
    assert_same(u.gamma / u.sigma * (u.g_bar - direction * (u.g_bar @ direction)), u.gradient, 1e-12)
    eq_8 = u.gamma**2 / u.sigma**2 * float(u.g_bar @ u.g_bar - (u.g_bar @ direction) ** 2)
    assert float(u.gradient @ u.gradient) == pytest.approx(eq_8, rel=1e-12)


@every_size
def test_theorem_4_1_is_an_equality_with_one_over_m_twice(seed: int, m: int) -> None:
    u = unit(seed, m)
    assert float(u.gradient @ u.gradient) == pytest.approx(theorem_4_1(u, last=1 / m), rel=1e-11)


@every_size
def test_theorem_4_1_as_printed_is_not_an_upper_bound(seed: int, m: int) -> None:
    """Eq. 9 divides ⟨∇L, ŷ⟩² by √m where ‖ŷ‖² = m: it takes away too much, and more than there is if ∇L ∥ ŷ."""
    u = unit(seed, m)
    assert theorem_4_1(u, last=1 / math.sqrt(m)) < 0.99 * float(u.gradient @ u.gradient)
    z = u.normalized(u.y).detach()
    along = Unit(u.y, u.gamma, 0.3, lambda at: at @ z)
    assert theorem_4_1(along, last=1 / math.sqrt(m)) < 0


# C.2: Lipschitzness in the weights


def orthonormal_rows(m: int, d: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(d, m, seed=seed))[0].T


def theorem_4_4(u: Unit, lam: float) -> float:
    """γ²/σ² (g_j − λ²mμ_g² − (λ²/m)⟨∇L, ŷ⟩²) with g_j = λ²‖∇L‖²"""
    g_j, mu_g = lam**2 * float(u.g @ u.g), float(u.g.mean())
    return u.gamma**2 / u.sigma**2 * (g_j - lam**2 * u.m * mu_g**2 - lam**2 / u.m * u.g_y**2)


@every_size
@pytest.mark.parametrize("d", [2, 6, 40])
@pytest.mark.parametrize("lam", [0.3, 4.0])
def test_theorem_4_4_with_consistent_squares_bounds_every_input(seed: int, m: int, d: int, lam: float) -> None:
    """Eqs. 11 to 17: ∇_W L̂ = Xᵀ∇_y L̂, so ‖∇_W L̂‖² ≤ ‖X‖₂²‖∇_y L̂‖²."""
    X = normal(m, d, seed=seed + 40)
    X *= lam / float(torch.linalg.matrix_norm(X, 2))
    weight = normal(d, seed=seed + 50)
    u = Unit(X @ weight, 0.7, 0.3, bent(m, seed))
    gradient = jacobian(u.of_weights(X), weight)
    assert_same(X.T @ u.gradient, gradient, 1e-11)
    assert float(gradient @ gradient) <= theorem_4_4(u, lam) * (1 + 1e-11)


@every_size
@pytest.mark.parametrize("lam", [0.3, 4.0])
def test_theorem_4_4_is_attained_where_the_inputs_are_isotropic(seed: int, m: int, lam: float) -> None:
    """X Xᵀ = λ²I attains both maxima, g_j (eq. 18) and ĝ_j: the theorem is an equality."""
    u = unit(seed, m)
    X = lam * orthonormal_rows(m, m + 3, seed + 40)
    with_bn = jacobian(u.of_weights(X), X.T @ u.y / lam**2)
    assert float(with_bn @ with_bn) == pytest.approx(theorem_4_4(u, lam), rel=1e-10)
    z = u.normalized(u.y).detach()
    without = jacobian(lambda w: u.loss(X @ w), X.T @ z / lam**2)
    assert float(without @ without) == pytest.approx(lam**2 * float(u.g @ u.g), rel=1e-11)


@every_size
def test_theorem_4_4_as_printed_is_not_an_upper_bound(seed: int, m: int) -> None:
    """g_j is already a square: g_j² goes with the fourth power of the loss's scale, and below ĝ_j for a small one."""
    base = bent(m, seed)

    def printed_over_true(scale: float) -> float:
        u = Unit(unit(seed, m).y, 0.7, 0.3, lambda z: scale * base(z))
        g_j = float(u.g @ u.g)  # λ = 1
        printed = u.gamma**2 / u.sigma**2 * (g_j**2 - m * float(u.g.mean()) ** 2 - u.g_y**2)
        return printed / theorem_4_4(u, 1.0)

    assert printed_over_true(1e-2) < 0.9
    assert printed_over_true(1e3) > 1e3  # nor is it tight where it does hold


# C.3: the Hessian


def last_term(u: Unit, factor: float, inner: float) -> Tensor:
    """−factor · (ĝ − μ_ĝ − inner · ŷ⟨ĝ, ŷ⟩) ŷᵀ, as in eqs. 32 and 37."""
    return -factor * torch.outer(u.g_bar - inner * u.y_hat * u.g_y, u.y_hat)


def equation_31(u: Unit) -> Tensor:
    m, y, H = u.m, u.y_hat, u.H
    bracket = m * H - u.M @ H - u.I * u.g_y / u.gamma - u.YY @ H - torch.outer(y, u.g) / u.gamma
    return u.gamma / (m * u.sigma) * bracket @ (u.gamma / u.sigma * u.P)


def equations_34_to_37(u: Unit) -> Tensor:
    m, gamma, M, YY, H, y = u.m, u.gamma, u.M, u.YY, u.H, u.y_hat
    eq_34 = m * H - M @ H - u.I * u.g_y / gamma - YY @ H - torch.outer(y, u.g) / gamma
    eq_35 = H @ M - M @ H @ M / m - M * u.g_y / (m * gamma) - YY @ H @ M / m - torch.outer(y, u.g) @ M / (m * gamma)
    eq_36 = H @ YY - M @ H @ YY / m - YY * u.g_y / (m * gamma) - YY @ H @ YY / m - YY * u.g_y / (m * gamma)
    return gamma**2 / (m * u.sigma**2) * (eq_34 - eq_35 - eq_36) + last_term(u, gamma / (m * u.sigma**2), 1 / m)


def equation_38(u: Unit) -> Tensor:
    m, M, YY, H, y = u.m, u.M, u.YY, u.H, u.y_hat
    first = m * H - M @ H - YY @ H - H @ M + (M @ H @ M + YY @ H @ M + M @ H @ YY + YY @ H @ YY) / m - H @ YY
    second = torch.outer(u.g_bar, y) - 3 / m * YY * u.g_y + (u.g_y * u.I + torch.outer(y, u.g)) @ (u.I - M / m)
    return u.gamma**2 / (m * u.sigma**2) * first - u.gamma / (m * u.sigma**2) * second


def equations_40_to_42(u: Unit) -> Tensor:
    m, y = u.m, u.y_hat
    inner = torch.outer(u.g_bar, y) + torch.outer(y, u.g_bar) - 3 / m * u.YY * u.g_y + u.g_y * (u.I - u.M / m)
    return u.gamma**2 / u.sigma**2 * (u.P @ u.H @ u.P - inner / (m * u.gamma))


@every_size
@pytest.mark.parametrize("form", [equations_34_to_37, equation_38, equations_40_to_42])
def test_equations_34_to_42_the_hessian_through_batchnorm_is_exact(
    seed: int, m: int, form: Callable[[Unit], Tensor]
) -> None:
    """With the bracket that eq. 38 leaves open closed at its end, and eq. 36's last term read as ŷĝᵀŷŷᵀ."""
    u = unit(seed, m)
    assert_same(form(u), u.hessian, 1e-11)


@every_size
def test_equations_24_to_30_the_parts_of_the_hessian(seed: int, m: int) -> None:
    u = unit(seed, m)
    z = u.normalized(u.y).detach()
    gradient = torch.func.grad(u.loss)

    def y_hat(z: Tensor) -> Tensor:
        return (z - 0.3) / u.gamma

    eq_24 = jacobian(lambda z: gradient(z).mean().expand(m), z)
    assert_same(u.M @ u.H / m, eq_24, 1e-11)
    eq_27 = jacobian(lambda z: y_hat(z) * (y_hat(z) @ gradient(z)), z)
    assert_same(u.I * u.g_y / u.gamma + u.YY @ u.H + torch.outer(u.y_hat, u.g) / u.gamma, eq_27, 1e-11)
    eq_30 = jacobian(lambda y: u.gamma / y.std(correction=0), u.y)
    assert_same(-u.gamma / (m * u.sigma**2) * u.y_hat, eq_30, 1e-11)


@every_size
def test_equation_32_needs_the_factors_of_equation_37(seed: int, m: int) -> None:
    """γ/(mσ²) before the bracket and 1/m in it; printed are γ/σ² with 1/γ, and 1/(mσ²) with 1/m."""
    u = unit(seed, m)
    assert_same(equation_31(u) + last_term(u, u.gamma / (m * u.sigma**2), 1 / m), u.hessian, 1e-11)
    for factor, inner in [(u.gamma / u.sigma**2, 1 / u.gamma), (1 / (m * u.sigma**2), 1 / m)]:
        printed = equation_31(u) + last_term(u, factor, inner)
        assert float((printed - u.hessian).norm() / u.hessian.norm()) > 1e-3


@every_size
def test_equations_43_to_47_projections(seed: int, m: int) -> None:
    u = unit(seed, m)
    Q = u.I - u.YY / m
    tolerance = 1e-12 * float(u.g.norm())
    assert float((u.M @ u.g_bar).norm()) < tolerance
    assert_same(u.P @ u.P, u.P, 1e-12)
    assert float((u.y_hat @ Q).norm()) < 1e-12
    assert_same((u.I - u.M / m) @ Q @ u.g_bar, Q @ u.g_bar, 1e-12)
    assert_same(u.gamma / u.sigma * u.g_bar @ Q, u.gradient, 1e-12)
    assert int(torch.linalg.matrix_rank(u.P)) == m - 2


# C.3: smoothness


@every_size
@pytest.mark.parametrize("gamma", [0.7, 5.0])
def test_theorem_4_2_first_part_is_an_equality(seed: int, m: int, gamma: float) -> None:
    """Eqs. 48 to 50; eq. 49 lacks its minus."""
    u = unit(seed, m, gamma)
    first = u.gamma**2 / u.sigma**2 * float(u.gradient @ u.H @ u.gradient)
    second = u.gamma / (m * u.sigma**2) * u.g_y * float(u.gradient @ u.gradient)
    assert u.curvature() == pytest.approx(first - second, rel=1e-9)
    Q = u.I - u.YY / m
    eq_48 = u.gamma**4 / u.sigma**4 * float(u.g_bar @ Q @ u.H @ Q @ u.g_bar)
    eq_49 = u.gamma**3 / (m * u.sigma**4) * float(u.g_bar @ Q @ u.g_bar) * u.g_y
    assert u.curvature() == pytest.approx(eq_48 - eq_49, rel=1e-9)
    assert abs(u.curvature() - (eq_48 + eq_49)) > 1e-3 * abs(eq_49)


def preserving_relative_norms(seed: int, m: int, gamma_over_sigma: float) -> Unit:
    """H is a multiple of I on span{ĝ, ∇L̂} and any positive semi-definite matrix on its complement.

    So uᵀHu/‖u‖² is the same for u = ĝ and for u = ∇L̂, which is the assumption of the second part made precise.
    """
    y, g = 2.5 * normal(m, seed=seed) + 1.0, normal(m, seed=seed + 1)
    gamma = gamma_over_sigma * float(y.std(correction=0))
    flat = prescribed(y, gamma, g, torch.zeros(m, m, dtype=torch.float64))
    span = torch.linalg.qr(torch.stack([g, flat.gradient], 1))[0]
    complement = torch.eye(m, dtype=torch.float64) - span @ span.T
    root = complement @ normal(m, m, seed=seed + 2)
    return prescribed(y, gamma, g, 1.7 * span @ span.T + root @ root.T)


def second_part(u: Unit, extra: float = 1.0) -> float:
    """γ²/σ² (extra · ĝᵀHĝ − ⟨ĝ, ŷ⟩‖∇L̂‖²/(mγ)); printed with extra = 1."""
    return u.gamma**2 / u.sigma**2 * (extra * float(u.g @ u.H @ u.g) - u.separation())


@every_size
@pytest.mark.parametrize("ratio", [0.2, 1.0])
def test_theorem_4_2_second_part_holds_under_two_conditions(seed: int, m: int, ratio: float) -> None:
    """‖∇L̂‖ ≤ (γ/σ)‖ĝ‖ ≤ ‖ĝ‖ by theorem 4.1, and the same then holds in the norm of H."""
    u = preserving_relative_norms(seed, m, ratio)
    quotients = [float(v @ u.H @ v / (v @ v)) for v in (u.g, u.gradient)]
    assert quotients[0] == pytest.approx(quotients[1], rel=1e-10)
    assert u.curvature() <= second_part(u) + 1e-12 * abs(u.curvature())


@every_size
@pytest.mark.parametrize("ratio", [0.2, 1.0, 6.0])
def test_theorem_4_2_second_part_holds_with_the_fourth_power_of_gamma(seed: int, m: int, ratio: float) -> None:
    """∇L̂ carries a γ/σ of its own, so the first term is γ⁴/σ⁴ ĝᵀHĝ."""
    u = preserving_relative_norms(seed, m, ratio)
    assert u.curvature() <= second_part(u, extra=ratio**2) + 1e-12 * abs(u.curvature())


@every_size
def test_theorem_4_2_second_part_as_printed_fails_for_a_large_gamma(seed: int, m: int) -> None:
    """H = I preserves every norm, and still γ⁴/σ⁴ ‖Pĝ‖² exceeds γ²/σ² ‖ĝ‖² once γ/σ exceeds ‖ĝ‖/‖Pĝ‖."""
    u = unit(seed, m)
    ratio = 2 * float(u.g.norm() / (u.P @ u.g).norm())
    large = prescribed(u.y, ratio * u.sigma, u.g, u.I)
    assert large.curvature() > second_part(large) + 0.5 * large.gamma**2 / large.sigma**2 * float(u.g @ u.g)


@every_size
def test_theorem_4_2_second_part_needs_its_assumption(seed: int, m: int) -> None:
    """H = aaᵀ with a ⊥ ĝ sees nothing of ĝ and some of ∇L̂: γ = σ is no help."""
    u = unit(seed, m)
    projected = u.P @ u.g
    a = projected - u.g * (projected @ u.g) / (u.g @ u.g)
    rank_one = prescribed(u.y, u.sigma, u.g, torch.outer(a, a))
    assert rank_one.curvature() > second_part(rank_one) + 0.5 * float(a @ projected) ** 2


# C.3: smoothness in the weights


def weight_curvature(u: Unit, X: Tensor, weight: Tensor) -> float:
    """β, eq. 56, with autograd's own gradient and Hessian of the weights."""
    gradient, curvature = (of(u.of_weights(X), weight) for of in (jacobian, hessian))
    return float(gradient @ curvature @ gradient)


@every_size
def test_equations_52_to_57_the_hessian_of_the_weights(seed: int, m: int) -> None:
    """Eq. 57 needs the centered gradient and γ²/σ²; as printed it has neither."""
    X, weight = normal(m, 6, seed=seed + 40), normal(6, seed=seed + 50)
    u = Unit(X @ weight, 0.7, 0.3, bent(m, seed))
    assert_same(X.T @ u.hessian @ X, hessian(u.of_weights(X), weight), 1e-9)
    assert_same(X.T @ hessian(u.loss, X @ weight) @ X, hessian(lambda w: u.loss(X @ w), weight), 1e-11)
    inner, Q = X @ X.T @ u.hessian @ X @ X.T, u.I - u.YY / m
    beta = weight_curvature(u, X, weight)
    assert u.gamma**2 / u.sigma**2 * float(u.g_bar @ Q @ inner @ Q @ u.g_bar) == pytest.approx(beta, rel=1e-8)
    assert abs(float(u.g @ Q @ inner @ Q @ u.g) - beta) > 1e-2 * abs(beta)


def test_equations_40_to_54_seen_through_the_hessian_of_a_problem() -> None:
    """`batchnorm="batch"` means these derivatives: through the statistics, not past them."""
    m, d = 9, 4
    X, targets = normal(m, d), (normal(m, 1, seed=1) > 0).double()
    model = nn.Sequential(nn.Linear(d, 1, bias=False).double(), batchnorm(0.7, 0.3))
    u = Unit(model[0](X)[:, 0].detach(), 0.7, 0.3, lambda z: F.binary_cross_entropy_with_logits(z, targets[:, 0]))
    problem = wc.Problem(model, nn.BCEWithLogitsLoss(), (X, targets), batchnorm="batch")
    computed = wc.Hessian(problem, layers="0.weight").dense()
    assert_same(computed, X.T @ equations_40_to_42(u) @ X, 1e-10)


@every_size
@pytest.mark.parametrize("lam", [0.3, 2.0])
def test_theorem_c_1_holds_where_the_inputs_are_isotropic(seed: int, m: int, lam: float) -> None:
    """X Xᵀ = λ²I, as eq. 58 has it: both sides are those of theorem 4.2 times λ⁴, for an H and γ as there."""
    u = preserving_relative_norms(seed, m, 0.8)
    X = lam * orthonormal_rows(m, m + 3, seed + 40)
    with_bn = weight_curvature(u, X, X.T @ u.y / lam**2)
    gradient, curvature = X.T @ u.g, X.T @ u.H @ X
    without = float(gradient @ curvature @ gradient)
    assert with_bn == pytest.approx(lam**4 * u.curvature(), rel=1e-9)
    assert without == pytest.approx(lam**4 * float(u.g @ u.H @ u.g), rel=1e-11)
    assert with_bn <= u.gamma**2 / u.sigma**2 * (without - lam**4 * u.separation()) + 1e-9 * abs(with_bn)


@pytest.mark.parametrize(("seed", "m"), [(0, 5), (1, 9), (2, 32)])
def test_theorem_c_1_as_printed_fails(seed: int, m: int) -> None:
    """Its maximum over ‖X‖ ≤ λ is not at the isotropic inputs (eq. 58), and its < is not strict there.

    With H = I, γ = σ and ĝ orthogonal to 1 and ŷ, the separation κ is 0 and the right side λ⁴‖ĝ‖². The isotropic
    inputs give just that. But XXᵀv ranges over the whole ball on the diameter λ²v, and ∂²L̂/∂y² = P − (ĝŷᵀ + ŷĝᵀ)/(mγ)
    is larger off v, toward −ŷ.
    """
    y = 2.5 * normal(m, seed=seed) + 1.0
    sigma = float(y.std(correction=0))
    y_hat = (y - y.mean()) / sigma
    g = normal(m, seed=seed + 1)
    g -= g.mean() + y_hat * (g @ y_hat) / m
    g *= 2 * sigma * math.sqrt(m) / g.norm()
    eye = torch.eye(m, dtype=torch.float64)
    u = prescribed(y, sigma, g, eye)
    right = float(g @ g)  # λ = 1
    assert abs(u.separation()) < 1e-12 * right
    assert u.curvature() == pytest.approx(right, rel=1e-10)

    tilted = math.cos(math.pi / 6) * g / g.norm() - math.sin(math.pi / 6) * y_hat / math.sqrt(m)
    X = 0.999 * torch.outer(tilted, tilted) + 1e-3 * eye  # invertible, so that some weight gives y
    assert float(torch.linalg.matrix_norm(X, 2)) <= 1 + 1e-12
    assert weight_curvature(u, X, torch.linalg.solve(X, y)) > 1.5 * right


# C.4: initialization


@pytest.mark.parametrize(("seed", "size"), [(0, 3), (1, 10), (2, 100)])
def test_lemma_4_5_an_optimum_along_the_ray_is_closer(seed: int, size: int) -> None:
    """As printed, with equality at kW*, the point of the ray that is closest to W₀; eqs. 59 to 62."""
    start, optimum = normal(size, seed=seed), normal(size, seed=seed + 1)
    start *= torch.sign(start @ optimum)
    k = float(start @ optimum / (optimum @ optimum))
    assert k > 0
    square, distance = float(optimum @ optimum), float((start - optimum).square().sum())
    bound = distance - (square - float(optimum @ start)) ** 2 / square
    closest = float((start - k * optimum).square().sum())
    assert closest == pytest.approx(bound, rel=1e-12)
    assert closest - distance == pytest.approx(-square * (1 - k) ** 2, rel=1e-11)
    others = [float((start - a * k * optimum).square().sum()) for a in (0.1, 0.9, 1.1, 3.0)]
    assert min(others) > bound


@pytest.mark.parametrize("a", [1e-3, 0.5, 40.0])
def test_lemma_4_5_the_scale_of_the_weights_does_not_change_the_loss(a: float) -> None:
    X, weight = normal(9, 5), normal(5, seed=1)
    of_weights = unit(0, 9).of_weights(X)
    assert float(of_weights(a * weight)) == pytest.approx(float(of_weights(weight)), rel=1e-12)
    assert_same(jacobian(of_weights, a * weight), jacobian(of_weights, weight) / a, 1e-10)


def test_lemma_4_5_needs_a_positive_correlation() -> None:
    """BN(−y) = −BN(y), so −W* is no optimum; the ray of W* is then closest to W₀ at 0, farther than the bound."""
    y, bn = normal(9, 1), batchnorm(0.7, 0.0)
    assert_same(bn(-y), -bn(y), 1e-12)
    optimum, start = normal(6, seed=1), normal(6, seed=2)
    start *= -torch.sign(start @ optimum)
    bound = (start - optimum).square().sum() - (optimum.square().sum() - optimum @ start) ** 2 / optimum.square().sum()
    ray = torch.linspace(0, 5, 501, dtype=torch.float64)
    assert float((start[:, None] - optimum[:, None] * ray).square().sum(0).min()) > float(bound) + 1e-3


def test_lemma_4_5_needs_an_optimum_that_both_networks_share() -> None:
    """Its proof takes an optimum of the network without BN for one of the network with BN.

    So it is for least squares with an intercept, where both maximize the correlation with the targets. It is not
    for logistic regression: scale invariance says that kW* is as good as W*, not that W* is an optimum.
    """
    X = normal(40, 3)
    X1 = torch.cat([X, torch.ones(40, 1, dtype=torch.float64)], 1)
    targets = X @ normal(3, seed=2) + normal(40, seed=1)
    labels = (targets > 0).double()

    def slope(loss: Loss, optimum: Tensor) -> float:
        return float(jacobian(Unit(targets, 0.7, 0.3, loss).of_weights(X), optimum[:3]).norm())

    def squares(f: Tensor) -> Tensor:
        return F.mse_loss(f, targets)

    def logistic(f: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(f, labels)

    assert slope(squares, torch.linalg.lstsq(X1, targets).solution) < 1e-12
    optimum = torch.zeros(4, dtype=torch.float64)
    for _ in range(20):  # Newton
        optimum -= torch.linalg.solve(
            hessian(lambda w: logistic(X1 @ w), optimum), jacobian(lambda w: logistic(X1 @ w), optimum)
        )
    assert float(jacobian(lambda w: logistic(X1 @ w), optimum).norm()) < 1e-12
    assert slope(logistic, optimum) > 1e-3
