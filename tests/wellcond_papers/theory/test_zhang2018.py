"""Statements of zhang2018 in float64 on random instances; of a wrong one, the right form and that the printed fails.

Indices: b block, j example, i row of W, m examples, n_b outputs and n inputs of a block; r = z_b^{k+½} − z_b^k.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from references import assert_same
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian
from zoo import normal, white

import wellcond as wc
from wellcond.measurements.blocks.back_matching import back_matching
from wellcond.measurements.blocks.closed_forms import convolution_matrix
from wellcond.measurements.blocks.local_hessian import LocalHessian, local_hessian
from wellcond.measurements.blocks.marchenko_pastur import MarchenkoPastur, marchenko_pastur


def differ(actual: Tensor, expected: Tensor, by: float = 0.05) -> bool:
    return float((actual - expected).norm() / expected.norm()) > by


def matching_loss(target: Tensor, output: Tensor) -> Tensor:
    """ℓ_b of eq. 5 for b < B, summed over the batch as in eq. 9."""
    return (target - output).square().sum() / 2


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def orthogonal(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Orthonormal rows, or columns if there are fewer of them."""
    if rows > columns:
        return orthogonal(columns, rows, seed).T
    return torch.linalg.qr(normal(columns, rows, seed=seed)).Q.T


def first_block(block: nn.Module, inputs: Tensor) -> LocalHessian:
    """The local Hessian of a block in front of a linear layer, under the squared error against zero."""
    outputs = block.double()(inputs)[0].numel()
    model = nn.Sequential(block, nn.Flatten(), nn.Linear(outputs, 2)).double()
    model[2].weight.data = normal(2, outputs, seed=11)
    return local_hessian(wc.Problem(model, nn.MSELoss(), (inputs, torch.zeros(len(inputs), 2).double())), "0")


def linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False).double()
    layer.weight.data = weight
    return layer


# Section 2: back-matching


class TestBackMatching:
    """A chain z_b = tanh(W_b z_{b−1}) by hand."""

    weights = (normal(5, 4, seed=1), normal(6, 5, seed=2), normal(3, 6, seed=3))
    inputs, labels = normal(7, 4), torch.arange(7) % 3

    def forward(self, weights: tuple[Tensor, ...]) -> list[Tensor]:
        z = [self.inputs]
        for w in weights:
            z.append(torch.tanh(z[-1] @ w.T))
        return z

    def gradients(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Of the loss by W_1, W_2, W_3 and by z_1, z_2, by back-propagation."""
        weights = tuple(w.clone().requires_grad_() for w in self.weights)
        z = self.forward(weights)
        gradients = torch.autograd.grad(F.cross_entropy(z[-1], self.labels), [*weights, *z[1:-1]])
        return gradients[:3], gradients[3:]

    def test_proposition_1_is_back_propagation_with_steps_on_z_and_w(self) -> None:
        mu, z = 0.3, self.forward(self.weights)
        updated, displacements, target = [], [], None
        for w, before in zip(reversed(self.weights), reversed(z[:-1]), strict=True):
            w, before = w.clone().requires_grad_(), before.clone().requires_grad_()
            output = torch.tanh(before @ w.T)
            loss = F.cross_entropy(output, self.labels) if target is None else matching_loss(target, output)
            w_gradient, z_gradient = torch.autograd.grad(loss, [w, before])
            updated.insert(0, (w - mu * w_gradient).detach())
            target = (before - z_gradient).detach()
            displacements.insert(0, target - before.detach())

        by_w, by_z = self.gradients()
        for w, new, gradient in zip(self.weights, updated, by_w, strict=True):
            assert_same(new, w - mu * gradient, 1e-14)
        for displacement, gradient in zip(displacements[1:], by_z, strict=True):
            assert_same(displacement, -gradient, 1e-13)  # eq. 26

    def test_proposition_1_through_the_library(self) -> None:
        mu, layers = 0.3, [linear(w) for w in self.weights]
        model = nn.Sequential(*(nn.Sequential(layer, nn.Tanh()) for layer in layers))
        problem = wc.Problem(model, nn.CrossEntropyLoss(), (self.inputs, self.labels))
        matching = back_matching(problem, lr=mu, layers=["0", "1"])
        z, (by_w, by_z) = self.forward(self.weights), self.gradients()
        for k, gradient in enumerate(by_w):
            assert_same(matching.updates[f"{k}.0.weight"], -mu * gradient, 1e-13)
        for k, gradient in enumerate(by_z):
            assert_same(matching.targets[str(k)] - z[k + 1], -gradient, 1e-12)

    def test_proposition_1_needs_the_unit_step_on_z(self) -> None:
        """Half the step on z_2 halves the gradient that W_2 is given."""
        z, w, (by_w, by_z) = self.forward(self.weights), self.weights[1].clone().requires_grad_(), self.gradients()
        loss = matching_loss(z[2] - 0.5 * by_z[1], torch.tanh(z[1] @ w.T))
        assert_same(torch.autograd.grad(loss, w)[0], 0.5 * by_w[1], 1e-13)


# Section 3.1: a fully connected layer


class TestFullyConnected:
    w, z, target = normal(3, 5), normal(8, 5, seed=1), normal(8, 3, seed=2)

    def test_equation_8_the_hessian_of_z_is_wtw_for_each_example(self) -> None:
        computed = hessian(lambda z: matching_loss(self.target, z @ self.w.T), self.z)
        for j, k in itertools.product(range(8), repeat=2):
            assert torch.allclose(computed[j, :, k], self.w.T @ self.w * (j == k), atol=1e-13)
        block = first_block(linear(self.w), self.z)
        assert_same(block.closed_form().z.blocks[0], self.w.T @ self.w, 1e-15)
        assert_same(block.z.exact.dense(), computed.reshape(40, 40), 1e-13)

    def test_equation_9_the_hessian_of_vec_w_has_one_block_a_row(self) -> None:
        computed = hessian(lambda w: matching_loss(self.target, self.z @ w.T), self.w).reshape(15, 15)
        h_w = sum(torch.outer(z, z) for z in self.z)
        assert_same(computed, torch.kron(eye(3), h_w), 1e-13)
        block = first_block(linear(self.w), self.z)
        assert_same(block.closed_form().weight.blocks[0], h_w, 1e-14)
        assert_same(block.weight.exact.dense(), computed, 1e-13)

    def test_equation_20_the_taylor_expansion_of_a_linear_block_is_exact(self) -> None:
        step = normal(3, 5, seed=4)
        loss = lambda w: matching_loss(self.target, self.z @ w.T)  # noqa: E731
        gradient = (self.z @ self.w.T - self.target).T @ self.z
        h_w = self.z.T @ self.z
        expanded = loss(self.w) + (gradient * step).sum() + (step @ h_w * step).sum() / 2
        assert float(loss(self.w + step)) == pytest.approx(float(expanded), rel=1e-13)

    def test_equation_21_is_exact_for_h_z_and_on_average_for_its_mean_eigenvalue(self) -> None:
        """With m_z = tr H_z/n; of eq. 20's second line likewise. Along one direction it can be off by λ_max/m_z."""
        loss = lambda z: matching_loss(self.target[0], self.w @ z)  # noqa: E731
        z, h_z = self.z[0], self.w.T @ self.w
        gradient, m_z = self.w.T @ (self.w @ z - self.target[0]), float(h_z.trace()) / len(h_z)

        def rests(directions: Tensor) -> Tensor:
            """ℓ_b less its value and slope at z, over ½‖step‖²: what m_z stands for."""
            steps = 0.7 * directions
            moved = torch.stack([loss(z + step) - loss(z) - gradient @ step for step in steps])
            return 2 * moved / steps.square().sum(1)

        values, vectors = torch.linalg.eigh(h_z)
        assert_same(rests(vectors.T), values, 1e-12)
        for basis in (eye(5), orthogonal(5, 5, seed=7)):
            assert float(rests(basis).mean()) == pytest.approx(m_z, rel=1e-12)
        assert float(rests(vectors.T)[-1]) > 2 * m_z
        assert abs(float(rests(vectors.T)[0])) < 1e-10

    def test_orthonormal_weights_give_ones_and_zeros(self) -> None:
        w = orthogonal(4, 9)
        values = torch.linalg.eigvalsh(w.T @ w)
        assert torch.allclose(values, doubles(*[0] * 5, *[1] * 4), atol=1e-14)

    @pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
    @pytest.mark.parametrize("sigma", [1.0, 0.7, 0.2])
    def test_equations_10_and_11_are_the_law_of_wtw_over_n(self, c: float, sigma: float) -> None:
        rows, columns = int(240 * c), 240
        values = torch.linalg.eigvalsh(gram(sigma * normal(rows, columns)))
        law, critical = marchenko_pastur(c, sigma), MarchenkoPastur.critical_value(columns)
        assert law.distance(values / rows) < critical / 4
        assert law.scaled(rows).distance(values) < critical / 4
        for other in (marchenko_pastur(2 * c, sigma), marchenko_pastur(c, 1.5 * sigma)):
            assert other.distance(values / rows) > critical

    @pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
    @pytest.mark.parametrize("sigma", [1.0, 0.2])
    def test_equations_10_and_11_as_printed_for_wtw_fail(self, c: float, sigma: float) -> None:
        values = torch.linalg.eigvalsh(gram(sigma * normal(int(240 * c), 240)))
        law = marchenko_pastur(c, sigma)
        assert law.distance(values) > max(0.2, 2 * law.critical_value(240))
        assert float(values[-1]) > 10 * law.support[1]


def gram(w: Tensor) -> Tensor:
    return w.T @ w


# Section 3.2: skip connections


def residual(u: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """φ(z) = V tanh(U z)."""
    return v @ torch.tanh(u @ z)


class Residual(nn.Module):
    """z + φ(z)."""

    def __init__(self, u: Tensor, v: Tensor) -> None:
        super().__init__()
        self.first, self.second = linear(u), linear(v)

    def forward(self, z: Tensor) -> Tensor:
        return z + self.second(torch.tanh(self.first(z)))


class TestResidualBlock:
    u, v, z, r = normal(6, 4), normal(4, 6, seed=1), normal(4, seed=2), normal(4, seed=3)
    weights = torch.cat([u.flatten(), v.flatten()])

    def exact(self) -> Tensor:
        target = self.z + residual(self.u, self.v, self.z) + self.r
        return hessian(lambda z: matching_loss(target, z + residual(self.u, self.v, z)), self.z)

    def parts(self, r: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gauss-Newton, ∂/∂z (Jᵀ r) and ∂/∂z (J r), by hand: J = I + V diag(tanh') U."""
        t = torch.tanh(self.u @ self.z)
        slope, bend = 1 - t**2, -2 * t * (1 - t**2)
        j = eye(4) + self.v @ torch.diag(slope) @ self.u
        transposed = self.u.T @ torch.diag((self.v.T @ r) * bend) @ self.u
        plain = self.v @ torch.diag((self.u @ r) * bend) @ self.u
        return j.T @ j, transposed, plain

    def test_equation_13_is_gauss_newton_minus_the_curvature_of_the_block(self) -> None:
        gauss_newton, curvature, _ = self.parts(self.r)
        assert_same(self.exact(), gauss_newton - curvature, 1e-12)
        j = eye(4) + jacobian(lambda z: residual(self.u, self.v, z), self.z)
        assert_same(j.T @ j, gauss_newton, 1e-12)

    def test_equations_13_and_14_through_the_library(self) -> None:
        """The change asked of the block is r = −∂J/∂z_b, J the loss of the network."""
        block = first_block(Residual(self.u, self.v), self.z[None])
        output = (self.z + residual(self.u, self.v, self.z)).requires_grad_()
        r = -torch.autograd.grad(block.problem.model[2](output).square().mean(), output)[0]
        gauss_newton, curvature, _ = self.parts(r)
        assert float(curvature.norm()) > 0.1
        assert_same(block.z.exact.dense(), gauss_newton - curvature, 1e-12)
        assert_same(block.z.gauss_newton.dense(), gauss_newton, 1e-13)
        jac = jacobian(self.block, self.weights)
        expected = jac.T @ jac - hessian(lambda w: r @ self.block(w), self.weights)
        assert_same(block.weight.exact.dense(), expected, 1e-12)

    def test_equation_13_with_the_other_sign_fails(self) -> None:
        gauss_newton, curvature, _ = self.parts(self.r)
        assert differ(gauss_newton + curvature, self.exact())

    def test_equation_13_as_printed_without_a_transpose_fails(self) -> None:
        gauss_newton, _, printed = self.parts(self.r)
        assert differ(gauss_newton - printed, self.exact())

    def test_equation_14_is_gauss_newton_minus_the_curvature_of_the_weights(self) -> None:
        target = self.block(self.weights) + self.r
        computed = hessian(lambda w: matching_loss(target, self.block(w)), self.weights)
        jac = jacobian(self.block, self.weights)
        assert_same(computed, jac.T @ jac - hessian(lambda w: self.r @ self.block(w), self.weights), 1e-12)

    def test_equation_14_is_the_same_without_the_skip(self) -> None:
        blocks = []
        for skip in (0, self.z):
            target = self.block(self.weights) - skip + self.r
            loss = lambda w, skip=skip, target=target: matching_loss(target, self.block(w) - skip)  # noqa: E731
            blocks.append(hessian(loss, self.weights))
        assert_same(blocks[0], blocks[1], 1e-12)

    def block(self, weights: Tensor) -> Tensor:
        return self.z + residual(weights[:24].view(6, 4), weights[24:].view(4, 6), self.z)


def condition(matrix: Tensor) -> float:
    """C(M) = σ_max/σ_min; the matrices here have full rank."""
    values = torch.linalg.svdvals(matrix)
    return float(values[0] / values[-1])


def random_jacobians(count: int) -> list[Tensor]:
    """σ_max = 1, between 2 and 6 rows, singular vectors at random, C(J) from 1 to about 50."""
    generator = torch.Generator().manual_seed(0)
    out = []
    for k in range(count):
        size = 2 + k % 5
        left, right = (orthogonal(size, size, seed=2 * k + side) for side in (0, 1))
        least = 0.02 + 0.98 * float(torch.rand(1, generator=generator))
        out.append(left @ torch.diag(torch.linspace(1, least, size, dtype=torch.float64)) @ right)
    return out


class TestRemark1:
    def test_holds_with_sigma_max_at_most_s(self) -> None:
        """σ_max(J) ≤ s < 1 and C(J) > (1+s)/(1−s): the singular values of I+J lie in [1−s, 1+s] (Weyl)."""
        seen = 0
        for j, s in itertools.product(random_jacobians(300), (0.05, 0.2, 0.4, 0.6, 0.8, 0.9)):
            bound = (1 + s) / (1 - s)
            assert condition(eye(len(j)) + s * j) <= bound * (1 + 1e-12)
            if condition(j) > bound:
                seen += 1
                assert condition(eye(len(j)) + s * j) < condition(j)
        assert seen > 500

    @pytest.mark.parametrize("s", [0.01, 0.1, 0.3, 0.45, 0.49])
    def test_as_printed_it_fails_for_s_below_a_half(self, s: float) -> None:
        """J = σ diag(1, −1, 1/k), σ → 1−s and k → (1+s)/(1−s): C(I+J) → (2−s)/s, above (1+s)/(1−s) if s < ½."""
        sigma, k = (1 - s) * (1 - 1e-3 * (0.5 - s)), (1 + s) / (1 - s) * (1 + 1e-3 * (0.5 - s))
        j = sigma * torch.diag(doubles(1, -1, 1 / k))
        assert sigma < 1 - s
        assert condition(j) > (1 + s) / (1 - s)
        assert condition(eye(3) + j) > condition(j)

    def test_as_printed_fails_for_two_numbers_that_a_reader_can_check(self) -> None:
        """J = diag(½, −⅖), s = 0.1: σ_max = 0.5 < 0.9, C(J) = 1.25 > 1.22, but C(I+J) = 1.5/0.6 = 2.5."""
        j = torch.diag(doubles(0.5, -0.4))
        assert condition(j) == pytest.approx(1.25)
        assert condition(eye(2) + j) == pytest.approx(2.5)

    def test_as_printed_fails_on_many_random_jacobians(self) -> None:
        s = 0.1
        met = [j for j in random_jacobians(300) if condition(j) > (1 + s) / (1 - s)]
        failed = [j for j in met if condition(eye(len(j)) + 0.99 * (1 - s) * j) >= condition(j)]
        assert len(failed) > len(met) / 10

    def test_as_printed_holds_for_s_of_a_half_and_more(self) -> None:
        for j, s in itertools.product(random_jacobians(300), (0.5, 0.6, 0.8)):
            if condition(j) > (1 + s) / (1 - s):
                assert condition(eye(len(j)) + (1 - s) * (1 - 1e-9) * j) < condition(j)


class TestOrthogonalSkip:
    q, j = orthogonal(5, 5, seed=7), 0.5 * normal(5, 5, seed=8) / torch.linalg.svdvals(normal(5, 5, seed=8))[0]

    def test_an_orthogonal_skip_conditions_as_the_identity(self) -> None:
        values = torch.linalg.svdvals(self.q + self.j)
        assert_same(values, torch.linalg.svdvals(eye(5) + self.q.T @ self.j), 1e-13)
        assert_same(torch.linalg.svdvals(self.q.T @ self.j), torch.linalg.svdvals(self.j), 1e-13)
        assert condition(self.q + self.j) <= 1.5 / 0.5

    def test_an_orthogonal_skip_does_change_the_condition_number(self) -> None:
        """Printed: it does not. The bound of Remark 1 stays; the number itself is that of another J."""
        assert abs(condition(self.q + self.j) / condition(eye(5) + self.j) - 1) > 0.05

    def test_a_skip_that_is_not_orthogonal_can_condition_better(self) -> None:
        """Printed: it conditions worse. It does alone, where C(S) ≥ 1 = C(I); with a J it depends on J."""
        skip, j = torch.diag(doubles(2, 1)), torch.diag(doubles(-0.9, 0.1))
        assert condition(skip) > condition(eye(2)) == 1
        assert condition(skip + j) == pytest.approx(1)
        assert condition(eye(2) + j) == pytest.approx(11)


# Section 3.3: batch normalization


def normalized(h: Tensor) -> Tensor:
    """BN without affine part and without ε; h: (m, n_b)."""
    return (h - h.mean(0)) / h.var(0, correction=0).sqrt()


class TestBatchNorm:
    m, n = 6, 4
    w, z, target = normal(3, 4, seed=1), 2 * normal(6, 4) + 1, normal(6, 3, seed=2)
    h = z @ w.T
    mean, var, z_hat = h.mean(0), h.var(0, correction=0), normalized(h)

    def block(self) -> LocalHessian:
        return first_block(nn.Sequential(linear(self.w), nn.BatchNorm1d(3, eps=1e-30, affine=False)), self.z)

    def jacobian_of_z(self, w: Tensor) -> Tensor:
        """(m·n_b, m, n)."""
        return jacobian(lambda z: normalized(z @ w.T), self.z).reshape(-1, self.m, self.n)

    def test_equation_16_centers_and_scales(self) -> None:
        assert torch.allclose(self.z_hat.mean(0), doubles(0, 0, 0), atol=1e-14)
        assert torch.allclose(self.z_hat.square().mean(0), doubles(1, 1, 1), atol=1e-13)
        assert_same(self.z_hat, nn.BatchNorm1d(3, eps=1e-30, affine=False).double()(self.h), 1e-13)

    def test_equations_31_to_34_are_the_gradients_of_the_back_matching_loss(self) -> None:
        """∂ℓ/∂Var and ∂ℓ/∂E are sums over the batch."""
        z, w = self.z.clone().requires_grad_(), self.w.clone().requires_grad_()
        expected = torch.autograd.grad(matching_loss(self.target, normalized(z @ w.T)), [z, w])
        var, centered = self.var, self.h - self.mean
        by_output = self.z_hat - self.target
        by_var = (by_output * centered).sum(0) * -0.5 * var**-1.5
        by_mean = -by_output.sum(0) / var.sqrt()
        by_h = by_output / var.sqrt() + by_var * 2 * centered / self.m + by_mean / self.m
        assert_same(by_h @ self.w, expected[0], 1e-12)
        assert_same(by_h.T @ self.z, expected[1], 1e-12)

    def test_equations_17_and_18_are_exact_with_constant_statistics(self) -> None:
        mean, var, target = self.mean, self.var, self.target
        h_z = hessian(lambda z: matching_loss(target[0], (self.w @ z - mean) / var.sqrt()), self.z[0])
        assert_same(h_z, sum(torch.outer(w, w) / v for w, v in zip(self.w, var, strict=True)), 1e-13)
        form = self.block().closed_form("detached")
        assert_same(form.z.blocks[0], h_z, 1e-13)
        h_w = hessian(lambda w: matching_loss(target, (self.z @ w.T - mean) / var.sqrt()), self.w).reshape(12, 12)
        expected = torch.block_diag(*(sum(torch.outer(z, z) for z in self.z) / v for v in var))
        assert_same(h_w, expected, 1e-13)
        assert_same(form.weight.dense(), expected, 1e-13)

    def test_equation_17_of_one_example_lacks_terms_in_1_over_m(self) -> None:
        """Gauss-Newton through the statistics: Σ_i w_i w_iᵀ/Var_i · (1 − (1 + ẑ_i²)/m), for each example."""
        jac = self.jacobian_of_z(self.w)
        for j in range(self.m):
            factors = (1 - (1 + self.z_hat[j] ** 2) / self.m) / self.var
            assert_same(jac[:, j].T @ jac[:, j], self.w.T @ torch.diag(factors) @ self.w, 1e-12)
        whole = jac.flatten(1).T @ jac.flatten(1)
        assert_same(self.block().closed_form().z.dense(), whole, 1e-12)
        assert_same(self.block().z.gauss_newton.dense(), whole, 1e-12)

    def test_equation_18_through_the_statistics_loses_two_directions(self) -> None:
        """Z^T (I − 11ᵀ/m − ẑẑᵀ/m) Z / Var, of which w is a null vector: the output does not depend on ‖w‖."""
        ones = torch.ones(self.m, dtype=torch.float64)
        blocks = self.block().closed_form().weight.blocks
        for i, (w, z_hat) in enumerate(zip(self.w, self.z_hat.T, strict=True)):
            jac = jacobian(lambda row: normalized(self.z @ row[:, None])[:, 0], w)
            projection = eye(self.m) - (torch.outer(ones, ones) + torch.outer(z_hat, z_hat)) / self.m
            assert_same(jac.T @ jac, self.z.T @ projection @ self.z / self.var[i], 1e-12)
            assert_same(blocks[i], jac.T @ jac, 1e-12)
            assert float((jac @ w).norm()) < 1e-12 * float(jac.norm() * w.norm())

    @pytest.mark.parametrize("m", [20, 200, 2000])
    def test_equation_18_as_printed_is_off_by_a_factor_for_every_batch_size(self, m: int) -> None:
        """White inputs: (m/‖w‖²)(I − wwᵀ/‖w‖²), printed (m/‖w‖²) I: the terms in 1/m that are left out add up."""
        z, w = white(m, 4), self.w[0]
        jac = jacobian(lambda row: normalized(z @ row[:, None])[:, 0], w)
        printed = z.T @ z / (z @ w).var(correction=0)
        unit = w / w.norm()
        assert_same(jac.T @ jac, m / w.square().sum() * (eye(4) - torch.outer(unit, unit)), 1e-11)
        difference = torch.linalg.matrix_norm(printed - jac.T @ jac, 2) / torch.linalg.matrix_norm(printed, 2)
        assert float(difference) == pytest.approx(1, rel=1e-10)

    @pytest.mark.parametrize("c", [0.25, 1.0, 4.0])
    def test_equation_19_is_the_law_of_rows_of_length_one(self, c: float) -> None:
        w = 5 * normal(int(240 * c), 240)
        values = torch.linalg.eigvalsh(gram(w / w.norm(dim=1, keepdim=True)))
        law = MarchenkoPastur.of_unit_rows(c)
        assert law.distance(values) < law.critical_value(240) / 4
        assert law.support == pytest.approx(((1 - c**0.5) ** 2, (1 + c**0.5) ** 2), abs=1e-14)

    def test_remark_2_the_scale_of_the_weights_leaves_the_hessian_of_z_alone(self) -> None:
        for factor in (3.0, doubles(3, 0.1, 20)[:, None]):  # of each row, too
            assert_same(self.jacobian_of_z(factor * self.w), self.jacobian_of_z(self.w), 1e-12)
            plain, scaled = gram(self.w), gram(factor * self.w)
            assert differ(scaled, plain)  # eq. 8
        assert_same(gram(3 * self.w), 9 * gram(self.w), 1e-14)  # linear in the variance

    def test_remark_3_the_diagonal_is_1_over_the_squared_norm(self) -> None:
        z, w = white(50, 4), self.w[0]
        mean_form = z.T @ z / 50 / (z @ w).var(correction=0)
        assert_same(mean_form.diagonal(), doubles(1, 1, 1, 1) / w.square().sum(), 1e-12)

    def test_remark_3_as_printed_with_a_sum_is_off_by_the_batch_size(self) -> None:
        z, w = white(50, 4), self.w[0]
        printed = z.T @ z / (z @ w).var(correction=0)
        assert_same(printed.diagonal(), 50 * doubles(1, 1, 1, 1) / w.square().sum(), 1e-12)

    def test_remark_3_fails_for_standardized_inputs_that_are_correlated(self) -> None:
        """Two outputs of BN with correlation ρ: over the directions of w the diagonal is 1/√(1−ρ²) times as much."""
        rho, independent = 0.8, white(50, 2)
        z = independent @ torch.stack([doubles(1, rho), doubles(0, math.sqrt(1 - rho**2))])
        assert_same(z.square().mean(0), doubles(1, 1), 1e-12)
        angles = 2 * math.pi * torch.arange(200, dtype=torch.float64) / 200
        directions = torch.stack([angles.cos(), angles.sin()])
        mean = (1 / (z @ directions).var(0, correction=0)).mean()
        assert float(mean) == pytest.approx(1 / math.sqrt(1 - rho**2), rel=1e-12)


# Section 4.1 and supplement C.1: the scalars of scale-amended SGD


def mean_square_of_rows(w: Tensor) -> float:
    """‖W‖²_{2,μ}."""
    return float(w.square().sum(1).mean())


class TestScalars:
    w = normal(6, 4)

    def test_equation_24_m_z_is_the_mean_eigenvalue_of_eq_17(self) -> None:
        m_z = mean_square_of_rows(self.w.T) / mean_square_of_rows(self.w)
        unit = self.w / self.w.norm(dim=1, keepdim=True)
        assert m_z == pytest.approx(6 / 4, rel=1e-14)
        assert float(torch.linalg.eigvalsh(gram(unit)).mean()) == pytest.approx(m_z, rel=1e-13)
        assert MarchenkoPastur.of_unit_rows(6 / 4).mean == pytest.approx(m_z, rel=1e-14)
        factors = wc.ScaleAmendedSGD(nn.Linear(4, 6, bias=False), lr=0.1, inputs=torch.zeros(1, 4)).factors
        assert factors[""].m_z == pytest.approx(m_z)

    def test_equation_24_m_z_is_the_expectation_of_eq_17(self) -> None:
        """E wwᵀ/‖w‖² = I/n: here the mean over every change of sign and every shift of w."""
        w = self.w[0] / self.w[0].norm()
        turned = [doubles(*signs) * w.roll(k) for k in range(4) for signs in itertools.product((-1, 1), repeat=4)]
        mean = sum(torch.outer(v, v) for v in turned) / len(turned)
        assert_same(mean, eye(4) / 4, 1e-14)

    def test_equation_24_m_w_is_the_mean_of_eq_18_for_white_inputs(self) -> None:
        """And for rows of different lengths it is less: 1/mean ≤ mean of 1/."""
        z = white(50, 4)
        alike = 3 * self.w / self.w.norm(dim=1, keepdim=True)
        for w, is_alike in ((alike, True), (self.w, False)):
            diagonal = torch.cat([(z.T @ z / 50).diagonal() / (z @ row).var(correction=0) for row in w])
            m_w = 1 / mean_square_of_rows(w)
            assert (float(diagonal.mean()) == pytest.approx(m_w, rel=1e-12)) is is_alike
            assert float(diagonal.mean()) >= m_w * (1 - 1e-12)


# Supplement C: convolutions


class TestConvolution:
    """n outputs, m inputs, kernel 2×3, no padding; w[k, j] is w_jk of the source."""

    n, m, kernel, size, out = 2, 3, (2, 3), (5, 6), (4, 4)
    w, a = normal(2, 3, 2, 3), normal(4, 3, 5, 6, seed=1)
    by_output = normal(4, 2, 4, 4, seed=2)
    """δb of four examples."""

    def taps(self) -> itertools.product[tuple[int, ...]]:
        return itertools.product(range(self.kernel[0]), range(self.kernel[1]))

    def forward(self, inputs: int) -> Tensor:
        """Eq. 35 with j up to `inputs`."""
        out = torch.zeros(4, self.n, *self.out, dtype=torch.float64)
        for k, j, (v1, v2) in itertools.product(range(self.n), range(inputs), self.taps()):
            out[:, k] += self.a[:, j, v1 : v1 + self.out[0], v2 : v2 + self.out[1]] * self.w[k, j, v1, v2]
        return out

    def test_equation_35_with_j_over_the_inputs_is_the_convolution(self) -> None:
        assert_same(self.forward(self.m), F.conv2d(self.a, self.w), 1e-13)

    def test_equation_35_as_printed_with_j_over_the_outputs_fails(self) -> None:
        assert differ(self.forward(self.n), F.conv2d(self.a, self.w))

    def backward(self, sign: int, outputs: int) -> Tensor:
        """Eq. 36 with δb at u + sign·v and k up to `outputs`; δb is 0 outside."""
        sums = torch.zeros_like(self.a)
        for j, k, (v1, v2) in itertools.product(range(self.m), range(outputs), self.taps()):
            for u1, u2 in itertools.product(range(self.size[0]), range(self.size[1])):
                p1, p2 = u1 + sign * v1, u2 + sign * v2
                if 0 <= p1 < self.out[0] and 0 <= p2 < self.out[1]:
                    sums[:, j, u1, u2] += self.by_output[:, k, p1, p2] * self.w[k, j, v1, v2]
        return sums

    def gradients(self) -> tuple[Tensor, Tensor]:
        a, w = self.a.clone().requires_grad_(), self.w.clone().requires_grad_()
        by_a, by_w = torch.autograd.grad((F.conv2d(a, w) * self.by_output).sum(), [a, w])
        return by_a, by_w

    def test_equation_36_with_u_minus_v_is_the_gradient_of_the_input(self) -> None:
        assert_same(self.backward(-1, self.n), self.gradients()[0], 1e-13)

    def test_equation_36_as_printed_with_u_plus_v_fails(self) -> None:
        assert differ(self.backward(+1, self.n), self.gradients()[0], by=0.5)

    def test_equation_36_as_printed_has_too_many_outputs(self) -> None:
        """k up to m = 3, but there are n = 2 of them."""
        with pytest.raises(IndexError):
            self.backward(-1, self.m)

    def test_equation_37_is_the_gradient_of_the_kernel_summed_over_the_batch(self) -> None:
        sums = torch.zeros_like(self.w)
        for k, j, (v1, v2) in itertools.product(range(self.n), range(self.m), self.taps()):
            patch = self.a[:, j, v1 : v1 + self.out[0], v2 : v2 + self.out[1]]
            sums[k, j, v1, v2] = (self.by_output[:, k] * patch).sum()
        assert_same(sums, self.gradients()[1], 1e-13)

    def patches(self) -> Tensor:
        """a_i2c of every example: (4, m·w·h, q₁·q₂)."""
        return F.unfold(self.a, self.kernel)

    def test_equation_38_is_the_convolution_as_one_product(self) -> None:
        products = self.w.reshape(self.n, -1) @ self.patches()
        assert_same(products, F.conv2d(self.a, self.w).flatten(2), 1e-13)

    def w_a(self) -> Tensor:
        """W_a, (n·q₁·q₂, m·p₁·p₂), put together from the weights."""
        jacobian = torch.zeros(self.n, *self.out, self.m, *self.size, dtype=torch.float64)
        for k, j, (v1, v2) in itertools.product(range(self.n), range(self.m), self.taps()):
            for u1, u2 in itertools.product(range(self.out[0]), range(self.out[1])):
                jacobian[k, u1, u2, j, u1 + v1, u2 + v2] = self.w[k, j, v1, v2]
        return jacobian.reshape(self.n * math.prod(self.out), -1)

    def conv(self) -> nn.Conv2d:
        conv = nn.Conv2d(self.m, self.n, self.kernel, bias=False).double()
        conv.weight.data = self.w
        return conv

    def test_equations_39_and_40_are_the_gradients_as_products(self) -> None:
        """Eq. 40 is a mean over the examples; that of eq. 37 is their sum."""
        by_a, by_w = self.gradients()
        assert_same(self.by_output.flatten(1) @ self.w_a(), by_a.flatten(1), 1e-13)
        mean = (self.by_output.flatten(2) @ self.patches().mT).mean(0)
        assert_same(mean, by_w.reshape(self.n, -1) / 4, 1e-13)
        matrix = convolution_matrix(self.conv(), self.w, self.a.shape[1:])
        assert_same(matrix.flatten(0, 1), self.w_a(), 1e-15)

    def test_equation_41_is_the_hessian_of_each_kernel_for_the_mean_loss(self) -> None:
        computed = hessian(lambda w: matching_loss(self.by_output, F.conv2d(self.a, w)) / 4, self.w).reshape(36, 36)
        mean = (self.patches() @ self.patches().mT).mean(0)
        assert_same(computed, torch.kron(eye(self.n), mean), 1e-13)

    def test_equation_41_as_printed_is_not_that_of_the_sum_in_eq_9(self) -> None:
        computed = hessian(lambda w: matching_loss(self.by_output, F.conv2d(self.a, w)), self.w).reshape(36, 36)
        mean = (self.patches() @ self.patches().mT).mean(0)
        assert_same(computed, 4 * torch.kron(eye(self.n), mean), 1e-13)
        assert_same(first_block(self.conv(), self.a).closed_form().weight.blocks[0], 4 * mean, 1e-13)

    def test_equations_42_and_43_are_the_hessian_of_the_input(self) -> None:
        loss = lambda a: matching_loss(self.by_output[:1], F.conv2d(a, self.w))  # noqa: E731
        computed = hessian(loss, self.a[:1]).reshape(90, 90)
        w_a = self.w_a()
        assert_same(computed, w_a.T @ w_a, 1e-13)
        assert_same(first_block(self.conv(), self.a).closed_form().z.blocks[0], computed, 1e-13)
        place, other = (2, 1, 3), (0, 2, 4)
        column, row = (torch.tensor(index).mul(torch.tensor([30, 6, 1])).sum() for index in (place, other))
        assert float(computed[column, row]) == pytest.approx(float(w_a[:, column] @ w_a[:, row]), rel=1e-12)

    def test_a_stride_of_2_leaves_wh_over_4_weights_for_each_input_and_output(self) -> None:
        """n·wh/c elements of each column of W_a are not zero, on average and without borders, c = 4."""
        w_a = self.of_ring(normal(2, 3, 3, 3))
        assert float((w_a != 0).double().sum(0).mean()) == 2 * 9 / 4

    @staticmethod
    def of_ring(w: Tensor) -> Tensor:
        """W_a of a 3×3 convolution with stride 2 on a ring of 8×8 places."""
        ring = lambda a: F.conv2d(F.pad(a[None], (1, 1, 1, 1), mode="circular"), w, stride=2)  # noqa: E731
        return jacobian(ring, torch.zeros(w.shape[1], 8, 8, dtype=w.dtype)).reshape(w.shape[0] * 16, -1)

    def test_scalar_m_z_of_a_convolution_is_the_mean_eigenvalue_of_its_hessian(self) -> None:
        w = normal(6, 3, 3, 3)
        m_z = mean_square_of_rows(w.transpose(0, 1).flatten(1)) / mean_square_of_rows(w.flatten(1)) / 4
        assert m_z == pytest.approx(6 / (3 * 4), rel=1e-14)
        values = torch.linalg.eigvalsh(gram(self.of_ring(w))) / mean_square_of_rows(w.flatten(1))
        assert float(values.mean()) == pytest.approx(m_z, rel=1e-12)

    def test_m_w_of_a_convolution_is_the_mean_hessian_for_white_inputs(self) -> None:
        """Σ over the q₁q₂ places of E a² is q₁q₂, and Var[b] = ‖w‖²."""
        a, w = white(60, 2 * 4 * 5).reshape(60, 2, 4, 5), normal(1, 2, 2, 2)
        patches = F.unfold(a, 2)
        variance = F.conv2d(a, w).var((0, 2, 3), correction=0)
        diagonal = (patches @ patches.mT).mean(0).diagonal() / variance
        expected = 3 * 4 / mean_square_of_rows(w.flatten(1))
        assert_same(diagonal, doubles(*[expected] * 8), 1e-12)
