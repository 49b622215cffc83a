"""Networks as mean-field theory reads them, from their modules, functions and parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measured import largest
from torch import Tensor, nn
from zoo import Written

from wellcond.learning_rate.meanfield.feature_maps import AveragePool, Convolution, Flatten, GlobalPool, Window
from wellcond.learning_rate.meanfield.gaussian import PiecewiseLinear, Smooth
from wellcond.learning_rate.meanfield.gram import Gram
from wellcond.learning_rate.meanfield.moments import Moments, float64
from wellcond.learning_rate.meanfield.prediction import contributions
from wellcond.learning_rate.meanfield.reader import Reading, read
from wellcond.learning_rate.meanfield.stages import Affine, Nonlinearity, Residual, Scaling, Stage, has_batchnorm
from wellcond_papers.models import mlp, resnet

RELU = PiecewiseLinear(0.0)


@pytest.fixture(autouse=True)
def _seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def affine_of(name: str, layer: nn.Linear) -> Affine:
    """By hand: σ_w² and σ_b² from the sums of squares."""
    weight = layer.weight.detach().double()
    sigma_w2 = layer.in_features * float(weight.pow(2).sum()) / weight.numel()
    sigma_b2 = 0.0 if layer.bias is None else float(layer.bias.detach().double().pow(2).sum()) / layer.out_features
    has_bias = layer.bias is not None
    return Affine(name, float64(layer.in_features), float64(sigma_w2), float64(sigma_b2), True, has_bias)


def lambda_max(stages: Sequence[Stage], start: Any, variant: Any = "batch") -> float:
    return float(contributions(stages, start, variant)[0])


def lambda_max_of(reading: Reading, variant: Any = "batch") -> float:
    return lambda_max(reading.stages, reading.input_moments, variant)


# what is read


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
@pytest.mark.parametrize("inputs", [None, torch.randn(7, 1, 5, 4, generator=torch.Generator().manual_seed(1))])
def test_a_perceptron_is_what_one_writes_by_hand(norm: Any, inputs: Tensor | None) -> None:
    model = mlp([20, 30, 40, 3], norm=norm, init="default", seed=0)
    name = {"none": "act", "batch": "bn", "layer": "ln"}[norm]
    gamma, trains = (None, False) if norm == "none" else (float64(1.0), True)
    by_hand = [
        affine_of("fc1", model.fc1),
        Nonlinearity(f"{name}1", RELU, norm, gamma, trains),
        affine_of("fc2", model.fc2),
        Nonlinearity(f"{name}2", RELU, norm, gamma, trains),
        affine_of("fc3", model.fc3),
    ]
    reading = read(model, inputs)
    assert reading.outputs == 3
    assert has_batchnorm(reading.stages) == (norm == "batch")
    assert [stage.name for stage in reading.stages] == [stage.name for stage in by_hand]
    start = Moments.independent() if inputs is None else Gram.of(inputs)
    assert type(reading.input_moments) is type(start)
    for variant in ("detached", "batch"):
        assert lambda_max_of(reading, variant) == pytest.approx(lambda_max(by_hand, start, variant), rel=1e-12)


def test_gamma_is_a_root_mean_square_and_frozen_parameters_have_no_term() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    model[0].weight.requires_grad_(False)
    model[1].requires_grad_(False)
    reading = read(model)
    first, norm, last = reading.stages
    assert norm.gamma == pytest.approx(7.5**0.5, rel=1e-12)
    assert not norm.trains_affine
    assert (first.trains_weight, first.trains_bias) == (False, True)
    assert (last.trains_weight, last.trains_bias, float(last.sigma_b2)) == (True, False, 0.0)
    assert any("its γ differ by 41 %" in note for note in reading.notes)


ACTIVATIONS: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
    "relu": (nn.ReLU(inplace=True), torch.relu),
    "relu_method": (nn.ReLU(), lambda x: x.relu_()),
    "leaky_relu": (nn.LeakyReLU(0.2), lambda x: F.leaky_relu(x, 0.2)),
    "leaky_relu_by_name": (nn.LeakyReLU(0.3), lambda x: F.leaky_relu(x, negative_slope=0.3)),
    "tanh": (nn.Tanh(), torch.tanh),
    "gelu": (nn.GELU(), F.gelu),
    "gelu_tanh": (nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "silu": (nn.SiLU(inplace=True), F.silu),
    "sigmoid": (nn.Sigmoid(), lambda x: x.sigmoid()),
    "elu": (nn.ELU(0.7), lambda x: F.elu(x, 0.7, inplace=True)),
    "softplus": (nn.Softplus(), F.softplus),
    "hardtanh": (nn.Hardtanh(), F.hardtanh),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_functions_are_read_as_their_modules_are(name: str) -> None:
    module, function = ACTIVATIONS[name]
    first, norm, last = nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 2)

    def forward(m: Any, x: Tensor) -> Tensor:
        return m.last(F.dropout(function(m.norm(m.first(x.view(x.size(0), -1)))), 0.5, m.training))

    x = torch.randn(9, 2, 3)
    of_modules = read(nn.Sequential(nn.Flatten(), nn.Sequential(first, nn.Sequential(norm, module)), last), x)
    of_functions = read(Written(forward, first=first, norm=norm, last=last), x)
    assert lambda_max_of(of_functions) == pytest.approx(lambda_max_of(of_modules), rel=1e-12)
    assert any("dropout" in note for note in of_functions.notes)
    assert isinstance(of_modules.stages[1].activation, PiecewiseLinear if "relu" in name else Smooth)


def test_sums_are_read_as_residual_stages() -> None:
    """x + W₂ φ(W₁ LN x), and a projected shortcut."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.stem(x)
        x = x + 0.5 * m.down(torch.tanh(m.up(m.norm(x))))
        return m.head(F.gelu(torch.add(m.inner(x.tanh()), m.side(x))))

    sizes = {"stem": (6, 8), "up": (8, 16), "down": (16, 8), "side": (8, 9), "inner": (8, 9), "head": (9, 2)}
    model = Written(forward, norm=nn.LayerNorm(8), **{name: nn.Linear(*size) for name, size in sizes.items()})
    stem, block, projected, gelu, head = read(model).stages
    assert [stage.name for stage in block.branch] == ["norm", "up", "tanh", "down", "scaling"]
    assert (block.branch[-1], list(block.shortcut)) == (Scaling(float64(0.25), 0.5), [])
    assert {stage.name for stage in (*projected.branch, *projected.shortcut)} >= {"inner", "side"}
    assert (stem.name, gelu.activation.name, gelu.mean, head.name) == ("stem", "gelu", None, "head")


def test_convolutions_keep_their_geometry() -> None:
    grouped = nn.Conv2d(8, 6, (1, 3), dilation=(1, 2), padding="same", groups=2)
    layers = nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2), grouped, nn.ReLU(), nn.Flatten()
    reading = read(nn.Sequential(*layers, nn.Linear(6 * 4 * 4, 3)), (2, 16, 16))
    conv1, _, pool, conv2, _, flat, fc = reading.stages
    assert conv1.window == Window((16, 16), (3, 3), (2, 2), (1, 1))
    assert conv2.window == Window((4, 4), (1, 3), (1, 1), (0, 2), (1, 2))
    assert (pool, flat, type(fc)) == (AveragePool(Window((8, 8), (2, 2), (2, 2))), Flatten(), Affine)
    assert (float(conv1.fan_in), float(conv2.fan_in)) == (18.0, 12.0)
    assert float(conv2.sigma_w2) == pytest.approx(12 * float(grouped.weight.detach().double().pow(2).mean()), rel=1e-6)
    assert reading.input_moments.positions == 256


def test_sequences_are_maps_of_height_one() -> None:
    first, last, x = nn.Conv1d(3, 8, 3, padding=1), nn.Linear(8, 2), torch.randn(5, 3, 12)
    model = nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), last)
    conv, _, pool, _ = read(model, x).stages
    assert (conv.window, pool) == (Window((1, 12), (1, 3), (1, 1), (0, 1)), GlobalPool(12))
    flat = nn.Sequential(
        nn.Conv2d(3, 8, (1, 3), padding=(0, 1)), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last
    )
    flat[0].weight, flat[0].bias = nn.Parameter(first.weight.detach().unsqueeze(2)), first.bias
    assert lambda_max_of(read(model, x)) == pytest.approx(lambda_max_of(read(flat, x.unsqueeze(2))), rel=1e-12)


@pytest.mark.parametrize("pool", [lambda x: x.mean((2, 3)), lambda x: x.mean(dim=[-1, -2]),
                                  lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1)])  # fmt: skip
def test_a_mean_over_positions_is_a_global_pooling(pool: Callable[[Tensor], Tensor]) -> None:
    model = Written(lambda m, x: m.fc(pool(F.relu(m.conv(x)))), conv=nn.Conv2d(3, 8, 3), fc=nn.Linear(8, 2))
    assert [type(stage) for stage in read(model, (3, 8, 8)).stages] == [Convolution, Nonlinearity, GlobalPool, Affine]


def test_images_may_be_pooled_before_the_first_layer() -> None:
    """The mean over the positions of every channel: inputs of two features."""
    x = torch.randn(7, 2, 6, 6, dtype=torch.float64)
    layer = nn.Linear(2, 3).double()
    pooled = read(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), layer), x)
    scalars = Moments(*(k.view(1, 1) for k in Gram.of(x.mean((2, 3))).same_and_pair()), examples=7)
    assert lambda_max_of(pooled) == pytest.approx(lambda_max(read(layer).stages, scalars), rel=1e-12)


def test_a_residual_network_is_read_with_its_shortcuts() -> None:
    reading = read(resnet(8, seed=0), (3, 16, 16))
    blocks = [stage for stage in reading.stages if isinstance(stage, Residual)]
    assert [len(block.shortcut) for block in blocks] == [0, 2, 2]
    assert blocks[1].shortcut == [AveragePool(Window((16, 16), (1, 1), (2, 2))), Scaling(float64(0.5), 0.5)]
    after = [stage for stage in reading.stages if isinstance(stage, Nonlinearity) and stage.mean is not None]
    assert [stage.name for stage in after] == [f"stage{k}.block1.act2" for k in (1, 2, 3)]
    # BN and ReLU leave √(1/2π) of mean; a block adds independent parts of variance 1 and rectifies again
    assert after[0].mean == pytest.approx((2 * torch.pi) ** -0.5, rel=1e-3)
    assert sum("treated as Gaussian" in note for note in reading.notes) == 1


@pytest.mark.slow
def test_lambda_max_of_a_residual_network_is_predicted() -> None:
    """ResNet-8 of 16 to 64 channels, 24 inputs: within 15 % of the mean over two draws of its weights."""
    x = torch.randn(24, 3, 12, 12)
    measured = [largest(resnet(8, seed=seed).train(), x) for seed in (0, 1)]
    assert lambda_max_of(read(resnet(8, seed=0), x)) == pytest.approx(sum(measured) / 2, rel=0.15)


# what is read of a forward pass


def unused_softmax(m: Any, x: Tensor) -> Tensor:
    m.b(x).softmax(1).norm().item()
    return m.c(m.a(x).relu())


@pytest.mark.parametrize(("forward", "sign", "stages"), [
    (lambda m, x: m.c(m.a(x).relu() if x.sum() > 0 else m.b(x).tanh()), 1, ["a", "relu", "c"]),
    (lambda m, x: m.c(m.a(x).relu() if x.sum() > 0 else m.b(x).tanh()), -1, ["b", "tanh", "c"]),
    (unused_softmax, 1, ["a", "relu", "c"]),
])  # fmt: skip
def test_only_the_path_that_leads_to_the_output_is_read(forward: Any, sign: int, stages: list[str]) -> None:
    model = Written(forward, a=nn.Linear(8, 8), b=nn.Linear(8, 8), c=nn.Linear(8, 2))
    assert [stage.name for stage in read(model, sign * torch.ones(3, 8)).stages] == stages


def test_whole_numbers_are_read_as_the_networks_own_type() -> None:
    model, pixels = mlp([4, 3, 2], seed=0), torch.randint(0, 255, (5, 4))
    assert torch.equal(read(model, pixels).input_moments.matrix, read(model, pixels.float()).input_moments.matrix)  # type: ignore[attr-defined]


# what is left alone


def test_reading_changes_nothing_of_the_module() -> None:
    """Not even the random numbers that follow; the user's hooks see tensors."""
    model, seen = resnet(8, seed=0).train(), list[Any]()
    handle = model.stage1.register_forward_hook(lambda _module, _args, output: seen.append(output))
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    read(model, torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    handle.remove()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(isinstance(output, Tensor) and bool(output.isfinite().all()) for output in seen)
    assert len(model.stage1._forward_hooks) == 0
    assert all(p.grad is None for p in model.parameters())
