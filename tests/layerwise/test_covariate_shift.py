"""Internal covariate shift against definition 2.1 of santurkar2018, done by hand on deep copies."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from references import in_state
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import weight_norm
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, TensorDataset
from zoo import ARCHITECTURES, CLASSES, Case, classifier, integers, mlp, normal, seeded, split

import wellcond as wc
from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.layerwise.covariate_shift import CovariateShift, Shift, covariate_shift

Build = Callable[[Any], Optimizer]
Gradients = dict[str, Tensor]

TOLERANCE = 1e-10

OPTIMIZERS: dict[str, Build] = {
    "sgd": lambda params: SGD(params, lr=0.1),
    "momentum": lambda params: SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda params: Adam(params, lr=0.05),
    "adam_amsgrad_foreach": lambda params: Adam(params, lr=0.05, amsgrad=True, weight_decay=0.1, foreach=True),
    "adamw_fused": lambda params: AdamW(params, lr=0.05, fused=True),
    "adam_lr_tensor": lambda params: Adam(params, lr=torch.tensor(0.05, dtype=torch.float64)),
    "rmsprop_maximize": lambda params: RMSprop(params, lr=0.01, momentum=0.5, maximize=True),
    "adagrad": lambda params: Adagrad(params, lr=0.1),
    "groups": lambda params: SGD(
        [{"params": [p], "lr": 0.02 * (i + 1), "momentum": 0.9 * (i % 2)} for i, p in enumerate(params)]
    ),
    "lbfgs": lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=3),
    "lbfgs_wolfe": lambda params: torch.optim.LBFGS(params, max_iter=2, line_search_fn="strong_wolfe"),
    "lars": lambda params: wc.LARS(params, lr=0.1, momentum=0.9),
    "lsalr": lambda params: wc.LSALR(params, lr=0.02, momentum=0.9),
}

ORDERS: dict[str, list[str]] = {
    "mlp_tanh": ["0", "2"],
    "mlp_relu": ["0", "2", "4"],
    "cnn_batch": ["0", "1", "4", "7"],
    "cnn_running": ["0", "1", "4", "7"],
    "resnet_batch": ["0.conv1", "0.bn1", "0.shortcut", "0.conv2", "0.bn2", "2"],
    "transformer": [
        "embed",
        *(f"blocks.{i}.{part}" for i in range(2) for part in ("norm1", "qkv", "proj", "norm2", "fc")),
        "head",
    ],
    "encoder_layer": ["0.self_attn", "0.norm1", "0.linear1", "0.linear2", "0.norm2", "2"],
    "multihead_attention": ["attention", "head"],
    "lstm": ["cell", "head"],
}
"""The layers in the order in which Python evaluates the forward pass of each, read off its source."""


def case_of(architecture: str) -> Case:
    """As in the zoo, but with ReLUs that live through a few steps."""
    case = ARCHITECTURES[architecture]()
    if architecture.startswith("cnn"):
        with torch.no_grad():
            case.model[4].bias.add_(2.0)
    return case


# the definition


def mean_loss(model: nn.Module, loss: Any, batches: list[Any], batchnorm: str) -> Tensor:
    """Over all terms, here the elements of the targets."""
    state = in_state(model, batchnorm)
    for name, p in model.named_parameters(
        remove_duplicate=False
    ):  # the copy in the measured state computes with the model's own tensors
        *path, last = name.split(".")
        state.get_submodule(".".join(path))._parameters[last] = p
    terms = [targets.numel() for _, targets in batches]
    with sdpa_kernel(SDPBackend.MATH):
        parts = [loss(state(*(x if isinstance(x, tuple) else (x,))), y) for x, y in batches]
    return sum(n * part for n, part in zip(terms, parts, strict=True)) / sum(terms)


def gradients(model: nn.Module, *data: Any) -> Gradients:
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(mean_loss(model, *data), list(params.values()), allow_unused=True)
    return dict(zip(params, found, strict=True))


def twin(model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
    """A deep copy of a model, and one over its parameters of an optimizer over those of the model, in their order."""
    model = copy.deepcopy(model)
    groups = copy.deepcopy(optimizer.state_dict()["param_groups"])
    params = list(model.parameters())
    options = [{**group, "params": [params[i] for i in group["params"]]} for group in groups]
    lr = {"lr": groups[0]["lr"]}
    fresh = type(optimizer)(options, **lr)
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return model, fresh


def take_step(model: nn.Module, optimizer: Optimizer, *data: Any) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = mean_loss(model, *data)
        loss.backward()
        return loss

    closure()
    optimizer.step(closure)


def by_hand(
    model: nn.Module, updated: nn.Module, order: list[str], data: tuple[Any, ...]
) -> Iterator[tuple[str, Gradients, Gradients]]:
    """(layer, G, G') with parameters by name, each from a fresh copy of the model."""
    before = gradients(copy.deepcopy(model), *data)
    new = dict(updated.named_parameters())
    for i, layer in enumerate(order):
        mixed = copy.deepcopy(model)
        with torch.no_grad():
            for name, p in mixed.named_parameters():
                if any(name.startswith(f"{earlier}.") for earlier in order[:i]):
                    p.copy_(new[name])
        after = gradients(mixed, *data)
        own = [name for name in before if name.startswith(f"{layer}.")]
        yield layer, {name: before[name] for name in own}, {name: after[name] for name in own}


def assert_shift(found: Shift, g: list[Tensor], g_new: list[Tensor], tolerance: float = TOLERANCE) -> None:
    old, new = (torch.cat([part.flatten() for part in parts]) for parts in (g, g_new))
    scale = float(old.norm())
    assert found.difference == pytest.approx(float((old - new).norm()), abs=tolerance * scale)
    assert found.gradient_norm == pytest.approx(scale, rel=tolerance)
    assert found.updated_norm == pytest.approx(float(new.norm()), rel=tolerance)
    assert found.cosine == pytest.approx(float(old @ new / (old.norm() * new.norm())), abs=tolerance)


def assert_by_hand(
    found: CovariateShift, model: nn.Module, updated: nn.Module, order: list[str], data: tuple[Any, ...]
) -> None:
    assert list(found) == order
    largest = 0.0
    for layer, g, g_new in by_hand(model, updated, order, data):
        assert_shift(found[layer], list(g.values()), list(g_new.values()))
        for name in g:
            if float(g[name].norm()) > 1e-12:  # a key's bias in attention has no gradient but rounding
                assert_shift(found[name], [g[name]], [g_new[name]])
        largest = max(largest, found[layer].difference)
    assert largest > 1e-6  # zero against zero proves nothing


def data_of(case: Case, batches: list[Any] | None = None) -> tuple[Any, ...]:
    return case.loss, batches or [case.batch], case.batchnorm


def trained(case: Case, build: Build, steps: int = 2) -> Optimizer:
    """An optimizer in the middle of a run: its state is filled."""
    optimizer = build(list(case.model.parameters()))
    for _ in range(steps):
        take_step(case.model, optimizer, *data_of(case))
    return optimizer


@pytest.mark.parametrize("build", [OPTIMIZERS["momentum"], OPTIMIZERS["adam"]], ids=["momentum", "adam"])
@pytest.mark.parametrize("architecture", ORDERS)
def test_it_is_the_definition_done_by_hand(architecture: str, build: Build) -> None:
    case = case_of(architecture)
    optimizer = trained(case, build)
    updated, stepping = twin(case.model, optimizer)
    take_step(updated, stepping, *data_of(case))
    found = covariate_shift(case.problem(), optimizer)
    assert_by_hand(found, case.model, updated, ORDERS[architecture], data_of(case))


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2], ids=["fresh", "mid_run"])
def test_every_optimizer_takes_the_step_it_would_take(build: Build, steps: int) -> None:
    case = case_of("mlp_relu")
    optimizer = trained(case, build, steps)
    problem = case.problem()
    found = covariate_shift(problem, optimizer)
    before = copy.deepcopy(case.model)
    take_step(case.model, optimizer, *data_of(case))  # the real one, after the measurement
    assert_by_hand(found, before, case.model, ORDERS["mlp_relu"], data_of(case))


def test_scale_amended_sgd_is_replayed() -> None:
    case = case_of("cnn_batch")
    optimizer = wc.ScaleAmendedSGD(case.model, lr=0.01, momentum=0.9, inputs=case.batch[0])
    take_step(case.model, optimizer, *data_of(case))
    found = covariate_shift(case.problem(), optimizer)
    before = copy.deepcopy(case.model)
    take_step(case.model, optimizer, *data_of(case))
    assert_by_hand(found, before, case.model, ORDERS["cnn_batch"], data_of(case))


class SharpnessAware(Optimizer):
    """Needs its gradients before `step`, and asks for others at a point nearby; keeps what `state_dict` does not."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.inner = SGD(self.param_groups, lr=0.1, momentum=0.9)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor]) -> None:
        params = [p for group in self.param_groups for p in group["params"]]
        moves = [0.05 * p.grad for p in params]
        for p, move in zip(params, moves, strict=True):
            p.add_(move)
        with torch.enable_grad():
            closure()
        for p, move in zip(params, moves, strict=True):
            p.sub_(move)
        self.inner.step()


class WithoutClosure(Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * p.grad.sign()


@pytest.mark.parametrize("build", [SharpnessAware, WithoutClosure])
def test_optimizers_of_ones_own_are_replayed(build: Build) -> None:
    case = case_of("mlp_relu")
    optimizer = build(list(case.model.parameters()))
    found = covariate_shift(case.problem(), optimizer)
    before = copy.deepcopy(case.model)
    mean_loss(case.model, *data_of(case)).backward()
    if build is WithoutClosure:
        optimizer.step()
    else:
        take_step(case.model, optimizer, *data_of(case))
    assert_by_hand(found, before, case.model, ORDERS["mlp_relu"], data_of(case))


def test_two_uneven_batches_count_by_their_terms() -> None:
    case = case_of("mlp_tanh")
    batches = split(case.batch, [5, 1])
    optimizer = trained(case, OPTIMIZERS["adam"])
    updated, stepping = twin(case.model, optimizer)
    take_step(updated, stepping, *data_of(case, batches))
    found = covariate_shift(case.problem(batches=batches), optimizer)
    assert_by_hand(found, case.model, updated, ["0", "2"], data_of(case, batches))


# closed forms and edges


def chain(*weights: float) -> wc.Problem:
    """L = ∏ w_i on one example."""
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in weights)).double()
    for layer, w in zip(model, weights, strict=True):
        nn.init.constant_(layer.weight, w)
    return wc.Problem(model, lambda outputs, _: outputs.mean(), (torch.ones(1, 1).double(), torch.zeros(1)))


def test_three_numbers_in_a_row_have_a_closed_form() -> None:
    """G_i = ∏_{j≠i} w_j; w_1 → 1 − 6·lr = 0.4, w_2 → 2 − 3·lr = 1.7 with lr = 0.1."""
    found = covariate_shift(problem := chain(1.0, 2.0, 3.0), SGD(problem.model.parameters(), lr=0.1))
    assert [shift.gradient_norm for shift in found.values()] == pytest.approx([6.0, 3.0, 2.0], rel=1e-15)
    assert [shift.updated_norm for shift in found.values()] == pytest.approx([6.0, 0.4 * 3.0, 0.4 * 1.7], rel=1e-14)
    assert [shift.difference for shift in found.values()] == pytest.approx([0.0, 1.8, 2 - 0.68], rel=1e-14)
    assert [shift.cosine for shift in found.values()] == pytest.approx([1.0, 1.0, 1.0], rel=1e-15)


def test_the_cosine_is_minus_one_when_the_step_before_turns_the_sign() -> None:
    found = covariate_shift(problem := chain(1.0, 2.0), SGD(problem.model.parameters(), lr=1.0))
    assert found["1"].cosine == -1.0
    assert found["1"].difference == 2.0


def test_one_layer_has_no_shift_and_needs_one_pass() -> None:
    model = seeded(lambda: nn.Linear(4, CLASSES))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    found = covariate_shift(problem, SGD(model.parameters(), lr=0.1))
    assert (found[""].difference, found[""].cosine, found.forwards, found.backwards) == (0.0, 1.0, 1, 1)
    assert found["weight"].difference == 0.0
    assert "(model)" in str(found)


def test_the_first_layer_is_exactly_zero_and_one() -> None:
    case = case_of("cnn_batch")
    found = covariate_shift(case.problem(), SGD(case.model.parameters(), lr=0.1))
    assert (found["0"].difference, found["0"].cosine) == (0.0, 1.0)
    assert (found["0.bias"].difference, found["0.weight"].cosine) == (0.0, 1.0)


def test_a_gradient_of_zero_has_no_cosine_and_says_so() -> None:
    found = covariate_shift(problem := chain(0.0, 0.0, 1.0), SGD(problem.model.parameters(), lr=0.1))
    assert math.isnan(found["0"].cosine)
    assert found["0"].difference == 0.0
    assert found["0"].note == "its gradient is zero"
    assert "0: its gradient is zero" in str(found)


def test_a_gradient_that_vanishes_behind_the_step_says_so() -> None:
    found = covariate_shift(problem := chain(1.0, 1.0), SGD(problem.model.parameters(), lr=1.0))
    assert (found["1"].difference, found["1"].updated_norm) == (1.0, 0.0)
    assert math.isnan(found["1"].cosine)
    assert "once the layers before it have moved" in found["1"].note


def test_a_step_to_where_the_loss_is_infinite_gives_nan_and_a_note() -> None:
    found = covariate_shift(problem := chain(1.0, 2.0), SGD(problem.model.parameters(), lr=1e308 * 10))
    assert math.isnan(found["1"].difference)
    assert math.isnan(found["1"].cosine)
    assert found["1"].gradient_norm == 1.0
    assert "no finite gradient" in found["1"].note
    assert not found["0"].note


# layers


class Positions(nn.Module):
    """A container that owns a parameter, a list of parameters that is never called, a head that is tied, one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(4, 5)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.mixer = weight_norm(nn.Linear(4, 4))
        self.gains = nn.ParameterList([nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))])
        self.embed = nn.Embedding(5, 4)
        self.position = nn.Parameter(torch.randn(3, 4))
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embed(tokens) + self.position
        return self.head(torch.tanh(self.frozen(self.mixer(h) * self.gains[0] + self.gains[1])).mean(1))


OWNED = {
    "": ["position", "gains.0", "gains.1"],
    "embed": ["head.weight"],
    "mixer": ["mixer.bias", "mixer.parametrizations.weight.original0", "mixer.parametrizations.weight.original1"],
    "head": ["head.bias"],
    "unused": ["unused.weight", "unused.bias"],
}


def test_containers_lists_tied_parametrized_frozen_and_unused_layers() -> None:
    model = seeded(Positions)
    data = nn.CrossEntropyLoss(), [(integers(5, 4, 3), integers(5, 4, seed=1))], "batch"
    optimizer = SGD(model.parameters(), lr=0.5, weight_decay=0.1)
    found = covariate_shift(wc.Problem(model, *data), optimizer)
    assert list(found) == list(OWNED)

    updated = copy.deepcopy(model)
    take_step(updated, SGD(updated.parameters(), lr=0.5, weight_decay=0.1), *data)
    new, g = dict(updated.named_parameters()), gradients(copy.deepcopy(model), *data)
    moved: list[str] = []
    for layer in list(OWNED)[:-1]:
        mixed = copy.deepcopy(model)
        with torch.no_grad():
            for name in moved:
                dict(mixed.named_parameters())[name].copy_(new[name])
        g_new = gradients(mixed, *data)
        assert_shift(found[layer], [g[n] for n in OWNED[layer]], [g_new[n] for n in OWNED[layer]])
        moved += OWNED[layer]
    assert found["embed.weight"] is found["head.weight"]
    assert "head.weight is also" in found["embed"].note or "embed.weight" in found["embed"].note
    assert found["unused"].gradient_norm == found["unused"].difference == 0.0
    assert "never called" in found["unused"].note
    with pytest.raises(UnknownLayer, match="mixer"):
        found["frozen"]


class Idle(nn.Module):
    """Holds attention that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)


def test_attention_that_is_never_called_is_one_layer_too() -> None:
    problem = wc.Problem(model := seeded(Idle), nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    found = covariate_shift(problem, SGD(model.parameters(), lr=0.1))
    assert list(found) == ["head", "idle"]
    assert found["idle.out_proj.weight"].difference == 0.0


class Detached(nn.Module):
    """Its first layer is used, but no gradient reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).detach())


def test_a_layer_without_a_gradient_does_not_move_though_there_is_weight_decay() -> None:
    """Its gradient is None, as in training, and not zero, of which an optimizer would make a step."""
    problem = wc.Problem(model := seeded(Detached), nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    found = covariate_shift(problem, SGD(model.parameters(), lr=0.1, weight_decay=1.0))
    assert found["first"].note == "no gradient reaches it; its gradient is zero"
    assert (found["second"].difference, found["second"].cosine, found.forwards) == (0.0, 1.0, 1)


def test_layers_restrict_the_passes_but_not_the_numbers() -> None:
    case = case_of("encoder_layer")
    optimizer = trained(case, OPTIMIZERS["adam"])
    everything = covariate_shift(case.problem(), optimizer)
    some = covariate_shift(case.problem(), optimizer, layers=["0.linear2", "2.weight"])
    assert list(some) == ["0.linear2", "2"]
    assert list(covariate_shift(case.problem(), optimizer, layers="0.linear2")) == ["0.linear2"]
    assert [some[name] for name in some] == [everything[name] for name in some]
    assert (some.forwards, some.backwards) == (3, 3)
    with pytest.raises(UnknownLayer, match="nothing"):
        covariate_shift(case.problem(), optimizer, layers=["nothing"])
    with pytest.raises(UnknownLayer):
        some["0.norm1"]


def test_parameters_the_optimizer_does_not_hold_do_not_move() -> None:
    case = case_of("mlp_relu")
    found = covariate_shift(case.problem(), SGD([case.model[2].weight], lr=0.1))
    updated = copy.deepcopy(case.model)
    take_step(updated, SGD([updated[2].weight], lr=0.1), *data_of(case))
    assert_by_hand(found, case.model, updated, ["0", "2", "4"], data_of(case))
    assert found["2"].difference == 0.0
    assert (found.forwards, found.backwards) == (2, 2)  # nothing moves before "2"


# cost


class Counting(nn.Module):
    """Counts the passes through it, and fails at one of them if asked."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__()
        self.forwards = self.backwards = 0
        self.fail_at = fail_at

    def forward(self, x: Tensor) -> Tensor:
        self.forwards += 1
        if self.forwards == self.fail_at:
            raise KeyboardInterrupt
        x = x.clone()
        if x.requires_grad:
            x.register_hook(self.count)
        return x

    def count(self, _gradient: Tensor) -> None:
        self.backwards += 1


def counted(fail_at: int | None = None) -> nn.Sequential:
    return seeded(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))
    ).append(Counting(fail_at))


@pytest.mark.parametrize("sizes", [[6], [4, 2]], ids=["one_batch", "two_batches"])
@pytest.mark.parametrize("build", ["adam", "lbfgs"])
def test_passes_are_counted(sizes: list[int], build: str) -> None:
    model, batch = counted(), (normal(6, 4), integers(CLASSES, 6))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), split(batch, sizes))
    found = covariate_shift(problem, OPTIMIZERS[build](model.parameters()))
    assert model[-1].forwards == found.forwards * len(sizes)
    assert model[-1].backwards == found.backwards * len(sizes)
    if build == "adam":
        assert found.forwards == found.backwards == 4
    assert f"{found.forwards} forward and {found.backwards} backward passes" in str(found)


def test_checks_are_counted_too() -> None:
    model, data = counted(), TensorDataset(normal(6, 4), integers(CLASSES, 6))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), DataLoader(data, batch_size=6))
    found = covariate_shift(problem, SGD(model.parameters(), lr=0.1))
    assert (found.forwards, found.check.forwards, found.check.readings) == (4, 2, 2)
    assert model[-1].forwards == found.forwards + found.check.forwards
    assert "2 readings of the loader" in str(found)


def test_passes_that_look_for_the_culprit_are_counted() -> None:
    """w₁ = 1 − 6e200 and w₂ = 2 − 3e200 are finite and their product is not: a second pass looks for the layer."""
    problem, calls = chain(1.0, 2.0, 3.0), []
    problem.model.register_forward_hook(lambda *_: calls.append(None))
    found = covariate_shift(problem, SGD(problem.model.parameters(), lr=1e200))
    assert len(calls) == found.forwards == 4
    assert found.backwards == 2
    assert "no finite gradient" in found["2"].note


def test_small_shifts_can_be_told_from_none() -> None:
    case = case_of("mlp_relu")
    text = str(covariate_shift(case.problem(), SGD(case.model.parameters(), lr=1e-4)))
    ends = [line.split("  ")[-1].strip() for line in text.splitlines()[1:4]]
    assert ends[0] == "1"
    assert all(end.startswith("1 − ") and 0 < float(end[4:]) < 1e-3 for end in ends[1:])


def test_parameters_that_share_memory_are_noted() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)))
    model[1].weight.data = model[0].weight.data
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)))
    found = covariate_shift(problem, SGD(model.parameters(), lr=0.1))
    assert "'0.weight' and '1.weight' share their memory" in found["1"].note
    assert not found["0"].note


def test_progress_names_the_layer_and_the_share() -> None:
    seen: list[tuple[str, float]] = []
    case = case_of("mlp_relu")
    optimizer = SGD(case.model.parameters(), lr=0.1)
    covariate_shift(case.problem(), optimizer, progress=lambda what, share: seen.append((what, share)))
    assert seen == [(f"covariate shift of {name}", pytest.approx(i / 3)) for i, name in enumerate(["0", "2", "4"])]


# nothing of the user's changes


def identity(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, p in model.named_parameters():
        state[name] = (id(p), p.data_ptr(), p._version, p.requires_grad, id(p.grad), p.detach().clone())
        state[f"{name}.grad"] = None if p.grad is None else (p.grad._version, p.grad.clone())
        for key, value in optimizer.state.get(p, {}).items():
            known = (id(value), value._version, value.clone()) if isinstance(value, Tensor) else (value,)
            state[f"{name} {key}"] = known
    state["groups"] = [
        (id(group), {k: v for k, v in group.items() if k != "params"}) for group in optimizer.param_groups
    ]
    state["attributes"] = {key: id(value) for key, value in vars(optimizer).items()}
    state["step"] = getattr(optimizer, "_step_count", None), getattr(optimizer, "_opt_called", None)
    state["modules"] = [(m.training, len(m._forward_pre_hooks), len(m._forward_hooks)) for m in model.modules()]
    return state


def is_same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, (tuple, list)):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(is_same(value, second[key]) for key, value in first.items())
    return first == second


@pytest.mark.parametrize("build", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("fail_at", [None, 1, 2, 4], ids=str)
def test_nothing_of_the_models_or_the_optimizers_changes(build: Build, fail_at: int | None) -> None:
    model, batch = counted(), (normal(6, 4), integers(CLASSES, 6))
    optimizer = build(list(model.parameters()))
    StepLR(optimizer, 10)  # wraps the optimizer's step
    problem = wc.Problem(model, nn.CrossEntropyLoss(), batch)
    problem.check()
    take_step(model[:-1], optimizer, nn.CrossEntropyLoss(), [batch], "batch")
    model.train()
    model[-1].forwards, model[-1].fail_at = 0, fail_at
    before = identity(model, optimizer)
    if fail_at is None:
        covariate_shift(problem, optimizer)
    else:
        with pytest.raises(KeyboardInterrupt) as held:
            covariate_shift(problem, optimizer)
        assert held.tb is not None
    after = identity(model, optimizer)
    assert [key for key in before if not is_same(before[key], after.get(key))] == []
    assert before.keys() == after.keys()


def test_hooks_of_all_optimizers_do_not_see_the_step() -> None:
    seen: list[Any] = []
    handle = register_optimizer_step_pre_hook(lambda *args: seen.append(args))
    try:
        case = case_of("mlp_tanh")
        covariate_shift(case.problem(), SGD(case.model.parameters(), lr=0.1))
    finally:
        handle.remove()
    assert not seen


# the step given by its result


def test_a_mapping_of_values_equals_the_optimizer() -> None:
    case = case_of("cnn_batch")
    optimizer = trained(case, OPTIMIZERS["adam"])
    updated, stepping = twin(case.model, optimizer)
    take_step(updated, stepping, *data_of(case))
    from_optimizer = covariate_shift(case.problem(), optimizer)
    from_values = covariate_shift(case.problem(), updated.state_dict())  # with buffers
    for name, shift in from_optimizer.items():
        assert from_values[name].difference == pytest.approx(shift.difference, rel=1e-10)
        assert from_values[name].cosine == pytest.approx(shift.cosine, abs=1e-12)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda m: torch.compile(nn.DataParallel(m))])
def test_a_mapping_may_be_that_of_a_wrapped_model(wrap: Callable[[nn.Module], Any]) -> None:
    case = case_of("cnn_batch")
    updated = copy.deepcopy(case.model)
    with torch.no_grad():
        updated[0].weight.mul_(1.1)
    state = wrap(updated).state_dict()
    assert not any(name in updated.state_dict() for name in state)
    found = covariate_shift(wc.Problem(wrap(case.model), case.loss, case.batch), state)
    plain = covariate_shift(case.problem(), updated.state_dict())
    assert plain["4"].difference > 0
    assert list(found.values()) == list(plain.values())
    with pytest.raises(UnknownLayer, match=r"there is no layer or parameter 'module\.nothing'"):
        covariate_shift(case.problem(), {"module.nothing": torch.zeros(1)})


class Wrapper(Optimizer):
    """Forwards to an optimizer inside, without ever having been made one itself, as Accelerate's."""

    def __init__(self, inside: Optimizer) -> None:
        self.optimizer = inside

    @property
    def param_groups(self) -> Any:
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


def test_the_optimizer_inside_a_wrapper_takes_the_step() -> None:
    case = case_of("mlp_relu")
    inside = trained(case, OPTIMIZERS["adam"])
    assert dict(covariate_shift(case.problem(), Wrapper(inside))) == dict(covariate_shift(case.problem(), inside))
    inside.register_step_pre_hook(lambda *_: None)
    with pytest.raises(InvalidProblem, match="step hooks"):
        covariate_shift(case.problem(), Wrapper(inside))


def test_bnp_is_refused_with_the_cure() -> None:
    case = case_of("cnn_batch")
    optimizer = SGD(case.model.parameters(), lr=0.1)
    wc.BNP(case.model, optimizer)
    with pytest.raises(InvalidProblem, match=r"BNP(.|\n)*model\.state_dict\(\)"):
        covariate_shift(case.problem(), optimizer)


def test_the_step_of_bnp_given_by_its_result() -> None:
    case = classifier(lambda: mlp(activation=nn.ReLU), normal(6, 4), 6)
    optimizer = SGD(case.model.parameters(), lr=0.1, momentum=0.9)
    bnp = wc.BNP(case.model, optimizer)
    before = copy.deepcopy(case.model)
    case.loss(case.model.train()(case.batch[0]), case.batch[1]).backward()
    optimizer.step()
    plain = {name: p - 0.1 * g for (name, p), g in zip(before.named_parameters(), _plain(before, case), strict=True)}
    assert not torch.allclose(plain["0.weight"], case.model[0].weight)  # it was preconditioned
    problem = wc.Problem(before, case.loss, case.batch)
    found = covariate_shift(problem, case.model.state_dict())
    bnp.remove()
    assert_by_hand(found, before, case.model, ["0", "2"], data_of(case))


def _plain(model: nn.Module, case: Case) -> tuple[Tensor, ...]:
    return torch.autograd.grad(mean_loss(copied := copy.deepcopy(model), *data_of(case)), list(copied.parameters()))


# what is refused


def test_wrong_optimizers_are_refused() -> None:
    case = case_of("mlp_tanh")
    with pytest.raises(InvalidProblem, match="none of the model's"):
        covariate_shift(case.problem(), SGD(copy.deepcopy(case.model).parameters(), lr=0.1))
    with pytest.raises(TypeError, match="not str"):
        covariate_shift(case.problem(), "sgd")  # type: ignore[arg-type]
    with pytest.raises(UnknownLayer, match=r"0\.weight"):
        covariate_shift(case.problem(), {"0.weigh": case.model[0].weight})
    with pytest.raises(ValueError, match="shape"):
        covariate_shift(case.problem(), {"0.weight": torch.zeros(3)})
    with pytest.raises(InvalidProblem, match="nothing would move"):
        covariate_shift(case.problem(), {})


def test_an_optimizer_that_cannot_be_copied_is_refused_with_the_cure() -> None:
    case = case_of("mlp_tanh")
    optimizer = SGD(case.model.parameters(), lr=0.1)
    optimizer.lines = (line for line in ())  # type: ignore[attr-defined]
    with pytest.raises(InvalidProblem, match=r"cannot be copied(.|\n)*state_dict"):
        covariate_shift(case.problem(), optimizer)


def test_an_optimizer_of_sparse_gradients_is_refused_with_the_cure() -> None:
    model = seeded(lambda: nn.Sequential(nn.EmbeddingBag(5, 3, sparse=True), nn.Linear(3, CLASSES)))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), (integers(5, 4, 3), integers(CLASSES, 4)))
    with pytest.raises(InvalidProblem, match=r"dense gradients(.|\n)*state_dict"):
        covariate_shift(problem, torch.optim.SparseAdam([model[0].weight]))


def test_an_unknown_name_lists_what_there_is() -> None:
    case = case_of("mlp_tanh")
    found = covariate_shift(case.problem(), SGD(case.model.parameters(), lr=0.1))
    with pytest.raises(UnknownLayer, match="'0'"):
        found["1"]


def test_rows_carry_the_training_step() -> None:
    found = covariate_shift(problem := chain(1.0, 2.0), SGD(problem.model.parameters(), lr=0.1))
    rows = found.rows(step=7)
    assert {row.step for row in rows} == {7}
    assert [(row.layer, row.quantity, row.value) for row in rows[4:]] == [
        ("1", "shift_difference", pytest.approx(0.2)),
        ("1", "shift_cosine", 1.0),
        ("1", "gradient_norm", 1.0),
        ("1", "shifted_gradient_norm", pytest.approx(0.8)),
    ]
    assert found.rows()[0].step is None


def test_single_precision_is_measured_too() -> None:
    case = case_of("mlp_relu")
    optimizer = SGD(case.model.parameters(), lr=0.1)
    double = covariate_shift(case.problem(), optimizer)
    case.model.float()
    inputs, targets = case.batch
    single = covariate_shift(case.problem(batches=[(inputs.float(), targets)]), optimizer)
    for name in double:
        assert single[name].difference == pytest.approx(double[name].difference, rel=1e-4)
