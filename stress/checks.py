"""The public functions, each compared with its reference: right within what it states, or to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc
from stress.case import RIGHT, UNCLEAR, Case, Check, Verdict, chosen
from stress.models import Draw
from stress.references import Reference, is_readable, rows_of

FLOOR = {torch.float64: 1e-8, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 3e-3}
"""Relative errors that rounding in another order can make, whatever the reference's own rounding shows."""
WIDE, NARROW = (1e-250, 1e250), (1e-32, 1e32)
"""Sizes that float64, and float32, can hold together with what it takes to compute them."""
ROUNDINGS = 30
"""Largest error of a right answer, in units of the rounding of plain autograd."""

Quantity = Callable[[Reference], Tensor]


def size(t: Tensor) -> float:
    """The Frobenius norm, also where squares leave the range of float64."""
    largest = float(t.abs().max()) if t.numel() else 0.0
    return largest * float((t / largest).norm()) if 0 < largest < math.inf else largest


def tolerance(case: Case, quantity: Quantity, *, is_float64: bool = False) -> tuple[Tensor, float] | None:
    """The truth and how far from it rounding may lead; None where rounding leaves nothing.

    Args:
        case: Where it is measured.
        quantity: What is measured.
        is_float64: Whether the result is in float64 whatever the model is.
    """
    try:
        truth, rounded = quantity(case.truth), quantity(case.rounded)
    except RuntimeError:  # torch has no such derivative, or no such kernel in this dtype
        return None
    low, high = WIDE if is_float64 or case.dtype == torch.float64 else NARROW
    if not (bool(torch.isfinite(truth).all()) and bool(torch.isfinite(rounded).all())):
        return None
    whole, noise = size(truth), size(rounded - truth)
    if whole != 0 and (not low <= whole <= high or noise > 0.02 * whole):
        return None
    return truth, ROUNDINGS * noise + FLOOR[case.dtype] * whole


def same(
    case: Case,
    got: Any,
    quantity: Quantity,
    *,
    difference_of: Quantity | None = None,
    is_float64: bool = False,
    roundings: float = 0.0,
    canceling: float = 1e4,
) -> Verdict:
    """A result that states no error of its own.

    Args:
        case: Where it was measured.
        got: The result.
        quantity: The true value.
        difference_of: Large quantity of which it is a small difference, and whose rounding it may have.
        is_float64: Whether it is in float64, whatever the model is.
        canceling: Number of roundings of that quantity.
        roundings: Number of further roundings, as in a decomposition.
    """
    expected = tolerance(case, quantity, is_float64=is_float64)
    if expected is None:
        return UNCLEAR
    truth, allowed = expected
    allowed += roundings * torch.finfo(case.dtype).eps * size(truth)
    if difference_of is not None:
        allowed += canceling * torch.finfo(case.dtype).eps * size(difference_of(case.truth))
    got = torch.as_tensor(got).detach().double().cpu()
    if got.shape != truth.shape:
        return Verdict("silent", f"shape {tuple(got.shape)} instead of {tuple(truth.shape)}")
    difference = size(got - truth)
    if difference <= allowed:  # also false for nan
        return RIGHT
    return Verdict("silent", f"off by {difference:.2e}, allowed {allowed:.1e}: {short(got)} instead of {short(truth)}")


def short(t: Tensor) -> str:
    if t.dim() == 2 and t.shape[0] == t.shape[1]:
        return f"a matrix of trace {float(t.trace()):.6g}"
    values = t.reshape(-1).tolist()
    return "[" + ", ".join(f"{v:.6g}" for v in values[:4]) + (", …]" if len(values) > 4 else "]")


# operators


def operators(case: Case) -> list[tuple[str, Callable[[wc.Problem], Any], Quantity]]:
    """Curvature matrices that are defined here, with their references."""
    result: list[tuple[str, Callable[[wc.Problem], Any], Quantity]] = [
        ("Hessian", wc.Hessian, lambda r: r.hessian),
        ("GGN", wc.GGN, lambda r: r.ggn),
        ("Fisher data", lambda p: wc.Fisher(p, "data"), lambda r: r.fisher_data),
    ]
    if case.loss.likelihood is not None:
        result.append(("Fisher model", lambda p: wc.Fisher(p, "model"), lambda r: r.fisher_model))
    return result


def dense(case: Case, draw: Draw) -> Check:
    name, make, quantity = draw.choice(operators(case))
    return Check(f"{name}.dense", lambda p, _: make(p).dense(), lambda got: same(case, got, quantity))


def products(case: Case, draw: Draw) -> Check:
    name, make, quantity = draw.choice(operators(case))
    vectors = torch.randn(case.truth.size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    own = vectors.to(next(case.model.parameters()))
    return Check(
        f"{name} @ V", lambda p, _: make(p) @ own, lambda got: same(case, got, lambda r: quantity(r) @ vectors)
    )


def block(case: Case, draw: Draw) -> Check:
    """A layer's own diagonal block."""
    name, make, quantity = draw.choice(operators(case))
    parameter = draw.choice(list(case.truth.named))
    ends = torch.tensor([0, *(p.numel() for p in case.truth.params)]).cumsum(0).tolist()
    i = list(case.truth.named).index(parameter)
    part = slice(ends[i], ends[i + 1])
    return Check(
        f"{name}.layer({parameter!r}).dense",
        lambda p, _: make(p).layer(parameter).dense(),
        # a gradient that cancels, as of a bias before a norm, leaves the rounding of the others
        lambda got: same(case, got, lambda r: quantity(r)[part, part], difference_of=quantity, canceling=1.0),
    )


def spectrum(case: Case, draw: Draw) -> Check:
    name, make, quantity = draw.choice(operators(case))
    return Check(
        f"spectrum({name})",
        lambda p, _: wc.spectrum(make(p)).values,
        lambda got: same(case, got, lambda r: torch.linalg.eigvalsh(quantity(r)), roundings=4 * case.truth.size),
    )


def ends(values: Tensor, k: int, which: str) -> Tensor:
    """Of ascending eigenvalues those that were asked for."""
    return {"largest": values[-k:], "smallest": values[:k], "both": torch.cat([values[:k], values[-k:]])}[which]


def judge_eigenvalues(result: Any, truth: Tensor, allowed: float, tol: float) -> Verdict:
    """|value − truth| ≤ error for all at once, and within tol if it says so."""
    if result.values.shape != truth.shape:
        return Verdict("silent", f"{len(result.values)} values instead of {len(truth)}")
    off = (result.values - truth).abs()
    bound = result.errors + allowed
    if result.converged:
        bound = torch.minimum(bound, tol * truth.abs() + allowed)
    held = bool((off <= bound).all())
    return Verdict("right", "" if held else f"{result} instead of {short(truth)}".replace("\n", "; "), held)


def eigenvalues(case: Case, draw: Draw) -> Check:
    name, make, quantity = draw.choice(operators(case))
    n, which, tol = case.truth.size, draw.choice(["largest", "smallest", "both"]), draw.choice([0.1, 1e-2, 1e-3])
    k = draw.randint(1, max(1, min(8, n // 2)))

    def judge(result: Any) -> Verdict:
        expected = tolerance(case, quantity)
        if expected is None:
            return UNCLEAR
        matrix, allowed = expected
        return judge_eigenvalues(result, ends(torch.linalg.eigvalsh(matrix), k, which), allowed, tol)

    def measure(problem: wc.Problem, seed: int) -> Any:
        return wc.eigenvalues(make(problem), k, which, tol, seed=seed)

    return Check(f"eigenvalues({name}, {k}, {which!r}, {tol})", measure, judge)


def trace(case: Case, draw: Draw) -> Check:
    name, make, quantity = draw.choice(operators(case))

    def judge(result: Any) -> Verdict:
        expected = tolerance(case, quantity)
        if expected is None:
            return UNCLEAR
        matrix, allowed = expected
        return judge_trace(result, float(matrix.trace()), allowed * math.sqrt(len(matrix)))

    return Check(f"trace({name})", lambda p, seed: wc.trace(make(p), max_matvecs=200, seed=seed), judge, misses=3)


def judge_trace(result: Any, truth: float, allowed: float) -> Verdict:
    held = abs(result.value - truth) <= 2 * result.error + allowed
    return Verdict("right", "" if held else f"{result} instead of {truth:.6g}", held)


def judge_density(result: Any, matrix: Tensor, allowed: float) -> Verdict:
    """Nodes inside the spectrum, and the first two moments within their spread over the probes."""
    values = torch.linalg.eigvalsh(matrix)
    low, high = float(values[0]) - allowed, float(values[-1]) + allowed
    if float(result.nodes.min()) < low or float(result.nodes.max()) > high:
        return Verdict("silent", f"{result}, but the spectrum is {short(values[[0, -1]])}")
    for order in (1, 2):
        each = (result.weights * result.nodes**order).sum(1)
        spread = float(each.std()) / math.sqrt(len(each))
        truth = float((values**order).mean())
        if not abs(float(each.mean()) - truth) <= 6 * spread + allowed * max(1.0, size(values)) ** (order - 1) * 2:
            return Verdict("right", f"moment {order} is {float(each.mean()):.6g} instead of {truth:.6g}", held=False)
    return Verdict("right", held=True)


def density(case: Case, draw: Draw) -> Check:
    name, make, quantity = draw.choice(operators(case))

    def judge(result: Any) -> Verdict:
        expected = tolerance(case, quantity)
        return UNCLEAR if expected is None else judge_density(result, *expected)

    return Check(f"density({name})", lambda p, seed: wc.density(make(p), probes=8, iterations=5, seed=seed), judge)


def matrix(case: Case, draw: Draw) -> Check:
    """The library's linear algebra by itself: a symmetric tensor of any size, in the user's state."""
    dtype = case.dtype if case.dtype in (torch.float32, torch.float64) else torch.float32
    n, factor = draw.randint(3, 40), 10.0 ** draw.uniform(-30, 30)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    root = torch.randn(n, n, dtype=torch.float64, generator=generator)
    sign = draw.choice([1.0, -1.0])
    a = factor * (root @ root.T + sign * torch.diag(10 * torch.randn(n, dtype=torch.float64, generator=generator))) / n
    own = a.to(dtype).to(next(case.model.parameters()).device)
    truth = own.double().cpu()
    values = torch.linalg.eigvalsh(truth)
    allowed = (1e-5 if dtype == torch.float32 else 1e-11) * float(values.abs().max())
    k, which, what = (
        draw.randint(1, max(1, min(8, n // 2))),
        draw.choice(["largest", "smallest", "both"]),
        draw.random(),
    )
    title = f"of a {str(dtype).removeprefix('torch.')} matrix {n} × {n} at {factor:.0e}"
    if what < 0.5:
        return Check(
            f"eigenvalues {title}, k {k}, {which}",
            lambda _, seed: wc.eigenvalues(own, k, which, 1e-2, seed=seed),
            lambda result: judge_eigenvalues(result, ends(values, k, which), allowed, 1e-2),
        )
    if what < 0.7:
        return Check(
            f"trace {title}",
            lambda _, seed: wc.trace(own, max_matvecs=200, seed=seed),
            lambda result: judge_trace(result, float(truth.trace()), 10 * allowed),
            misses=3,
        )
    if what < 0.85:
        unit = truth / factor
        return Check(
            f"density {title}",
            lambda _, seed: wc.density(own, probes=8, iterations=5, seed=seed),
            lambda result: judge_density(in_units(result, factor), unit, 10 * allowed / factor),
        )

    def judge(result: Tensor) -> Verdict:
        off = float((result.double().cpu() - values).abs().max())
        return RIGHT if off <= allowed else Verdict("silent", f"{short(result)} instead of {short(values)}")

    return Check(f"spectrum {title}", lambda _, __: wc.spectrum(own).values, judge)


def in_units(result: Any, factor: float) -> Any:
    """A density of a matrix divided by a number, so that squares of its nodes stay in range."""
    return type(result)(
        result.grid / factor, result.density * factor, result.error * factor, result.nodes / factor, result.weights,
        result.width / factor, result.matvecs,
    )  # fmt: skip


# layers


def factors(case: Case, draw: Draw) -> Check:
    """Σx and Σ∇h of every layer whose rows the reference knows; the others may be listed or have a note."""
    return Check("kronecker_factors", lambda p, _: wc.kronecker_factors(p), lambda got: judge_layers(case, got, full))


def conditioning(case: Case, draw: Draw) -> Check:
    return Check("conditioning", lambda p, _: wc.conditioning(p), lambda got: judge_layers(case, got, largest))


def full(moment: Any) -> Tensor:
    mean = moment.mean
    return mean[0] if mean.dim() == 3 else torch.diag(mean[0])


def largest(part: Any) -> Tensor:
    return torch.tensor([part.lambda_max, part.trace], dtype=torch.float64)


def judge_layers(case: Case, got: Any, read: Callable[[Any], Tensor]) -> Verdict:
    reference = case.truth.layers
    for name, entry in got.layers.items():
        if name in case.network.unread and not entry.note and name not in got.not_covered:
            return Verdict("silent", f"{name!r} is read by the rule of a layer that it is not")
    for name in reference:
        if name not in got.layers:
            if name not in got.not_covered:
                return Verdict("silent", f"{name!r} is neither given nor listed")
            continue
        for side, symbol in enumerate(("Σx", "Σ∇h")):
            result = (got.layers[name].x, got.layers[name].g)[side]
            expected = reference[name][side]
            missing = result is None or getattr(result, "mean", 0) is None
            if missing or expected is None:
                if missing != (expected is None) and name not in got.not_covered:
                    return Verdict("silent", f"{symbol} of {name!r} is {'missing' if missing else 'invented'}")
                continue

            def quantity(r: Reference, name: str = name, side: int = side) -> Tensor:
                matrix = r.layers[name][side]
                assert matrix is not None
                if read is full:
                    return matrix
                return torch.stack([torch.linalg.eigvalsh(matrix)[-1], matrix.trace()])

            verdict = same(case, read(result), quantity, is_float64=True)
            if verdict.kind == "silent":
                return Verdict("silent", f"{symbol} of {name!r}: {verdict.text}")
    return RIGHT


def activations(case: Case, draw: Draw) -> Check:
    def moments(r: Reference, name: str) -> Tensor:
        outputs: list[Tensor] = []
        module = r.model.get_submodule(name)

        def on_call(m: nn.Module, _args: Any, o: Tensor) -> None:
            if torch.is_grad_enabled():  # what a model calls under no_grad does not count
                outputs.append(rows_of(m, o.detach(), of_output=True))

        handle = module.register_forward_hook(on_call)
        _ = r._fresh("value")
        handle.remove()
        everything = torch.cat(outputs)
        return torch.stack([everything.mean(0), everything.var(0, correction=0)])

    def judge(got: Any) -> Verdict:
        for name, module in case.truth.model.named_modules():
            if is_readable(module) and name in got.layers:
                result = torch.stack([got[name].mean, got[name].variance])
                verdict = same(case, result, lambda r, name=name: moments(r, name))
                if verdict.kind == "silent":
                    return Verdict("silent", f"{name!r}: {verdict.text}")
        return RIGHT

    return Check("activations", lambda p, _: wc.activations(p), judge)


def neurons(case: Case, draw: Draw) -> Check | None:
    """Dying and full units, in the order of the calls, where all ReLUs are modules."""
    if not any(isinstance(m, nn.ReLU) for m in case.model.modules()):
        return None

    def counts(r: Reference) -> Tensor:
        outputs: dict[str, list[Tensor]] = {}
        handles = []
        for name, module in r.model.named_modules():
            if isinstance(module, nn.ReLU):

                def hook(_m: nn.Module, _a: Any, o: Tensor, name: str = name) -> None:
                    outputs.setdefault(name, []).append(o.detach().movedim(1, -1).reshape(-1, o.shape[1]))

                handles.append(module.register_forward_hook(hook))
        _ = r._fresh("value")
        for handle in handles:
            handle.remove()
        together = [torch.cat(o) for o in outputs.values()]
        return torch.tensor([[int((o == 0).all(0).sum()), int((o > 0).all(0).sum())] for o in together]).double()

    def judge(got: Any) -> Verdict:
        if not torch.equal(counts(case.truth), counts(case.rounded)):
            return UNCLEAR
        result = torch.tensor([[layer.dying, layer.full] for layer in got.layers.values()]).double()
        return same(case, result, counts)

    return Check("neurons", lambda p, _: wc.neurons(p), judge)


# rates and walks


def max_lr(case: Case, draw: Draw) -> Check:
    def judge(result: Any) -> Verdict:
        expected = tolerance(case, lambda r: r.hessian)
        if expected is None:
            return UNCLEAR
        matrix, allowed = expected
        top = float(torch.linalg.eigvalsh(matrix)[-1])
        off = abs(result.lambda_max - top)
        held = off <= result.lambda_error + allowed
        return Verdict("right", "" if held else f"λ_max {result.lambda_max:.6g} ± {result.lambda_error:.1e} instead of {top:.6g}", held)  # fmt: skip  # noqa: E501

    return Check("max_lr", lambda p, seed: wc.max_lr(p, seed=seed), judge)


def diagnose(case: Case, draw: Draw) -> Check:
    def judge(got: Any) -> Verdict:
        if any(not why for why in got.failed.values()):
            return Verdict("silent", f"failed without a reason: {got.failed}")
        if got.gradients is not None:
            verdict = same(case, torch.tensor(got.gradients.loss, dtype=torch.float64), lambda r: r.value)
            if verdict.kind == "silent":
                return Verdict("silent", f"loss: {verdict.text}")
            total = math.hypot(*got.gradients.norms.values())
            verdict = same(case, torch.tensor(total, dtype=torch.float64), lambda r: r.gradient.norm())
            if verdict.kind == "silent":
                return Verdict("silent", f"gradient norm: {verdict.text}")
        if got.conditioning is not None:
            verdict = judge_layers(case, got.conditioning, largest)
            if verdict.kind == "silent":
                return verdict
        expected = tolerance(case, lambda r: r.hessian)
        if got.hessian is None or expected is None:
            return RIGHT
        matrix, allowed = expected
        return judge_eigenvalues(got.hessian, ends(torch.linalg.eigvalsh(matrix), 1, "both"), allowed, got.hessian.tol)

    return Check("diagnose", lambda p, seed: wc.diagnose(p, budget="full"), judge, misses=6)


def landscape(case: Case, draw: Draw) -> Check:
    lr = draw.choice([0.01, 0.1])

    def walk(r: Reference) -> Tensor:
        lengths = lr * torch.linspace(0.5, 4.0, 3, dtype=torch.float64)
        losses = torch.stack([r.loss_at(-a * r.gradient) for a in lengths.tolist()])
        changes = torch.stack([(r.gradient_at(-a * r.gradient) - r.gradient).norm() for a in lengths.tolist()])
        return torch.stack([losses, changes])

    def judge(got: Any) -> Verdict:
        for i in range(2):  # losses and changes have sizes of their own
            part = (got.losses, got.gradient_changes)[i]
            verdict = same(case, part, lambda r, i=i: walk(r)[i], difference_of=(lambda r: r.gradient) if i else None)
            if verdict.kind == "silent" and not got.notes:
                return verdict
        return RIGHT

    return Check(f"landscape(lr={lr})", lambda p, _: wc.landscape(p, lr=lr, steps=3), judge)


def loss_slice(case: Case, draw: Draw) -> Check:
    def losses(r: Reference) -> Tensor:
        return torch.stack([r.loss_at(a * r.gradient) for a in (-0.1, 0.0, 0.1)])

    def measure(problem: wc.Problem, _seed: int) -> Any:
        return wc.loss_slice(problem, ["gradient"], extent=0.1, points=3, filter_normalized=False)

    return Check("loss_slice", measure, lambda got: same(case, got.losses, losses))


CHECKS: tuple[Callable[[Case, Draw], Check | None], ...] = (
    dense, products, block, spectrum, eigenvalues, eigenvalues, trace, density, matrix, matrix, factors, conditioning,
    activations, neurons, max_lr, diagnose, landscape, loss_slice,
)  # fmt: skip


def random_checks(case: Case, draw: Draw) -> list[Check]:
    """Three or four of them, in a random order."""
    new = [make(case, draw) for make in chosen(draw, list(CHECKS), draw.randint(3, 4))]
    return [check for check in new if check is not None]
