"""What a loss is the mean over: against gradients of single terms, and several batches against the joined data."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import assert_same, dense_ggn, dense_hessian
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from zoo import integers, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem

CLASSES = 3
WEIGHTS = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
SIZES = (3, 5)


@dataclass(frozen=True)
class Zoo:
    """A loss, its targets for all examples, and its terms.

    Attributes:
        loss: Of outputs and targets.
        terms: outputs, targets → (ℓ of every term, its weight a): the loss is Σ aℓ / Σa.
        targets: Of eight examples.
        places: What follows the examples in the inputs.
        form: What the model returns, made of its output tensor.
        classes_second: Whether the model returns (N, C, …).
    """

    loss: Any
    terms: Callable[[Tensor, Any], tuple[Tensor, Tensor]]
    targets: Any
    places: tuple[int, ...] = (4,)
    form: Callable[[Tensor], Any] = lambda f: f
    classes_second: bool = False


class Model(nn.Module):
    def __init__(self, zoo: Zoo) -> None:
        super().__init__()
        self.fc1, self.fc2, self.zoo = nn.Linear(5, 4), nn.Linear(4, CLASSES), zoo

    def tensor(self, x: Tensor) -> Tensor:
        f = self.fc2(self.fc1(x).tanh())
        return f.movedim(-1, 1) if self.zoo.classes_second else f

    def forward(self, x: Tensor) -> Any:
        return self.zoo.form(self.tensor(x))


# the losses


def rows(f: Tensor) -> Tensor:
    return f.reshape(-1, CLASSES)


def each(f: Tensor, y: Tensor, **options: Any) -> Tensor:
    return F.cross_entropy(rows(f), y.reshape(-1), reduction="none", **options)


def focal(f: Tensor, y: Tensor) -> Tensor:
    ce = each(f, y)
    return (1 - (-ce).exp()) ** 2 * ce


def poly(f: Tensor, y: Tensor) -> Tensor:
    ce = each(f, y)
    return ce + 2 * (1 - (-ce).exp())


def evenly(loss: Callable[[Tensor, Any], Tensor]) -> Callable[[Tensor, Any], tuple[Tensor, Tensor]]:
    return lambda f, y: ((each_ := loss(f, y).reshape(-1)), torch.ones_like(each_))


def counted(loss: Callable[[Tensor, Any], Tensor], y_of: Any = lambda y: y) -> Any:
    """Those whose label is not −100."""
    return lambda f, y: ((each_ := loss(f, y_of(y))[y_of(y).reshape(-1) != -100]), torch.ones_like(each_))


def masked(f: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    keep = y["mask"].reshape(-1) > 0
    return focal(f, y["y"])[keep], torch.ones(int(keep.sum()), dtype=f.dtype)


def by_sequence(f: Tensor, y: Any) -> Tensor:
    return ((focal(f, y[0]).view_as(y[1]) * y[1]).sum(1) / y[1].sum(1)).mean()


def by_sequence_terms(f: Tensor, y: Any) -> tuple[Tensor, Tensor]:
    keep = y[1].reshape(-1) > 0
    return focal(f, y[0])[keep], (y[1] / y[1].sum(1, keepdim=True)).reshape(-1)[keep]


def shifted(f: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(rows(f[:, :-1]), y[:, 1:].reshape(-1), label_smoothing=0.1)


def distilled(f: Tensor, y: Tensor) -> Tensor:
    return F.kl_div(f.log_softmax(-1), y, reduction="none").sum(-1)


def multi_margin(f: Tensor, y: Tensor) -> Tensor:
    """Its like in torch has no second derivative."""
    others = (1 + f - f.gather(1, y[:, None])).clamp_min(0) ** 2
    return others.scatter(1, y[:, None], 0.0).sum(1)


TOKENS = integers(CLASSES, 8, 4, seed=3)
PIXELS = integers(CLASSES, 8, 2, 3, seed=4)
LABELS = integers(CLASSES, 8, seed=5)
UNEVEN = TOKENS.clone()
UNEVEN[0, 1:] = UNEVEN[1, 2:] = UNEVEN[4, :3] = UNEVEN[6] = -100
MASK = (UNEVEN != -100).double()
MASK[6, 0] = 1.0
SORTED = LABELS.sort().values.clone()
SORTED[:3], SORTED[3:] = 0, 2  # every batch has one class alone
PART = PIXELS.clone()
PART[:, 0, 0] = PART[2] = 255
Named = collections.namedtuple("Named", "aux logits")


@dataclass(frozen=True)
class Frozen:
    logits: Tensor
    aux: Tensor


class Slots:
    __slots__ = ("aux", "scores")

    def __init__(self, scores: Tensor) -> None:
        self.scores, self.aux = scores, scores.mean()


SMOOTH = {"label_smoothing": 0.1}
ZOO: dict[str, Zoo] = {
    "smoothing": Zoo(lambda f, y: each(f, y, **SMOOTH).mean(), evenly(lambda f, y: each(f, y, **SMOOTH)), TOKENS),
    "smoothing_ignoring": Zoo(
        lambda f, y: F.cross_entropy(rows(f), y.flatten(), **SMOOTH), counted(lambda f, y: each(f, y, **SMOOTH)), UNEVEN
    ),
    "smoothing_flat_targets": Zoo(
        lambda f, y: F.cross_entropy(rows(f), y, **SMOOTH), evenly(lambda f, y: each(f, y, **SMOOTH)), TOKENS
    ),
    "focal": Zoo(lambda f, y: focal(f, y).mean(), evenly(focal), TOKENS),
    "poly": Zoo(lambda f, y: poly(f, y).mean(), evenly(poly), TOKENS),
    "weights": Zoo(
        lambda f, y: F.cross_entropy(rows(f), y.flatten(), weight=WEIGHTS),
        lambda f, y: (each(f, y), WEIGHTS[y.flatten()]), TOKENS,
    ),
    "weights_classes_second": Zoo(
        nn.CrossEntropyLoss(weight=WEIGHTS), lambda f, y: (each(f.movedim(1, -1), y), WEIGHTS[y.flatten()]), TOKENS,
        classes_second=True,
    ),
    "weights_of_log_probabilities": Zoo(
        nn.NLLLoss(weight=WEIGHTS), lambda f, y: (-f.gather(1, y[:, None]).flatten(), WEIGHTS[y.flatten()]), TOKENS,
        form=lambda f: f.log_softmax(1), classes_second=True,
    ),
    "weights_ignoring_and_smoothing": Zoo(
        lambda f, y: F.cross_entropy(rows(f), y.flatten(), weight=WEIGHTS, ignore_index=-100),
        lambda f, y: (each(f, y)[(k := y.flatten() != -100)], WEIGHTS[y.flatten()[k]]), UNEVEN,
    ),
    "weights_of_classes_in_batches_of_one": Zoo(
        nn.CrossEntropyLoss(weight=WEIGHTS), lambda f, y: (each(f, y), WEIGHTS[y]), SORTED, places=()
    ),
    "weights_of_examples": Zoo(
        lambda f, y: (y[1] * each(f, y[0])).sum() / y[1].sum(), lambda f, y: (each(f, y[0]), y[1]),
        (LABELS, normal(8, seed=8).exp()), places=(),
    ),
    "mask_in_a_dict": Zoo(
        lambda f, y: (focal(f, y["y"]) * y["mask"].flatten()).sum() / y["mask"].sum(), masked,
        {"y": TOKENS, "mask": MASK},
    ),
    "mask_that_counts": Zoo(
        lambda f, y: (focal(f, y[0]) * y[1].flatten()).mean(), evenly(lambda f, y: focal(f, y[0]) * y[1].flatten()),
        (TOKENS, MASK),
    ),
    "mean_of_sequences": Zoo(by_sequence, by_sequence_terms, (TOKENS, MASK)),
    "next_token": Zoo(
        shifted, evenly(lambda f, y: each(f[:, :-1], y[:, 1:], **SMOOTH)), TOKENS
    ),
    "distillation": Zoo(
        lambda f, y: distilled(f, y).mean(), evenly(distilled), normal(8, 4, CLASSES, seed=6).softmax(-1)
    ),
    "batchmean": Zoo(
        lambda f, y: F.kl_div(f.log_softmax(-1), y, reduction="batchmean"), evenly(lambda f, y: distilled(f, y).sum(1)),
        normal(8, 4, CLASSES, seed=6).softmax(-1),
    ),
    "tokens_added_up": Zoo(
        lambda f, y: focal(f, y).sum() / len(f), evenly(lambda f, y: focal(f, y).view(len(f), -1).sum(1)), TOKENS
    ),
    "segmentation": Zoo(
        nn.CrossEntropyLoss(ignore_index=255, **SMOOTH),
        evenly(lambda f, y: F.cross_entropy(f, y, ignore_index=255, reduction="none", **SMOOTH)[y != 255]),
        PART, places=(2, 3), classes_second=True,
    ),
    "hinges": Zoo(lambda f, y: multi_margin(f, y).mean(), evenly(multi_margin), LABELS, places=()),
    "masked_squares": Zoo(
        lambda f, y: ((f - y[0]).square() * y[1][..., None]).sum() / y[1].sum(),
        lambda f, y: (
            ((f - y[0]).square() * y[1][..., None]).flatten(1).sum(1) / (m := y[1].sum(1)), m
        ),
        (normal(8, 4, CLASSES, seed=7), MASK),
    ),
    "of_a_tuple": Zoo(
        lambda f, y: focal(f[0], y).mean(), evenly(focal), TOKENS, form=lambda f: (f, f.mean())
    ),
    "of_a_dict": Zoo(
        lambda f, y: F.cross_entropy(rows(f["out"]), y.flatten()), evenly(each), TOKENS,
        form=lambda f: {"aux": [f * 2], "out": f},
    ),
    "of_a_named_tuple": Zoo(
        lambda f, y: focal(f.logits, y).mean(), evenly(focal), TOKENS, form=lambda f: Named(f.mean(), f)
    ),
    "of_a_frozen_dataclass": Zoo(
        lambda f, y: focal(f.logits, y).mean(), evenly(focal), TOKENS, form=lambda f: Frozen(f, f.mean())
    ),
    "of_slots": Zoo(lambda f, y: focal(f.scores, y).mean(), evenly(focal), TOKENS, form=Slots),
}  # fmt: skip
INPUTS = {places: normal(8, *places, 5, seed=9) for places in ((), (4,), (2, 3))}


@dataclass(frozen=True)
class Setup:
    zoo: Zoo
    model: Model

    def problem(self, *slices: slice) -> wc.Problem:
        def targets(chosen: slice) -> Any:
            part = tree_map(lambda t: t[chosen], self.zoo.targets)
            return part.flatten() if self.zoo is ZOO["smoothing_flat_targets"] else part

        x = INPUTS[self.zoo.places]
        return wc.Problem(self.model, self.zoo.loss, [(x[s], targets(s)) for s in slices])

    def moments(self) -> tuple[Tensor, Tensor]:
        """E[∇ℓ ∇ℓᵀ] of the terms over parameters, and E[g gᵀ] at the output of fc2, of all examples."""
        h = []
        hook = self.model.fc2.register_forward_hook(lambda _m, _x, output: h.append(output))
        raw = self.model(INPUTS[self.zoo.places])
        hook.remove()
        f = raw if isinstance(raw, Tensor) else self.model.tensor(INPUTS[self.zoo.places])
        if not isinstance(raw, Tensor):
            h.append(f.movedim(1, -1) if self.zoo.classes_second else f)
        losses, weights = self.zoo.terms(f, self.zoo.targets)
        expected = (losses * weights).sum() / weights.sum()
        loss = self.zoo.loss(raw, self.problem(slice(8)).batches[0][1])
        assert float(loss.detach()) == pytest.approx(float(expected.detach()))
        losses = losses * weights / weights.mean()
        params = list(self.model.parameters())
        rows_ = [torch.autograd.grad(loss, params, retain_graph=True) for loss in losses]
        matrix = torch.stack([torch.cat([g.reshape(-1) for g in row]) for row in rows_])
        (g,) = torch.autograd.grad(losses.sum(), h[-1])
        g = g.reshape(-1, CLASSES)
        return matrix.T @ matrix / len(losses), g.T @ g / len(g)


@pytest.fixture(params=ZOO)
def setup(request: Any) -> Setup:
    zoo = ZOO[request.param]
    return Setup(zoo, seeded(lambda: Model(zoo)))


def test_one_batch_has_the_gradients_of_single_terms(setup: Setup) -> None:
    fisher, g = setup.moments()
    problem = setup.problem(slice(8))
    assert_same(wc.Fisher(problem, "data").dense(), fisher)
    assert_same(wc.spectrum(wc.Fisher(problem, "data")).values, torch.linalg.eigvalsh(fisher), 1e-8)
    assert_same(wc.kronecker_factors(problem)["fc2"].g.mean[0], g)


def test_two_batches_are_the_joined_data(setup: Setup) -> None:
    fisher, g = setup.moments()
    one, two = setup.problem(slice(8)), setup.problem(slice(0, 3), slice(3, 8))
    assert_same(wc.Hessian(two).dense(), wc.Hessian(one).dense())
    assert_same(wc.Fisher(two, "data").dense(), fisher)
    assert_same(wc.spectrum(wc.Fisher(two, "data")).values, torch.linalg.eigvalsh(fisher), 1e-8)
    assert_same(wc.kronecker_factors(two)["fc2"].g.mean[0], g)
    with one.measuring():
        loss = one.mean_loss()
    with two.measuring():
        assert float(two.mean_loss()) == pytest.approx(float(loss), rel=1e-10)


@pytest.mark.parametrize("shift", [0, 1])
def test_a_cross_entropy_inside_the_model_counts_tokens(shift: int) -> None:
    class Inside(Model):
        def forward(self, x: Tensor, y: Tensor) -> Any:
            f = self.tensor(x)
            return {"loss": F.cross_entropy(rows(f[:, : 4 - shift]), y[:, shift:].flatten()), "logits": f}

    x, y = INPUTS[(4,)], UNEVEN
    model = seeded(lambda: Inside(ZOO["focal"]))
    batches = [((x[:3], y[:3]), y[:3]), ((x[3:], y[3:]), y[3:])]
    two = wc.Problem(model, lambda f, _: f["loss"], batches)
    inside = wc.Problem(model, lambda f, _: f["loss"], [((x, y), y)])
    plain = seeded(lambda: Model(ZOO["focal"]))
    outside = wc.Problem(plain, lambda f, y: F.cross_entropy(rows(f[:, : 4 - shift]), y[:, shift:].flatten()), (x, y))
    assert_same(wc.Hessian(two).dense(), wc.Hessian(outside).dense())
    expected = wc.kronecker_factors(outside)["fc1"].g.mean
    assert_same(wc.kronecker_factors(inside)["fc1"].g.mean, expected)
    assert_same(wc.kronecker_factors(two)["fc1"].g.mean, expected)


# sums


SUMS: dict[str, tuple[Any, Any]] = {
    "tensor": (lambda f, y: F.cross_entropy(f, y, reduction="sum"), LABELS),
    "dict": (lambda f, y: F.cross_entropy(f, y["y"], reduction="sum"), {"y": LABELS}),
    "tuple": (lambda f, y: (y[1] * F.cross_entropy(f, y[0], reduction="none")).sum(), (LABELS, MASK[:, 0] + 1)),
    "squares": (lambda f, y: (f - y).square().sum(), normal(8, CLASSES)),
    "smoothing": (lambda f, y: F.cross_entropy(f, y, label_smoothing=0.1, reduction="sum"), LABELS),
    "closure": (lambda f, y: F.cross_entropy(f, LABELS, reduction="sum"), LABELS[:0]),
    "closure_of_squares": (lambda f, y: (f - normal(8, CLASSES)).square().sum(), torch.zeros(())),
}


@pytest.mark.parametrize("form", [lambda f: f, lambda f: (f, f.mean())], ids=["tensor", "tuple"])
@pytest.mark.parametrize(("loss", "targets"), SUMS.values(), ids=SUMS)
def test_a_sum_over_the_batch_is_refused(loss: Any, targets: Any, form: Any) -> None:
    zoo = Zoo(loss, evenly(focal), targets, places=(), form=form)
    of_form = lambda f, y: loss(f[0] if isinstance(f, tuple) else f, y)  # noqa: E731
    problem = wc.Problem(seeded(lambda: Model(zoo)), of_form, [(INPUTS[()], targets)])
    with pytest.raises(InvalidProblem, match="adds up over the batch"):
        wc.Hessian(problem).dense()


def fixed_size(error: type[Exception]) -> Any:
    def loss(f: Tensor, y: Tensor) -> Tensor:
        if len(f) != 8:
            raise error("not a batch of 8")
        return focal(f, y).mean()

    return loss


def mined(f: Tensor, y: Tensor) -> Tensor:
    return focal(f[[0, 3, 5, 7]], y[[0, 3, 5, 7]]).mean()


def contrastive(f: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(f, dim=-1)
    return F.cross_entropy(z[: len(z) // 2] @ z[len(z) // 2 :].T, torch.arange(len(z) // 2))


@pytest.mark.parametrize(
    "loss",
    [
        *map(fixed_size, (AssertionError, ValueError, IndexError, KeyError, TypeError, RuntimeError)),
        mined,
        contrastive,
        lambda f, y: (WEIGHTS.repeat(3)[:8] * focal(f, LABELS)).mean(),
        lambda f, y: 8 * F.mse_loss(f, F.one_hot(y, CLASSES).double()),
    ],
)
def test_a_loss_of_one_size_of_batch_alone_is_measured(loss: Any) -> None:
    model = seeded(lambda: Model(ZOO["hinges"]))
    batch = (INPUTS[()], LABELS)
    problem = wc.Problem(model, loss, batch)
    assert_same(wc.Hessian(problem).dense(), dense_hessian(model, loss, batch))
    assert_same(wc.GGN(problem).dense(), dense_ggn(model, loss, batch))
    with problem.measuring():
        evaluation = problem.evaluate(0, batch)
    assert evaluation.terms == evaluation.weight == (4 if loss is mined else 8)


# outputs and batches


def test_the_users_outputs_stay_as_they_are() -> None:
    retained = []

    def form(f: Tensor) -> Any:
        retained.append(({"a": [f, (f * 2,)]}, f))
        return retained[-1][0]

    zoo = Zoo(lambda f, y: focal(f["a"][1][0], y).mean(), evenly(focal), LABELS, places=(), form=form)
    problem = wc.Problem(seeded(lambda: Model(zoo)), zoo.loss, (INPUTS[()], LABELS))
    wc.GGN(problem).dense()
    assert all(raw["a"][0] is f and isinstance(raw["a"][1], tuple) for raw, f in retained)


def test_a_loss_that_does_not_take_the_structure_is_told_what_it_was_given() -> None:
    zoo = Zoo(None, evenly(focal), LABELS, places=(), form=lambda f: (f, f))
    problem = wc.Problem(seeded(lambda: Model(zoo)), nn.CrossEntropyLoss(), (INPUTS[()], LABELS))
    with pytest.raises(InvalidProblem, match="returns a tuple; let the loss pick"):
        wc.Hessian(problem).dense()


X, Y = INPUTS[()], LABELS


@pytest.mark.parametrize(
    ("batches", "count"),
    [
        ((X, Y), 1),
        ((X, {"y": Y}), 1),
        ((X, (Y, Y)), 1),
        ((X, None), 1),
        (({"x": X}, (Y, Y)), 1),
        (((X, X), Y), 1),
        (((X, X, X), (Y, Y)), 1),
        ([((X, X), (Y, Y))], 1),
        ([(X, Y), (X, Y)], 2),
        ([[X, Y], [X, Y]], 2),
        (((X[:3], Y[:3]), (X[3:], Y[3:])), 2),
        (((X, Y), (X, Y), (X, Y)), 3),
        ([X, Y], 1),  # as next(iter(loader)) gives it
        ([X, Y, Y], 1),
        ([{"x": X}, Y], 1),
        ({"x": X, "y": Y}, 1),
        ([{"x": X, "y": Y}, {"x": X, "y": Y}], 2),
        (({"x": X}, {"y": Y}), 1),
        (X, 1),
    ],
)
def test_one_batch_or_several(batches: Any, count: int) -> None:
    assert len(wc.Problem(nn.Linear(5, 3).double(), nn.CrossEntropyLoss(), batches).batches) == count


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (((X, X), (Y, Y)), r"\[\(\(x1, x2\), \(y1, y2\)\)\] for one batch.*\[\(x1, y1\), \(x2, y2\)\] for two"),
    ],
)
def test_what_may_be_one_batch_or_two_is_refused(batches: Any, message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        wc.Problem(nn.Linear(5, 3), nn.CrossEntropyLoss(), batches)


@pytest.mark.parametrize("options", [{}, SMOOTH, {"weight": WEIGHTS}], ids=["plain", "smoothing", "weights"])
def test_sequences_of_other_lengths_weigh_what_they_count(options: dict[str, Any]) -> None:
    model = seeded(lambda: Model(ZOO["focal"]))
    loss = lambda f, y: F.cross_entropy(rows(f), y.flatten(), **options)  # noqa: E731
    batches = [(normal(3, 4, 5), TOKENS[:3]), (normal(2, 7, 5, seed=1), integers(CLASSES, 2, 7, seed=2))]
    joined = [torch.cat([t.flatten(0, 1) for t in parts]) for parts in zip(*batches, strict=True)]
    one, two = wc.Problem(model, loss, tuple(joined)), wc.Problem(model, loss, batches)
    assert_same(wc.Hessian(two).dense(), wc.Hessian(one).dense())
    assert_same(wc.Fisher(two, "data").dense(), wc.Fisher(one, "data").dense())


def test_class_weights_are_no_likelihood_though_every_batch_has_one_class() -> None:
    problem = Setup(zoo := ZOO["weights_of_classes_in_batches_of_one"], seeded(lambda: Model(zoo))).problem(
        slice(0, 3), slice(3, 8)
    )
    with pytest.raises(InvalidProblem, match="class weights"):
        wc.Fisher(problem).dense()
