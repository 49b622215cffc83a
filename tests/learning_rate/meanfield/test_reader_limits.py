"""Where network and theory do not agree: what is remarked on, and what is refused with its name and a cure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from zoo import Written, normal

from wellcond.errors import InvalidProblem, NonFinite, Unsupported
from wellcond.learning_rate.meanfield.prediction import contributions
from wellcond.learning_rate.meanfield.reader import read
from wellcond.nn.ghost import GhostBatchNorm2d
from wellcond_papers.models import mlp, resnet, vgg

# what is remarked on


def test_random_weights_are_not_remarked_on() -> None:
    for init in ("lecun", "he", "glorot", "default"):
        assert read(mlp([64, 64, 64, 10], norm="batch", init=init, seed=0)).notes == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(("change", "note"), [
    (lambda m: m.fc2.weight.add_(0.1), "fc2: its weights have a mean"),
    (lambda m: nn.init.orthogonal_(m.fc2.weight), "fc2: its units are not independent"),
    (lambda m: m.fc2.weight.mul_(torch.linspace(0.2, 2, 64).unsqueeze(1)), "fc2: the sizes of its units differ"),
    (lambda m: m.bn1.bias.fill_(0.05), "bn1: its β are 0.05"),
    (lambda m: m.bn1.weight.uniform_(0, 2), "bn1: its γ differ"),
])  # fmt: skip
def test_weights_that_are_not_random_are_remarked_on(change: Callable[[Any], None], note: str) -> None:
    model = mlp([64, 64, 64, 4], norm="batch", seed=0)
    with torch.no_grad():
        change(model)
    assert note in "\n".join(read(model).notes)


@pytest.mark.parametrize(("layers", "inputs", "note"), [
    ([nn.Linear(8, 8), nn.ReLU(), nn.BatchNorm1d(8)], None, "2: its input is not Gaussian"),
    ([nn.Conv2d(16, 8, 3, groups=4), nn.AdaptiveAvgPool2d(1), nn.Flatten()], (16, 8, 8), "its groups sees 4 channels"),
])  # fmt: skip
def test_networks_that_are_not_those_of_the_theory_are_remarked_on(layers: Any, inputs: Any, note: str) -> None:
    assert note in "\n".join(read(nn.Sequential(*layers, nn.Linear(8, 2)), inputs).notes)


def test_more_inputs_than_can_be_followed_are_cut() -> None:
    reading = read(mlp([4, 6, 2], seed=0), torch.randn(1200, 4))
    assert reading.input_moments.matrix.shape == (1000, 1000)
    assert reading.notes == ("only the first 1000 of 1200 inputs are used",)


# what is refused


def between(*modules: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(fc1=nn.Linear(8, 8), odd=nn.Sequential(*modules), fc2=nn.Linear(8, 2)))


def around(module: nn.Module) -> nn.Sequential:
    layers = OrderedDict(conv=nn.Conv2d(3, 8, 3), odd=module, flat=nn.Flatten(), fc=nn.LazyLinear(2))
    model = nn.Sequential(layers)
    model(torch.zeros(1, 3, 8, 8))
    return model


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def of_three(forward: Callable[[Any, Tensor], Any]) -> Written:
    """A network with linear layers a and b of 8 units, c of 2 units, and a parameter."""
    layers = {"a": nn.Linear(8, 8), "b": nn.Linear(8, 8), "c": nn.Linear(8, 2)}
    return Written(forward, scale=nn.Parameter(torch.ones(8)), **layers)


def zeroed(x: Tensor) -> Tensor:
    x[:, 0] = 0
    return x


def added_twice(h: Tensor, layer: nn.Module) -> Tensor:
    branch = layer(h.relu())
    return h + branch + branch


def unwatched(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():  # as in a scripted function
        return x.sin()


def changed_through_a_view(x: Tensor) -> Tensor:
    x.view(-1).mul_(2)
    return x


def pruned(name: str) -> nn.Module:
    return prune.l1_unstructured(nn.Linear(8, 8), name, amount=2)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    return model


def with_nan() -> nn.Module:
    model = mlp([4, 3, 2], seed=0)
    nn.init.constant_(model.fc1.weight[0], float("nan"))
    return model


MAPS: list[tuple[nn.Module, str]] = [
    (nn.MaxPool2d(2), "'odd' is a MaxPool2d.*stride"),
    (nn.AdaptiveMaxPool2d(2), "'odd' is an AdaptiveMaxPool2d"),
    (nn.GroupNorm(2, 8), "'odd' is a GroupNorm.*BatchNorm"),
    (nn.InstanceNorm2d(8), "'odd' is an InstanceNorm2d"),
    (nn.LocalResponseNorm(2), "'odd' is a LocalResponseNorm"),
    (nn.ConvTranspose2d(8, 8, 3), "'odd' is a ConvTranspose2d"),
    (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), "'odd'.*reflect"),
    (nn.Conv2d(8, 8, 2, padding="same"), "'odd'.*odd kernel"),
    (nn.AvgPool2d(3, 2, 1, count_include_pad=False), "'odd' is an AvgPool2d.*border"),
    (nn.AdaptiveAvgPool2d(4), "'odd'.*windows differ"),
    (nn.Upsample(scale_factor=2), "'odd' is an Upsample"),
    (GhostBatchNorm2d(8), "'odd' is a GhostBatchNorm2d"),
    (nn.LayerNorm(6), "'odd'.*part of an example's features"),
    (nn.LayerNorm((8, 6, 6)), "'odd'.*channels and positions"),
    (nn.Unflatten(1, (2, 4)), r"'odd'.*takes \(2, 8, 6, 6\) to \(2, 2, 4, 6, 6\)"),
    (Written(lambda m, x: x.mean(1, keepdim=True)), r"mean\(\) in the forward pass of layer 'odd'.*the positions"),
    (Written(lambda m, x: x[:, ::2]), r"getitem\(\).*'odd'.*examples or channels"),
    (Written(lambda m, x: F.pad(x, (1, 1))), r"pad\(\).*'odd'.*channels of zeros"),
]
VECTORS: list[tuple[list[nn.Module], str]] = [
    ([nn.ReLU(), nn.ReLU()], "'odd.1'.*not Gaussian"),
    ([nn.ReLU(), nn.LayerNorm(8)], "'odd.1' is a LayerNorm.*RMSNorm"),
    ([nn.PReLU()], "'odd.0' is a PReLU.*LeakyReLU"),
    ([nn.RReLU()], "'odd.0' is a RReLU"),
    ([nn.Softmax(1)], "'odd.0' is a Softmax.*logits"),
    ([nn.GRU(8, 8)], "'odd.0' is a GRU"),
    ([nn.TransformerEncoderLayer(8, 2)], "'odd.0' is a TransformerEncoderLayer"),
    ([Doubled(8, 8)], "'odd.0' is a Doubled"),
    ([parametrizations.spectral_norm(nn.Linear(8, 8))], "'odd.0'.*parametrization"),
    ([pruned("weight")], "'odd.0'.*weight is computed from weight_orig"),
    ([pruned("bias")], "'odd.0'.*bias is computed from bias_orig"),
    ([nn.utils.spectral_norm(nn.Linear(8, 8))], "'odd.0'.*weight is computed from weight_orig"),
    ([nn.Unflatten(1, (2, 4)), nn.Linear(4, 4), nn.Flatten()], "'odd.1'.*positions"),
]
FORWARDS: list[tuple[Callable[[Any, Tensor], Any], str]] = [
    (lambda m, x: m.c(m.a(m.a(x).relu())), "'a'.*called twice"),
    (lambda m, x: m.c(m.a(x) * m.b(x)), "mul.*adding"),
    (lambda m, x: m.c(m.a(x) * m.scale), "mul.*parameter"),
    (lambda m, x: m.c(m.a(x) + m.scale), "add.*two different signals"),
    (lambda m, x: m.c(m.a(x) + 1.0), "add.*two different signals"),
    (lambda m, x: m.c(m.a(x).relu() + m.b(x).relu()), "add.*correlate"),
    (lambda m, x: m.c(torch.cat([m.a(x)[:, :4], m.b(x)[:, :4]], 1)), "getitem"),
    (lambda m, x: m.c(added_twice(m.a(x), m.b)), "add.*the same layer"),
    (lambda m, x: m.c(m.a(x).softmax(1)), "softmax.*logits"),
    (lambda m, x: m.c(1 / m.a(x)), "div.*first argument"),
    (lambda m, x: m.c(m.a(x)).sigmoid(), "end.*logits"),
    (lambda m, x: (m.c(x), m.a(x)), "returns 2 tensors"),
    (lambda m, x: m.c(F.linear(x, m.a.weight)), r"linear\(\)"),
    (lambda m, x: m.c(zeroed(m.a(x))), r"setitem\(\)"),
    (lambda m, x: m.c(unwatched(m.a(x))), "cannot be recorded"),
    (lambda m, x: m.c(changed_through_a_view(m.a(x))), "cannot be recorded"),
]
OTHERS: list[tuple[nn.Module, Any, type[Exception], str]] = [
    (tied(), None, Unsupported, "'2'.*shares a parameter with '0'"),
    (vgg(11, seed=0), (3, 32, 32), Unsupported, "'pool1' is a MaxPool2d"),
    (resnet(8, seed=0), None, Unsupported, "'conv'.*inputs="),
    (nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(8, 2)), None, Unsupported, "'0'.*inputs="),
    (nn.Sequential(nn.Conv2d(2, 4, 3)), None, Unsupported, "'0'.*inputs="),
    (nn.Linear(4, 2, device="meta"), None, InvalidProblem, r"'0\.weight' has no values yet"),
    (nn.Sequential(nn.LazyLinear(2)), (4,), InvalidProblem, r"'0\.weight' has no values yet"),
    (with_nan(), None, NonFinite, "'fc1': its weight holds NaN"),
    (nn.Sequential(), None, InvalidProblem, "neither a linear layer nor a convolution"),
    (nn.Linear(4, 2), 20, TypeError, "inputs is of type int; it must be a tensor"),
    (nn.Linear(4, 2), torch.zeros(3, 4).numpy(), TypeError, "inputs is of type ndarray; it must be a tensor"),
    *((nn.Linear(4, 2), wrong, ValueError, "inputs is") for wrong in (torch.ones(1, 4), torch.ones(4), (0, 3), ("a",))),
    (
        mlp([4, 3, 2], seed=0),
        torch.zeros(3, 5),
        ValueError,
        r"inputs of shape \(5,\): .* cannot be run: .* layer 'fc1'",
    ),
    (nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2)), torch.ones(3, 2).long(), Unsupported, "'0' is an Embedding"),
]


@pytest.mark.parametrize(("model", "inputs", "error", "message"), [
    *((around(module), (3, 8, 8), Unsupported, message) for module, message in MAPS),
    *((between(*modules), None, Unsupported, message) for modules, message in VECTORS),
    *((of_three(forward), None, Unsupported, message) for forward, message in FORWARDS),
    *OTHERS,
])  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(
    model: nn.Module, inputs: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(model, inputs)


def test_a_zero_gamma_is_refused_only_before_a_kink() -> None:
    norm = nn.BatchNorm1d(8)
    nn.init.zeros_(norm.weight)
    with pytest.raises(Unsupported, match=r"γ of 'odd\.0' is 0"):
        read(between(norm, nn.ReLU()))
    reading = read(between(norm, nn.Tanh()), normal(10, 8))
    assert 0 < float(contributions(reading.stages, reading.input_moments, "batch")[0]) < float("inf")


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), nn.LayerNorm(8)])
def test_a_beta_that_is_not_small_compared_with_gamma_is_refused_by_name(norm: Any) -> None:
    nn.init.constant_(norm.weight, 0.5)
    nn.init.constant_(norm.bias, -0.051)
    with pytest.raises(Unsupported, match=r"'odd\.0'.*β are 0.051 with γ of 0.5"):
        read(between(norm))
    nn.init.constant_(norm.bias, -0.049)
    assert "β are 0.049" in "".join(read(between(norm)).notes)
