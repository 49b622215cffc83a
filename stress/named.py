"""Named cases: each a defect that there was, in its shortest form. They run first."""

from __future__ import annotations

import os
import random
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellcond as wc
from stress import checks, losses, models, states
from stress.bounds import EIGENVALUES_MAY_MISS, SIGNIFICANCE, SPECTRA, TRACE_MAY_MISS, tail
from stress.case import Case, Outcome, random_batch
from stress.losses import Loss
from stress.models import Network
from stress.states import PLAIN, State

NAMED: dict[str, Callable[[str], Iterator[Outcome]]] = {}
"""Device ↦ outcomes, by name."""


def named(function: Callable[[str], Iterator[Outcome]]) -> Callable[[str], Iterator[Outcome]]:
    NAMED[function.__name__] = function
    return function


def attempt(what: str, measure: Callable[[], Any], expected: Any, tolerance: float = 1e-6) -> Outcome:
    """One call outside of a `Case`: a number near the expected one, or a refusal by name.

    `expected` may be a function that says what is wrong with the result, or "".
    """
    try:
        got = measure()
    except wc.WellcondError as error:
        return Outcome(what, "refused", str(error))
    except Exception as error:
        return Outcome(what, "crash", f"{type(error).__name__}: {error}")
    if callable(expected):
        wrong = expected(got)
    else:
        got, expected = (torch.as_tensor(v, dtype=torch.float64).cpu() for v in (got, expected))
        is_near = got.shape == expected.shape and checks.size(got - expected) <= tolerance * checks.size(expected)
        wrong = "" if is_near else f"{checks.short(got)} instead of {checks.short(expected)}"
    return Outcome(what, "silent", wrong) if wrong else Outcome(what, "right")


def seeded(make: Callable[[], Any], seed: int = 0) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def problem_case(
    device: str,
    make: Callable[[], Network],
    loss: Callable[[random.Random], Loss] = losses.cross_entropy,
    state: State = PLAIN,
    sizes: tuple[int, ...] = (8,),
    dtype: torch.dtype = torch.float64,
) -> Case:
    def build() -> Case:
        network, chosen = make(), loss(random.Random(0))
        network.model.to(device, dtype)
        chosen.to(device)
        batches = [random_batch(network, chosen, n, "batch", dtype, device) for n in sizes]
        return Case("named", network, chosen, batches, "batch", dtype, state)

    return seeded(build)


Maker = Callable[[Case, random.Random], Any]


def with_checks(case: Case, *makers: Maker, times: int = 2) -> Iterator[Outcome]:
    """Each check with a few of its random options."""
    new = [make(case, random.Random(seed)) for make in makers for seed in range(times)]
    yield from case.run([check for check in new if check is not None])


def small(model: nn.Module, classes: int = 3, width: int = 4) -> Network:
    return Network(model.double(), models.vectors(width), classes)


def plain_network() -> Network:
    return small(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


def state_named(name: str, device: str) -> State:
    return next(state for state in states.states(device) if state.name == name)


def rotated(values: Tensor, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(len(values), len(values), generator=g, dtype=torch.float64)).Q
    a = (basis * values) @ basis.T
    return (a + a.T) / 2


# wrong numbers, in silence


@named
def sizes_of_float32(device: str) -> Iterator[Outcome]:
    for factor in (1e-30, 1e-24, 1e-21, 1e18, 1e30):
        a = (factor * rotated(torch.logspace(0, -3, 60, dtype=torch.float64))).float().to(device)
        top = float(torch.linalg.eigvalsh(a.double())[-1])
        mean = float(a.double().diagonal().mean())
        yield attempt(f"eigenvalues at {factor:.0e}", lambda a=a: wc.eigenvalues(a).values[0], top, 2e-3)
        yield attempt(f"density at {factor:.0e}", lambda a=a: wc.density(a, probes=32).moment(1), mean, 0.2)
        yield attempt(f"trace at {factor:.0e}", lambda a=a: wc.trace(a).value, 60 * mean, 0.3)


@named
def vanished_layer(device: str) -> Iterator[Outcome]:
    def network() -> Network:
        layers = [nn.Linear(4, 4, bias=False) for _ in range(12)]
        for layer in layers:
            layer.weight.data *= 0.15
        return small(nn.Sequential(*layers, nn.Linear(4, 3)))

    case = problem_case(device, network, dtype=torch.float32)
    yield from with_checks(case, checks.factors, checks.conditioning, times=1)
    yield from with_checks(case, checks.block, checks.eigenvalues)


@named
def autocast(device: str) -> Iterator[Outcome]:
    for name in ("autocast bf16", "autocast fp16"):
        case = problem_case(device, plain_network, state=state_named(name, device), dtype=torch.float32)
        yield from with_checks(case, checks.matrix, times=8)
        yield from with_checks(case, checks.spectrum, checks.eigenvalues, checks.trace, checks.conditioning)


@named
def matmul_precision(device: str) -> Iterator[Outcome]:
    state = state_named("matmul precision medium", device)
    case = problem_case(device, plain_network, state=state, dtype=torch.float32)
    yield from with_checks(case, checks.matrix, times=8)


@named
def gradient_hooks(device: str) -> Iterator[Outcome]:
    for name in ("parameter hooks", "backward hooks"):
        case = problem_case(device, plain_network, state=state_named(name, device))
        yield from with_checks(case, checks.max_lr, checks.dense, checks.landscape, checks.factors)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 3), 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


@named
def stale_problem(device: str) -> Iterator[Outcome]:
    def assigned(model: nn.Module, _loss: nn.Module) -> None:
        model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)

    def exchanged(model: Any, _loss: nn.Module) -> None:
        model[0] = nn.Linear(4, 3).double().to(device)

    def rescaled(model: Any, _loss: nn.Module) -> None:
        model[0].scale = 3.0

    def reweighted(_model: nn.Module, loss: Any) -> None:
        loss.weight = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64, device=device)

    batch = seeded(lambda: (torch.randn(8, 4).double().to(device), torch.randint(0, 3, (8,)).to(device)))
    for change in (assigned, exchanged, rescaled, reweighted):
        model = seeded(lambda: nn.Sequential(Scaled()).double().to(device))
        loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64, device=device))
        problem = wc.Problem(model, loss, batch)
        hessian = wc.Hessian(problem)
        hessian.dense()
        change(model, loss)
        truth = wc.Hessian(wc.Problem(model, loss, batch)).dense()
        top = torch.linalg.eigvalsh(truth)[-1]
        yield attempt(f"{change.__name__}: kept operator", hessian.dense, truth)
        yield attempt(f"{change.__name__}: eigenvalues", lambda h=hessian: wc.eigenvalues(h).values[0], top, 1e-2)
        yield attempt(f"{change.__name__}: max_lr", lambda p=problem: wc.max_lr(p).lambda_max, top, 1e-2)


@named
def norms_by_hand(device: str) -> Iterator[Outcome]:
    for norm in (models.FunctionalBatchNorm, models.BranchingBatchNorm):
        make = lambda norm=norm: small(nn.Sequential(nn.Linear(4, 5), norm(5), nn.ReLU(), nn.Linear(5, 3)))  # noqa: E731
        case = problem_case(device, make)
        yield from with_checks(case, checks.max_lr, checks.diagnose, checks.landscape, times=1)

    def images() -> Network:
        norm = nn.InstanceNorm2d(2, affine=True, track_running_stats=True)
        model = nn.Sequential(nn.Conv2d(2, 2, 2), norm, nn.Flatten(), nn.Linear(18, 3))
        return Network(model.double(), lambda n: 3 + torch.randn(n, 2, 4, 4), 3)

    yield from with_checks(problem_case(device, images), checks.max_lr, checks.diagnose, times=1)


@named
def coupled_labels(device: str) -> Iterator[Outcome]:
    """labels="model" takes a pass per example where examples are coupled by whatever."""
    case = problem_case(
        device, lambda: small(nn.Sequential(nn.Linear(4, 5), models.Standardized(), nn.ReLU(), nn.Linear(5, 3)))
    )
    problem = wc.Problem(case.model, case.loss.call, case.batches)
    x = case.batches[0][0]
    hidden = case.model[0](x)
    logits = case.model[3](case.model[2](case.model[1](hidden)))
    total = 0.0
    for i, p in enumerate(logits.softmax(-1).detach()):
        for c in range(3):
            ell = F.cross_entropy(logits[i : i + 1], torch.tensor([c], device=device))
            (g,) = torch.autograd.grad(ell, hidden, retain_graph=True)
            total += float(p[c] * g.square().sum())
    yield attempt(
        "kronecker_factors(labels='model')",
        lambda: wc.kronecker_factors(problem, labels="model")["0"].g.mean[0].trace(),
        total / len(x),
    )


@named
def coupling_of_later_examples(device: str) -> Iterator[Outcome]:
    for coupling in (models.LaterRows, models.PreviousRow, models.Standardized):
        make = lambda c=coupling: small(nn.Sequential(nn.Linear(4, 5), c(), nn.Tanh(), nn.Linear(5, 3)))  # noqa: E731
        yield from with_checks(problem_case(device, make), checks.spectrum, times=6)
    for seed in range(3):
        network = seeded(lambda seed=seed: models.graph(random.Random(seed)), seed)
        case = problem_case(device, lambda n=network: n, sizes=(network.examples,))
        yield from with_checks(case, checks.spectrum, times=6)


def token_network() -> Network:
    return Network(nn.Linear(3, 3).double(), lambda n: torch.randn(n, 4, 3), 3, "tokens")


@named
def tokens_are_terms(device: str) -> Iterator[Outcome]:
    for loss in (losses.cross_entropy, losses.smoothed, losses.focal):
        yield from with_checks(problem_case(device, token_network, loss), checks.factors, times=1)
        yield from with_checks(problem_case(device, token_network, loss), checks.dense, times=6)
        returning = lambda: Network(  # noqa: E731
            models.Returning(nn.Linear(3, 3), "tuple").double(), lambda n: torch.randn(n, 4, 3), 3, "tokens"
        )
        yield from with_checks(problem_case(device, returning, loss), checks.factors, times=1)


@named
def batches_add_up(device: str) -> Iterator[Outcome]:
    for loss in (losses.ignoring, losses.smoothed, losses.weighted, losses.focal, losses.squared):
        for make in (plain_network, token_network):
            case = problem_case(device, make, loss, sizes=(3, 8))
            yield from case.run([checks.dense(case, random.Random(seed)) for seed in range(3)])


@named
def ignored_labels_at_equal_outputs(device: str) -> Iterator[Outcome]:
    """Seed 1851. Only the second batch has ignored labels, and at a head of zeros every label costs the same."""

    def build() -> tuple[Tensor, Tensor, nn.Module]:
        model = nn.Linear(3, 2, bias=False).double().to(device)
        model.weight.data.zero_()
        y = torch.tensor([0, 1, 0, 1, -1, -1, -1, 0], device=device)
        return torch.randn(8, 3).double().to(device), y, model

    x, y, model = seeded(build)
    loss = lambda o, t: F.cross_entropy(o, t, ignore_index=-1)  # noqa: E731
    split = wc.Problem(model, loss, [(x[:3], y[:3]), (x[3:], y[3:])])
    joined = wc.Problem(model, loss, (x[y >= 0], y[y >= 0]))
    for name, make in (("Fisher", lambda p: wc.Fisher(p, "data")), ("Hessian", wc.Hessian)):
        yield attempt(f"{name} of two batches", lambda make=make: make(split).dense(), make(joined).dense())


@named
def nearly_a_likelihood(device: str) -> Iterator[Outcome]:
    """Seed 2000547. At small outputs a loss of one's own is a cross-entropy to float32's rounding, and no more."""

    def build() -> tuple[Tensor, Tensor, nn.Module]:
        model = nn.Linear(3, 2, bias=False).to(device)
        model.weight.data.mul_(5e-4)
        return torch.randn(8, 3).to(device), torch.arange(8, device=device) % 2, model

    def loss(o: Tensor, t: Tensor) -> Tensor:
        return F.cross_entropy(o - 0.3 * o.detach().square(), t)

    def recognized() -> Any:
        problem = wc.Problem(model, loss, (x, y))
        wc.conditioning(problem)
        return problem.likelihood

    x, y, model = seeded(build)
    yield attempt("the likelihood", recognized, lambda result: "" if result is None else f"taken for {result}")


@named
def several_eigenvalues(device: str) -> Iterator[Outcome]:
    """Rates of missed bounds, converged or not, where eigenvalues come in groups."""
    bulk = torch.rand(95, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    grouped = rotated(torch.cat([torch.tensor([5.0, 5, 5, 4, 4], dtype=torch.float64), bulk])).to(device)
    powers, line = (rotated(SPECTRA[name](100, torch.Generator())).to(device) for name in ("power 1", "linear"))
    for name, a, k, tol, most in (
        ("groups", grouped, 3, 0.1, None), ("1/i", powers, 5, 1e-9, 15), ("a line", line, 3, 1e-9, 9),
    ):  # fmt: skip
        truth = torch.linalg.eigvalsh(a.cpu())[-k:]
        misses, runs = 0, 100
        for seed in range(runs):
            result = wc.eigenvalues(a, k, tol=tol, max_matvecs=most, seed=seed)
            misses += bool(((result.values - truth).abs() > 1.0001 * result.errors).any())
        is_rare = tail(misses, runs, EIGENVALUES_MAY_MISS) > SIGNIFICANCE
        yield Outcome(f"eigenvalues of {name}", "right" if is_rare else "silent", f"{misses} of {runs} missed")


@named
def both_ends_of_the_identity(device: str) -> Iterator[Outcome]:
    eye = torch.eye(20, dtype=torch.float64, device=device)
    yield attempt("eigenvalues", lambda: wc.eigenvalues(eye, 3, "both").values, torch.ones(6), 1e-3)


@named
def signals_of_any_size(device: str) -> Iterator[Outcome]:
    for factor in (1e-24, 1e18):

        def network(factor: float = factor) -> Network:
            model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 3))
            model[0].weight.data *= factor
            model[1].weight.data /= max(factor, 1.0)
            return small(model)

        case = problem_case(device, network, dtype=torch.float32)
        yield from with_checks(case, checks.conditioning, checks.factors, times=1)


@named
def trace_of_small_layers(device: str) -> Iterator[Outcome]:
    def network() -> Network:
        return small(nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1), nn.Linear(1, 3)))

    def wider() -> Network:
        return small(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)))

    for make, tol in ((network, 0.1), (plain_network, 0.1), (wider, 0.3)):
        case = problem_case(device, make, sizes=(32,))
        operator = wc.GGN(wc.Problem(case.model, case.loss.call, case.batches))
        truth = float(case.truth.ggn.trace())
        runs, misses = 80, 0
        for seed in range(runs):
            result = wc.trace(operator, tol, seed=seed)
            misses += not abs(result.value - truth) <= 2 * result.error + 1e-9 * truth
        is_rare = tail(misses, runs, TRACE_MAY_MISS) > SIGNIFICANCE
        yield Outcome("trace", "right" if is_rare else "silent", f"{misses} of {runs} missed")


@named
def predictions_of_odd_activations(device: str) -> Iterator[Outcome]:
    """A mean-field prediction is near what is measured, or has a note."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for i in (100, 400):
            layers += [nn.Linear(i, 400, bias=False), nn.Tanh()]
            nn.init.normal_(layers[-2].weight, 0, i**-0.5)
        layers.append(nn.Linear(400, 1, bias=False))
        nn.init.normal_(layers[-1].weight, 0, 400**-0.5)
        return nn.Sequential(*layers)

    def judge(model: nn.Module) -> Callable[[Any], str]:
        def wrong(prediction: Any) -> str:
            loss = lambda f, t: 0.5 * (f - t).square().sum(1).mean()  # noqa: E731
            measured = wc.eigenvalues(wc.GGN(wc.Problem(model, loss, (x, torch.zeros(len(x), 1)))), tol=1e-2)
            ratio = prediction.lambda_max / float(measured.values[-1])
            return "" if prediction.notes or abs(ratio - 1) < 0.12 else f"{ratio:.2f} of what is measured, no note"

        return wrong

    x = seeded(lambda: torch.randn(100, 100))
    plain, scaled = seeded(build), seeded(build)
    scaled[1].register_forward_hook(lambda _m, _i, o: 3 * o)
    yield attempt("meanfield.predict", lambda: wc.meanfield.predict(plain, inputs=x), judge(plain))
    yield attempt("meanfield.predict with a hook", lambda: wc.meanfield.predict(scaled, inputs=x), judge(scaled))


@named
def layers_that_are_not_what_they_seem(device: str) -> Iterator[Outcome]:
    for make in (models.subclassed, models.without_gradient):
        for seed in range(2):
            case = problem_case(device, lambda make=make, seed=seed: double(make(random.Random(seed))))
            yield from with_checks(case, checks.factors, checks.conditioning, checks.spectrum)


def double(network: Network) -> Network:
    network.model.double()
    return network


# state, crashes, limits


@named
def two_threads(device: str) -> Iterator[Outcome]:
    case = problem_case(device, plain_network, state=state_named("second thread", device))
    yield from with_checks(case, checks.conditioning, checks.dense, checks.eigenvalues, times=4)


@named
def wide_layer(device: str) -> Iterator[Outcome]:
    def wrong(_table: Any) -> str:
        took = time.time() - started
        return "" if took < 20 else f"{took:.0f} s for 64 rows of 8,000 inputs"

    batch = seeded(lambda: (torch.randn(64, 8000).to(device), torch.randint(0, 3, (64,)).to(device)))
    model = seeded(lambda: nn.Sequential(nn.Linear(8000, 3)).to(device))
    started = time.time()
    yield attempt("conditioning", lambda: wc.conditioning(wc.Problem(model, nn.CrossEntropyLoss(), batch)), wrong)


class Ctc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).log_softmax(-1)


@named
def diagnosis_in_parts(device: str) -> Iterator[Outcome]:
    def ctc(o: Tensor, t: Tensor) -> Tensor:
        return F.ctc_loss(o.transpose(0, 1), t, torch.full((8,), 12), torch.full((8,), 3))

    def build() -> list[tuple[str, nn.Module, Any, Any]]:
        y, x, entropy = torch.randint(0, 3, (8,)), torch.randn(8, 4), nn.CrossEntropyLoss()
        normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 5))
        bag = nn.Sequential(nn.EmbeddingBag(10, 4), nn.Linear(4, 3))
        return [
            ("weight_norm", nn.Sequential(normed, nn.Linear(5, 3)), entropy, (x, y)),
            ("EmbeddingBag", bag, entropy, (torch.randint(0, 10, (8, 6)), y)),
            ("ctc", Ctc(), ctc, (torch.randn(8, 12, 4), torch.randint(1, 5, (8, 3)))),
            ("cdist", nn.Linear(4, 3), lambda o, _t: torch.cdist(o, o).mean(), (x, y)),
        ]

    def wrong(got: Any) -> str:
        return "" if got.conditioning is not None and all(got.failed.values()) else f"failed: {got.failed}"

    for name, model, loss, (x, y) in seeded(build):
        problem = wc.Problem(model.to(device), loss, (x.to(device), y.to(device)))
        outcome = attempt(f"diagnose {name}", lambda p=problem: wc.diagnose(p), wrong)
        is_whole = outcome.kind == "refused"  # its parts are available, so the whole may not be refused
        yield Outcome(outcome.check, "crash", outcome.text) if is_whole else outcome


@named
def losses_of_whole_batches(device: str) -> Iterator[Outcome]:
    smoothing = losses.smoothed(random.Random(1))
    whole = lambda _draw: Loss("whole", losses.Whole(8, 0.1), smoothing.targets, smoothing.terms)  # noqa: E731
    case = problem_case(device, plain_network, whole)
    for outcome in with_checks(case, checks.conditioning, checks.dense, times=1):
        # it can be measured: it works on the batch that was given
        yield Outcome(outcome.check, "crash", outcome.text) if outcome.kind == "refused" else outcome


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return self.layer(a if b is None else a + b)


@named
def batches_as_written(device: str) -> Iterator[Outcome]:
    x = seeded(lambda: torch.randn(8, 4).double().to(device))
    model = seeded(lambda: Sum().double().to(device))
    pair = (x, x + 1), (x + 2, x + 3)
    truth = (2 * x + 1).T @ (2 * x + 1) / 8
    loss = lambda o, t: (o - t[0] - t[1]).square().mean()  # noqa: E731
    yield attempt(
        "((x1, x2), (y1, y2))",
        lambda: wc.kronecker_factors(wc.Problem(model, loss, pair))["layer"].x.mean[0],
        truth,
    )
    y = torch.arange(8, device=device) % 3
    by_sum = lambda o, t: F.cross_entropy(o, t["y"], reduction="sum")  # noqa: E731
    summed = attempt("a sum over dict targets", lambda: wc.conditioning(wc.Problem(model, by_sum, [(x, {"y": y})])), 0)
    yield summed if summed.kind == "refused" else Outcome(summed.check, "silent", "a sum is taken for a mean")


@named
def odd_state_is_put_back(device: str) -> Iterator[Outcome]:
    for name in ("plain", "inference mode"):
        state = PLAIN if name == "plain" else state_named(name, device)
        case = problem_case(device, lambda: double(models.odd_state(random.Random(0))), state=state)
        yield from with_checks(case, checks.conditioning, checks.dense, checks.landscape, checks.diagnose, times=1)
        case = problem_case(device, plain_network, losses.stateful, state=state)
        yield from with_checks(case, checks.conditioning, checks.dense, checks.max_lr, checks.diagnose, times=1)


@named
def random_loss(device: str) -> Iterator[Outcome]:
    model, batch = seeded(lambda: (nn.Linear(4, 3).to(device), (torch.randn(8, 4), torch.arange(8) % 3)))
    loss = lambda o, t: F.cross_entropy(F.dropout(o, 0.5, training=True), t)  # noqa: E731
    for count in (1, 2):
        problem = wc.Problem(model, loss, [tuple(t.to(device) for t in batch)] * count)
        v = torch.ones(problem.size, device=device)
        yield attempt(
            f"two products, {count} batches", lambda p=problem, v=v: _twice(wc.Hessian(p), v), torch.zeros(15)
        )


def _twice(hessian: Any, v: Tensor) -> Tensor:
    return (hessian @ v) - (hessian @ v)


@named
def odd_outputs(device: str) -> Iterator[Outcome]:
    for form in models.RETURNED:
        returning = lambda form=form: small(models.Returning(nn.Linear(4, 3), form))  # noqa: E731
        yield from with_checks(problem_case(device, returning), checks.dense, checks.factors, times=3)
    scripted = lambda: small(torch.jit.script(nn.Sequential(nn.Linear(4, 3), nn.Tanh())))  # noqa: E731
    yield from with_checks(problem_case(device, scripted), checks.dense, checks.diagnose, times=1)

    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 0), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(x) + self.a(x).sum(-1, keepdim=True)

    case = problem_case(device, lambda: small(Empty()))
    problem = wc.Problem(case.model, case.loss.call, case.batches)
    yield attempt("Linear(4, 0)", lambda: wc.conditioning(problem)["b"].x.rank, 4)


@named
def inference_and_default_device(device: str) -> Iterator[Outcome]:
    for name in ("inference mode", "default device", "default bfloat16"):
        case = problem_case(device, plain_network, state=state_named(name, device), dtype=torch.float32)
        yield from with_checks(
            case, checks.diagnose, checks.eigenvalues, checks.trace, checks.density, checks.spectrum, checks.matrix
        )


@named
def eigenvalues_as_numbers(device: str) -> Iterator[Outcome]:
    yield attempt("condition_number([4, 2, 1])", lambda: wc.condition_number([4, 2, 1], 1.0), 4)  # type: ignore[arg-type]
    yield attempt("of integers", lambda: wc.condition_number(torch.tensor([4, 2, 1]), 1.0), 4)
    yield attempt("numerical_rank of a list", lambda: wc.numerical_rank([1.0, 1e-12, 0.0]), 2)  # type: ignore[arg-type]


@named
def files_keep_what_they_are(device: str) -> Iterator[Outcome]:
    result = wc.spectrum(torch.eye(3))
    with tempfile.TemporaryDirectory() as folder:
        report, fifo = Path(folder, "report.json"), Path(folder, "fifo.json")
        report.write_text("old")
        report.chmod(0o600)
        os.mkfifo(fifo)
        yield attempt(
            "mode 0600", lambda: result.save(report), lambda _: _unless(report.stat().st_mode & 0o777 == 0o600)
        )
        outcome = attempt("a fifo", lambda: result.save(fifo), lambda _: "")
        yield outcome if stat.S_ISFIFO(fifo.stat().st_mode) else Outcome("a fifo", "changed", "replaced by a file")
        long = Path(folder, "x" * 300 + ".json")
        yield attempt("a name that is too long", lambda: result.save(long), lambda _: "saved?")


def _unless(is_kept: bool) -> str:
    return "" if is_kept else "the mode was changed"


def run_named(name: str, device: str) -> list[Outcome]:
    """One named case; a failure of its own making is a crash."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(NAMED[name](device))
    except Exception as error:
        return [Outcome(name, "crash", f"{type(error).__name__}: {error}")]
