"""What holds for every measurement: nothing of the user's changes, whatever happens; a stale problem is refused;
progress rises; passes are counted; and the result has all forms. A new measurement is one line in MEASUREMENTS."""

from __future__ import annotations

import csv
import functools
import inspect
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from suites import assert_progress_rises
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset
from unchanged import assert_unchanged, snapshot
from zoo import integers, normal, seeded

import wellcond
import wellcond as wc
from wellcond.errors import InvalidProblem, OutputError
from wellcond.results import Result, quantities, rendering

FAIL = 99.0
"""An input with this value makes the model raise."""


class Boom(Exception):
    """The user's own exception."""


class Burning:
    """What ends a measurement, and on which pass. It puts back what modules count, but not this."""

    passes = 0
    at: int | None = None
    ends: type[BaseException] = Boom


class Fuse(nn.Module):
    """Passes its input on, and raises on a marked one, or when it burns."""

    def forward(self, x: Tensor) -> Tensor:
        Burning.passes += 1
        if Burning.passes == Burning.at:
            raise Burning.ends
        if bool((x == FAIL).any()):
            raise Boom
        return x


class Everything(nn.Module):
    """All kinds of state: BatchNorm, dropout, attention, a recurrent layer, an embedding, buffers, frozen weights.

    Also weights that are recomputed on every pass and kept as plain attributes, a tensor and a generator that are such.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fuse = Fuse()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.bn = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(4)
        self.rnn = nn.GRU(4, 3, batch_first=True)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.embedding = nn.Embedding(4, 3, sparse=True)
        with torch.no_grad():  # as after an evaluation: a weight with a graph cannot be copied
            self.pruned = prune.l1_unstructured(nn.Linear(3, 3), "weight", 0.3)
            self.spectral = nn.utils.spectral_norm(nn.Linear(3, 3))
            prune.l1_unstructured(self.rnn, "weight_hh_l0", 0.3)
        self.head = nn.Linear(3, 3)
        self.seen = torch.zeros(())
        self.last: Tensor | None = None
        self.generator = torch.Generator().manual_seed(4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("empty", None)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.bn(self.conv(self.fuse(x)))).transpose(1, 2)
        h = self.norm(h + self.attention(h, h, h)[0])
        h = self.frozen(self.rnn(self.dropout(h))[0][:, -1])
        h = h + self.spectral(self.pruned(h))
        self.calls.add_(1)  # a buffer written to in forward
        self.seen.add_(1)
        self.last = self.newest = h
        torch.rand(1, generator=self.generator)
        return self.head(h.relu() + self.embedding(torch.zeros(len(x), dtype=torch.long)))


MEASUREMENTS: dict[str, Callable[..., Any]] = {
    "hessian_product": lambda p: wc.Hessian(p) @ torch.ones(p.size, device="cpu"),
    "ggn_product": lambda p: wc.GGN(p) @ torch.ones(p.size, device="cpu"),
    "fisher_product": lambda p: wc.Fisher(p) @ torch.ones(p.size, device="cpu"),
    "fisher_sample_product": lambda p: wc.Fisher(p, "sample") @ torch.ones(p.size, device="cpu"),
    "fisher_data_product": lambda p: wc.Fisher(p, "data") @ torch.ones(p.size, device="cpu"),
    "dense": lambda p: wc.Hessian(p).layer("head").dense(),
    "scipy": lambda p: wc.Hessian(p, layers="head").to_scipy() @ np.ones(12),
    "eigenvalues": lambda p, **kw: wc.eigenvalues(wc.Hessian(p), tol=0.1, max_matvecs=5, **kw),
    "spectrum": lambda p: wc.spectrum(wc.Fisher(p, layers=["head", "conv"])),
    "density": lambda p, **kw: wc.density(wc.Hessian(p, layers="head"), probes=2, iterations=3, **kw),
    "trace": lambda p, **kw: wc.trace(wc.Hessian(p), tol=0.5, max_matvecs=30, **kw),
    "conditioning": lambda p, **kw: wc.conditioning(p, fisher_up_to=10, **kw),
    "kronecker_factors": lambda p, **kw: wc.kronecker_factors(p, labels="sample", **kw),
    "neurons": lambda p, **kw: wc.neurons(p, **kw),
    "sizes": lambda p: wc.sizes(p),
    "landscape": lambda p, **kw: wc.landscape(p, lr=0.01, steps=2, **kw),
    "landscape_random": lambda p: wc.landscape(p, lr=0.01, steps=1, direction="random"),
    "landscape_eigenvector": lambda p, **kw: wc.landscape(p, lr=0.01, steps=1, direction="eigenvector", **kw),
    "loss_slice": lambda p, **kw: wc.loss_slice(p, ("random", "gradient"), points=3, **kw),
    "covariate_shift": lambda p, **kw: wc.covariate_shift(p, torch.optim.Adam(p.params.values()), **kw),
    "max_lr": lambda p, **kw: wc.max_lr(p, momentum=0.9, tol=0.5, max_matvecs=5, **kw),
    "max_lr_of_adam": lambda p, **kw: wc.max_lr(p, adam(p), tol=0.5, max_matvecs=5, **kw),
    "activations": lambda p, **kw: wc.activations(p, **kw),
    "local_hessian": lambda p: wc.local_hessian(p, "conv"),
    "local_product": lambda p: wc.local_hessian(p, "conv").z.exact @ torch.ones(16, dtype=torch.float64, device="cpu"),
    "back_matching": lambda p: wc.back_matching(p),
    "diagnose": lambda p, **kw: wc.diagnose(p, adam(p), **kw),
    "suggest_lr": lambda p, **kw: wc.suggest_lr(p, adam(p), steps=2, **kw),
    "treat": lambda p, **kw: wc.treat(p, adam(p), remedies=["bnp"], steps=4, seeds=[0], **kw),
}
"""Every public measurement of a problem, as a user would call it."""
TRAIN_COPIES = (wc.SuggestedRate, wc.Treatment)
OF_THE_FIRST_BATCH = ("local_hessian", "local_product", "back_matching", "sizes")
WITHOUT_A_LOSS = ("activations",)
NUMBERS = ("product", "dense", "scipy")
"""Parts of the names of those that return numbers and not a result."""
RESULTS = [name for name in MEASUREMENTS if not any(part in name for part in NUMBERS)]
REPORTING = [name for name, measure in MEASUREMENTS.items() if "kw" in inspect.signature(measure).parameters]


def adam(problem: wc.Problem) -> torch.optim.Optimizer:
    return torch.optim.Adam(problem.params.values())


def measurements(*without: str) -> pytest.MarkDecorator:
    chosen = {name: measure for name, measure in MEASUREMENTS.items() if name not in without}
    return pytest.mark.parametrize("measure", chosen.values(), ids=chosen)


def build() -> tuple[nn.Module, DataLoader[Any]]:
    """A model in a mixed state, with gradients and hooks of its own, and a loader with its own generator."""
    model = seeded(Everything)
    model.train()
    model.bn.eval()
    model.rnn.eval()
    for i, p in enumerate(model.parameters()):
        if i % 3:
            p.grad = torch.full_like(p, float(i))
    model.conv.register_forward_hook(lambda *_: None)
    model.head.register_full_backward_hook(lambda *_: None)
    model.norm.register_forward_pre_hook(lambda *_: None)
    data = TensorDataset(normal(6, 2, 4), integers(3, 6))
    return model, DataLoader(data, batch_size=2, generator=torch.Generator().manual_seed(3))


VERDICTS = ("diagnose", "suggest_lr", "treat")
"""They take many passes, and share their parts with the others."""
SETTINGS = [(False, None, "batch"), (False, 5, "running"), (True, None, "running"), (True, 5, "batch")]
OF_VERDICTS = [(False, 5, "running"), (True, None, "batch")]


@pytest.mark.parametrize(
    ("name", "as_list", "dropout", "batchnorm"),
    [(name, *each) for name in MEASUREMENTS for each in (OF_VERDICTS if name in VERDICTS else SETTINGS)],
)
def test_measuring_changes_nothing(name: str, batchnorm: Any, dropout: Any, as_list: bool) -> None:
    """Every two of the three settings occur together; each of them with a verdict."""
    model, loader = build()
    before = snapshot(model, loader.generator)
    batches = [next(iter(loader))] if as_list else loader
    loader.generator.manual_seed(3)
    torch.set_rng_state(before["rng"])
    MEASUREMENTS[name](wc.Problem(model, nn.CrossEntropyLoss(), batches, batchnorm, dropout=dropout))
    assert_unchanged(before, snapshot(model, loader.generator))


@pytest.mark.parametrize(
    "rewritten",
    [lambda m: prune.l1_unstructured(m, "weight", 0.5), nn.utils.spectral_norm, nn.utils.weight_norm],
    ids=["pruned", "spectral_norm", "weight_norm"],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_weight_computed_in_every_pass_is_the_same_tensor_and_graph(rewritten: Any) -> None:
    model = seeded(lambda: nn.Sequential(rewritten(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)))
    batch = (normal(5, 4), integers(3, 5))
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    weight, values = model[0].weight, model[0].weight.detach().clone()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batch)
    wc.landscape(problem, lr=1.0)
    wc.covariate_shift(problem, torch.optim.SGD(model.parameters(), lr=0.1))
    assert model[0].weight is weight
    assert torch.equal(weight, values)
    loss.backward()


def assert_raises_without_a_trace(measure: Any, model: nn.Module, loss: Any, batches: Any) -> None:
    before = snapshot(model, *generator_of(batches))
    if measure is MEASUREMENTS["diagnose"]:  # which says what it can
        assert "Boom" in str(measure(wc.Problem(model, loss, batches)).failed)
    else:
        with pytest.raises(Boom) as held:  # the exception, and with it every frame, is still alive below
            measure(wc.Problem(model, loss, batches))
        assert held.tb is not None
    assert_unchanged(before, snapshot(model, *generator_of(batches)))


def generator_of(batches: Any) -> list[torch.Generator]:
    return [batches.generator] if isinstance(batches, DataLoader) else []


@measurements(*OF_THE_FIRST_BATCH, *WITHOUT_A_LOSS)
def test_a_loss_that_raises_half_way_leaves_nothing_changed(measure: Any) -> None:
    model, loader = build()
    batches = list(loader)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.equal(targets, batches[1][1]):  # the loss gets a copy, into which it may write
            raise Boom
        return nn.functional.cross_entropy(outputs, targets)

    assert_raises_without_a_trace(measure, model, loss, batches)


@measurements(*OF_THE_FIRST_BATCH)
def test_a_model_that_raises_half_way_leaves_nothing_changed(measure: Any) -> None:
    model, loader = build()
    loader.dataset.tensors[0][2:].fill_(FAIL)
    assert_raises_without_a_trace(measure, model, nn.CrossEntropyLoss(), loader)


class OnceOnly(torch.autograd.Function):
    """A function whose gradient raises when it is differentiated again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return Refuses.apply(g)


class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor) -> Tensor:
        return g.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise Boom


@pytest.mark.parametrize("name", ["hessian_product", "ggn_product", "dense", "eigenvalues", "trace"])
@pytest.mark.parametrize("as_list", [False, True], ids=["loader", "one_batch"])
def test_a_product_that_raises_leaves_nothing_changed(name: str, as_list: bool) -> None:
    model, loader = build()
    model.head.register_forward_hook(lambda _m, _x, output: OnceOnly.apply(output))
    batches = [(normal(3, 2, 4), integers(3, 3))] if as_list else loader
    assert_raises_without_a_trace(MEASUREMENTS[name], model, nn.CrossEntropyLoss(), batches)


def test_a_plain_loader_does_not_advance_the_global_generators() -> None:
    """A loader draws a seed whenever it is iterated; a data set may draw from any generator."""

    class Noisy(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            random.random(), np.random.rand(), torch.rand(1)
            return super().__getitem__(index)

    model, loader = build()
    before = snapshot(model, loader.generator)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), DataLoader(Noisy(*loader.dataset.tensors), batch_size=2))
    wc.Hessian(problem) @ torch.ones(problem.size)
    assert_unchanged(before, snapshot(model, loader.generator))


@pytest.mark.parametrize("nested", [False, True], ids=["sampler", "sampler_of_the_batch_sampler"])
def test_a_samplers_own_generator_gives_the_same_order_and_stays(nested: bool) -> None:
    model, loader = build()
    generator = torch.Generator().manual_seed(1)
    if nested:
        sampler = BatchSampler(RandomSampler(loader.dataset, generator=generator), 2, drop_last=False)
        shuffled = DataLoader(loader.dataset, batch_sampler=sampler)
    else:
        shuffled = DataLoader(loader.dataset, batch_size=2, sampler=SubsetRandomSampler(range(6), generator))
    before = generator.get_state()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), shuffled, "running")
    operator = wc.Hessian(problem)
    first, second = (operator @ torch.ones(problem.size) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(generator.get_state(), before)


@functools.cache
def passes_of(name: str) -> int:
    """How many passes a measurement takes."""
    model, loader = build()
    before, Burning.passes = Burning.passes, 0
    MEASUREMENTS[name](wc.Problem(model, nn.CrossEntropyLoss(), loader))
    Burning.passes, passes = before, Burning.passes
    return passes


@pytest.mark.slow
@pytest.mark.parametrize("name", VERDICTS)
@pytest.mark.parametrize(
    ("ends", "share"),
    [*((KeyboardInterrupt, share) for share in (0.02, 0.3, 0.6, 0.95)),
     *((torch.OutOfMemoryError, share) for share in (0.02, 0.6))],
)  # fmt: skip
def test_a_verdict_that_ends_early_leaves_nothing_changed(
    name: str, share: float, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any of its passes, those of copies among them, Ctrl-C or a lack of memory ends it, or a part of it."""
    at = max(1, int(share * passes_of(name)))
    model, loader = build()
    before = snapshot(model, loader.generator)
    monkeypatch.setattr(Burning, "passes", 0)
    monkeypatch.setattr(Burning, "at", at)
    monkeypatch.setattr(Burning, "ends", ends)
    result = None
    try:
        result = MEASUREMENTS[name](wc.Problem(model, nn.CrossEntropyLoss(), loader))
    except wc.Interrupted as interrupt:  # a KeyboardInterrupt that brings what is known
        result = interrupt.result
        assert ends is KeyboardInterrupt
    except ends:
        pass
    assert Burning.passes >= at, "it never came to that pass"
    assert result is None or str(result)
    if name == "diagnose" and share > 0.5:
        assert isinstance(result, wc.Diagnosis)
        assert result.verdict()
    assert_unchanged(before, snapshot(model, loader.generator))


def test_interrupted_evaluations_can_be_closed() -> None:
    model, loader = build()
    before = snapshot(model, loader.generator)
    evaluations = wc.Problem(model, nn.CrossEntropyLoss(), loader).evaluations()
    next(evaluations)
    assert not model.training
    evaluations.close()
    assert_unchanged(before, snapshot(model, loader.generator))


# a stale problem


def exchanged(model: Any) -> None:
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())


STALE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "frozen": (lambda m: m.head.bias.requires_grad_(False), "'head.bias' is frozen"),
    "thawed": (lambda m: m.frozen.requires_grad_(True), "'frozen.bias' is new or was frozen before"),
    "exchanged": (exchanged, "'head.weight' is missing or another tensor"),
    "another_layer": (lambda m: setattr(m, "head", nn.Linear(3, 3).double()), "'head.weight' is missing or another"),
    "assigned": (lambda m: m.load_state_dict(m.state_dict(), assign=True), "is missing or another tensor"),
    "cast": (lambda m: m.float(), "was float64 on cpu and is float32 on cpu"),
}


@measurements()
@pytest.mark.parametrize("how", STALE)
def test_a_stale_problem_is_refused_by_every_measurement(measure: Any, how: str) -> None:
    model, loader = build()
    problem = wc.Problem(model, nn.CrossEntropyLoss(), list(loader))
    change, message = STALE[how]
    change(model)
    with pytest.raises(InvalidProblem, match=message):
        measure(problem)


@measurements(
    "suggest_lr", "treat", "covariate_shift", "max_lr_of_adam", "diagnose"
)  # whose optimizer is made from the problem
def test_what_is_no_problem_is_refused_with_what_to_pass(measure: Any) -> None:
    model, _ = build()
    model.size = 1  # for the lambdas of this table
    with pytest.raises(TypeError, match=r"pass a wc\.Problem\(model, loss, batches\)"):
        measure(model)


# what every result can do


@pytest.mark.parametrize("name", REPORTING)
def test_progress_rises(name: str) -> None:
    model, loader = build()
    calls: list[tuple[str, float]] = []
    problem = wc.Problem(model, nn.CrossEntropyLoss(), list(loader))
    MEASUREMENTS[name](problem, progress=lambda what, share: calls.append((what, share)))
    assert_progress_rises(calls)


@measurements()
def test_every_pass_is_counted(measure: Any) -> None:
    """Passes of the model and of copies, each of one batch."""
    model, loader = build()
    calls = []
    model.fuse.register_forward_hook(lambda *_: calls.append(1))
    batches = list(loader)
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batches)
    result = measure(problem)
    assert calls
    if isinstance(result, TRAIN_COPIES):
        assert result.cost.forwards == pytest.approx(len(calls))
        return
    assert problem.cost.forwards == pytest.approx(len(calls))
    if isinstance(result, Result) and hasattr(result, "cost"):
        assert result.cost.forwards == pytest.approx(problem.cost.forwards)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_has_every_form(name: str, tmp_path: Path) -> None:
    model, loader = build()
    result = MEASUREMENTS[name](wc.Problem(model, nn.CrossEntropyLoss(), list(loader)))
    assert isinstance(result, Result)
    assert type(result).__name__ in wellcond.__all__  # importable by name, for annotations
    rows = result.rows(7)
    assert rows
    assert {row.quantity for row in rows} <= quantities.QUANTITIES.keys()
    assert [row for row in rows if row.unit != quantities.QUANTITIES[row.quantity].unit] == []
    assert all(row.step is not None for row in rows)
    frame = result.to_pandas()
    assert list(frame.columns) == ["step", "layer", "quantity", "value", "unit"]
    assert len(frame) == len(result.rows())
    with result.save(tmp_path / "x.csv").open() as file:
        assert len(list(csv.reader(file))) == 1 + len(result.rows())
    content = json.loads(result.save(tmp_path / "x.json").read_text())
    assert content["result"] == type(result).__name__
    assert len(content["rows"]) == len(result.rows())
    assert str(result)
    html = result._repr_html_()
    assert "<" in html
    assert result.save(tmp_path / "x.html").read_text().startswith("<!doctype html>")
    with pytest.raises(OutputError, match="no known form"):
        result.save(tmp_path / "x.docx")
    if not rendering.is_rendered("figure", type(result)):  # not every result has a picture
        with pytest.raises(OutputError, match="has no figure"):
            result.save(tmp_path / "x.png")
        assert "<img" not in html
    else:
        assert result.save(tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
        assert "<img" in html or name == "diagnose"  # which draws its evidence as text


def test_a_quantity_is_a_word_without_numbers_or_keys() -> None:
    assert len(quantities.QUANTITIES) > 80
    assert [name for name in quantities.QUANTITIES if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []
