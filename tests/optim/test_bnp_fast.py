"""BNP on every fast path gives the numbers of the plain one: in one compiled graph, fused, in a CUDA graph."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bnp_reference import (
    LR,
    ReferenceBNP,
    assert_close,
    assert_same,
    backward_of_loss,
    batches_of,
    dense,
    loss,
    preconditioned,
    steps,
    train,
)
from layer_zoo import CONVOLUTIONS, Sandwich
from test_bnp import NETWORKS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo import CLASSES, integers, normal, seeded

import wellcond as wc
from wellcond.optim import c_kernels, running_statistics
from wellcond.optim.input_statistics import measure_for

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 10


def assert_follows(model: nn.Module, cases: list[tuple[Tensor, Tensor]], reference: ReferenceBNP) -> None:
    for x, y in cases:
        reference.step(loss, x, y)
    assert_same(model, reference.model)


# torch.compile


@pytest.fixture(autouse=True)
def _forget_graphs() -> Any:
    yield
    torch.compiler.reset()


def one_graph(model: nn.Module) -> Any:
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def two_losses(model: nn.Module, x: Tensor, y: Tensor) -> None:
    value = loss(model, x, y)
    (0.3 * value).backward(retain_graph=True)
    (0.7 * value).backward()


def all_forward_then_all_backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    parts = list(zip(x.split([1, 4]), y.split([1, 4]), strict=True))
    for value in [loss(model, part_x, part_y) * len(part_x) / len(x) for part_x, part_y in parts]:
        value.backward()


def by_autograd_grad(model: nn.Module, x: Tensor, y: Tensor) -> None:
    parameters = list(model.parameters())
    for p, gradient in zip(parameters, torch.autograd.grad(loss(model, x, y), parameters), strict=True):
        p.grad = gradient


def all_of_2d() -> nn.Module:
    padded = (nn.Conv2d(2, 2, 3, padding=1, padding_mode=mode) for mode in ("circular", "reflect", "replicate"))
    return nn.Sequential(
        nn.Conv2d(2, 4, (2, 3), padding=(1, 0)), nn.Conv2d(4, 6, 2, groups=2, bias=False),
        nn.Conv2d(6, 6, 3, groups=6, padding=1), nn.Conv2d(6, 2, 2, dilation=(1, 2)), *padded,
        nn.Conv2d(2, 2, (2, 3), padding="same", dilation=(1, 2)),
        nn.Conv2d(2, 4, 2, padding="same", padding_mode="circular"),
        nn.ConvTranspose2d(4, 2, 2, groups=2, dilation=2, bias=False),
        nn.ConvTranspose2d(2, 2, 2, stride=1, dilation=3, padding=1, output_padding=2),
    )  # fmt: skip


def all_of_1d() -> nn.Module:
    conv, transposed = (CONVOLUTIONS[name][0]() for name in ("conv1d", "transposed1d"))
    return nn.Sequential(conv, nn.Conv1d(3, 2, 1), transposed)


def all_of_3d() -> nn.Module:
    conv, transposed = (CONVOLUTIONS[name][0]() for name in ("conv3d", "transposed3d"))
    return nn.Sequential(conv, nn.Conv3d(2, 1, 1), transposed)


COMPILED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{name: NETWORKS[name] for name in ("dense", "tokens", "called_twice", "groupnorm", "layernorm")},
    "1d": (lambda: Sandwich(all_of_1d(), (2, 6)), (2, 6)),
    "2d": (lambda: Sandwich(all_of_2d(), (2, 5, 7)), (2, 5, 7)),
    "3d": (lambda: Sandwich(all_of_3d(), (1, 2, 4, 3)), (1, 2, 4, 3)),
}
"""Compiling takes a second, whatever the number of layers."""


@pytest.mark.slow
@pytest.mark.parametrize("network", COMPILED)
def test_every_kind_of_layer_compiles_into_one_graph(network: str) -> None:
    build, shape = COMPILED[network]
    model, cases = seeded(build), batches_of(shape, steps=STEPS)
    reference = ReferenceBNP(model, LR)
    optimizer, _ = preconditioned(model)
    steps(one_graph(model), optimizer, cases)
    assert_follows(model, cases, reference)


@pytest.mark.slow
@pytest.mark.parametrize("backward", [backward_of_loss, two_losses, all_forward_then_all_backward, by_autograd_grad])
def test_one_graph_counts_every_call_once(backward: Callable[[nn.Module, Tensor, Tensor], None]) -> None:
    model, cases = seeded(dense), batches_of()
    reference = ReferenceBNP(model, LR)
    compiled = one_graph(model)
    optimizer, _ = preconditioned(compiled)
    steps(compiled, optimizer, cases, backward)
    assert_follows(model, cases, reference)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Sequential) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[3:](checkpoint(self.inner[:3], x, use_reentrant=False))


@pytest.mark.slow
def test_checkpoints_and_inplace_activations_stay_in_one_graph() -> None:
    model, cases = seeded(dense), batches_of()
    model[1] = nn.ReLU(inplace=True)
    reference = ReferenceBNP(model, LR)
    compiled = one_graph(Checkpointed(model))
    optimizer, _ = preconditioned(compiled)
    steps(compiled, optimizer, cases)
    assert_follows(model, cases, reference)


@pytest.mark.slow
def test_one_graph_leaves_no_trace_of_passes_that_do_not_train() -> None:
    model = seeded(dense)
    compiled = one_graph(model)
    _, bnp = preconditioned(model)
    before = bnp.state_dict()["layers"]
    x, y = normal(5, 6), integers(CLASSES, 5)
    loss(compiled, x, y)
    x_only = x.clone().requires_grad_()
    torch.autograd.grad(loss(compiled, x_only, y), x_only)
    others = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    called = torch.compile(lambda p, x: torch.func.functional_call(model, p, (x,)), fullgraph=True, backend="aot_eager")
    called(others, x).sum().backward()
    bnp.precondition()
    torch.testing.assert_close(bnp.state_dict()["layers"], before, rtol=0, atol=0)
    bnp.remove()
    loss(compiled, x, y).backward()
    assert bnp.layers["0"].collected.statistics() is None


# the fused update


@pytest.mark.parametrize("means", ["channel", "kernel"])
@pytest.mark.parametrize("size", [1, 50])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("fused", [True, False])
def test_kernels_and_plain_operations_follow_the_matrix_form(fused: bool, network: str, size: int, means: str) -> None:
    build, shape = NETWORKS[network]
    model, cases = seeded(build), batches_of(shape, size, STEPS)
    reference = ReferenceBNP(model, LR, means=means)
    train(model, cases, means=means, fused=fused)
    assert_follows(model, cases, reference)


def test_the_c_kernels_skip_what_is_not_stored_in_rows() -> None:
    """A transposed layout, a tied weight and a frozen one use plain operations, next to a layer that uses a kernel."""

    def make() -> nn.Module:
        model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))
        model[1].weight = model[2].weight
        model[3].weight.requires_grad_(False)
        return model

    plain = seeded(make)
    plain[0].weight = nn.Parameter(plain[0].weight.detach().T.contiguous().T)
    model = copy.deepcopy(plain)
    cases = [(x, torch.zeros(len(x), dtype=torch.int64)) for x, _ in batches_of()]
    train(plain, cases, fused=False)
    train(model, cases, fused=True)
    assert_same(model, plain)


def test_float32_goes_along_and_a_model_may_move() -> None:
    plain = seeded(dense).float()
    model = copy.deepcopy(plain)
    cases = [(x.float(), y) for x, y in batches_of()]
    (first, _), (second, _) = preconditioned(plain, fused=False), preconditioned(model, fused=True)
    steps(plain, first, cases)
    steps(model, second, cases)
    assert_same(model, plain, tolerance=1e-5)
    steps(plain.double(), first, batches_of())
    steps(model.double(), second, batches_of())
    assert_same(model, plain, tolerance=1e-5)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("shape", [(1, 3), (70, 600), (9, 4, 5), (5, 3, 40, 50)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_moments_keep_their_digits_far_from_zero(shape: tuple[int, ...], offset: float, fused: bool) -> None:
    """Float32 about a mean of 1000 σ: a difference of E x² and (E x)² would have none left."""
    x = (normal(*shape) + offset).float()
    layer = nn.Linear(shape[1], 1) if len(shape) == 2 else {3: nn.Conv1d, 4: nn.Conv2d}[len(shape)](shape[1], 1, 1)
    result = measure_for(layer, "channel", fused)(x, layer(x))
    over = [0, *range(2, x.dim())]
    torch.testing.assert_close(result.mean.double(), x.double().mean(over), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(result.variance.double(), x.double().var(over, correction=0), rtol=1e-4, atol=1e-7)


def test_without_a_compiler_the_plain_operations_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    c_kernels.c_kernels.cache_clear()
    c_kernels._compiled.cache_clear()
    monkeypatch.setenv("CC", "no-such-compiler")
    plain, model = seeded(dense), seeded(dense)
    with pytest.warns(UserWarning, match="no-such-compiler failed"):
        train(model, batches_of(), fused=True)
    train(plain, batches_of())
    assert_same(model, plain, tolerance=0.0)
    c_kernels.c_kernels.cache_clear()
    c_kernels._compiled.cache_clear()


# CUDA graphs


def capturing(monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    for module in ("bnp", "running_statistics", "input_statistics"):
        monkeypatch.setattr(f"wellcond.optim.{module}.is_capturing", lambda _tensor: is_on)
    monkeypatch.setattr("wellcond.optim.input_statistics._is_captured", lambda _backward, _on_gpu: is_on)


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
def test_a_captured_step_is_skipped_on_the_device(monkeypatch: pytest.MonkeyPatch, found_inf: float) -> None:
    model, plain, cases = seeded(dense).float(), seeded(dense).float(), batches_of(steps=2)
    cases = [(x.float(), y) for x, y in cases]
    moments = []
    for network in (model, plain):
        optimizer = torch.optim.Adam(network.parameters(), lr=LR, fused=True)
        bnp = wc.BNP(network, optimizer, fused=False)
        steps(network, optimizer, cases[:1])
        before = copy.deepcopy(bnp.state_dict()["layers"])
        if network is model:
            capturing(monkeypatch, True)
            optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(found_inf)
        steps(network, optimizer, cases[1:])
        capturing(monkeypatch, False)
        moments.append((before, bnp.state_dict()["layers"]))
    (before, after), (_, expected) = moments
    torch.testing.assert_close(after, before if found_inf else expected, rtol=0, atol=0)


def test_a_capture_without_a_warm_up_and_one_without_the_step_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = seeded(dense), batches_of(steps=1)[0]
    optimizer, _ = preconditioned(model, fused=False)
    capturing(monkeypatch, True)
    loss(model, x, y).backward()
    with pytest.raises(wc.WellcondError, match="Run a few steps"):
        optimizer.step()
    loss(model, x, y).backward()
    capturing(monkeypatch, False)
    with pytest.raises(wc.WellcondError, match="Capture both together"):
        optimizer.step()


def test_constants_that_a_graph_reads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    build, shape = NETWORKS["dense_wide"]
    model = seeded(build)
    optimizer, bnp = preconditioned(model, fused=False)
    [(running, _)] = bnp._running
    steps(model, optimizer, batches_of(shape, steps=1))
    capturing(monkeypatch, True)
    steps(model, optimizer, batches_of(shape, steps=1))
    capturing(monkeypatch, False)
    [captured] = running._captured
    for size in range(6, 8 + running_statistics.MOST_CONSTANTS):
        steps(model, optimizer, batches_of(shape, size, steps=1))
    assert len(running._constants) == running_statistics.MOST_CONSTANTS
    assert all(captured is not retained for retained in running._constants.values())
    assert_close(captured.of_groups[0, 0], torch.tensor(70 / 5).double())


@needs_cuda
@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_captured_step_gives_the_numbers_of_the_plain_one(network: str, fused: bool | None) -> None:
    build, shape = NETWORKS[network]
    start, cases = seeded(build), batches_of(shape, steps=STEPS)
    model = copy.deepcopy(start).cuda()
    optimizer, bnp = preconditioned(model, fused=fused)
    x, y = (part.cuda() for part in cases[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps(model, optimizer, 3 * [(x, y)])
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        steps(model, optimizer, [(x, y)])
    model.load_state_dict(start.state_dict())
    for layer in bnp.layers.values():
        layer.mean.zero_()
        layer.variance.fill_(1.0)
    for new_x, new_y in cases:
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
    assert_follows(model.cpu(), cases, ReferenceBNP(start, LR))


INTERPRETED = """
import sys
sys.path[:0] = {paths!r}
from wellcond.optim import running_statistics as rs
from bnp_reference import *
from test_bnp import NETWORKS
from zoo import seeded
from wellcond.optim.triton_kernels import update
place = rs.RunningStatistics._place
def placed(self, *where):
    place(self, *where)
    self._triton = update
rs.RunningStatistics._place = placed
for build, shape in NETWORKS.values():
    for size in (1, 5):
        model, cases = seeded(build), batches_of(shape, size)
        reference = ReferenceBNP(model, LR)
        train(model, cases)
        for x, y in cases:
            reference.step(loss, x, y)
        assert_same(model, reference.model)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_triton_kernels_follow_the_matrix_form() -> None:
    """By Triton's interpreter, which runs on a CPU and has to be chosen before Triton is imported."""
    here = Path(__file__).parent
    code = INTERPRETED.format(paths=[str(here), str(here.parent)])
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
