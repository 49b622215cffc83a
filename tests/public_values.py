"""Every public measurement on small float64 networks, as numbers in a file: proof that a refactoring keeps them.

`write` computes all of them with the package on PYTHONPATH; `compare` reads two such files and exits with 1 if any
number differs by more than 1e-12 of the largest magnitude in its array, or is in one file only. To compare the working
tree with another revision, run each revision's own script (arguments may have other names there) on its own tree:

    git worktree add ../before <revision>
    (cd ../before && PYTHONPATH=src:tests python tests/public_values.py write /tmp/before.json)
    PYTHONPATH=src:tests python tests/public_values.py write /tmp/after.json
    python tests/public_values.py compare /tmp/before.json /tmp/after.json
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # PYTHONPATH says whose zoo is used, not the directory of this script

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from zoo import ARCHITECTURES, Case, mlp, normal, seeded, split

import wellcond as wc
import wellcond.data
import wellcond.models

TOLERANCE = 1e-12
IN_ONE_FILE_ONLY: dict[str, str] = {}
"""Measurements that one of two revisions does not have: the start of their name, and the reason."""

Values = Iterator[tuple[str, Any]]
CAPABILITIES: dict[str, Callable[[], Values]] = {}
P = (0.2, 0.5, 0.8, 1.0)
OPERATORS: dict[str, Callable[..., Any]] = {
    "hessian": wc.Hessian,
    "ggn": wc.GGN,
    **{f"fisher_{labels}": functools.partial(wc.Fisher, labels=labels) for labels in ("model", "sample", "data")},
}


def capability(function: Callable[[], Values]) -> Callable[[], Values]:
    CAPABILITIES[function.__name__] = function
    return function


def attributes(label: str, result: Any, *names: str) -> Values:
    return ((f"{label}/{name}", getattr(result, name)) for name in names)


@contextlib.contextmanager
def refusals_left_out() -> Iterator[None]:
    """What cannot be measured, as a closed form of an attention layer, is in no file; in one alone it is a failure."""
    with contextlib.suppress(wc.WellcondError):
        yield


def problems(*, uneven: bool = True) -> Iterator[tuple[str, wc.Problem]]:
    """The zoo on one batch and on two of uneven sizes, other losses, and dropout."""
    for name, build in ARCHITECTURES.items():
        case = build()
        yield name, case.problem()
        if uneven:
            examples = len(case.batch[0])
            yield f"{name} uneven", case.problem(batches=split(case.batch, [examples // 3, examples - examples // 3]))
    yield "squared_error", wc.Problem(mlp(), nn.MSELoss(), (normal(6, 4), normal(6, 3, seed=1)))
    yield "binary", wc.Problem(mlp(), nn.BCEWithLogitsLoss(), (normal(6, 4), (normal(6, 3, seed=1) > 0).double()))
    yield "encoder_layer dropout", ARCHITECTURES["encoder_layer"]().problem(dropout=3)


def trained(case: Case, make: Callable[[nn.Module], Optimizer], steps: int) -> Optimizer:
    """The optimizer after some steps on the case's own model."""
    torch.manual_seed(0)
    optimizer = make(case.model)
    for _ in range(steps):
        optimizer.zero_grad()
        case.loss(case.model(case.batch[0]), case.batch[1]).backward()
        optimizer.step()
    return optimizer


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2)


def adam(model: nn.Module) -> Optimizer:
    return Adam(model.parameters(), lr=1e-2)


def two_groups(model: nn.Module) -> Optimizer:
    first, *others = model.parameters()
    return SGD([{"params": [first], "lr": 0.01}, {"params": others}], lr=0.1, momentum=0.9)


def with_bnp(model: nn.Module, optimizer: Optimizer, **options: Any) -> Optimizer:
    wc.BNP(model, optimizer, rho=0.5, **options)
    return optimizer


@capability
def curvature() -> Values:
    for name, problem in problems():
        first = next(iter(problem.params))
        for kind, build in OPERATORS.items():
            operator = build(problem)
            yield f"{name}/{kind}/product", operator @ normal(problem.size, seed=1)
            yield f"{name}/{kind}/products", operator @ normal(problem.size, 2, seed=2)
            yield f"{name}/{kind}/layer", operator.layer(first).dense()
        yield f"{name}/hessian/dense", wc.Hessian(problem).dense()
        yield f"{name}/fisher_of_parameter", wc.Fisher(problem, labels="sample", params=[first], samples=3).dense()


@capability
def spectra() -> Values:
    for name, problem in problems(uneven=False):
        first = next(iter(problem.params))
        for kind, build in OPERATORS.items():
            operator = build(problem)
            yield f"{name}/{kind}/spectrum", wc.spectrum(operator.layer(first)).values
            yield from found_spectrum(f"{name}/{kind}", operator)
        values = wc.spectrum(wc.GGN(problem)).values
        yield f"{name}/ggn/whole", values
        yield f"{name}/ggn/rank", wc.numerical_rank(values)
        yield f"{name}/ggn/condition_number", [wc.condition_number(values, p=p) for p in (0.01, 0.02, 0.05, 1.0)]
    random = normal(60, 60)
    yield from found_spectrum("tensor", random + random.T)


def found_spectrum(label: str, operator: Any) -> Values:
    """Values stand beside their errors, which are small in units of them."""
    for which in ("largest", "smallest", "both"):
        found = wc.eigenvalues(operator, k=2, which=which, tol=1e-3)
        yield f"{label}/{which}", (found.values, found.errors)
        yield f"{label}/{which}/matvecs", (found.matvecs, found.converged)
    yield from attributes(label, wc.density(operator, probes=3, steps=8, points=50), *DENSITY)
    trace = wc.trace(operator, tol=0.2)
    yield f"{label}/trace", (trace.value, trace.error)
    yield f"{label}/trace/matvecs", trace.matvecs


DENSITY = ("grid", "density", "error", "nodes", "weights", "width", "matvecs")


@capability
def layers() -> Values:
    for name, problem in problems():
        table = wc.neurons(problem)
        yield f"{name}/neurons", table.examples
        for layer, units in table.items():
            yield from attributes(f"{name}/neurons/{layer}", units, "is_dying", "is_full")
        for form in ("position", "patch"):
            for labels in ("data", "sample", "model"):
                with refusals_left_out():
                    factors = wc.kronecker_factors(problem, form=form, labels=labels)
                    for layer in factors:
                        yield from attributes(f"{name}/{form}/{labels}/{layer}/x", factors[layer].x, "mean", "count")
                        yield from attributes(f"{name}/{form}/{labels}/{layer}/g", factors[layer].g, "mean", "count")
            table = wc.conditioning(problem, p=P, form=form, fisher_up_to=40)
            for layer, row in table.items():
                for matrix in ("x", "g", "kronecker", "fisher"):
                    part = getattr(row, matrix)
                    label = f"{name}/conditioning/{form}/{layer}/{matrix}"
                    yield f"{label}/is_measured", part is not None
                    if part is not None:
                        yield from attributes(label, part, "values", "lambda_max", "kappa", "rank", "trace")


@capability
def surface() -> Values:
    walked = ("step_lengths", "losses", "gradient_changes", "distances", "beta", "loss", "gradient_norm")
    for name, problem in problems():
        given = normal(problem.size, seed=3)
        for label, direction in dict(gradient="gradient", random="random", top="eigenvector", given=given).items():
            walk = wc.landscape(problem, lr=0.1, span=(0.5, 4.0), steps=4, direction=direction)
            yield from attributes(f"{name}/{label}", walk, *walked)
        for directions in (["random"], ["gradient", "eigenvector"]):
            found = wc.loss_slice(problem, directions, extent=0.5, points=5)
            yield from attributes(f"{name}/{' '.join(directions)}", found, "coordinates", "losses")
        plain = wc.loss_slice(problem, ["random"], points=5, filter_normalised=False)
        yield f"{name}/not filter-normalised", plain.losses


@capability
def training() -> Values:
    """What is measured in the middle of a training."""
    for name, build in ARCHITECTURES.items():
        for label, make in {"sgd": sgd, "adam": adam}.items():
            case = build()
            problem = case.problem()
            before = wc.activations(problem, bins=10)
            fixed = wc.activations(problem, bins=10, span=(-2.0, 2.0))
            optimizer = trained(case, make, steps=2)
            after = wc.activations(problem, like=before)
            for moment, found in {"before": before, "fixed": fixed, "after": after}.items():
                for layer, units in found.items():
                    path = f"{name}/{label}/activations/{moment}/{layer}"
                    yield from attributes(path, units, "mean", "variance", "edges", "counts")
            for layer, change in after.change_from(before).items():
                yield f"{name}/{label}/activations/change/{layer}", dataclasses.astuple(change)
            shifts = wc.covariate_shift(problem, optimizer)
            for layer in (*shifts, *problem.params):
                shift = shifts[layer]
                numbers = shift.difference, shift.cosine, shift.gradient_norm, shift.updated_norm
                yield f"{name}/{label}/shift/{layer}", numbers
            yield from limits(f"{name}/{label}", wc.max_lr(problem, optimizer=optimizer))


@capability
def stability() -> Values:
    for name, build in ARCHITECTURES.items():
        case = build()
        examples = len(case.batch[0])
        problem = case.problem(batches=split(case.batch, [examples // 3, examples - examples // 3]))
        for momentum in (0.0, 0.9):
            yield from limits(f"{name}/{momentum}", wc.max_lr(problem, momentum=momentum, each_batch=True))
        optimizer = trained(case, two_groups, steps=2)
        yield from limits(f"{name}/groups", wc.max_lr(problem, optimizer=optimizer, each_group=True))


def limits(label: str, found: Any) -> Values:
    yield from attributes(label, found, "value", "low", "high", "lambda_max", "matvecs")
    yield f"{label}/batches", [(limit.value, limit.low, limit.high) for limit in found.batches]
    yield f"{label}/groups", [(group.together, group.alone and group.alone.value) for group in found.groups]


BLOCKS = {
    "mlp_tanh": "0 1 [0:2] 2", "cnn_batch": "0 1 4 [2:5] [0:2] 7", "cnn_running": "0 1 4 [0:2]", "lstm": "cell head",
    "resnet_batch": "0.conv1 0.bn2 0 2", "transformer": "blocks.1.norm1 head blocks.0", "encoder_layer": "0.linear1 0",
}  # fmt: skip


@capability
def local() -> Values:
    for name, blocks in BLOCKS.items():
        problem = ARCHITECTURES[name]().problem()
        for block in blocks.split():
            label = f"{name}/{block}"
            yield f"{label}/loss", wc.local_hessian(problem, block).loss
            found = wc.local_hessian(problem, block, last="squared")
            for part in ("z", "weight"):
                with refusals_left_out():
                    yield f"{label}/{part}/loss itself", getattr(wc.local_hessian(problem, block), part).exact.dense()
                    yield f"{label}/{part}/exact", getattr(found, part).exact.dense()
                    yield f"{label}/{part}/gauss_newton", getattr(found, part).gauss_newton.dense()
            yield from attributes(label, found, "target", "loss")
            for statistics in ("differentiated", "constant"):
                with refusals_left_out():
                    form = found.closed_form(statistics)
                    yield f"{label}/closed_form/{statistics}", [form.z.dense(), form.weight.dense()]
        yield f"{label}/spectrum", wc.spectrum(found.weight.gauss_newton).values
        yield from found_spectrum(label, found.weight.exact)
    for name, problem in problems():
        yield from attributes(name, wc.back_matching(problem, lr=0.1), "targets", "updates", "losses")
    x, q = torch.linspace(-0.5, 12, 40, dtype=torch.float64), torch.linspace(0, 1, 21, dtype=torch.float64)
    for c in (0.5, 1.0, 3.0):
        law = wc.local.marchenko_pastur(c, 1.5)
        found = {"density": law.density(x), "cdf": law.cdf(x), "quantile": law.quantile(q), "support": law.support}
        found["moments"] = [law.moment(order) for order in range(5)]
        found["distance"] = law.distance(torch.linalg.eigvalsh(normal(20, 20) @ normal(20, 20).T))
        yield from ((f"marchenko_pastur/{c}/{label}", value) for label, value in found.items())


LINES = (
    "fc 784-300-300-10", "fc 20-50-50-50-3 ln", "fc 20-50-50-3 vanilla sigma_w2=1.5", "fc 20-50-50-3 tanh gamma=0.5",
    "fc 20-50-50-50-3 residual", "conv 1x12x12 30-60-90 k3 10", "conv 3x8x8 16-16-16 k3 p1 10 pool residual",
    "conv 1x12x12 8-8 k3 s2 10 ln", "conv 2x8x8 8-8 k3 p1 5 vanilla gelu",
)  # fmt: skip


def small_cnn() -> nn.Module:
    first = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(6, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


@capability
def meanfield() -> Values:
    dense, cnn = wellcond.models.mlp([8, 40, 40, 3], norm="batch", seed=0).double(), seeded(small_cnn)
    predict = functools.partial(wc.meanfield.predict, momentum=0.9)
    found = {f"{line}/{v}": predict(line, variant=v) for line in LINES for v in ("batch", "detached")}
    found |= {f"examples/{line}": predict(line, momentum=0.0, examples=50) for line in LINES[:3]}
    found |= {f"{loss}/{LINES[1]}": predict(LINES[1], loss=loss, parameters="all") for loss in ("mse", "cross-entropy")}
    found["grid"] = predict(LINES[0], gamma=torch.tensor([0.5, 1.0, 2.0]), width=torch.tensor([[50.0], [100.0]]))
    for loss in ("half-squared", "cross-entropy"):
        found[f"{loss}/mlp"] = predict(dense, loss=loss)
        found[f"{loss}/mlp/inputs"] = predict(dense, loss=loss, inputs=normal(12, 8))
        found[f"{loss}/cnn"] = predict(cnn, loss=loss, inputs=(2, 8, 8))
        found[f"{loss}/cnn/inputs"] = predict(cnn, loss=loss, inputs=normal(6, 2, 8, 8))
    for label, prediction in found.items():
        yield from attributes(label, prediction, "lambda_max", "max_lr")
        for layer in prediction.layers:
            yield f"{label}/{layer.name}", dataclasses.astuple(layer)[1:]


@capability
def diagnosis() -> Values:
    for name, problem in problems():
        found = wc.diagnose(problem)
        yield f"{name}/loss", found.gradients.loss
        yield f"{name}/gradient_norms", found.gradients.norms
        yield f"{name}/weight_norms", found.weights
        yield f"{name}/eigenvalues", (found.hessian.values, found.hessian.errors)
        yield f"{name}/trace", (found.trace.value, found.trace.error)
        yield f"{name}/lambda_max", [row.x.lambda_max for row in found.conditioning.values()]
        yield f"{name}/dying", [units.is_dying for units in found.neurons.values()]


@capability
def remedies() -> Values:
    momentum = {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}
    for name in ("mlp_tanh", "mlp_relu", "cnn_batch", "transformer", "encoder_layer"):
        inputs = ARCHITECTURES[name]().batch[0]
        last = list(ARCHITECTURES[name]().model._modules)[-1]
        makers: dict[str, Callable[[nn.Module], Optimizer]] = {
            "bnp sgd": lambda model: with_bnp(model, sgd(model)),
            "bnp adam": lambda model: with_bnp(model, adam(model)),
            "bnp kernel": lambda model: with_bnp(model, sgd(model), means="kernel"),
            "bnp of one layer": lambda model, last=last: with_bnp(model, adam(model), include=[last]),
            "lars": lambda model: wc.LARS(model.parameters(), lr=0.05, **momentum),
            "lsalr": lambda model: wc.LSALR(model.parameters(), lr=0.05, **momentum),
            "scale-amended": lambda model, inputs=inputs: wc.ScaleAmendedSGD(model, lr=0.01, inputs=inputs, **momentum),
        }
        for label, make in makers.items():
            case = ARCHITECTURES[name]()
            with refusals_left_out():
                trained(case, make, steps=5)
                yield f"{name}/{label}", list(case.model.parameters())


@capability
def norms() -> Values:
    ramps = {"r_ramp": (0, 2), "d_ramp": (0, 2)}
    kinds = {
        "noisy": ("NoisyBatchNorm", {}),
        "renorm": ("BatchRenorm", ramps),
        "ghost": ("GhostBatchNorm", {"ghost_size": 4}),
    }
    kinds |= {f"l{p}": ("LpBatchNorm", {"p": p}) for p in (1, 2, math.inf)}
    kinds["four"] = "FourThingsBatchNorm", {"ghost_size": 4, "channels_per_group": 2, "alpha": 0.3}
    for label, (kind, options) in kinds.items():
        for suffix, shape in {"1d": (10, 4), "2d": (10, 4, 3, 3)}.items():
            torch.manual_seed(0)
            norm = getattr(wc.nn, kind + suffix)(4, dtype=torch.float64, **options)
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            x = normal(*shape).requires_grad_()
            for step in range(3):
                output = norm(x + step)
                yield f"{label}/{suffix}/training/{step}", (output, torch.autograd.grad(output.pow(3).sum(), x))
            yield f"{label}/{suffix}/evaluation", norm.eval()(x)
            yield f"{label}/{suffix}/state", norm.state_dict()
    for name in ("cnn_batch", "resnet_batch", "encoder_layer"):
        case = ARCHITECTURES[name]()
        surgery: dict[str, Callable[[], nn.Module]] = {
            "last_batchnorm": lambda case=case: wc.nn.with_last_batchnorm(case.model, case.batch[0]),
            "replaced": lambda case=case: wc.nn.replace_norm(case.model, wc.nn.GhostBatchNorm2d, of=nn.BatchNorm2d),
            "merged": lambda case=case: wc.nn.merge_batchnorm(case.model, case.batch[0]),
        }
        for label, operate in surgery.items():
            with refusals_left_out():
                model = operate()
                yield f"{name}/{label}", (model.eval()(case.batch[0]), list(model.parameters()))


@capability
def models_and_data() -> Values:
    sizes = [8, 6, 3]
    models = {
        f"mlp {init}": wellcond.models.mlp(sizes, init=init, seed=1) for init in ("lecun", "he", "glorot", "default")
    }
    models |= {"resnet": wellcond.models.resnet(8, seed=2), "vgg": wellcond.models.vgg(11, seed=3)}
    for label, model in models.items():
        yield label, [p.flatten()[:50] for p in model.parameters()]
    for train in (None, True, False):
        digits = wellcond.data.digits(train)
        inputs, labels = digits.tensors(dtype=torch.float64, count=10)
        yield f"digits/{train}", (len(digits), *digits.moments)
        yield f"digits/{train}/tensors", (inputs, labels)


def numbers(value: Any) -> list[float]:
    """All numbers in tensors, sequences and mappings, one after the other; None holds none."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [number for part in value for number in numbers(part)]
    return [] if value is None else torch.as_tensor(value, dtype=torch.float64).detach().flatten().tolist()


def write(path: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    measurements: dict[str, list[float]] = {}
    for name, measure in CAPABILITIES.items():
        start, before = time.perf_counter(), len(measurements)
        for label, value in measure():
            assert f"{name}/{label}" not in measurements, f"two measurements are called {name}/{label}"
            measurements[f"{name}/{label}"] = numbers(value)
        print(f"{name:16} {len(measurements) - before:6} arrays {time.perf_counter() - start:6.1f} s", flush=True)
    Path(path).write_text(json.dumps({"measurements": measurements}))
    print(f"{sum(map(len, measurements.values()))} numbers of {wc.__file__}")


def difference(before: list[float], after: list[float]) -> float:
    """The largest difference over the largest finite magnitude; inf where only one is finite, or the lengths differ."""
    if len(before) != len(after):
        return math.inf
    a, b = torch.tensor([before, after], dtype=torch.float64)
    gaps = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(math.inf)
    magnitude = max((abs(x) for x in before + after if math.isfinite(x)), default=1.0)
    return float(gaps.max()) / magnitude if gaps.any() else 0.0


def compare(before_path: str, after_path: str) -> int:
    before, after = (json.loads(Path(path).read_text())["measurements"] for path in (before_path, after_path))
    failures: list[str] = []
    compared: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for name in before | after:
        if name in before and name in after:
            found = difference(before[name], after[name])
            compared[name.partition("/")[0]].append((len(before[name]), found))
            if not found <= TOLERANCE:
                failures.append(f"{name} differs by {found:.1e}")
        elif not name.startswith(tuple(IN_ONE_FILE_ONLY)):
            failures.append(f"{name} is only in {before_path if name in before else after_path}")
    for name, found in compared.items():
        print(
            f"{name:16} {len(found):6} arrays {sum(n for n, _ in found):8} numbers, at most {max(d for _, d in found):.1e}"
        )
    print(*failures, *(f"left out: {name}: {reason}" for name, reason in IN_ONE_FILE_ONLY.items()), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path]:
            write(path)
        case ["compare", before, after]:
            sys.exit(compare(before, after))
        case _:
            sys.exit(__doc__)
