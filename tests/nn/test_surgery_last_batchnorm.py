"""LastBN: where it is put, and that it is the network one would have written by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from zoo import Recurrent, SelfAttention, Transformer, Written, encoder, normal, seeded

import wellcond as wc
from wellcond.errors import UnknownLayer, Unsupported
from wellcond.nn.last_batchnorm import NormalizedLinear, with_last_batchnorm
from wellcond_papers.models import mlp, resnet


def random_norm(norm: nn.BatchNorm1d) -> nn.BatchNorm1d:
    with torch.no_grad():
        norm.weight.copy_(normal(norm.num_features, seed=1))
        norm.bias.copy_(normal(norm.num_features, seed=2))
        norm.running_mean.copy_(normal(norm.num_features, seed=3))
        norm.running_var.copy_(normal(norm.num_features, seed=4).exp())
    return norm


def by_hand(norm: nn.BatchNorm1d, x: Tensor, training: bool) -> Tensor:
    """γ (x − μ)/√(σ² + ε) + β over the last axis."""
    rows = x.reshape(-1, x.shape[-1])
    mean, var = (rows.mean(0), rows.var(0, correction=0)) if training else (norm.running_mean, norm.running_var)
    return norm.weight * (x - mean) / (var + norm.eps).sqrt() + norm.bias


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(7, 4), (7, 3, 4), (2, 3, 5, 4)])
def test_it_is_the_network_written_by_hand(shape: tuple[int, ...], training: bool) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    x = normal(*shape)
    new = with_last_batchnorm(model).train(training)
    norm = random_norm(new[2].norm)
    h = torch.tanh(x @ model[0].weight.T + model[0].bias)
    expected = by_hand(norm, h, training) @ model[2].weight.T + model[2].bias
    running = norm.running_mean.clone(), norm.running_var.clone()
    torch.testing.assert_close(new(x), expected, rtol=1e-12, atol=1e-12)
    rows = h.reshape(-1, 6)
    if training:
        running = 0.9 * running[0] + 0.1 * rows.mean(0), 0.9 * running[1] + 0.1 * rows.var(0)
    torch.testing.assert_close((norm.running_mean, norm.running_var), running, rtol=1e-12, atol=1e-12)


def test_hooks_on_the_linear_layer_see_the_normalized_features() -> None:
    x = normal(7, 3, 4)
    new = with_last_batchnorm(seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))))
    seen: list[Tensor] = []
    new[2].linear.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    new(x)
    assert seen[0].shape == (7, 3, 6)
    torch.testing.assert_close(seen[0].mean((0, 1)), torch.zeros(6).double(), rtol=0, atol=1e-12)
    table = wc.conditioning(wc.Problem(new, nn.MSELoss(), (x, torch.zeros(7, 3, 3).double())))
    assert list(table) == ["0", "2.linear"]


def linears(*names: str) -> dict[str, nn.Module]:
    return {name: nn.Linear(4, 4) for name in names}


def two_heads() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Any:
        h = net.body(x).relu()
        return {"mean": net.mean(h), "spread": [net.spread(h)]}

    return Written(forward, **linears("body", "mean", "spread"))


def head_first() -> nn.Module:
    """The last layer is registered first, another is not used at all, and its name says something else."""
    return Written(lambda net, x: net.stem(net.body(x).relu_()).log_softmax(-1), **linears("stem", "body", "fc_unused"))


def skip() -> nn.Module:
    """Both layers reach the output directly, but the one stands before the other."""

    def forward(net: Any, x: Tensor) -> Any:
        h = net.one(x)
        return h, h + net.two(h.relu())

    return Written(forward, **linears("one", "two"))


def each_before_the_other() -> nn.Module:
    return Written(lambda net, x: net.one(net.two(net.stem(x))) + net.two(net.one(x)), **linears("stem", "one", "two"))


def called_twice() -> nn.Module:
    """The last layer is called twice, once on its own output."""
    layers = linears("body", "head")
    return Written(lambda net, x: net.alias(net.head(net.body(x)).relu()), **layers, alias=layers["head"])


class Adapted(nn.Linear):
    """A linear layer with another one inside."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.adapter = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.adapter(x)


class Output:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def pair() -> nn.Module:
    return Written(lambda net, x, y: net.head(net.body(x) + y), **linears("body", "head"))


PLACES: dict[str, tuple[Callable[[], nn.Module], Any, str]] = {
    "resnet": (lambda: resnet(8, seed=0), None, "fc"),
    "mlp": (lambda: mlp([4, 6, 5, 3], seed=0), None, "fc3"),
    "one_linear_layer": (lambda: nn.Linear(4, 2), None, ""),
    "transformer": (Transformer, None, "head"),
    "encoder": (encoder, None, "2"),
    "encoder_without_head": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 5, batch_first=True), 2), None,
        "layers.1.linear2",
    ),
    "attention": (SelfAttention, None, "head"),
    "recurrent": (Recurrent, None, "head"),
    "registered_first": (head_first, normal(3, 4), "stem"),
    "skip_connection": (skip, None, "two"),
    "called_twice": (called_twice, None, "head"),
    "one_inside_another": (lambda: Written(lambda net, x: net.head(x), head=Adapted()), None, "head"),
    "output_object": (lambda: Written(lambda net, x: Output(net.head(x)), **linears("head")), None, "head"),
    "tuple_inputs": (pair, (normal(3, 4), normal(3, 4)), "head"),
    "dict_inputs": (pair, {"x": normal(3, 4), "y": normal(3, 4)}, "head"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "inputs", "expected"), PLACES.values(), ids=PLACES)
def test_the_last_linear_layer_is_found_by_running_the_model(
    build: Callable[[], nn.Module], inputs: Any, expected: str
) -> None:
    model = seeded(build).requires_grad_(False)  # frozen layers are found too, and stay frozen
    new = with_last_batchnorm(model, inputs)
    prefix = f"{expected}." if expected else ""
    assert [name for name, p in new.named_parameters() if p.requires_grad] == [
        f"{prefix}norm.weight",
        f"{prefix}norm.bias",
    ]
    places = {
        name for name, module in new.named_modules(remove_duplicate=False) if isinstance(module, NormalizedLinear)
    }
    assert places == {expected} | ({"alias"} if hasattr(model, "alias") else set())


def test_a_head_is_chosen_by_name() -> None:
    assert isinstance(with_last_batchnorm(two_heads(), layer="spread").spread, NormalizedLinear)


def test_the_fast_path_of_an_encoder_calls_the_new_norm() -> None:
    """torch computes an encoder layer from its weights in evaluation, without calling any part of it."""
    layer = seeded(lambda: nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True))
    new = with_last_batchnorm(layer, normal(3, 2, 4))
    random_norm(new.linear2.norm)
    x = normal(3, 2, 4, seed=9)
    slow = new.eval()(x)
    with torch.no_grad():
        torch.testing.assert_close(new(x), slow, rtol=1e-12, atol=1e-12)


def test_device_dtype_and_mode_are_those_of_the_linear_layer() -> None:
    model = mlp([4, 6, 3]).to(torch.bfloat16)
    model.train()
    model.fc2.eval()
    new = with_last_batchnorm(model)
    assert new.fc2.norm.weight.dtype == torch.bfloat16
    assert (new.training, new.fc2.training, new.fc2.norm.training) == (True, False, False)
    assert with_last_batchnorm(mlp([4, 6, 3]).to("meta"), layer="fc2").fc2.norm.running_mean.device.type == "meta"


# checkpoints


def test_old_and_new_checkpoints_load_into_the_new_model() -> None:
    old, new = mlp([4, 6, 3], seed=1), with_last_batchnorm(mlp([4, 6, 3], seed=2))
    checkpoint = old.state_dict()
    result = new.load_state_dict(checkpoint, strict=False)
    norm = ["fc2.norm.weight", "fc2.norm.bias", "fc2.norm.running_mean", "fc2.norm.running_var"]
    assert (result.missing_keys, result.unexpected_keys) == (norm, [])
    assert torch.equal(new.fc2.linear.weight, old.fc2.weight)
    assert torch.equal(new.fc2.linear.bias, old.fc2.bias)
    again = with_last_batchnorm(mlp([4, 6, 3], seed=3))
    again.load_state_dict(new.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), new.parameters(), strict=True))
    assert "fc2.weight" in checkpoint  # which is the user's
    with pytest.raises(RuntimeError, match=r"Missing key.*fc2\.norm\.weight"):
        new.load_state_dict(checkpoint)


# errors


def needs_other_inputs() -> nn.Module:
    """No side of an image that is tried gives the head its four features."""
    layers = {"conv": nn.Conv2d(5, 5, 3), "head": nn.Linear(4, 2)}
    return Written(lambda net, x: net.head(F.adaptive_avg_pool1d(net.conv(x).flatten(1), 7)), **layers)


def not_copied() -> nn.Module:
    model = mlp([4, 6, 3])
    model.last_activation = model(torch.ones(2, 4))
    return model


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (two_heads(), {}, r"several last linear layers: 'mean', 'spread'. Choose one: layer=\"mean\""),
        (each_before_the_other(), {}, "several last linear layers: 'one', 'two'"),
        (nn.Conv2d(2, 2, 3), {}, "Conv2d has no linear layer"),
        (nn.MultiheadAttention(4, 2), {}, "MultiheadAttention has no linear layer"),
        (
            Written(lambda net, x: net.head(x).argmax(-1), **linears("head")),
            {},
            "depend on no linear layer: is there .* an argmax",
        ),
        (two_heads(), {"layer": "meen"}, "no layer or parameter 'meen' here. Closest: 'mean'"),
        (resnet(8), {"layer": "conv"}, "'conv' is a Conv2d, not a linear layer"),
        (two_heads(), {"inputs": normal(3, 4)}, "The inputs are float64 and the model is float32"),
        (two_heads(), {"inputs": torch.ones(3, 5)}, r"does not go through layer 'body' \(Linear\)"),
        (two_heads(), {"inputs": {"z": torch.ones(3, 4)}}, "unexpected keyword argument 'z'"),
        (needs_other_inputs(), {}, r"tried: \(2, 5, 32, 32\), .* Pass inputs=.* layer 'head'"),
        (nn.Sequential(nn.LazyLinear(3)), {}, "'0.weight' has no shape yet"),
        (not_copied(), {}, "Sequential cannot be copied: .* must be detached"),
    ],
)
def test_what_is_wrong_is_said(model: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises((Unsupported, UnknownLayer), match=message):
        with_last_batchnorm(model, **options)
