"""Rules about BatchNorm: its modes, its batch; and about labels that inputs do not tell, and the last layer's input."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.finding import Finding, Severity
from wellcond.diagnosis.rule import UNRELATED, rule
from wellcond.results import Row, number
from wellcond.results.quantities import KRONECKER

SMALL_BATCH = 4
"""Examples. The variance of n values is known to √(2/(n−1)): to 80 % from four, to 140 % from two, not from one."""
MODE_GAP = 1.5
"""Times the loss with batch statistics: what running ones may cost after training. They are averages of the same."""
SLOW_MOMENTUM, SLOWEST_MOMENTUM = 1e-3, 1e-4
"""Of running statistics, which forget their start in 1,000 and 10,000 steps."""
ENOUGH_UPDATES = 20
"""Of running statistics with momentum 0.1, which have then forgotten 88 % of where they started."""
ENOUGH_EXAMPLES = 128
STRUCTURE = 1.5
"""Times the Marchenko-Pastur edge: inputs with as little in common as noise give probes nothing to go by."""
DRIFT = 30.0
"""Times the next largest λ_max(Σx)·λ_max(Σ∇h): the last layer alone then decides on the rate of all."""


@rule("batchnorm-mode-gap", explains=("vanishing-gradient", "loss-not-decreasing", "activation-drift", "rank-collapse",
                                      "learning-rate-too-low", "dying-neurons"))  # fmt: skip
def evaluating_norms(evidence: Evidence) -> Iterator[Finding]:
    """BatchNorm in evaluation mode that has never seen a batch: by mean 0 and variance 1 it normalizes nothing.

    Severe if the trial learns with batch statistics and ends more than twice as high with these; else a warning, and a
    note if the whole model is in evaluation mode and it makes no difference. Statistics that have been updated are
    frozen on purpose in fine-tuning.
    """
    norms = _norms(evidence.problem.model)
    stale = [name for name, m in norms.items() if not m.training and _updates(m) == 0]
    if not stale:
        return
    trial = evidence.trial
    numbers: dict[str, float | str] = {"norms": float(len(stale))}
    severity: Severity = "warning" if evidence.problem.model.training else "note"
    costs = ""
    if trial is not None and trial.own is not None and "running statistics" in trial.variants:
        own, running = trial.own, trial.variants["running statistics"]
        numbers |= {"loss with batch statistics": own.loss, "loss with running statistics": running.loss}
        costs = (
            f": after {len(own.run.losses)} steps the loss is {number(running.loss)} so, {number(own.loss)} with the "
            "statistics of each batch"
        )
        if trial.learns(own) and (trial.rises(running) or running.loss > 2 * own.loss):
            severity = "severe"
    yield Finding(
        rule="batchnorm-mode-gap",
        layer=stale[0],
        severity=severity,
        confidence=0.9,
        summary=f"{stale[0]} is in evaluation mode and has never seen a batch"
        f"{f', as are {len(stale) - 1} more' if len(stale) > 1 else ''}, so it normalizes nothing{costs}.",
        evidence=numbers,
        reason="Running statistics start at mean 0 and variance 1 and move only in training mode.",
        remedy="model.train()  # before every epoch of training",
    )


@rule("batchnorm-mode-gap")
def modes_differ(evidence: Evidence) -> Iterator[Finding]:
    """A network with updated running statistics whose loss in evaluation mode is far above that in training mode.

    More than 1.5 times, and by more than a tenth of a constant's loss, after at least 20 updates: running statistics
    are averages of the batches' own, so that they differ only where batches are small or the weights outran them.
    Severe where the network has learned by the one and is no better than a constant by the other.
    """
    trial = evidence.trial
    if trial is None or trial.modes is None:
        return
    norms = _norms(evidence.problem.model)
    if not norms or min(_updates(m) for m in norms.values()) < ENOUGH_UPDATES:
        return
    batch, running = trial.modes
    margin = 0.1 * abs(trial.constant) if trial.constant is not None else 0.0
    if not running > MODE_GAP * batch + margin:
        return
    name = next(iter(norms))
    is_lost = trial.constant is not None and batch < 0.5 * trial.constant < trial.constant < running
    yield Finding(
        rule="batchnorm-mode-gap",
        layer=name,
        severity="severe" if is_lost else "warning",
        confidence=0.9 if is_lost else 0.8,
        summary=f"the loss is {number(batch)} with the statistics of each batch and {number(running)} with the running ones, "
        "by which the network is evaluated.",
        evidence={
            "loss with batch statistics": batch,
            "loss with running statistics": running,
            "norms": float(len(norms)),
        },
        reason="Running statistics are averages of the batches' own; a gap means small batches, a momentum that is too low, "
        "or weights that changed faster than they do.",
        remedy="for m in model.modules():\n"
        "    if isinstance(m, torch.nn.modules.batchnorm._BatchNorm): m.reset_running_stats()\n"
        "model.train()\nwith torch.no_grad():\n    for inputs, _ in loader: model(inputs)",
    )


@rule("batchnorm-mode-gap")
def slow_statistics(evidence: Evidence) -> Iterator[Finding]:
    """Running statistics whose momentum is so low that they hardly leave their start: 1/momentum steps to forget it.

    A warning from 1,000 steps, severe from 10,000, which ordinary runs do not have, and for a momentum of 0. torch's
    own 0.1 takes 10. Statistics that have been updated as often as that are none of it.
    """
    norms = _norms(evidence.problem.model)
    slow = {n: m for n, m in norms.items() if m.momentum is not None and m.momentum < SLOW_MOMENTUM and m.training}
    slow = {n: m for n, m in slow.items() if _updates(m) * float(m.momentum or 0.0) < 1}
    if not slow:
        return
    name, norm = min(slow.items(), key=lambda each: float(each[1].momentum or 0.0))
    momentum = float(norm.momentum or 0.0)
    steps = number(1 / momentum) if momentum else "∞"
    yield Finding(
        rule="batchnorm-mode-gap",
        layer=name,
        severity="severe" if momentum <= SLOWEST_MOMENTUM else "warning",
        confidence=0.85,
        summary=f"the running statistics of {name}{f' and {len(slow) - 1} more' if len(slow) > 1 else ''} have a momentum of "
        f"{number(momentum)}: they take {steps} steps to forget where they start, and evaluation uses them.",
        evidence={"momentum": momentum, "updates so far": float(_updates(norm)), "norms": float(len(slow))},
        reason="After k steps (1 − momentum)^k of mean 0 and variance 1 is left in them. torch's momentum is the new batch's "
        "weight, 1 minus that of other libraries.",
        remedy="for m in model.modules():\n    if isinstance(m, torch.nn.modules.batchnorm._BatchNorm): m.momentum = 0.1",
    )


@rule("small-batch-batchnorm", explains=("batchnorm-mode-gap", "loss-not-decreasing", "learning-rate-too-high"))
def small_batch(evidence: Evidence) -> Iterator[Finding]:
    """BatchNorm over at most four examples.

    The variance of n values is known to √(2/(n−1)). Severe for one example, whose statistics are its own: training
    normalizes every example by itself and evaluation by others (lange2022, figures 4 and 5: BN does not train there);
    and where a unit has two values in a batch, of which a norm leaves −1 and 1: all but their order is lost.
    """
    inspection = evidence.inspection
    couples = evidence.problem.couples_examples
    norms = [name for name, m in _norms(evidence.problem.model).items() if m.training or couples]
    if inspection is None or not inspection.batch_size or inspection.batch_size > SMALL_BATCH or not norms:
        return
    size = inspection.batch_size
    if size > 1 and inspection.examples <= size:
        return  # one small batch that was given to look at says little of those that are trained on
    error = "" if size == 1 else f", so that a variance is known to {100 * (2 / (size - 1)) ** 0.5:.0f} %"
    values = min(
        (s.rows * size / inspection.examples for s in inspection.signals if s.name in norms), default=float(size)
    )
    if size == 2 and values <= size:
        error = ": of two values it leaves −1 and 1, which say no more than which one is larger"
    more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
    is_lost = size == 1 or values <= 2
    yield Finding(
        rule="small-batch-batchnorm",
        layer=norms[0],
        severity="severe" if is_lost else "warning",
        confidence=0.95 if is_lost else 0.85,
        summary=f"BatchNorm ({norms[0]}{more}) sees batches of {size}{error}.",
        evidence={"batch size": float(size), "values of a unit": values, "norms": float(len(norms))},
        reason="The noise of statistics, √(2/(n−1)) of the variance, is noise in every activation, and evaluation "
        "uses others (lange2022, figures 4 and 5).",
        remedy="model = wc.nn.replace_norm(model, lambda channels: torch.nn.GroupNorm(math.gcd(8, channels), channels))",
    )


@rule("labels-unrelated", explains=("loss-not-decreasing", "learning-rate-too-low", "learning-rate-too-high"))
def labels_unrelated(evidence: Evidence) -> Iterator[Finding]:
    """Inputs that tell nothing of the targets: neither neighbors nor a fit predict them better than chance.

    Three leave-one-out probes, by the nearest neighbor, a linear and a smooth fit, lie within four standard deviations
    of shuffled targets, for at least 128 examples (256: severe), on which data sets of ours have 5 to 230. The inputs
    must have structure beyond the Marchenko-Pastur edge, or, for targets that are numbers, at least 16 examples per
    feature, with which a smooth fit has power. It is silent for tokens, for classes of noise, and where the network has
    learned something.
    """
    trial = evidence.trial
    if trial is None or trial.relation is None or trial.is_learned:
        return
    found = trial.relation
    is_dense = found.is_regression and found.examples >= max(2 * ENOUGH_EXAMPLES, 16 * found.features)
    has_power = found.examples >= ENOUGH_EXAMPLES and (found.structure >= STRUCTURE or is_dense)
    is_told_slowly = found.slow is not None and found.slow.rest > 0.1
    if not has_power or found.best > UNRELATED or is_told_slowly:
        return
    if trial.own is not None and trial.learns(trial.own):
        return
    yield Finding(
        rule="labels-unrelated",
        layer="",
        severity="severe" if found.examples >= 2 * ENOUGH_EXAMPLES else "warning",
        confidence=0.85,
        summary=f"over {found.examples} examples the inputs tell nothing of the targets: the nearest neighbor's target is "
        f"{number(found.neighbor)}, a linear fit {number(found.linear)} and a smooth one {number(found.smooth)} "
        "standard deviations better than chance.",
        evidence={
            "examples": float(found.examples),
            "nearest neighbor, in σ": found.neighbor,
            "linear fit, in σ": found.linear,
            "smooth fit, in σ": found.smooth,
            "structure of the inputs, in noise edges": found.structure,
        },
        reason="Targets that can be learned from inputs are alike for neighbors; shuffled or sorted ones are not. The usual "
        "cause is an index that shuffles or sorts one of the two.",
        remedy="order = torch.randperm(len(x)); x, y = x[order], y[order]  # one order for both",
    )


@rule("last-layer-drift")
def last_layer_drift(evidence: Evidence) -> Iterator[Finding]:
    """The last layer's curvature outweighs every other layer's thirtyfold, by the size of what it receives.

    λ_max(Σx)·λ_max(Σ∇h) is that of the layer's block of the Fisher matrix (huang2020, Proposition 1). In residual
    networks without a last norm the input of the last layer grows with depth (huang2020, figure XV).
    """
    table = evidence.conditioning
    if table is None or len(table) < 4:
        return
    whole = {name: (layer.x, layer.g) for name, layer in table.items() if layer.x is not None}
    size = {name: x.lambda_max * g.lambda_max for name, (x, g) in whole.items() if g is not None}
    received = {name: x.lambda_max for name, (x, g) in whole.items() if g is not None}
    if len(size) < 4:
        return
    *others, last = size
    rest = max(size[name] for name in others)
    if not (rest > 0 and size[last] > DRIFT * rest and received[last] > DRIFT * max(received[n] for n in others)):
        return
    yield Finding(
        rule="last-layer-drift",
        layer=last,
        severity="warning",
        confidence=0.7,
        summary=f"the input of {last} has λ_max {number(received[last])}, and the layer's curvature is "
        f"{number(size[last] / rest)} times that of any other.",
        evidence={"λmax of Σx": received[last], "curvature over the next": size[last] / rest},
        reason="One layer then sets the stable rate of all (huang2020, section 5: a BatchNorm before the last layer).",
        remedy="model = wc.nn.with_last_batchnorm(model)",
        rows=tuple(Row(None, name, KRONECKER.lambda_max, value, "") for name, value in size.items()),
    )


def _norms(model: nn.Module) -> dict[str, _BatchNorm]:
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.track_running_stats and module.running_mean is not None
    }


def _updates(norm: _BatchNorm) -> int:
    return int(norm.num_batches_tracked) if norm.num_batches_tracked is not None else ENOUGH_UPDATES
