"""What may be a block and what may not; blocks are measured as they were called; nothing of the user's changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from block_cases import CASES, X, checkpointed, gauss_newton_by_hand, wired
from references import assert_same
from test_every_measurement import FAIL, Boom, OnceOnly, build
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from unchanged import assert_unchanged, snapshot
from zoo import CLASSES, Case, Recurrent, classifier, normal

import wellcond as wc
from wellcond.errors import InvalidProblem, NotDeterministic, UnknownLayer
from wellcond.measurements.blocks.back_matching import back_matching
from wellcond.measurements.blocks.local_hessian import local_hessian


class Backwards(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for module in reversed(self):
            x = module(x)
        return x


class Counting(nn.Module):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class Index(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1)


def view_written(m: Any, x: Tensor) -> Tensor:
    """What is written to the view is seen in the tensor it is a view of."""
    z = m.stem(x)
    m.flat(z).mul_(2.0)
    return m.head(z)


def base_written(m: Any, x: Tensor) -> Tensor:
    """The other way round: the memory is written to, and the view is used."""
    z = m.stem(x)
    flat = m.flat(z)
    z.mul_(2.0)
    return m.head(flat.reshape(len(x), 6))


def stem_and_view() -> dict[str, nn.Module]:
    return {"stem": nn.Linear(4, 6), "flat": nn.Flatten(0), "head": nn.Linear(6, CLASSES)}


def called_twice() -> nn.Module:
    linear = nn.Linear(4, 4)
    return nn.Sequential(linear, nn.Tanh(), linear, nn.Linear(4, 3))


def chain(*build: Callable[[], nn.Module]) -> Case:
    return classifier(lambda: nn.Sequential(*(module() for module in build)), X, 6)


MODELS: dict[str, Callable[[], Case]] = CASES | {
    "backwards": lambda: classifier(lambda: Backwards(nn.Linear(4, 3), nn.Linear(4, 4)), X, 6),
    "called_twice": lambda: classifier(called_twice, X, 6),
    "counting": lambda: chain(lambda: nn.Linear(4, 3), Counting),
    "index": lambda: chain(Index, lambda: nn.Embedding(4, 3)),
    "view_written": lambda: wired(stem_and_view, view_written, X),
    "base_written": lambda: wired(stem_and_view, base_written, X),
    "reentrant": lambda: checkpointed(True),
}


def problem_of(name: str) -> wc.Problem:
    return MODELS[name]().problem()


OUTSIDE = r"the model has 3 modules: write \[start:stop\] with 0 ≤ start < stop ≤ 3"
SHARED = "'flat' shares its memory with another tensor"
REFUSED: list[tuple[str, str, type[Exception], str]] = [
    ("mlp_tanh", "7 features 0.weight [0] blocks[0:1] [0:1:2]", UnknownLayer, "Closest"),
    ("mlp_tanh", "[2:2] [1:4] [2:9] [3:] [:-3] [-4:2] [2:1]", ValueError, OUTSIDE),
    ("transformer", "head[0:1]", InvalidProblem, "'head' is a Linear, which does not call its parts one after the"),
    ("backwards", "[0:1]", InvalidProblem, "Backwards"),
    ("called_twice", "0", InvalidProblem, r"block '0' was called 2 times .* contains all its calls"),
    ("stray_call", "body.0 body[0:1] body[0:2] body[:]", InvalidProblem, "was called 2 times"),
    ("one_by_one", "body", InvalidProblem, "'body' was not called"),
    ("masked", "attention.out_proj", InvalidProblem, r"'attention\.out_proj' was not called .* block that contains it"),
    ("shuffled", "body[0:2]", InvalidProblem, "are not called one after the other"),
    ("doubled", "body[0:2]", NotDeterministic, "something else happens between its parts"),
    ("counting", "1", NotDeterministic, "block '1', called again"),
    ("index", "0", InvalidProblem, "'0' returns a Tensor without a floating-point tensor"),
    ("view_written", "flat", InvalidProblem, SHARED),
    ("base_written", "flat", InvalidProblem, SHARED),
    ("reentrant", "0 1 2", InvalidProblem, "use_reentrant=False"),
    ("reentrant", "", InvalidProblem, "use_reentrant=False"),
]


@pytest.mark.parametrize(("name", "blocks", "error", "message"), REFUSED)
def test_what_is_no_block_is_refused_with_the_cause_and_the_cure(
    name: str, blocks: str, error: type[Exception], message: str
) -> None:
    problem = problem_of(name)
    for block in blocks.split() or [""]:
        with pytest.raises(error, match=message):
            local_hessian(problem, block)
    if name in ("view_written", "base_written", "reentrant"):  # cannot be differentiated in parts at all
        with pytest.raises(error, match=message):
            back_matching(problem)


def test_a_number_is_no_name() -> None:
    with pytest.raises(ValueError, match='layer is 1; write the name of a module, as "1"'):
        local_hessian(problem_of("mlp_tanh"), 1)  # type: ignore[arg-type]


def test_a_range_with_all_calls_of_a_module_or_next_to_one_is_a_block() -> None:
    assert local_hessian(problem_of("called_twice"), "[0:3]").weight.names == ("0.weight", "0.bias")
    problem = problem_of("stray_call")
    parts = problem.model.body
    hidden = parts[0](parts[0](X)).detach()
    local = local_hessian(problem, "body[1:3]", last="squared")
    assert_same(local.call.z, hidden, 1e-14)
    expected = gauss_newton_by_hand(lambda z: parts[2](torch.tanh(z)), hidden)
    assert_same(local.z.gauss_newton.dense(), expected, 1e-12)


@pytest.mark.parametrize("name", ["last_state", "last_state_without_gradient"])
def test_an_output_that_the_loss_does_not_depend_on_is_its_own_target(name: str) -> None:
    problem = problem_of(name)
    local = local_hessian(problem, "cell")
    assert local.loss == 0.0
    assert torch.equal(local.target, local.call.output)
    assert "the loss does not depend on this output" in str(local)
    expected = gauss_newton_by_hand(lambda z: problem.model.cell(z)[0], normal(4, 3, 2))
    assert_same(local.z.exact.dense(), expected, 1e-10)


@pytest.mark.parametrize("block", ["body.0", "body", "body[0:2]"])
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weight_norm_refuses_the_exact_hessian_but_not_gauss_newton(block: str, norm: Any) -> None:
    parts = lambda: nn.Sequential(norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, CLASSES))  # noqa: E731
    problem = wired(lambda: {"body": parts()}, lambda m, x: m.body(x), X).problem()
    local = local_hessian(problem, block, last="squared")
    for part in (local.z, local.weight):
        with pytest.raises(InvalidProblem, match=r"^'body\.0' uses weight_norm.* Use \.gauss_newton, or"):
            _ = part.exact
    layers = problem.model.body
    by_hand = layers[: {"body.0": 1, "body[0:2]": 2, "body": 3}[block]]
    assert_same(local.z.gauss_newton.dense(), gauss_newton_by_hand(lambda z: by_hand(z), X), 1e-10)
    assert local_hessian(problem, "body.2", last="squared").z.exact.shape == (30, 30)


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_keeps_its_list_of_weights(cell: type[nn.RNNBase]) -> None:
    problem = classifier(lambda: Recurrent(cell), normal(4, 3, 2), 4).problem()
    before = dict(vars(problem.model.cell))
    local_hessian(problem, "cell").weight.exact.dense()
    assert problem.model.cell._flat_weights[0] is problem.model.cell.weight_ih_l0
    assert all(vars(problem.model.cell)[name] is value for name, value in before.items())


def test_random_numbers_of_python_in_a_block_are_drawn_again() -> None:
    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * random.random() * torch.rand(())

    local = local_hessian(chain(lambda: nn.Linear(4, 3), Noise).problem(), "1", last="squared")
    factor = local.call.output.detach() / local.call.z.detach()
    assert_same(factor, factor.mean().expand(6, 3), 1e-12)
    assert_same(local.z.exact.dense(), factor[0, 0] ** 2 * torch.eye(18, dtype=torch.float64), 1e-12)


# nothing changes

MEASUREMENTS: dict[str, Callable[[wc.Problem], Any]] = {
    "exact": lambda p: local_hessian(p, "conv").weight.exact.dense(),
    "gauss_newton": lambda p: local_hessian(p, "attention").z.gauss_newton.dense(),
    "spectrum": lambda p: wc.spectrum(local_hessian(p, "norm").weight.gauss_newton),
    "recurrent": lambda p: local_hessian(p, "rnn").z.exact.dense(),
    "embedding": lambda p: local_hessian(p, "embedding").weight.exact.dense(),
    "frozen": lambda p: local_hessian(p, "frozen").z.exact.dense(),
    "closed_form": lambda p: local_hessian(p, "conv").closed_form().z.dense(),
    "back_matching": lambda p: back_matching(p, lr=0.1),
}


@pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)
@pytest.mark.parametrize("batchnorm", ["batch", "running"])
@pytest.mark.parametrize("dropout", [None, 5])
def test_measuring_blocks_changes_nothing(measure: Any, batchnorm: Any, dropout: Any) -> None:
    model, loader = build()
    before = snapshot(model, loader.generator)
    measure(wc.Problem(model, nn.CrossEntropyLoss(), loader, batchnorm, dropout=dropout))
    assert_unchanged(before, snapshot(model, loader.generator))


@pytest.mark.parametrize("name", [*MEASUREMENTS, "product"])
def test_a_model_or_a_product_that_raises_half_way_leaves_nothing_changed(name: str) -> None:
    model, loader = build()
    if name == "product":
        model.conv.register_forward_hook(lambda _m, _x, output: OnceOnly.apply(output))
    else:
        loader.dataset.tensors[0][:].fill_(FAIL)
    before = snapshot(model, loader.generator)
    with pytest.raises(Boom) as held:
        MEASUREMENTS.get(name, MEASUREMENTS["exact"])(wc.Problem(model, nn.CrossEntropyLoss(), loader))
    assert held.tb is not None
    assert_unchanged(before, snapshot(model, loader.generator))
