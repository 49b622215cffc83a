"""Blocks whose graph is out of the ordinary: views written in place, checkpoints, stray calls, several outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from references import assert_same
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.checkpoint import checkpoint
from zoo import ARCHITECTURES, CLASSES, Case, classifier, normal, seeded

import wellcond as wc
from wellcond.local.back_matching import back_matching
from wellcond.local.local_hessian import local_hessian
from wellcond.local.separators import Separators

# outputs that are views


class Tokens(nn.Module):
    """A linear layer on (N, T, d) gives a view, which the activation writes over."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.r, self.b = nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.r(self.a(x))).mean(1)


class AttentionSkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x, x, x, need_weights=False)[0]
        y += x
        return self.b(y).mean(1)


class Packed(nn.Module):
    """Frozen, so that the rows of its packed sequence have no graph yet."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LSTM(4, 5), nn.Linear(5, CLASSES)
        self.a.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        rows, _ = self.a(pack_padded_sequence(x.transpose(0, 1), torch.full((len(x),), x.shape[1])))
        assert isinstance(rows, PackedSequence)
        return self.b(rows.data).reshape(x.shape[1], len(x), CLASSES).mean(0)


def flattened() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(32, CLASSES))


def unflattened() -> nn.Module:
    parts = [nn.Linear(4, 8), nn.Unflatten(1, (2, 2, 2)), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, CLASSES)]
    return nn.Sequential(*parts)


def frozen_flattened() -> nn.Module:
    model = flattened()
    model[0].requires_grad_(False)
    return model


Behind = Callable[[Any, Tensor, Tensor], Tensor]
VIEWS: dict[str, tuple[Callable[[], nn.Module], Tensor, str, Behind]] = {
    "linear_on_tokens": (Tokens, normal(6, 3, 4), "a", lambda m, out, x: m.b(F.relu(out)).mean(1)),
    "attention_and_skip": (AttentionSkip, normal(6, 3, 4), "a", lambda m, out, x: m.b(out + x).mean(1)),
    "flatten": (flattened, normal(6, 1, 6, 6), "1", lambda m, out, x: m[3](F.relu(out))),
    "frozen_before_flatten": (frozen_flattened, normal(6, 1, 6, 6), "1", lambda m, out, x: m[3](F.relu(out))),
    "range_to_a_view": (unflattened, normal(6, 4), "[0:2]", lambda m, out, x: m[4](F.relu(out).flatten(1))),
    "packed_sequence": (
        Packed, normal(6, 3, 4), "a", lambda m, out, x: m.b(out).reshape(3, 6, CLASSES).mean(0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_written_over_an_output_in_place_leaves_its_target_alone(name: str) -> None:
    build, x, block, behind = VIEWS[name]
    case = classifier(build, x, len(x))
    found = local_hessian(case.problem(), block)
    out = found.call.output.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(behind(case.model, out, x), case.batch[1]), out)
    assert float(gradient.norm()) > 1e-3
    assert_same(found.output_gradient, gradient, 1e-12)
    assert "note" not in str(found)
    if name in ("linear_on_tokens", "flatten", "frozen_before_flatten"):  # the others are no modules, or passed by
        assert_same(back_matching(case.problem()).targets[block], out.detach() - gradient, 1e-12)


def test_a_view_written_in_place_is_a_cut_and_the_updates_are_a_gradient_step() -> None:
    case = classifier(Tokens, normal(6, 3, 4), 6)
    found = back_matching(case.problem(), lr=0.3)
    assert found.blocks == ("a", "r", "b", "")
    assert back_matching(case.problem(), blocks=["a"]).blocks == ("a", "")
    loss = F.cross_entropy(case.model(case.batch[0]), case.batch[1])
    params = dict(case.model.named_parameters())
    for key, gradient in zip(params, torch.autograd.grad(loss, list(params.values())), strict=True):
        assert_same(found.updates[key], -0.3 * gradient, 1e-12)


class SharedMemory(nn.Module):
    """What is written over the view is seen in what it is a view of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.flat, self.head = nn.Linear(4, 6), nn.Flatten(0), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        self.flat(z).mul_(2.0)
        return self.head(z)


class WrittenUnderneath(SharedMemory):
    """The other way round: the memory is written over, and the view is used."""

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        flat = self.flat(z)
        z.mul_(2.0)
        return self.head(flat.reshape(len(x), 6))


@pytest.mark.parametrize("model", [SharedMemory, WrittenUnderneath])
def test_memory_that_two_tensors_share_and_one_writes_is_refused(model: Callable[[], nn.Module]) -> None:
    problem = classifier(model, normal(6, 4), 6).problem()
    with pytest.raises(wc.WellcondError, match="'flat' shares its memory with another tensor"):
        local_hessian(problem, "flat")
    with pytest.raises(wc.WellcondError, match="'flat' shares its memory with another tensor"):
        back_matching(problem)


# checkpoints


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x) if self.reentrant is None else checkpoint(self.inside, x, use_reentrant=self.reentrant)


def checkpointed(reentrant: bool | None) -> Case:
    build = lambda: nn.Sequential(nn.Linear(4, 5), Checkpointed(reentrant), nn.Linear(5, CLASSES))  # noqa: E731
    return classifier(build, normal(6, 4), 6, "running")


@pytest.mark.parametrize("block", ["0", "1", "2", ""])
def test_reentrant_checkpoints_are_refused_with_the_cure(block: str) -> None:
    with pytest.raises(wc.WellcondError, match="use_reentrant=False"):
        local_hessian(checkpointed(True).problem(), block)


def test_back_matching_refuses_reentrant_checkpoints() -> None:
    with pytest.raises(wc.WellcondError, match="use_reentrant=False"):
        back_matching(checkpointed(True).problem())


@pytest.mark.parametrize("part", ["z", "weight"])
@pytest.mark.parametrize("kind", ["exact", "gauss_newton"])
@pytest.mark.parametrize("through_data", [False, True])
def test_a_block_with_a_checkpoint_stays_what_it_was_when_the_model_moves_on(
    part: str, kind: str, through_data: bool
) -> None:
    expected = getattr(getattr(local_hessian(checkpointed(None).problem(), "1"), part), kind).dense()
    case = checkpointed(False)
    found = local_hessian(case.problem(), "1")
    operator = getattr(getattr(found, part), kind)
    assert_same(operator.dense(), expected, 1e-12)
    tensors = [*case.model.parameters(), *case.model.buffers()]
    with torch.no_grad():
        for t in tensors:
            if through_data:
                t.data = t.data + 1
            else:
                t.add_(1)
    moved = [t.clone() for t in tensors]
    assert_same(operator.dense(), expected, 1e-12)
    assert_same(getattr(getattr(found, part), kind).dense(), expected, 1e-12)
    if kind == "gauss_newton":
        assert_same(wc.spectrum(operator).values, torch.linalg.eigvalsh(expected), 1e-10)
    assert all(torch.equal(t, after) for t, after in zip(tensors, moved, strict=True))


# calls


class StrayCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.body[0](x))


@pytest.mark.parametrize("block", ["body.0", "body[0:1]", "body[0:2]", "body[:]"])
def test_a_range_with_a_module_that_is_called_elsewhere_too_is_refused(block: str) -> None:
    with pytest.raises(wc.WellcondError, match="was called 2 times"):
        local_hessian(classifier(StrayCall, normal(6, 4), 6).problem(), block)


def test_a_range_beside_a_module_that_is_called_elsewhere_too_is_measured() -> None:
    case = classifier(StrayCall, normal(6, 4), 6)
    body = case.model.body
    hidden = body[0](body[0](case.batch[0])).detach()
    found = local_hessian(case.problem(), "body[1:3]", last="squared")
    assert_same(found.call.z, hidden, 1e-14)
    j = jacobian(lambda z: body[2](torch.tanh(z)), hidden).reshape(-1, hidden.numel())
    assert_same(found.z.gauss_newton.dense(), j.T @ j, 1e-12)


def test_a_range_whose_parts_are_called_in_another_order_is_refused() -> None:
    class Shuffled(StrayCall):
        def forward(self, x: Tensor) -> Tensor:
            return self.body[2](self.body[0](self.body[1](x)))

    with pytest.raises(wc.WellcondError, match="are not called one after the other"):
        local_hessian(classifier(Shuffled, normal(6, 4), 6).problem(), "body[0:2]")


def test_a_range_with_something_between_its_parts_is_refused() -> None:
    class Doubled(StrayCall):
        def forward(self, x: Tensor) -> Tensor:
            return self.body[2](self.body[1](2 * self.body[0](x)))

    with pytest.raises(wc.WellcondError, match="something else happens between its parts"):
        local_hessian(classifier(Doubled, normal(6, 4), 6).problem(), "body[0:2]")


# several outputs


class Recurrent(nn.Module):
    def __init__(self, uses_state: bool) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, CLASSES)
        self.uses_state = uses_state

    def forward(self, x: Tensor) -> Tensor:
        out, (_, c) = self.cell(x)
        return self.head(out[:, -1] + c[0] if self.uses_state else out[:, -1])


class Features(nn.Module):
    """Its second output leads to the first, and only there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.inner(x)
        return torch.tanh(features), features


class First(nn.Module):
    def forward(self, outputs: tuple[Tensor, Tensor]) -> Tensor:
        return outputs[0]


@pytest.mark.parametrize(
    ("build", "x", "block", "said"),
    [
        (lambda: Recurrent(True), normal(4, 3, 2), "cell", True),
        (lambda: Recurrent(False), normal(4, 3, 2), "cell", False),
        (lambda: nn.Sequential(Features(), First()), normal(6, 4), "0", False),
    ],
)
def test_other_outputs_that_the_loss_depends_on_are_noted(
    build: Callable[[], nn.Module], x: Tensor, block: str, said: bool
) -> None:
    found = local_hessian(classifier(build, x, len(x)).problem(), block)
    assert found.call.is_used
    assert ("the loss depends on other outputs of the block too" in str(found)) == said


# recurrent layers, weight_norm, inference mode, arguments


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_keeps_its_list_of_weights(kind: type[nn.RNNBase]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = kind(2, 3, batch_first=True), nn.Linear(3, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

    case = classifier(Model, normal(4, 3, 2), 4)
    before = dict(vars(case.model.cell))
    local_hessian(case.problem(), "cell").weight.exact.dense()
    assert case.model.cell._flat_weights[0] is case.model.cell.weight_ih_l0
    assert all(vars(case.model.cell)[name] is value for name, value in before.items())


@pytest.mark.parametrize("block", ["body.0", "body", "body[0:2]"])
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_the_refusal_of_weight_norm_names_the_layer_and_the_cure(block: str, norm: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, CLASSES))

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    found = local_hessian(classifier(Model, normal(6, 4), 6).problem(), block)
    with pytest.raises(wc.WellcondError, match=r"^'body\.0' uses weight_norm.* Use \.gauss_newton, or"):
        _ = found.z.exact


def test_operators_work_in_inference_mode() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    with torch.inference_mode():
        found = local_hessian(case.problem(), "[0:2]")
        exact, gauss_newton = found.z.exact.dense(), found.weight.gauss_newton.dense()
        largest = wc.eigenvalues(found.z.exact).values
        values = wc.spectrum(found.z.gauss_newton).values
        form = local_hessian(case.problem(), "0").closed_form().z.dense()
    again = local_hessian(case.problem(), "[0:2]")
    assert_same(exact, again.z.exact.dense(), 1e-14)
    assert_same(gauss_newton, again.weight.gauss_newton.dense(), 1e-14)
    assert float(largest[-1]) == pytest.approx(float(torch.linalg.eigvalsh(again.z.exact.dense())[-1]), rel=1e-2)
    assert_same(values, torch.linalg.eigvalsh(again.z.gauss_newton.dense()), 1e-10)
    w = case.model[0].weight.detach()
    assert_same(form, torch.block_diag(*[w.T @ w] * 6), 1e-12)


def test_arguments_that_are_none_are_refused_in_words() -> None:
    problem = ARCHITECTURES["mlp_tanh"]().problem()
    with pytest.raises(ValueError, match=r'block is 1; write the name of a module, as "1"'):
        local_hessian(problem, 1)
    with pytest.raises(wc.WellcondError, match="the model has 3 modules"):
        local_hessian(problem, "[2:9]")
    for lr in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"lr is {lr}"):
            back_matching(problem, lr=lr)
    with pytest.raises(ValueError, match=r"blocks is '0'; write a list of module names, as \['0'\]"):
        back_matching(problem, blocks="0")


# separators


def slow_separators(end: Any) -> dict[Any, bool]:
    """By the definition: take an operation out, and look whether the end still reaches what leads to it."""

    def reached(starts: list[Any], without: Any) -> set[Any]:
        found: set[Any] = set()
        waiting = list(starts)
        while waiting:
            node = waiting.pop()
            if node is not None and node is not without and node not in found and node.next_functions:
                found.add(node)
                waiting += [above for above, _ in node.next_functions]
        return found

    every = reached([end], None)
    return {node: not reached([end], node) & reached([node], None) for node in every if node is not end}


@pytest.mark.parametrize("seed", range(20))
def test_separators_of_random_graphs_are_those_of_the_definition(seed: int) -> None:
    """Sums of one to three earlier tensors, mostly recent ones, so that skips, branches and bottlenecks occur."""
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.ones((), requires_grad=True) for _ in range(3)]
    made = [leaf.exp() for leaf in leaves]
    for _ in range(40):
        count = int(torch.randint(1, 4, (), generator=generator))
        back = torch.randint(1, 4, (count,), generator=generator).tolist()
        made.append(torch.stack([made[-min(i, len(made))] for i in back]).sum())
    end = made[-1].sin()
    separators, expected = Separators(end.grad_fn), slow_separators(end.grad_fn)
    assert 0 < sum(expected.values()) < len(expected)
    for node, is_separator in expected.items():
        outputs = {n for later in (end.grad_fn, *expected) for above, n in later.next_functions if above is node}
        assert ((node, next(iter(outputs))) in separators) == (is_separator and len(outputs) == 1)


def test_one_of_two_outputs_of_an_operation_is_a_separator_if_the_other_is_not_used() -> None:
    leaf = torch.ones(3, requires_grad=True)
    variance, mean = torch.var_mean(leaf.exp())
    place = (variance.grad_fn, variance.output_nr)
    assert place in Separators(variance.sin().grad_fn)
    assert place not in Separators((variance.sin() + mean).grad_fn)
    assert (mean.grad_fn, mean.output_nr) not in Separators(variance.sin().grad_fn)


def test_finding_the_blocks_of_a_deep_network_looks_at_every_operation_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever its depth: a look at every operation from every block would be 300 times as many."""
    looks = 0
    from wellcond import graph
    from wellcond.local import separators

    def counted(node: Any) -> list[Any]:
        nonlocal looks
        looks += 1
        return [above for above, _ in node.next_functions if above is not None]

    monkeypatch.setattr(graph, "inputs_of", counted)
    monkeypatch.setattr(separators, "inputs_of", counted)
    model = seeded(lambda: nn.Sequential(*(part for _ in range(100) for part in (nn.Linear(2, 2), nn.Tanh()))))
    found = back_matching(wc.Problem(copy.deepcopy(model), nn.MSELoss(), (normal(3, 2), normal(3, 2, seed=1))))
    assert len(found.blocks) == 200
    operations = 100 * 3 + 2
    assert looks < 6 * operations
