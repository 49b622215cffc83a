"""The Fisher information matrix, and the second moment of the gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor

from wellcond.curvature.ggn import OutputCurvature, OutputProduct, loss_hessian, output_gradient
from wellcond.errors import InvalidProblem
from wellcond.problem.evaluation import Evaluation
from wellcond.problem.loss.likelihoods import Fields, Likelihood, one_term_each
from wellcond.problem.problem import Problem

Labels = Literal["model", "sample", "data"]


class Fisher(OutputCurvature):
    """E_x E_y [∇ℓ ∇ℓᵀ], the second moment of per-term gradients, by where the labels y come from.

    A term is one summand of the mean: an example, or a token (a pixel) where a loss that compares classes averages over
    them. Of a weighted mean Σ aℓ / Σa the terms are aℓ, in units in which the mean of a is 1.
    With `batchnorm="batch"` an example's gradient includes its effect through the statistics of its batch.

    Args:
        problem: The model, loss and data.
        labels: `"model"`: y ~ p(y | x) of the model, the expectation taken exactly; equal to the GGN for cross-entropy
            and squared error, and 1/C of it for binary cross-entropy averaged over C outputs. `"sample"`: the same by
            Monte Carlo, unbiased. `"data"`: the labels of the data, which gives the second moment M of the gradients
            and not a Fisher matrix.
        layers: Names of parameters or modules to restrict to; None takes all that are trainable.
        samples: Number of labels drawn per term, for `"sample"`.
        seed: Seed of these draws.

    Example:
        >>> import wellcond as wc
        >>> batch = torch.randn(8, 2), torch.arange(8) % 3
        >>> problem = wc.Problem(torch.nn.Linear(2, 3), torch.nn.CrossEntropyLoss(), batch)
        >>> v = torch.randn(9)
        >>> torch.allclose(wc.Fisher(problem) @ v, wc.GGN(problem) @ v, atol=1e-6)
        True
    """

    def __init__(
        self,
        problem: Problem,
        labels: Labels = "model",
        *,
        layers: str | Sequence[str] | None = None,
        samples: int = 1,
        seed: int = 0,
    ) -> None:
        if labels not in ("model", "sample", "data"):
            raise ValueError(f'labels is {labels!r}; write "model", "sample" or "data".')
        super().__init__(problem, layers=layers)
        self.labels, self.seed = labels, seed
        self.samples = samples if labels == "sample" else 1

    def divisor(self, weight: float, terms: float) -> float:
        # the terms of a weighted mean Σ aℓ / Σa are aℓ, in units in which the mean of a is 1
        return weight if self.labels == "model" else weight * weight / terms

    def _restricted(self, names: Sequence[str]) -> Self:
        return type(self)(self.problem, self.labels, layers=names, samples=self.samples, seed=self.seed)

    def _output_product(self, evaluation: Evaluation, outputs: Tensor) -> OutputProduct:
        if self.labels == "model":
            scale = likelihood_of(self.problem).fisher_over_ggn
            hessian = loss_hessian(evaluation, outputs)
            return lambda u: scale * hessian(u)
        gradients = self.output_gradients(evaluation, outputs)
        dims = evaluation.term_dims

        def product(u: Tensor) -> Tensor:
            # Σ_terms s (sᵀ u) / weight, averaged over the draws
            total = torch.zeros_like(u)
            for s in gradients:
                total += s * ((s * u).sum(dims, keepdim=True) if dims else s * u)
            return total / (evaluation.weight * len(gradients))

        return product

    def output_factor(self, evaluation: Evaluation, outputs: Tensor) -> Fields:
        if self.labels == "model":
            return likelihood_of(self.problem).fisher_factor(outputs, evaluation.targets)
        fields = Fields(self.samples, self.output_gradients(evaluation, outputs).__getitem__) / math.sqrt(self.samples)
        return one_term_each(fields, evaluation.term_dims)

    def output_gradients(self, evaluation: Evaluation, outputs: Tensor) -> list[Tensor]:
        """∂ℓ/∂outputs of every term, one tensor per draw of the labels."""
        targets = [evaluation.targets]
        if self.labels == "sample":
            likelihood = likelihood_of(self.problem)
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + evaluation.index)
            targets = [likelihood.sample(outputs, evaluation.targets, generator) for _ in range(self.samples)]
        # the loss is a mean over the terms, so autograd gives 1/weight of a term's gradient
        return [evaluation.weight * output_gradient(evaluation, outputs, y) for y in targets]


def likelihood_of(problem: Problem) -> Likelihood:
    """The problem's likelihood; raises `InvalidProblem` if its loss does not belong to one."""
    if problem.likelihood is None:
        raise InvalidProblem(
            "the loss was not recognized as cross-entropy, squared error or binary cross-entropy with logits "
            "(class weights and label smoothing count as other losses), so the model defines no distribution of "
            'labels. Use wc.GGN(problem), or wc.Fisher(problem, labels="data").'
        )
    return problem.likelihood
