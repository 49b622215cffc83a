"""A measurement does not depend on what else the user has switched on: every measurement in every state of torch."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from test_every_measurement import MEASUREMENTS
from torch import Tensor, nn
from torch.nn.modules import module as of_all_modules
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal
from torch.utils.data import DataLoader, TensorDataset
from unchanged import assert_unchanged, snapshot

import wellcond as wc
from wellcond.errors import InvalidProblem
from wellcond.network.isolation.arithmetic import cudnn_without_tf32, own_arithmetic
from wellcond.results import Result
from wellcond.results.quantities import STEP_TIME

State = Callable[[nn.Module], contextlib.AbstractContextManager[Any]]


class Small(nn.Module):
    """As few layers as the table of measurements asks for. It makes tensors of its own, where the user's default is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.bn = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.2)
        self.mid = nn.Linear(16, 3)
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(self.dropout(torch.relu(self.bn(self.conv(x)))).flatten(1))))


def build(seed: int = 0) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Small(), [(torch.randn(2, 2, 4), torch.randint(3, (2,))) for _ in range(3)]


def problem(model: nn.Module, batches: Any, **options: Any) -> wc.Problem:
    return wc.Problem(model, nn.CrossEntropyLoss(), batches, **options)


def numbers(result: Any) -> list[float]:
    """All that it says, as floats, but for what a clock says."""
    if isinstance(result, Result):
        return [row.value for row in result.rows() if row.quantity != STEP_TIME]
    return np.asarray(result).ravel().tolist()


@cache
def plain(name: str, seed: int = 0) -> list[float]:
    return numbers(MEASUREMENTS[name](problem(*build(seed))))


@cache
def as_trained(name: str, autocast: torch.dtype, is_hooked: bool) -> list[float]:
    """In no state, but with the autocast as an argument, and with hooks on the gradients of parameters."""
    model, batches = build()
    with parameter_hooks(model) if is_hooked else contextlib.nullcontext():
        return numbers(MEASUREMENTS[name](problem(model, batches, autocast=autocast)))


# the states


@contextlib.contextmanager
def setting(switch: Callable[[Any], Any], inside: Any, before: Any) -> Iterator[None]:
    switch(inside)
    try:
        yield
    finally:
        switch(before)


@contextlib.contextmanager
def gradient_hooks(model: nn.Module) -> Iterator[None]:
    """Of all kinds, each making gradients ten times smaller."""
    with contextlib.ExitStack() as handles:
        handles.enter_context(parameter_hooks(model))
        parts = list(model.children())
        handles.callback(parts[0].register_full_backward_hook(lambda _m, gi, _go: tuple_of_tenths(gi)).remove)
        handles.callback(parts[-1].register_full_backward_pre_hook(lambda _m, go: tuple_of_tenths(go)).remove)
        handles.callback(torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), fail).remove)
        handles.callback(of_all_modules.register_module_full_backward_hook(fail).remove)
        yield


@contextlib.contextmanager
def parameter_hooks(model: nn.Module) -> Iterator[None]:
    handles = [p.register_hook(lambda g: 0.1 * g) for p in model.parameters()]
    yield
    for handle in handles:
        handle.remove()


def tuple_of_tenths(gradients: Any) -> Any:
    return tuple(None if g is None else 0.1 * g for g in gradients)


def fail(*_: Any) -> None:
    raise AssertionError("a gradient hook was called")


def together(*states: State) -> State:
    """Several states at once."""

    @contextlib.contextmanager
    def entered(model: nn.Module) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for state in states:
                stack.enter_context(state(model))
            yield

    return entered


STATES: dict[str, State] = {
    "autocast_bfloat16_and_hooks": together(lambda _: torch.autocast("cpu", torch.bfloat16), gradient_hooks),
    "autocast_float16_and_no_grad": together(lambda _: torch.autocast("cpu", torch.float16), lambda _: torch.no_grad()),
    "inference_mode": lambda _: torch.inference_mode(),
    "default_device": lambda _: torch.device("meta"),
    "default_float64_and_precision": together(
        lambda _: setting(torch.set_default_dtype, torch.float64, torch.float32),
        lambda _: setting(torch.set_float32_matmul_precision, "medium", "highest"),
        lambda _: setting(torch.use_deterministic_algorithms, True, False),
    ),
    "default_bfloat16_and_anomaly_mode": together(
        lambda _: setting(torch.set_default_dtype, torch.bfloat16, torch.float32),
        lambda _: torch.autograd.set_detect_anomaly(True),
    ),
}
"""States that set different things are entered together: none of them may be seen."""
AUTOCAST = {"autocast_bfloat16_and_hooks": torch.bfloat16, "autocast_float16_and_no_grad": torch.float16}
TRAIN_COPIES = ("diagnose", "suggest_lr", "treat")
"""These train copies as the user trains: in autocast, as if it had been an argument, and with hooks on parameters."""
KEEP_THEIR_STEP_ON_THE_DEFAULT_DEVICE = ("covariate_shift", "diagnose", "suggest_lr")
"""These step a copy of the user's Adam, which makes a tensor of its own; nobody can step an Adam on "meta"."""


@pytest.mark.parametrize("name", MEASUREMENTS)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_users_state_does_not_enter_a_number(state: str, name: str) -> None:
    if state == "default_device" and name in KEEP_THEIR_STEP_ON_THE_DEFAULT_DEVICE:
        pytest.skip("torch's own Adam")
    model, batches = build()
    with STATES[state](model):
        before = snapshot(model)
        result = numbers(MEASUREMENTS[name](problem(model, batches)))
        assert_unchanged(before, snapshot(model))
    expected = plain(name)
    if name in TRAIN_COPIES and state in AUTOCAST:
        expected = as_trained(name, AUTOCAST[state], state.endswith("hooks"))
    assert result == pytest.approx(expected, rel=1e-6, abs=1e-7, nan_ok=True)


# autocast and reduced precision


def symmetric(n: int = 60) -> Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    return a @ a.T / n


class OwnOperator:
    """A user's operator, whose product is a plain one of torch's."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.shape, self.dtype, self.device = matrix, matrix.shape, matrix.dtype, matrix.device

    def __matmul__(self, v: Tensor) -> Tensor:
        return self.matrix @ v


@pytest.mark.parametrize("operator", [Tensor.clone, OwnOperator], ids=["tensor", "own_operator"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_a_matrix_has_the_eigenvalues_of_float64(operator: Any, dtype: torch.dtype) -> None:
    matrix = symmetric()
    truth = torch.linalg.eigvalsh(matrix.double())
    with torch.autocast("cpu", dtype):
        top = wc.eigenvalues(operator(matrix), which="both", tol=1e-4)
        traced = wc.trace(operator(matrix), tol=1e-3)
    assert float(top.values[-1]) == pytest.approx(float(truth[-1]), rel=1e-4)
    assert float(top.values[0]) == pytest.approx(float(truth[0]), abs=1e-5)
    assert abs(traced.value - float(truth.sum())) < 5 * traced.error + 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", [wc.Hessian, wc.GGN, wc.Fisher, partial(wc.Fisher, labels="data")])
def test_under_autocast_a_curvature_matrix_is_that_of_float64(kind: Any) -> None:
    model, batches = build()
    reference = build()[0].double()
    truth = kind(problem(reference, [(x.double(), y) for x, y in batches])).dense()
    with torch.autocast("cpu", torch.bfloat16):
        operator = kind(problem(model, batches))
        dense, combined = operator.dense(), (operator + 2 * operator).dense()
        values = wc.spectrum(operator).values
    scale = float(truth.abs().max())
    assert float((dense - truth).abs().max()) < 1e-5 * scale
    assert float((combined - 3 * truth).abs().max()) < 3e-5 * scale
    assert float((values - torch.linalg.eigvalsh(truth)).abs().max()) < 1e-5 * scale


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0])),
        lambda outputs, targets: nn.functional.cross_entropy(outputs, targets) + outputs.square().mean(),
    ],
    ids=["plain", "weighted", "own"],
)
def test_curvature_and_conditioning_in_a_diagnosis_do_not_see_autocast(loss: Any, dtype: torch.dtype) -> None:
    """Inspection and trial come first, in half precision; nothing that they found out may change a number."""

    def measured() -> list[list[float]]:
        model, batches = build()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        result = wc.diagnose(wc.Problem(model, loss, batches), optimizer, budget="full")
        assert not result.failed
        assert result.gradients is not None
        parts = (result.conditioning, result.neurons, result.max_lr, result.hessian, result.evidence.trace)
        norms = [*result.gradients.norms.values(), result.gradients.loss]
        return [norms, *(numbers(part) for part in parts)]

    outside = measured()
    with torch.autocast("cpu", dtype):
        inside = measured()
    assert inside == outside


def test_a_models_own_autocast_is_not_given_weights_of_an_earlier_pass() -> None:
    """Inside the user's autocast region, torch keeps the cast weights from one call to the next."""

    class Mixed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    model, batch = Mixed(3, 2), (torch.randn(8, 3), torch.randn(8, 2))
    walk = partial(wc.landscape, lr=0.5, steps=3)
    alone = walk(wc.Problem(model, nn.MSELoss(), batch)).losses
    with torch.autocast("cpu", torch.bfloat16):
        model(batch[0])
        inside = walk(wc.Problem(model, nn.MSELoss(), batch)).losses
    assert alone.unique().numel() > 1
    assert torch.equal(inside, alone)


def test_closed_forms_surgery_and_theory_do_not_see_autocast() -> None:
    def found() -> list[Tensor]:
        model, batches = build()
        form = wc.local_hessian(problem(model, batches, batchnorm="running"), "mid").closed_form()
        merged = wc.nn.merge_batchnorm(model.eval(), batches[0][0])
        mlp = nn.Sequential(nn.Linear(8, 50), nn.ReLU(), nn.Linear(50, 3))
        for i, p in enumerate(mlp.parameters()):
            nn.init.normal_(p, std=0.2 * (p.dim() > 1), generator=torch.Generator().manual_seed(i))
        predicted = wc.meanfield.predict(mlp, inputs=batches[0][0].flatten(1))
        return [form.z.dense(), *merged.parameters(), torch.tensor(predicted.lambda_max, dtype=torch.float64)]

    outside = found()
    with torch.autocast("cpu", torch.bfloat16):
        inside = found()
    assert all(map(torch.equal, inside, outside))


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="since torch 2.9")
def test_precision_set_for_one_backend_is_set_aside_and_put_back() -> None:
    matmul = torch.backends.cuda.matmul
    with setting(partial(setattr, matmul, "fp32_precision"), "tf32", "none"), own_arithmetic():
        assert matmul.fp32_precision == "ieee"
        assert torch.get_float32_matmul_precision() == "highest"
    with setting(partial(setattr, matmul, "fp32_precision"), "tf32", "none"):
        wc.eigenvalues(symmetric())
        assert matmul.fp32_precision == "tf32"


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="since torch 2.9")
def test_precision_set_for_convolutions_alone_is_set_aside_and_put_back() -> None:
    cudnn = torch.backends.cudnn
    with setting(partial(setattr, cudnn.conv, "fp32_precision"), "ieee", "tf32"):
        with cudnn_without_tf32(enabled=False):
            assert cudnn.conv.fp32_precision == "ieee"
            assert not cudnn.allow_tf32
            assert not cudnn.enabled
        assert cudnn.conv.fp32_precision == "ieee"
        with pytest.raises(RuntimeError):
            _ = cudnn.allow_tf32
    assert cudnn.allow_tf32
    assert cudnn.enabled


# hooks, caches, inference mode, default device


def test_a_hook_set_between_two_products_with_a_kept_graph_has_no_effect() -> None:
    model, batches = build()
    operator = wc.Hessian(problem(model, batches[:1]))
    v = torch.ones(operator.shape[0])
    first = operator @ v
    with gradient_hooks(model):
        assert torch.equal(operator @ v, first)


def test_hooks_are_put_back_in_their_order_and_can_be_taken_off() -> None:
    model, batches = build()
    p = model.head.weight
    calls: list[str] = []
    handles = [p.register_hook(lambda g, name=name: calls.append(name)) for name in "abc"]
    wc.max_lr(problem(model, batches), tol=0.5, max_matvecs=3)
    assert calls == []
    handles[1].remove()
    model(batches[0][0]).sum().backward()
    assert calls == ["a", "c"]


def test_hooks_of_shared_and_parametrized_weights_have_no_effect() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(orthogonal(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 4))
        model.append(nn.Linear(4, 4))
        model[3].weight = model[2].weight
        return model

    batch = (torch.randn(6, 4), torch.randn(6, 4))
    expected = wc.eigenvalues(wc.Hessian(wc.Problem(model(), nn.MSELoss(), batch))).values
    hooked = model()
    with gradient_hooks(hooked):
        assert torch.equal(wc.eigenvalues(wc.Hessian(wc.Problem(hooked, nn.MSELoss(), batch))).values, expected)


def test_the_hooks_of_a_loss_have_no_effect() -> None:
    model, loss, batch = nn.Linear(3, 2), nn.MSELoss(), (torch.randn(4, 3), torch.randn(4, 2))
    expected = wc.max_lr(wc.Problem(model, loss, batch)).value
    loss.register_full_backward_hook(lambda _m, gradients, _o: tuple_of_tenths(gradients))
    assert wc.max_lr(wc.Problem(model, loss, batch)).value == expected


def test_cached_parametrizations_are_computed_again_for_every_point() -> None:
    torch.manual_seed(0)
    model = orthogonal(nn.Linear(4, 4))
    batch = (torch.randn(6, 4), torch.randn(6, 4))
    walk = partial(wc.landscape, lr=0.5, steps=3)
    expected = walk(wc.Problem(model, nn.MSELoss(), batch)).losses
    with parametrize.cached():
        retained = model.weight
        assert torch.equal(walk(wc.Problem(model, nn.MSELoss(), batch)).losses, expected)
        assert model.weight is retained


@pytest.mark.slow
def test_batches_made_in_inference_mode_are_measured() -> None:
    model, batches = build()
    with torch.inference_mode():
        new = [(x.clone(), y.clone()) for x, y in batches]
    assert new[0][0].is_inference()
    for name in ("hessian_product", "conditioning", "eigenvalues", "back_matching"):
        assert numbers(MEASUREMENTS[name](problem(model, new))) == pytest.approx(plain(name), nan_ok=True)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_made_in_inference_mode_is_refused_with_the_cure(frozen: bool) -> None:
    with torch.inference_mode():
        new = nn.Linear(4, 3)
    if frozen:
        new.requires_grad_(False)
    with pytest.raises(InvalidProblem, match=r"'0.weight' was created in inference mode.*copy\.deepcopy\(model\)"):
        problem(nn.Sequential(new, nn.Linear(3, 3)), [(torch.randn(2, 4), torch.zeros(2).long())])


def test_a_forward_pass_and_a_loss_see_the_users_own_default_device() -> None:
    class Curious(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            assert torch.arange(3).device.type == "meta"
            return super().forward(x)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        assert torch.zeros(1).device.type == "meta"
        return (outputs - targets).square().mean()

    model, batch = Curious(3, 2), (torch.randn(4, 3), torch.randn(4, 2))
    with torch.device("meta"):
        wc.max_lr(wc.Problem(model, loss, batch))
        wc.landscape(wc.Problem(model, loss, batch), lr=0.1, steps=2)


def test_what_needs_no_problem_does_not_see_the_default_device() -> None:
    def found() -> list[float]:
        law = wc.marchenko_pastur(0.5)
        predicted = wc.meanfield.predict(wc.meanfield.Architecture(input=(8,), hidden=(50, 50), outputs=3))
        values = [law.cdf(1.0), law.quantile(0.5), law.density(1.0), wc.condition_number([4.0, 2.0, 1.0])]
        return [*values, *numbers(predicted), *numbers(wc.density(matrix, probes=2)), *numbers(wc.trace(matrix))]

    matrix = symmetric(30)
    expected = found()
    with torch.device("meta"):
        assert found() == expected


@pytest.mark.parametrize("state", [state for state in STATES if state != "inference_mode"])
def test_bnp_trains_alike_in_every_state(state: str) -> None:
    def trained(inside: State) -> list[Tensor]:
        model, batches = build()
        model.bn = model.dropout = nn.Identity()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with inside(model):
            wc.BNP(model, optimizer)
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            with inside(model):
                optimizer.step()
        return list(model.parameters())

    expected = trained(lambda _: contextlib.nullcontext())
    assert all(map(torch.equal, trained(STATES[state]), expected))


# threads


def settings() -> tuple[Any, ...]:
    sdp = torch.backends.cuda
    return (
        sdp.flash_sdp_enabled(), sdp.mem_efficient_sdp_enabled(), sdp.math_sdp_enabled(), sdp.cudnn_sdp_enabled(),
        torch.backends.mha.get_fastpath_enabled(), torch.is_grad_enabled(), torch.get_rng_state().tolist(),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("same_model", [False, True])
def test_threads_measure_one_after_the_other_and_restore_everything(same_model: bool) -> None:
    names = ["conditioning", "eigenvalues", "landscape", "hessian_product", "activations", "back_matching"]
    cases = [build(0 if same_model else seed) for seed in range(4)]
    cases = [cases[0]] * 4 if same_model else cases
    measure = partial(measured, dropout=3)
    expected = {(i, name): measure(case, name) for i, case in enumerate(cases) for name in names}
    before, models = settings(), [snapshot(model) for model, _ in cases]
    jobs = [(i, name) for _ in range(2) for name in names for i in range(4)]
    with ThreadPoolExecutor(4) as threads:
        result = list(threads.map(lambda job: measure(cases[job[0]], job[1]), jobs))
    assert settings() == before
    for (model, _), known in zip(cases, models, strict=True):
        assert_unchanged(known, snapshot(model))
    for job, values in zip(jobs, result, strict=True):
        assert values == pytest.approx(expected[job], rel=1e-9, nan_ok=True)


def measured(case: tuple[nn.Module, Any], name: str, **options: Any) -> list[float]:
    return numbers(MEASUREMENTS[name](problem(*case, **options)))


def in_a_thread(work: Callable[[], Any], seconds: float = 20.0) -> Any:
    """What it returns in a thread of its own; fails if it waits for ever."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert result, "it is still waiting"
    return result[0]


@pytest.mark.slow
def test_an_abandoned_generator_collected_by_another_thread_frees_its_turn() -> None:
    model, batches = build()
    held = [problem(model, batches).evaluations()]
    next(held[0])

    def collect() -> bool:
        held.clear()
        gc.collect()
        return True

    assert in_a_thread(collect)
    assert in_a_thread(lambda: measured(build(), "hessian_product")) == plain("hessian_product")


@pytest.mark.slow
def test_one_thread_waits_while_another_measures() -> None:
    model, batches = build()
    done = threading.Event()
    with problem(model, batches).measuring():
        thread = threading.Thread(target=lambda: (measured(build(), "hessian_product"), done.set()), daemon=True)
        thread.start()
        assert not done.wait(0.3)
    assert done.wait(20)


def test_a_measurement_inside_a_measurements_backward_does_not_wait() -> None:
    """Re-entered often enough, autograd goes on in a thread of its own."""
    result: list[float] = []
    inner = nn.Linear(2, 1)
    small = wc.Problem(inner, nn.MSELoss(), (torch.ones(2, 2), torch.zeros(2, 1)))

    class Deep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, depth: int) -> Tensor:
            ctx.depth = depth
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            if ctx.depth:
                with torch.enable_grad():
                    x = torch.ones(1, requires_grad=True)
                    Deep.apply(x, ctx.depth - 1).sum().backward()
            else:
                result.append(wc.max_lr(small).value)
            return g, None

    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return Deep.apply(super().forward(x), 70)

    outer = wc.Problem(Model(2, 1), nn.MSELoss(), (torch.ones(2, 2), torch.zeros(2, 1)))
    in_a_thread(lambda: wc.back_matching(outer))
    assert result
    assert result[0] == wc.max_lr(small).value


@pytest.mark.slow
def test_a_loader_that_is_read_in_order_draws_nothing_of_the_users() -> None:
    """Every iterator of a loader draws a seed, whether or not it shuffles."""
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.arange(64) % 2), batch_size=16)
    problem = wc.Problem(nn.Linear(4, 2), nn.CrossEntropyLoss(), loader)
    before = torch.get_rng_state()
    wc.diagnose(problem)
    assert torch.equal(torch.get_rng_state(), before)
