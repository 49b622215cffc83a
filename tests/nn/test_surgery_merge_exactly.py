"""What cannot be merged exactly stays in the model, and is listed with the reason."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_zoo import Standardized
from surgery_references import merged_without_rest, norms, used
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from zoo import Written, normal

from wellcond.errors import Unsupported
from wellcond.nn.four_things import FourThingsBatchNorm2d
from wellcond.nn.ghost import GhostBatchNorm2d
from wellcond.nn.merge import merge_batchnorm


def shared(twice: str) -> nn.Module:
    """One convolution, one norm or one weight in two places."""
    conv1, conv2, bn1, bn2 = nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2), nn.BatchNorm2d(2)
    conv2, bn2 = conv1 if twice == "conv" else conv2, bn1 if twice == "bn" else bn2
    if twice == "weight":
        conv2.weight = conv1.weight
    layers = {"conv1": conv1, "bn1": bn1, "conv2": conv2, "bn2": bn2}
    return Written(lambda net, x: net.bn2(net.conv2(net.bn1(net.conv1(x)).relu())).relu(), **layers)


def uses(happens: Callable[[Any, Tensor], Any], **unused: nn.Module) -> nn.Module:
    """A convolution and a norm, and what happens between them."""
    layers = {"conv": nn.Conv2d(2, 2, 1), "bn": nn.BatchNorm2d(2)}
    return Written(lambda net, x: happens(net, net.conv(x)), **layers, **unused)


def view_changed(net: Any, h: Tensor) -> Tensor:
    h.view(-1).mul_(2)
    return net.bn(h)


def unseen(net: Any, h: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():  # as in a scripted function
        return net.bn(h) + 2 * h


class OwnNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).abs()


def after(layer: nn.Module, norm: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(layer, norm or nn.BatchNorm2d(2))


def hooked(which: int) -> nn.Module:
    model = after(nn.Conv2d(2, 2, 1))
    model[which].register_forward_hook(lambda _module, _args, output: 2 * output)
    return model


def patched() -> nn.Module:
    model = after(nn.Conv2d(2, 2, 1))
    inside = model[0].forward
    model[0].forward = lambda x: 2 * inside(x)
    return model


def broken() -> nn.Module:
    model = after(nn.Conv2d(2, 2, 1))
    model[1].bias.data[0] = torch.nan
    return model


def tied() -> nn.Module:
    model = uses(lambda net, h: net.bn(h), spare=nn.Conv2d(2, 2, 1))
    model.spare.weight = model.conv.weight
    return model


STAYS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "module_called_twice": (lambda: shared("conv"), "2 of 2 .*'conv1' is called 2 times"),
    "norm_called_twice": (lambda: shared("bn"), "1 of 1 .*'bn1': it is called 2 times"),
    "weight_of_two_layers": (lambda: shared("weight"), "2 of 2 .*a parameter of 'conv2' is used elsewhere too"),
    "weight_used_by_a_function": (
        lambda: uses(lambda net, h: net.bn(h) + net.conv.weight.sum()), "a parameter of 'conv' is used elsewhere too"
    ),
    "residual": (lambda: uses(lambda net, h: net.bn(h) + h), "between it and 'conv' is used elsewhere too"),
    "returned": (
        lambda: uses(lambda net, h: {"bn": net.bn(h), "conv": [h]}), "between it and 'conv' is used elsewhere too"
    ),
    "changed_in_place": (lambda: uses(lambda net, h: net.bn(h.add_(1))), "between it and 'conv' is used elsewhere"),
    "changed_in_place_afterwards": (lambda: uses(lambda net, h: net.bn(h) + h.relu_()), "is used elsewhere too"),
    "changed_through_a_view": (lambda: uses(view_changed), "is used elsewhere too"),
    "read_as_a_number": (lambda: uses(lambda net, h: net.bn(h) * h.tolist()[0][0][0][0]), "is used elsewhere too"),
    "other_axis": (lambda: uses(lambda net, h: net.bn(h.transpose(1, 2))), "its channels are not those of 'conv'"),
    "own_forward": (lambda: after(Standardized(2, 2, 1)), "'0' has its own forward pass"),
    "own_norm": (lambda: after(nn.Conv2d(2, 2, 1), OwnNorm(2)), "'1': it has its own forward pass"),
    "patched_forward": (patched, "'0' has its own forward pass"),
    "hook_on_the_layer": (lambda: hooked(0), "no layer to merge it into directly before"),
    "hook_on_the_norm": (lambda: hooked(1), "'1': it has forward hooks"),
    "weight_norm": (lambda: after(parametrizations.weight_norm(nn.Conv2d(2, 2, 1))), "computed from other parameters"),
    "pruned": (lambda: after(prune.l1_unstructured(nn.Conv2d(2, 2, 1), "weight", 1)), "of '0' is used elsewhere too"),
    "batch_statistics": (
        lambda: after(nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2, track_running_stats=False)), "keeps no running statistics"
    ),
    "statistics_of_each_example": (
        lambda: after(nn.Conv2d(2, 2, 1), FourThingsBatchNorm2d(2, alpha=0.5)), "each example by moments of its own"
    ),
    "variant_without_statistics": (
        lambda: after(nn.Conv2d(2, 2, 1), GhostBatchNorm2d(2, track_running_stats=False)), "keeps no running statistics"
    ),
    "activation_on_both_sides": (
        lambda: nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU(), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 1)),
        "'2': there is no layer .* directly before it, there is no layer .* directly after it",
    ),
    "in_place_activation_behind": (
        lambda: nn.Sequential(nn.Tanh(), nn.BatchNorm2d(2), nn.ReLU(inplace=True), nn.Conv2d(2, 2, 1)),
        "between it and '3' is used elsewhere too",
    ),
    "tied_to_a_layer_that_is_not_called": (tied, "a parameter of 'conv' is used elsewhere too"),
    "not_called": (
        lambda: uses(lambda net, h: net.bn(h), other=nn.BatchNorm2d(2)),
        "1 of 2 .*'other': it is not called on these inputs",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("build", "reason"), STAYS.values(), ids=STAYS)
def test_what_cannot_be_merged_exactly_stays_and_is_listed(build: Callable[[], nn.Module], reason: str) -> None:
    x = normal(4, 2, 2, 2)
    model = used(build(), x)
    with pytest.warns(UserWarning, match=reason) as caught:
        merged = merge_batchnorm(model, x)
    assert caught[0].filename == __file__
    old, new = (copy.deepcopy(m).eval()(x) for m in (model, merged))
    for key in old if isinstance(old, dict) else [...]:
        expected, result = (o[key][0] if isinstance(o[key], list) else o[key] for o in (old, new))
        assert (result - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_a_norm_with_nan_stays_and_is_listed() -> None:
    with pytest.warns(UserWarning, match="'1': its parameters or statistics hold NaN or inf"):
        merged = merge_batchnorm(broken())
    assert norms(merged) == ["1"]
    assert torch.isfinite(merged[0].weight).all()


def test_a_use_that_cannot_be_watched_is_found_in_the_outputs() -> None:
    x = normal(4, 2, 2, 2)
    model = used(uses(unseen), x)
    with pytest.raises(Unsupported, match=r"merging would change the outputs by .* scripted function"):
        merge_batchnorm(model, x)


def test_statistics_too_uneven_for_float32_are_refused() -> None:
    """x − μ is exact, but W x with μ/σ = 2²³ is not: merged, the difference would be lost."""
    model = nn.Sequential(nn.BatchNorm1d(2, eps=1e-30), nn.Linear(2, 1))
    model[0].running_mean.fill_(2.0**13)
    model[0].running_var.fill_(2.0**-20)
    model[1].weight.data.copy_(torch.tensor([[0.3, 0.7]]))
    x = 2.0**13 + torch.tensor([[0.0, 1.0], [2.0, 3.0]]) / 2**10
    assert torch.allclose(model.eval()(x), torch.tensor([[0.7], [2.7]]) + model[1].bias)
    with pytest.raises(Unsupported, match="loses digits"):
        merge_batchnorm(model, x)
    merged_without_rest(model.double(), x.double())


# errors


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (nn.Linear(2, 2), None, "Linear has no batch normalization to merge"),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), torch.ones(3, 5), "does not go through layer '0'"),
        (nn.Sequential(nn.BatchNorm1d(2)), None, "no inputs could be made up for Sequential .* Pass inputs="),
        (nn.Sequential(nn.LazyBatchNorm1d()), torch.ones(3, 5), "'0.weight' has no shape yet"),
        (nn.BatchNorm1d, None, "the model is a type, not a torch.nn.Module"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(model: Any, inputs: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        merge_batchnorm(model, inputs)
