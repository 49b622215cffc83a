"""Batches, outputs and losses as scripts have them: each is the problem that its plain form is."""

from __future__ import annotations

import collections
import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measuring import BATCH
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from zoo import Written, mlp, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem

X, Y = BATCH
WEIGHTS = normal(6, seed=3).exp()


def weighted(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    return (weights * F.cross_entropy(outputs, targets, reduction="none")).sum() / weights.sum()


def product(problem: wc.Problem) -> Tensor:
    return wc.Hessian(problem) @ normal(problem.size, seed=9)


def reference(model: nn.Module, loss: Any, batch: Any) -> Tensor:
    hessian = dense_hessian(model, loss, batch)
    return hessian @ normal(len(hessian), seed=9)


@dataclass
class Named:
    images: Tensor
    labels: Tensor


class Graph:
    """As libraries of graphs have it: the model takes the object itself."""

    def __init__(self) -> None:
        self.x, self.y = X, Y


PAIR = collections.namedtuple("PAIR", ["image", "label"])
TRIPLE = collections.namedtuple("TRIPLE", ["index", "images", "label"])


class Taking(nn.Module):
    """A linear layer by parameters that have names."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, images: Tensor, scale: float = 1.0) -> Tensor:
        return self.fc(images) * scale  # type: ignore[no-any-return]


class OfGraph(Taking):
    def forward(self, data: Any) -> Tensor:
        return super().forward(data.x)


class OfTwo(Taking):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return super().forward(first * second)


FORMS: dict[str, tuple[type[nn.Module], Any]] = {
    "list": (Taking, [X, Y]),
    "from_a_loader": (Taking, next(iter(DataLoader(TensorDataset(X, Y), batch_size=6)))),
    "named_tuple": (Taking, PAIR(X, Y)),
    "named_tuple_of_three": (Taking, [TRIPLE(torch.arange(6), X, Y)]),
    "dict": (Taking, {"images": X, "labels": Y}),
    "dict_of_one_input": (Taking, {"x": X, "y": Y}),
    "dict_with_more": (Taking, {"images": X, "label": Y, "path": ["a"] * 6}),
    "dicts": (Taking, [{"images": X[:3], "target": Y[:3]}, {"images": X[3:], "target": Y[3:]}]),
    "dataclass": (Taking, Named(X, Y)),
    "dataclasses": (Taking, [Named(X[:3], Y[:3]), Named(X[3:], Y[3:])]),
    "object": (OfGraph, [Graph()]),
    "two_inputs": (OfTwo, [(X.abs().sqrt(), X.sign() * X.abs().sqrt(), Y)]),
    "nested": (OfTwo, ((X.abs().sqrt(), X.sign() * X.abs().sqrt()), Y)),
}


@pytest.mark.parametrize(("model", "batches"), FORMS.values(), ids=FORMS)
def test_every_form_of_a_batch_is_the_same_problem(model: type[nn.Module], batches: Any) -> None:
    own = seeded(model)
    plain = seeded(Taking)
    expected = reference(plain, nn.CrossEntropyLoss(), BATCH)
    problem = wc.Problem(own, nn.CrossEntropyLoss(), batches)
    assert_same(product(problem), expected)
    pairs = [pair for _, pair in problem.data()]
    assert_same(product(wc.Problem(own, nn.CrossEntropyLoss(), pairs)), expected)  # pairs stay pairs
    assert wc.conditioning(problem)["fc"].x.kappa[0.5] > 0


@pytest.mark.parametrize(
    "loss", [weighted, lambda *parts: weighted(*parts), lambda outputs, targets: weighted(outputs, *targets)]
)
def test_weights_reach_the_loss(loss: Any) -> None:
    expected = reference(mlp(), lambda f, y: weighted(f, y, WEIGHTS), BATCH)
    assert_same(product(wc.Problem(mlp(), loss, (X, Y, WEIGHTS))), expected)
    parts = [(X[i], Y[i], WEIGHTS[i]) for i in (slice(2), slice(2, 6))]
    assert_same(product(wc.Problem(mlp(), loss, parts)), expected)  # a batch weighs what its weights are in all


def test_targets_that_are_a_dict_or_none() -> None:
    expected = reference(mlp(), nn.CrossEntropyLoss(), BATCH)
    of_dict = lambda f, t: F.cross_entropy(f, t["class"])  # noqa: E731
    assert_same(product(wc.Problem(mlp(), of_dict, [(X, {"class": Y, "box": normal(6, 4)})])), expected)
    energy = lambda f, _: f.square().mean()  # noqa: E731
    assert_same(product(wc.Problem(mlp(), energy, (X, None))), reference(mlp(), energy, BATCH))


@pytest.mark.parametrize("batches", [X, [(X,)], [[X]], DataLoader(TensorDataset(X), batch_size=6)])
def test_one_tensor_is_its_own_target(batches: Any) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 4)))
    assert_same(product(wc.Problem(model, nn.MSELoss(), batches)), reference(model, nn.MSELoss(), (X, X)))


# the loss inside the model


@dataclass
class Output:
    loss: Tensor
    logits: Tensor


RETURNS: dict[str, Any] = {
    "object": lambda loss, f: Output(loss, f),
    "dict": lambda loss, f: {"loss": loss, "logits": f, "accuracy": loss.detach()},
    "loss_first": lambda loss, f: (loss, f),
    "loss_second": lambda loss, f: (f, loss),  # as nanoGPT has it
    "number": lambda loss, f: loss,
    "terms": lambda loss, f: {"loss_box": loss / 4, "loss_class": 3 * loss / 4},
}
HOLDS: dict[str, Any] = {
    "dict": [{"x": X[:2], "labels": Y[:2]}, {"x": X[2:], "labels": Y[2:]}],
    "tuples": [(X[:2], Y[:2]), (X[2:], Y[2:])],
    "loader": DataLoader(TensorDataset(X, Y), batch_size=4),
    "shuffled": DataLoader(TensorDataset(X, Y), batch_size=6, shuffle=True),
    "pair_of_a_dict": [({"x": X, "labels": Y}, Y)],
}


@pytest.mark.parametrize("returned", RETURNS.values(), ids=RETURNS)
@pytest.mark.parametrize("batches", HOLDS.values(), ids=HOLDS)
def test_a_loss_that_the_model_computes(returned: Any, batches: Any) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor, labels: Tensor) -> Any:
            f = self.net(x)
            return returned(F.cross_entropy(f, labels), f)

    model = Own()
    problem = wc.Problem(model, None, batches)
    assert_same(product(problem), reference(model.net, nn.CrossEntropyLoss(), BATCH))
    assert_same(product(wc.Problem(model, problem.loss, [pair for _, pair in problem.data()])), product(problem))


def test_a_model_that_takes_the_inputs_alone_and_returns_its_loss() -> None:
    class Energy(Taking):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square().mean()

    model = seeded(Energy)
    expected = reference(model, lambda f, _: f, (X, Y))
    for batches in ((X, Y), X, (X, None)):
        assert_same(product(wc.Problem(model, None, batches)), expected)


def test_a_tuple_of_outputs_goes_to_the_loss() -> None:
    model = seeded(lambda: Written(lambda m, x: (m.a(x), m.b(x)), a=nn.Linear(4, 3), b=nn.Linear(4, 3)))
    loss = lambda out, y: F.cross_entropy(out[0], y) + 0.3 * F.cross_entropy(out[1], y)  # noqa: E731
    assert_same(product(wc.Problem(model, loss, BATCH)), reference(model, loss, BATCH))


TERMS: dict[str, tuple[Any, int]] = {
    "dict": (lambda a, b: {"a": a, "b": b}, 2),
    "tuple": (lambda a, b: (a, b), 2),
    "sum_first": (lambda a, b: (a + b, a, b), 0),
    "sum_by_name": (lambda a, b: {"a": a.item(), "b": b.detach(), "loss": a + b}, 0),
    "with_accuracy": (lambda a, b: (a + b, torch.tensor(0.7)), 0),
}


@pytest.mark.parametrize(("returned", "count"), TERMS.values(), ids=TERMS)
def test_terms_of_a_loss_are_summed_and_that_is_said(returned: Any, count: int) -> None:
    def terms(f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return F.cross_entropy(f, y), 0.1 * f.square().mean()

    problem = wc.Problem(mlp(), lambda f, y: returned(*terms(f, y)), BATCH)
    assert_same(product(problem), reference(mlp(), lambda f, y: sum(terms(f, y)), BATCH))
    assert problem.notes == ([f"the loss returns {count} terms, and their sum is measured"] if count else [])
    unseen = wc.Problem(mlp(), lambda f, y: returned(*terms(f, y)), BATCH)
    for each in (problem, unseen):  # without a graph it has to be known which terms are for printing
        with each.measuring():
            assert_same(each.mean_loss(), sum(terms(mlp()(X), Y)))


# a VAE and a GAN


class Vae(nn.Module):
    def __init__(self, noise: Tensor | None = None) -> None:
        super().__init__()
        self.encoder, self.decoder, self.noise = nn.Linear(4, 4), nn.Linear(2, 4), noise

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        noise = torch.randn_like(mean) if self.noise is None else self.noise
        return self.decoder(mean + (log_variance / 2).exp() * noise), mean, log_variance


def elbo(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> dict[str, Tensor]:
    decoded, mean, log_variance = outputs
    kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
    return {"reconstruction": F.mse_loss(decoded, x), "kl": kl}


def test_a_vae_has_fixed_draws() -> None:
    problem = wc.Problem(seeded(Vae), elbo, DataLoader(TensorDataset(X), batch_size=2, shuffle=True))
    first, second = (wc.Hessian(problem).dense() for _ in range(2))
    assert torch.equal(first, second)
    assert len(problem.notes) == 3
    assert wc.landscape(problem, steps=2).beta > 0
    parts = []
    for index, (x,) in enumerate(problem.batches):
        with torch.random.fork_rng():
            torch.manual_seed(index)
            noise = torch.randn(2, 2, dtype=torch.float64)
        model = seeded(lambda noise=noise: Vae(noise))
        parts.append(dense_hessian(model, lambda out, y: sum(elbo(out, y).values()), (x, x)))
    assert_same(first, sum(parts) / 3)


def test_a_gan_is_two_problems() -> None:
    generator = seeded(lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4)))
    discriminator = seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1)))
    z, ones = normal(6, 2, seed=8), torch.ones(6, 1, dtype=torch.float64)
    bce = nn.BCEWithLogitsLoss()

    fake = generator(z).detach()
    problem = wc.Problem(discriminator, bce, [(X, ones), (fake, 0 * ones)])
    assert_same(product(problem), sum(reference(discriminator, bce, batch) for batch in problem.batches) / 2)

    frozen = copy.deepcopy(discriminator).requires_grad_(False)
    of_generator = wc.Problem(nn.Sequential(generator, frozen), bce, (z, ones))
    assert list(of_generator.params) == [f"0.{name}" for name, _ in generator.named_parameters()]
    assert_same(product(of_generator), reference(of_generator.model, bce, (z, ones)))


# what can be looked at though it cannot be measured


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_can_be_looked_at_but_not_measured(dtype: torch.dtype) -> None:
    problem = wc.Problem(mlp().to(dtype), nn.CrossEntropyLoss(), (X.to(dtype), Y))
    with problem.measuring():
        loss, gradients = problem.loss_and_gradients()
    assert float(loss) == pytest.approx(float(F.cross_entropy(mlp()(X), Y)), rel=0.05)
    assert all(g is not None and bool(g.any()) for g in gradients.values())
    for measure in (wc.Hessian, wc.max_lr, wc.conditioning, wc.landscape, wc.neurons):
        with pytest.raises(InvalidProblem, match=r"'0\.weight' is b?float16.*copy\.deepcopy\(model\)\.float\(\)"):
            measure(problem)


RAW: dict[str, tuple[Any, float]] = {
    "nan": (lambda f, y: (f - 1e9).log().mean(), float("nan")),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), float(F.cross_entropy(mlp()(X), Y, reduction="sum"))),
    "float": (lambda f, y: 3.0, 3.0),
    "detached": (lambda f, y: f.detach().mean() * 0 + 2, 2.0),
    "terms": (lambda f, y: (0 * f.sum() + 2, 0 * f.sum() + 3), 5.0),
}


def raw_loss(loss: Any) -> Any:
    problem = wc.Problem(mlp(), loss, BATCH)
    with problem.measuring():
        index, batch = next(problem.data())
        return problem.raw_loss(problem.forward(index, batch[0]), batch[1])


@pytest.mark.parametrize(("loss", "value"), RAW.values(), ids=RAW)
def test_the_raw_loss_is_what_it_is(loss: Any, value: float) -> None:
    assert float(raw_loss(loss)) == pytest.approx(value, nan_ok=True)


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_fails_says_so_with_what_it_was_given() -> None:
    with pytest.raises(InvalidProblem, match=r"The size of tensor a.*float64 of shape \(6, 3\); int64 of shape \(6,\)"):
        raw_loss(lambda f, y: F.mse_loss(f, y.double()))
