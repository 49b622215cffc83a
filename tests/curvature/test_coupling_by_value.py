"""Examples that depend on each other, by whatever means: exact spectra are right, and exact expectations refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from references import assert_same, categorical, dense_fisher
from torch import Tensor, nn
from zoo import CLASSES, Written, integers, normal, seeded

import wellcond as wc
from wellcond.curvature import gram
from wellcond.errors import InvalidProblem, TooLarge

EXAMPLES = 7


def isolated_first(n: int = EXAMPLES) -> Tensor:
    """The row-normalized adjacency of a random graph whose first node has no neighbor."""
    a = normal(n, n, seed=5) > 0.4
    a = (a | a.T).double()
    a[0] = a[:, 0] = 0
    return (a.fill_diagonal_(1).T / a.sum(1)).T


def one_pair(x: Tensor, i: int, j: int, strength: float) -> Tensor:
    mixing = torch.eye(len(x), dtype=x.dtype)
    mixing[i, j] = strength
    return mixing @ x


COUPLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "standardized": lambda x: (x - x.mean(0)) / x.std(0),
    "all_but_the_first": lambda x: torch.cat([x[:1], x[1:] - x[1:].mean(0)]),
    "causal": lambda x: x - 0.5 * torch.cat([torch.zeros_like(x[:1]), x[:-1]]),
    "graph": lambda x: isolated_first(len(x)).to(x) @ x,
    "last_pair": lambda x: one_pair(x, -2, -1, 0.3),
    "far_pair": lambda x: one_pair(x, 5, 1, 0.3),
    "reversed": lambda x: x + 0.2 * x.flip(0),
    "exchanged": lambda x: x.flip(0),
    "weak": lambda x: one_pair(x, 4, 2, 1e-3),
}


def coupled(couple: Callable[[Tensor], Tensor]) -> nn.Module:
    return seeded(
        lambda: Written(
            lambda m, x: m.b(couple(torch.tanh(m.a(x)))), a=nn.Linear(4, 5), b=nn.Linear(5, CLASSES)
        )
    )  # fmt: skip


def problem_of(model: nn.Module, *batches: tuple[Any, Any]) -> wc.Problem:
    return wc.Problem(model, nn.CrossEntropyLoss(), list(batches))


def batch_of(n: int = EXAMPLES, seed: int = 0) -> tuple[Tensor, Tensor]:
    return normal(n, 4, seed=seed), integers(CLASSES, n, seed=seed)


@pytest.mark.parametrize("labels", ["model", "data"])
@pytest.mark.parametrize("couple", COUPLINGS.values(), ids=COUPLINGS)
def test_products_and_spectra_are_those_of_per_term_gradients(couple: Any, labels: Any) -> None:
    model, batch = coupled(couple), batch_of()
    expected = dense_fisher(model, categorical(), batch, labels)
    fisher = wc.Fisher(problem_of(model, batch), labels)
    assert_same(fisher.dense(), expected)
    assert_same(wc.spectrum(fisher).values, torch.linalg.eigvalsh(expected))
    if labels == "model":
        assert_same(wc.spectrum(wc.GGN(problem_of(model, batch))).values, torch.linalg.eigvalsh(expected))
        table = wc.conditioning(problem_of(model, batch), fisher_up_to=1000)
        assert_same(table["a"].fisher.values, torch.linalg.eigvalsh(expected[:20, :20]))


@pytest.mark.parametrize("couple", COUPLINGS.values(), ids=COUPLINGS)
def test_sampled_labels_have_the_spectrum_of_their_own_matrix(couple: Any) -> None:
    fisher = wc.Fisher(problem_of(coupled(couple), batch_of()), "sample", samples=2)
    assert_same(wc.spectrum(fisher).values, torch.linalg.eigvalsh(fisher.dense()))


@pytest.mark.parametrize(("i", "j"), [(0, 1), (1, 0), (63, 3), (98, 99), (17, 81)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_weak_pair_among_a_hundred_is_found(i: int, j: int, dtype: torch.dtype) -> None:
    model = coupled(lambda x: one_pair(x, i, j, 1e-3)).to(dtype)
    x, y = batch_of(100)
    factor = gram.Factor(wc.Fisher(problem_of(model, (x.to(dtype), y))))
    assert "a.weight" in factor._one_by_one
    assert "b.weight" not in factor._one_by_one  # after it nothing is coupled


def test_a_later_batch_may_be_the_first_that_couples() -> None:
    model = seeded(
        lambda: Written(
            lambda m, x, a: m.b(a @ torch.tanh(m.a(x))), a=nn.Linear(4, 5), b=nn.Linear(5, CLASSES)
        )
    )  # fmt: skip
    batches = []
    for seed, graph in enumerate([torch.eye(EXAMPLES, dtype=torch.float64), isolated_first()]):
        x, y = batch_of(seed=seed)
        batches.append(((x, graph), y))
    expected = sum(dense_fisher(model, categorical(), batch, "model") for batch in batches) / 2
    assert_same(wc.spectrum(wc.Fisher(problem_of(model, *batches))).values, torch.linalg.eigvalsh(expected))
    assert "a" in wc.kronecker_factors(problem_of(model, batches[0]), labels="model")
    with pytest.raises(InvalidProblem, match=r"after layer 'a'.*labels=\"sample\""):
        wc.kronecker_factors(problem_of(model, *batches), labels="model")


def test_a_layer_that_a_later_batch_calls_twice_is_not_read_by_its_rule() -> None:
    def forward(m: Any, x: Tensor) -> Tensor:
        return m.b(torch.tanh(m.a(x) + (m.a(x.flip(1)) if x[0, 0] > 0 else 0)))

    model = seeded(lambda: Written(forward, a=nn.Linear(4, 5), b=nn.Linear(5, CLASSES)))
    batches = [batch_of(), batch_of(seed=1)]
    for sign, (x, _) in zip((-1, 1), batches, strict=True):
        x[0, 0] = sign
    expected = sum(dense_fisher(model, categorical(), batch, "model") for batch in batches) / 2
    assert_same(wc.spectrum(wc.Fisher(problem_of(model, *batches))).values, torch.linalg.eigvalsh(expected))


@pytest.mark.parametrize("name", [name for name in COUPLINGS if name != "exchanged"])
def test_exact_expectations_over_labels_are_refused(name: str) -> None:
    problem = problem_of(coupled(COUPLINGS[name]), batch_of())
    for measure in (wc.kronecker_factors, wc.conditioning):
        with pytest.raises(InvalidProblem, match="after layer 'a' couples the examples"):
            measure(problem, labels="model")
    for labels in ("data", "sample"):
        wc.kronecker_factors(problem, labels=labels)


def test_an_output_that_serves_all_examples_has_no_exact_expectation() -> None:
    def forward(m: Any, tokens: Tensor) -> Tensor:
        return m.head(m.token(tokens) + m.place(torch.arange(tokens.shape[1]))).mean(1)

    model = seeded(lambda: Written(forward, token=nn.Embedding(5, 4), place=nn.Embedding(3, 4), head=nn.Linear(4, 3)))
    factors = wc.kronecker_factors(problem_of(model, (integers(5, 6, 3), integers(3, 6))), labels="model")
    assert "all examples share its output" in factors.not_covered["place"]
    assert not factors["place"].g.count
    assert factors["token"].g.count
    assert factors["head"].g.count


LAYOUTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "time_first": lambda m, x: m.b(torch.tanh(m.a(x.transpose(0, 1)))).mean(0),
    "flattened": lambda m, x: m.b(torch.tanh(m.a(x.flatten(0, 1)))).unflatten(0, x.shape[:2]).mean(1),
    "twice": lambda m, x: m.b(torch.tanh(m.a(x[:, 0]) + m.a(x[:, 1]))),
}


@pytest.mark.parametrize("forward", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_layouts_are_not_taken_for_coupling(forward: Any, dtype: torch.dtype) -> None:
    model = seeded(lambda: Written(forward, a=nn.Linear(4, 5), b=nn.Linear(5, CLASSES))).to(dtype)
    batch = normal(EXAMPLES, 2, 4).to(dtype), integers(CLASSES, EXAMPLES)
    assert wc.kronecker_factors(problem_of(model, batch), labels="model")["a"].g.count


def deep(activation: Callable[[], nn.Module], gain: float, depth: int = 60, width: int = 30) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(4, width)]
        for _ in range(depth):
            layers += [activation(), nn.Linear(width, width)]
        model = nn.Sequential(*layers, nn.Linear(width, CLASSES))
        for layer in model:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
    return model


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: deep(nn.ReLU, 2**0.5),
    "vanishing": lambda: deep(nn.Tanh, 0.4),
    "chaotic": lambda: deep(nn.Tanh, 4.0),
    "exploding": lambda: deep(nn.ReLU, 2.0),
    "normed": lambda: deep(lambda: nn.Sequential(nn.LayerNorm(30), nn.GELU()), 1.0, depth=12),
}


@pytest.mark.parametrize("examples", [5, 100])
@pytest.mark.parametrize("build", HEALTHY.values(), ids=HEALTHY)
def test_deep_networks_in_float32_are_read_by_their_rules(build: Any, examples: int) -> None:
    model = build()
    x, y = batch_of(examples)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (x.float(), y))
    fisher = wc.Fisher(problem, layers=[name for name in problem.params if name.split(".")[1] != "0"])
    before = problem.cost.backwards
    factor = gram.Factor(fisher)
    assert not factor._one_by_one
    assert problem.cost.backwards - before == CLASSES + 2
    assert wc.kronecker_factors(problem, labels="model").cost.backwards == CLASSES + 2


def test_too_many_labels_for_an_exact_expectation_are_refused_by_name() -> None:
    batch = integers(7, 1, 512), integers(30, 1, 512)
    model = seeded(lambda: nn.Sequential(nn.Embedding(7, 2), nn.Linear(2, 30)))
    problem = wc.Problem(model, lambda o, t: nn.functional.cross_entropy(o.flatten(0, 1), t.flatten()), [batch])
    with pytest.raises(TooLarge, match=r"15,360 per batch.*labels=\"sample\""):
        wc.kronecker_factors(problem, labels="model")
    assert wc.kronecker_factors(problem, labels="sample").cost.backwards == 1
