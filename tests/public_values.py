"""Every public measurement on small float64 networks, as numbers in a file: proof that a refactoring keeps them.

`write` computes them with the package on PYTHONPATH. `compare` exits with 1 if a number differs by more than 1e-12 of
the largest magnitude in its array, or if an array is in one file only. Run the script of each revision on its own tree:

    git worktree add ../before <revision>
    (cd ../before && PYTHONPATH=src:tests python tests/public_values.py write /tmp/before.json)
    PYTHONPATH=src:tests python tests/public_values.py write /tmp/after.json
    python tests/public_values.py compare /tmp/before.json /tmp/after.json
"""

import contextlib
import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # PYTHONPATH decides which zoo is used, not the directory of this script

import torch
from torch import nn
from torch.optim import SGD, Adam
from zoo import ARCHITECTURES, Case, mlp, normal, split

import wellcond as wc
from wellcond_papers import data, models

TOLERANCE = 1e-12
IN_ONE_FILE_ONLY: dict[str, str] = {}  # the start of a name, and the reason why one of the two revisions lacks it
Values = dict[str, Any]
MEASUREMENTS: dict[Callable[[Any], Values], Callable[[], Iterable[tuple[str, Any]]]] = {}
"""Functions from a subject, such as a problem, to named values; and what lists the subjects with their names."""
RATE = (
    "value low high lambda_max matvecs groups.proportional groups.separate.value batches.value batches.low batches.high"
)
OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda m: Adam(m.parameters(), lr=1e-2),
    "groups": lambda m: SGD([{"params": [p], "lr": 0.1 / p.dim()} for p in m.parameters()], lr=0.1, momentum=0.9),
    "bnp sgd": lambda m: wc.BNP(m, SGD(m.parameters(), lr=0.1, momentum=0.9), rho=0.5).optimizer,
    "bnp adam": lambda m: wc.BNP(m, Adam(m.parameters(), lr=1e-2), rho=0.5, means="kernel").optimizer,
    "bnp last": lambda m: wc.BNP(m, SGD(m.parameters(), lr=0.1), layers=[*m._modules][-1]).optimizer,
    "lars": lambda m: wc.LARS(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
    "lsalr": lambda m: wc.LSALR(m.parameters(), lr=0.05, momentum=0.9, nesterov=True),
}


def measurement(subjects: Callable[[], Iterable[tuple[str, Any]]]) -> Callable[[Any], Any]:
    return lambda function: MEASUREMENTS.setdefault(function, subjects) and function


def pick(result: Any, names: str) -> Values:
    """Attributes by their names, which may be dotted: "groups.lr" holds the lr of every group."""
    return {name: functools.reduce(attribute, name.split("."), result) for name in names.split()}


def attribute(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return {key: attribute(entry, name) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [attribute(entry, name) for entry in value]
    return None if value is None else getattr(value, name)


def unless_refused(compute: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """{} where the library refuses: what only one of two revisions refuses is then in one file only."""
    with contextlib.suppress(wc.WellcondError):
        return compute(*arguments, **options)
    return {}


def problems() -> Iterator[tuple[str, wc.Problem]]:
    """The zoo on one batch and on two of uneven sizes, other losses, and dropout."""
    for name, build in ARCHITECTURES.items():
        case, examples = build(), len(build().batch[0])
        yield name, case.problem()
        yield f"{name} uneven", case.problem(batches=split(case.batch, [examples // 3, examples - examples // 3]))
    yield "squared error", wc.Problem(mlp(), nn.MSELoss(), (normal(6, 4), normal(6, 3)))
    yield "binary", wc.Problem(mlp(), nn.BCEWithLogitsLoss(), (normal(6, 4), (normal(6, 3) > 0).double()))
    yield "dropout", ARCHITECTURES["encoder_layer"]().problem(dropout=3)


@measurement(problems)
def curvature(problem: wc.Problem) -> Values:
    first, v = next(iter(problem.params)), normal(problem.size, 2, seed=1)
    operators = {f"fisher {labels}": wc.Fisher(problem, labels=labels) for labels in ("model", "sample", "data")}
    operators |= {"hessian": wc.Hessian(problem), "ggn": wc.GGN(problem)}
    found = {kind: {"product": A @ v[:, 0], "products": A @ v} for kind, A in operators.items()}
    found["block"] = {kind: A.layer(first).dense() for kind, A in operators.items()}
    found["block spectrum"] = {kind: wc.spectrum(A.layer(first)).values for kind, A in operators.items()}
    found["dense"] = operators["hessian"].dense() if problem.size < 200 else {}
    found["parameter"] = wc.Fisher(problem, labels="sample", layers=[first], samples=3).dense()
    found["ends"], values = spectrum_of(operators["hessian"]), wc.spectrum(operators["ggn"]).values
    found["kappa"] = {p: wc.condition_number(values, p=p) for p in (0.01, 0.02, 0.05, 1.0)}
    return found | {"values": values, "rank": wc.numerical_rank(values)}


def spectrum_of(operator: Any) -> Values:
    """Errors are in one array with their values, in units of which they are small."""
    density, trace = wc.density(operator, probes=3, iterations=6, points=50), wc.trace(operator, tol=0.3)
    found = pick(density, "grid density error nodes weights width matvecs")
    for which in ("largest", "smallest", "both"):
        ends = wc.eigenvalues(operator, k=2, which=which, tol=1e-2)
        found[which] = {"values": (ends.values, ends.errors), "matvecs": (ends.matvecs, ends.converged)}
    return found | {"trace": (trace.value, trace.error), "trace matvecs": trace.matvecs}


@measurement(problems)
def network_and_layers(problem: wc.Problem) -> Values:
    diagnosis = "gradients.loss gradients.norms weights hessian.values trace.value conditioning.x.lambda_max"
    found = pick(wc.diagnose(problem, budget="full"), diagnosis) | pick(wc.neurons(problem), "is_dying is_full")
    found |= {mu: pick(wc.max_lr(problem, momentum=mu, each_batch=True), RATE) for mu in (0.0, 0.9)}
    for direction in ("gradient", "random", "eigenvector", normal(problem.size, seed=3)):
        walk = wc.landscape(problem, lr=0.1, span=(0.5, 4.0), steps=4, direction=direction)
        found[walk.direction] = pick(walk, "step_lengths losses gradient_changes distances beta loss gradient_norm")
    found["line"] = pick(wc.loss_slice(problem, ["random"], extent=0.5, points=5), "coordinates losses")
    found["plane"] = wc.loss_slice(problem, ["gradient", "eigenvector"], points=3, filter_normalized=False).losses
    numbers = [f"{m}.values {m}.lambda_max {m}.kappa {m}.rank {m}.trace" for m in ("x", "g", "kronecker", "fisher")]
    for rows, labels in itertools.product(["position", "patch"], ["data", "sample", "model"]):
        table = unless_refused(wc.conditioning, problem, convolution=rows, labels=labels, fisher_up_to=40)
        factors = getattr(unless_refused(wc.kronecker_factors, problem, convolution=rows, labels=labels), "layers", {})
        found[f"{rows} {labels}"] = pick(table, " ".join(numbers)) | pick(factors, "x.mean x.count g.mean g.count")
    return found


@measurement(ARCHITECTURES.items)
def remedies(build: Callable[[], Case]) -> Values:
    inputs, targets = build().batch
    changed = {"last": unless_refused(wc.nn.with_last_batchnorm, build().model, inputs)}
    changed["merged"] = unless_refused(wc.nn.merge_batchnorm, build().model, inputs)
    changed["replaced"] = unless_refused(wc.nn.replace_norm, build().model, wc.nn.GhostBatchNorm2d, of=nn.BatchNorm2d)
    found = {label: model and (model.eval()(inputs), *model.parameters()) for label, model in changed.items()}
    makers = OPTIMIZERS | {"scale-amended": lambda m: wc.ScaleAmendedSGD(m, lr=0.01, momentum=0.9, inputs=inputs)}
    for label, make in makers.items():
        torch.manual_seed(0)  # of dropout
        case = build()
        problem, optimizer = case.problem(), unless_refused(make, case.model)
        before = wc.activations(problem, bins=10, bounds=(-2.0, 2.0) if label == "sgd" else None)
        for _ in range(5 if optimizer else 0):
            optimizer.zero_grad()
            case.loss(case.model(inputs), targets).backward()
            optimizer.step()
        found[f"{label} parameters"] = optimizer and list(case.model.parameters())
        if label in ("sgd", "adam", "groups"):
            after, ics = wc.activations(problem, like=before), wc.covariate_shift(problem, optimizer)
            found[f"{label} units"] = pick(after, "mean variance edges counts")
            found[f"{label} change"] = pick(after.change_from(before), "mean variance relative_mean relative_variance")
            found[f"{label} shift"] = pick(ics.layers | ics.parameters, "difference cosine gradient_norm updated_norm")
            found[label] = pick(wc.max_lr(problem, optimizer, each_group=label == "groups"), RATE)
    return found


@measurement(problems)
def local(problem: wc.Problem) -> Values:
    back = wc.back_matching(problem, lr=0.1)  # the update of a bias before BatchNorm is zero but for rounding
    found = pick(back, "targets losses") | {"updates": list(back.updates.values())}
    blocks = [name for name, _ in problem.model.named_modules() if name.count(".") < 2]
    for block, last in itertools.product([*blocks, "[0:2]", "[2:5]"], ["loss", "squared"]):
        if hessian := unless_refused(wc.local_hessian, problem, block, last=last):
            forms = {name: unless_refused(hessian.closed_form, name) for name in ("batch", "detached")}
            found[f"{block} {last}"] = pick(hessian, "target loss") | pick(forms, "z weight")
            for part in ("z", "weight"):
                found[f"{block} {last} {part}"] = unless_refused(pick, hessian, f"{part}.exact {part}.gauss_newton")
    whole = wc.local_hessian(problem, "").weight
    return found | {"spectrum": spectrum_of(whole.exact), "values": wc.spectrum(whole.gauss_newton).values}


@measurement(lambda: [("batch", "batch"), ("detached", "detached")])
def meanfield(variant: str) -> Values:
    predict = functools.partial(wc.meanfield.predict, momentum=0.9, variant=variant)
    lines = ["fc 784-99-9 gamma=2", "fc 20-50-50-3 ln", "fc 20-50-3 vanilla tanh sigma_w2=1.5", "fc 9-20-20-3 residual"]
    lines += ["conv 2x9x9 8-8 k3 s2 9 ln", "conv 3x8x8 8-8 k3 p1 9 pool residual", "conv 1x8x8 8 k3 p1 5 vanilla gelu"]
    found = {line: predict(line) for line in lines}
    found |= {f"{line} all": predict(line, parameters="all", loss="mse", examples=50) for line in lines}
    torch.manual_seed(0)  # of the weights
    parts = nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    cnn, dense = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), *parts), models.mlp([8, 40, 40, 3], norm="batch", seed=0)
    for model, *shape in ((dense, 8), (cnn, 2, 8, 8)):
        for loss, inputs in itertools.product(["mse", "cross-entropy"], [shape, normal(6, *shape)]):
            found[f"{shape} {loss} {type(inputs).__name__}"] = predict(model.double(), loss=loss, inputs=inputs)
    return pick(found, "lambda_max max_lr layers.term layers.q layers.q_xy layers.q_hat_xy layers.q_tilde_xy")


@measurement(lambda: [("", None)])
def norms_models_data(_: None) -> Values:
    networks = {init: models.mlp([8, 6, 3], init=init, seed=1) for init in ("lecun", "he", "glorot", "default")}
    networks |= {"resnet": models.resnet(8, seed=2), "vgg": models.vgg(11, seed=3)}
    found: Values = {name: [p.flatten()[:50] for p in model.parameters()] for name, model in networks.items()}
    for digits in map(data.digits, (None, True, False)):
        found[digits.name] = [*digits.moments, *digits.tensors(dtype=torch.float64, count=10)]
    x = torch.linspace(0, 12, 41, dtype=torch.float64)
    for law in map(wc.marchenko_pastur, (0.5, 1.0, 3.0), (1.0, 1.0, 1.5)):
        found[f"law {law.c}"] = [law.density(x), law.cdf(x), law.quantile(x / 12), *map(law.moment, range(4))]
    norms = [("NoisyBatchNorm", {}), ("GhostBatchNorm", {}), *(("LpBatchNorm", {"p": p}) for p in (1, 2, torch.inf))]
    norms += [("BatchRenorm", {"r_ramp": (0, 2)}), ("FourThingsBatchNorm", {"channels_per_group": 2, "alpha": 0.3})]
    for (kind, options), x in itertools.product(norms, [normal(20, 4), normal(20, 4, 3, 3)]):
        torch.manual_seed(0)  # of the noise
        norm = getattr(wc.nn, f"{kind}{x.dim() // 2}d")(4, **options).double()
        found[f"{kind} {options} {x.dim()}"] = norm(x), norm(2 * x + 1), norm.eval()(x), norm.state_dict()
    return found


def arrays(name: str, value: Any) -> Iterator[tuple[str, list[float]]]:
    """All numbers in a value, by name; a linear operator is known by its product with a fixed vector."""
    if hasattr(value, "dense"):
        value = (value if hasattr(value, "__matmul__") else value.dense()) @ normal(value.shape[0], seed=4)
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from arrays(f"{name}/{key}", part)
    elif isinstance(value, (list, tuple)):
        yield name, [number for part in value for _, numbers in arrays("", part) for number in numbers]
    elif value is not None:
        yield name, torch.as_tensor(value, dtype=torch.float64).detach().flatten().tolist()


def write(path: str) -> None:
    torch.set_num_threads(1)
    every = ((measure, name, of) for measure, subjects in MEASUREMENTS.items() for name, of in subjects())
    found = [array for measure, name, of in every for array in arrays(f"{measure.__name__}/{name}", measure(of))]
    assert len(dict(found)) == len(found), "two arrays have the same name"
    Path(path).write_text(json.dumps({"measurements": dict(found)}))
    print(f"{sum(len(numbers) for _, numbers in found)} numbers in {len(found)} arrays, from {wc.__file__}")


def difference(before: list[float], after: list[float]) -> float:
    """The largest one, over the largest finite magnitude; nan equals nan, and inf equals inf."""
    if len(before) != len(after):
        return torch.inf
    a, b = torch.tensor([before, after], dtype=torch.float64)
    gaps = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).nan_to_num(torch.inf)
    return float(gaps.max() / torch.cat([a, b]).nan_to_num(0.0, 0.0, 0.0).abs().max()) if gaps.any() else 0.0


def compare(*paths: str) -> int:
    before, after = (json.loads(Path(path).read_text())["measurements"] for path in paths)
    lone = [name for name in before.keys() ^ after.keys() if not name.startswith(tuple(IN_ONE_FILE_ONLY))]
    failures = [f"{name} is in one file only" for name in sorted(lone)]
    for kind, names in itertools.groupby(filter(after.__contains__, before), lambda name: name.partition("/")[0]):
        found = {name: difference(before[name], after[name]) for name in names}
        failures += [f"{name} differs by {gap:.1e}" for name, gap in found.items() if not gap <= TOLERANCE]
        print(f"{kind:18} {sum(len(before[n]) for n in found):7} numbers, largest difference {max(found.values()):.1e}")
    print("\n".join([*failures[:50], f"{len(failures)} arrays are not the same"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit({"write": write, "compare": compare}[sys.argv[1]](*sys.argv[2:]))
