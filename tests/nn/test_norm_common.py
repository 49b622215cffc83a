"""What holds for every norm variant: it stands where a `torch.nn.BatchNorm` stood."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from norm_references import (
    CHANNELS,
    DETERMINISTIC,
    LIKE_PLAIN,
    PLAIN,
    SHAPES,
    VARIANTS,
    assert_layers_agree,
    batch,
    fill_affine,
    fill_running,
    spread,
    state_kept,
)
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from zoo import integers, normal, seeded

import wellcond as wc
import wellcond.nn as wn
from wellcond.errors import Unsupported

EACH = pytest.mark.parametrize("variant", VARIANTS)
EACH_DETERMINISTIC = pytest.mark.parametrize("variant", DETERMINISTIC)
EACH_SHAPE = pytest.mark.parametrize("dims", SHAPES)
FAMILIES = sorted({variant.family for variant in VARIANTS.values()})


def trained(variant: str, dims: str, **changes: Any) -> Any:
    """A layer after two training steps."""
    layer = VARIANTS[variant].layer(dims, **changes)
    for seed in (1, 2):
        layer(batch(dims, seed))
    return layer


# construction


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dims", ["1d", "2d", "3d"])
def test_the_constructor_is_that_of_torch_with_settings_by_keyword_only(family: str, dims: str) -> None:
    signature = inspect.signature(getattr(wn, family + dims))
    plain = inspect.signature(getattr(nn, f"BatchNorm{dims}"))
    parameters = list(signature.parameters.values())
    for ours, theirs in zip(parameters[:7], list(plain.parameters.values())[:7], strict=True):
        assert (ours.name, ours.kind) == (theirs.name, theirs.kind)
        is_own = family == "FourThingsBatchNorm" and ours.name == "momentum"  # whose moments decay by 0.99
        assert ours.default == (0.01 if is_own else theirs.default)
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters[7:])


@EACH
def test_a_variant_is_a_batchnorm_but_no_plain_one_and_tells_its_settings(variant: str) -> None:
    for dims in SHAPES:
        layer = VARIANTS[variant].layer(dims)
        assert isinstance(layer, _BatchNorm)
        assert not isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d))
        assert all(f"{name}={value}" in repr(layer) for name, value in VARIANTS[variant].settings.items())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_documented_by_its_base_which_cannot_be_built(family: str) -> None:
    base = getattr(wn, family)
    with pytest.raises(TypeError, match="abstract"):
        base(3)
    assert f">>> {family}1d" in str(base.__doc__).replace(">>> norm = ", ">>> ")
    assert {family, *(f"{family}{d}d" for d in (1, 2, 3))} <= set(wn.__all__)
    assert all(issubclass(getattr(wn, f"{family}{d}d"), base) for d in (1, 2, 3))


# plain batch normalization as a special case


@pytest.mark.parametrize("variant", LIKE_PLAIN)
@EACH_SHAPE
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
def test_special_settings_are_plain_batchnorm(variant: str, dims: str, momentum: float | None, affine: bool) -> None:
    options = {"momentum": momentum, "affine": affine}
    layer = LIKE_PLAIN[variant].layer(dims, **options)
    plain = PLAIN[dims](CHANNELS, dtype=torch.float64, **options)
    if affine:
        fill_affine(plain)
    assert_layers_agree(layer, plain, [batch(dims, seed) for seed in range(3)])


# evaluation


@EACH
@EACH_SHAPE
@pytest.mark.parametrize("affine", [True, False])
def test_evaluation_is_one_affine_map_a_channel(variant: str, dims: str, affine: bool) -> None:
    layer = VARIANTS[variant].layer(dims, affine=affine).eval()
    fill_running(layer)
    x = batch(dims)
    if getattr(layer, "alpha", 0) > 0:
        with pytest.raises(Unsupported, match="alpha=0"):
            layer.inference_affine()
        layer.alpha = 0.0
    scale, shift = layer.inference_affine()
    assert scale.shape == shift.shape == (CHANNELS,)
    assert_same(layer(x), spread(scale, x) * x + spread(shift, x), 1e-12)


@pytest.mark.parametrize("variant", ["noisy", "l2", "renorm", "ghost", "four_things"])
@EACH_SHAPE
def test_evaluation_is_that_of_plain_batchnorm_with_its_state(variant: str, dims: str) -> None:
    plain = PLAIN[dims](CHANNELS, dtype=torch.float64)
    fill_affine(plain)
    fill_running(plain)
    layer = VARIANTS[variant].layer(dims)
    layer.load_state_dict(plain.state_dict())
    assert_same(layer.eval()(batch(dims)), plain.eval()(batch(dims)), 1e-12)


@EACH
@EACH_SHAPE
@pytest.mark.filterwarnings("ignore:var_mean")
def test_evaluation_changes_no_state_and_takes_batches_of_one_and_of_none(variant: str, dims: str) -> None:
    layer, x = trained(variant, dims).eval(), batch(dims)
    assert layer.num_batches_tracked.item() == 2
    with state_kept(layer):
        assert_same(layer(x[:1]), layer(x)[:1], 1e-12)
        assert layer(x[:0]).shape == x[:0].shape


@EACH
@EACH_SHAPE
def test_without_running_statistics_evaluation_too_uses_the_batch(variant: str, dims: str) -> None:
    changes = {"alpha": 0.0} if "four" in variant else {}
    layer = VARIANTS[variant].layer(dims, track_running_stats=False, **changes)
    assert set(layer.state_dict()) == {"weight", "bias"}
    if variant == "noisy":  # in training it adds noise, in evaluation it never does
        layer.n_mu, layer.n_sigma, layer.r_mu, layer.r_sigma = 0.0, 1.0, 0.0, 0.0
    x = batch(dims)
    in_training = layer(x)
    assert_same(layer.eval()(x), in_training, 1e-12)
    with pytest.raises(Unsupported, match="track_running_stats=True"):
        layer.inference_affine()


@EACH
def test_statistics_frozen_later_are_used_and_not_updated(variant: str) -> None:
    layer = trained(variant, "2d")
    layer.track_running_stats = False
    with state_kept(layer):
        layer(batch("2d", 9))
    assert layer.eval()(batch("2d")[:1]).isfinite().all()


# running statistics


@EACH
@EACH_SHAPE
def test_a_reset_layer_is_a_new_layer(variant: str, dims: str) -> None:
    layer = trained(variant, dims)
    layer.reset_parameters()
    new = VARIANTS[variant].layer_class(dims)(CHANNELS, dtype=torch.float64, **VARIANTS[variant].settings)
    assert layer.state_dict().keys() == new.state_dict().keys()
    assert all(torch.equal(value, new.state_dict()[name]) for name, value in layer.state_dict().items())


# dtypes, layouts, compilation


@EACH_DETERMINISTIC
@EACH_SHAPE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_half_inputs_are_computed_in_float32(variant: str, dims: str, dtype: torch.dtype, mode: str) -> None:
    """The output differs from float64 by its own rounding and nothing else; so do float32 running statistics."""
    layer = VARIANTS[variant].layer(dims, dtype=torch.float32, momentum=0.5)
    fill_running(layer)
    exact = copy.deepcopy(layer).double()
    x = batch(dims, dtype=dtype)
    actual, expected = getattr(layer, mode)()(x), getattr(exact, mode)()(x.double())
    assert actual.dtype == dtype
    assert ((actual.double() - expected).abs() <= torch.finfo(dtype).eps * expected.abs() + 1e-5).all()
    for name, value in exact.named_buffers():
        if name.startswith("running"):
            assert_same(layer.get_buffer(name), value, 1e-6)


@EACH
def test_a_layer_turned_to_bfloat16_altogether_works(variant: str) -> None:
    layer = VARIANTS[variant].layer("2d", dtype=torch.bfloat16)
    x = batch("2d", dtype=torch.bfloat16).requires_grad_()
    layer(x).float().square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == layer.weight.grad.dtype == layer.running_mean.dtype == torch.bfloat16
    assert layer.eval()(x).dtype == torch.bfloat16


@EACH
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_under_autocast_statistics_and_parameters_stay_float32(variant: str, mode: str) -> None:
    norm = VARIANTS[variant].layer("1d", dtype=torch.float32)
    model = nn.Sequential(nn.Linear(5, CHANNELS), norm)
    norm.train(mode == "train")
    if getattr(norm, "alpha", 0):
        norm.alpha = 0.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(normal(8, 5).float())
    assert y.dtype == torch.bfloat16
    y.float().square().mean().backward()
    assert norm.weight.grad.dtype == norm.running_mean.dtype == torch.float32
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@EACH
@pytest.mark.parametrize(("dims", "layout"), [("2d", torch.channels_last), ("3d", torch.channels_last_3d)])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_channels_last_stays_channels_last(variant: str, dims: str, layout: torch.memory_format, mode: str) -> None:
    layer, x = VARIANTS[variant].layer(dims), batch(dims)
    fill_running(layer)
    same = copy.deepcopy(layer)
    y = getattr(layer, mode)()(x.to(memory_format=layout))
    assert y.is_contiguous(memory_format=layout)
    if variant in DETERMINISTIC:
        assert_same(y, getattr(same, mode)()(x), 1e-12)


def assert_compiled_is_eager(layer: Any, steps: list[tuple[str, Tensor]]) -> None:
    """Outputs, gradients and running statistics, through a compilation that allows no break in the graph."""
    torch._dynamo.reset()
    module = copy.deepcopy(layer)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    for mode, x in steps:
        results = []
        for owner, call in ((module, compiled), (layer, layer)):
            getattr(owner, mode)().zero_grad()
            torch.manual_seed(0)
            y = call(x)
            y.square().sum().backward()
            results.append([y, owner.weight.grad, owner.bias.grad, *owner.buffers()])
        for actual, expected in zip(*results, strict=True):
            assert_same(actual, expected, 1e-12)


@pytest.mark.slow
@EACH
def test_it_compiles_in_one_graph(variant: str) -> None:
    x = batch("2d")[:6]
    assert_compiled_is_eager(VARIANTS[variant].layer("2d", momentum=None), [("train", x), ("eval", x)])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["renorm", "ghost"])
def test_it_compiles_for_a_ragged_last_batch_and_for_tokens(variant: str) -> None:
    x = batch("1d_length")
    sizes = (x[:6], x, torch.cat([x, x[:3]]))
    assert_compiled_is_eager(VARIANTS[variant].layer("1d"), [("train", examples) for examples in sizes])


# gradients


def seeded_call(layer: Any) -> Callable[[Tensor], Tensor]:
    """The layer as a function: the same noise at every call, and no trace of the call in its state."""
    state = copy.deepcopy(layer.state_dict())

    def call(x: Tensor) -> Tensor:
        torch.manual_seed(0)
        y = layer(x)
        buffers = dict(layer.named_buffers())
        with torch.no_grad():
            for name in buffers:
                buffers[name].copy_(state[name])
        return y

    return call


@EACH
@pytest.mark.parametrize("shape", [(5, 2), (5, 2, 2)])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_first_and_second_derivatives_are_right(variant: str, shape: tuple[int, ...], mode: str) -> None:
    layer = VARIANTS[variant].layer("1d", 2)  # Batch Renorm at its first step: r and d, without gradient, are constant
    fill_running(layer)
    call = seeded_call(getattr(layer, mode)())
    x = normal(*shape).requires_grad_()
    assert torch.autograd.gradcheck(call, x)
    assert torch.autograd.gradgradcheck(call, x)


@EACH_DETERMINISTIC
@pytest.mark.parametrize("batchnorm", ["batch", "running"])
def test_a_network_with_it_can_be_measured(variant: str, batchnorm: str) -> None:
    norm = VARIANTS[variant].layer("2d")
    fill_running(norm)
    norm.num_batches_tracked.fill_(3)
    model = seeded(lambda: nn.Sequential(nn.Conv2d(2, CHANNELS, 2), nn.Identity(), nn.Flatten(), nn.Linear(16, 3)))
    model[1] = norm
    data = (normal(5, 2, 3, 3), integers(3, 5))
    problem = wc.Problem(model, nn.CrossEntropyLoss(), data, batchnorm=batchnorm)
    v = normal(problem.size)
    still = copy.deepcopy(model)  # renorm's output depends on statistics that the reference's own passes would move
    still[1].track_running_stats = False
    with state_kept(model):
        assert_same(wc.Hessian(problem) @ v, dense_hessian(still, nn.CrossEntropyLoss(), data, batchnorm) @ v)


# copies


@EACH
@EACH_SHAPE
@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy"])
def test_a_copy_goes_on_like_the_original(variant: str, dims: str, how: str) -> None:
    layer = trained(variant, dims)
    if how == "state_dict":
        twin = VARIANTS[variant].layer(dims)
        twin.reset_parameters()
        twin.load_state_dict(layer.state_dict())
    else:
        twin = pickle.loads(pickle.dumps(layer)) if how == "pickle" else copy.deepcopy(layer)
    for _ in range(2):
        torch.manual_seed(0)
        expected = layer(batch(dims, 3))
        torch.manual_seed(0)
        assert torch.equal(twin(batch(dims, 3)), expected)
    assert torch.equal(twin.eval()(batch(dims)), layer.eval()(batch(dims)))
    assert repr(twin) == repr(layer)
    assert not {b.data_ptr() for b in twin.buffers()} & {b.data_ptr() for b in layer.buffers()}


# refusals


@EACH
@EACH_SHAPE
def test_inputs_of_other_shapes_and_kinds_are_refused(variant: str, dims: str) -> None:
    layer, x = VARIANTS[variant].layer(dims), batch(dims)
    wrong = {r"expects .D": [x[0, 0].reshape(-1), torch.zeros(2, CHANNELS, 2, 2, 2, 2)],
             r"normalizes 4 channels.* has 1 in its second": [x[:, :1]], "int64 input": [x.long()]}  # fmt: skip
    for message, inputs in wrong.items():
        for argument in inputs:
            with state_kept(layer), pytest.raises(Unsupported, match=message):
                layer(argument)


@pytest.mark.parametrize(
    "variant", [name for name in VARIANTS if name not in ("four_things_groups", "four_things_alpha")]
)
@pytest.mark.parametrize("shape", [(1, CHANNELS), (1, CHANNELS, 1), (0, CHANNELS)])
def test_a_training_batch_with_one_value_a_channel_is_refused(variant: str, shape: tuple[int, ...]) -> None:
    layer = VARIANTS[variant].layer("1d")
    message = r"more than 1 value per channel.*drop_last=True.*\.eval\(\)"
    with state_kept(layer), pytest.raises(Unsupported, match=message):
        layer(torch.zeros(shape, dtype=torch.float64))
    if shape[0]:
        assert layer.eval()(torch.zeros(shape, dtype=torch.float64)).shape == shape


OUT_OF_RANGE: dict[str, dict[str, list[Any]]] = {
    "NoisyBatchNorm": {"n_mu": [-0.1], "n_sigma": [0.9], "r_mu": [-1.0], "r_sigma": [math.nan]},
    "LpBatchNorm": {"p": [3, 0]},
    "BatchRenorm": {"r_max": [0.5], "d_max": [-1.0], "r_ramp": [(10, 10)], "d_ramp": [(-1, 10)]},
    "GhostBatchNorm": {"ghost_size": [0]},
    "FourThingsBatchNorm": {"ghost_size": [0], "channels_per_group": [3, 0], "alpha": [1.5, -0.1]},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_setting_out_of_range_is_named_with_its_value(family: str) -> None:
    for setting, values in OUT_OF_RANGE[family].items():
        for value in values:
            with pytest.raises(ValueError, match=f"^{setting}=.*must") as caught:
                getattr(wn, f"{family}2d")(CHANNELS, **{setting: value})
            assert str(value) in str(caught.value)
