"""Swapping norms: which layers, what the factory is asked with, and what is carried over."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from zoo import Transformer, encoder, normal, seeded

import wellcond.nn
from wellcond.errors import Unsupported
from wellcond.nn.ghost import GhostBatchNorm1d, GhostBatchNorm2d
from wellcond.nn.replace import replace_norm
from wellcond_papers.models import mlp, resnet


class Wrapped(nn.Module):
    """Takes whatever it is given."""

    def __init__(self, inside: Any) -> None:
        super().__init__()
        self.inside = inside


def group_norm_of(module: nn.Module) -> nn.Module:
    assert isinstance(module, nn.BatchNorm2d)
    return nn.GroupNorm(module.num_features // 4, module.num_features, module.eps)


FACTORIES: dict[str, tuple[Callable[[Any], nn.Module], type[nn.Module]]] = {
    "class": (GhostBatchNorm2d, GhostBatchNorm2d),
    "class_of_torch": (nn.InstanceNorm2d, nn.InstanceNorm2d),
    "channels": (lambda channels: nn.GroupNorm(4, channels), nn.GroupNorm),
    "channels_computed_with": (lambda c: nn.GroupNorm(min(32, c // 4), c), nn.GroupNorm),
    "channels_only_stored": (lambda c: nn.InstanceNorm2d(c), nn.InstanceNorm2d),
    "keyword": (functools.partial(GhostBatchNorm2d, ghost_size=2), GhostBatchNorm2d),
    "old": (lambda old: nn.GroupNorm(4, old.num_features), nn.GroupNorm),
    "old_by_another_name": (lambda bn: nn.GroupNorm(4, bn.num_features, bn.eps), nn.GroupNorm),
    "old_by_its_type": (group_norm_of, nn.GroupNorm),
    "old_in_a_sequence": (lambda norm: nn.Sequential(norm, nn.Identity()), nn.Sequential),
    "old_only_stored": (lambda old: Wrapped(old), Wrapped),
    "nothing_asked": (lambda _: nn.Identity(), nn.Identity),
}


@pytest.mark.parametrize(("factory", "kind"), FACTORIES.values(), ids=FACTORIES)
def test_a_factory_takes_the_number_of_channels_or_the_old_module(
    factory: Callable[[Any], nn.Module], kind: type[nn.Module]
) -> None:
    model = resnet(8, seed=0)
    names = [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    new = replace_norm(model, factory)
    assert len(names) == 7
    for name in names:
        old, created = model.get_submodule(name), new.get_submodule(name)
        assert type(created) is kind
        channels = {getattr(created, key) for key in ("num_features", "num_channels") if hasattr(created, key)}
        assert channels <= {old.num_features}
        inside = getattr(created, "inside", created[0] if kind is nn.Sequential else None)
        assert inside is None or isinstance(inside, nn.BatchNorm2d)
        assert inside is not old
    if kind is not Wrapped:
        assert new(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


def test_none_keeps_the_old_module() -> None:
    new = replace_norm(resnet(8), lambda channels: nn.GroupNorm(4, channels) if channels == 64 else None)
    kinds = {(type(m), m.weight.numel()) for m in new.modules() if "Norm" in type(m).__name__}
    assert kinds == {(nn.BatchNorm2d, 16), (nn.BatchNorm2d, 32), (nn.GroupNorm, 64)}


# which layers

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch_1d": nn.BatchNorm1d,
    "batch_2d": nn.BatchNorm2d,
    "batch_3d": nn.BatchNorm3d,
    "sync": nn.SyncBatchNorm,
    "group": lambda channels: nn.GroupNorm(2, channels),
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "instance": nn.InstanceNorm2d,
    **{name: kind for name, kind in vars(wellcond.nn).items() if name.endswith("2d")},
}


@pytest.mark.parametrize("build", NORMS.values(), ids=NORMS)
def test_every_normalization_layer_is_replaced(build: Callable[[int], nn.Module]) -> None:
    asked: list[Any] = []

    def factory(count: Any) -> nn.Module:
        asked.append(count)
        return nn.Identity()

    new = replace_norm(nn.Sequential(nn.Linear(8, 8), build(8)), factory)
    assert asked == [8]
    assert isinstance(new[1], nn.Identity)


def test_a_model_may_be_a_norm_itself_and_a_norm_have_several_axes() -> None:
    assert isinstance(replace_norm(nn.BatchNorm1d(3), nn.LayerNorm), nn.LayerNorm)
    new = replace_norm(nn.LayerNorm((3, 4, 4)), lambda norm: nn.GroupNorm(1, norm.normalized_shape[0]))
    assert new.num_channels == 3


def test_classes_say_which_layers() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(6), nn.BatchNorm1d(6))
    model(torch.zeros(2, 3, 2, 2))
    kinds = lambda model: [type(model[1]), type(model[4])]  # noqa: E731
    assert kinds(replace_norm(model, GhostBatchNorm2d, of=nn.BatchNorm2d)) == [GhostBatchNorm2d, nn.BatchNorm1d]
    assert kinds(replace_norm(model, GhostBatchNorm1d, of=nn.BatchNorm1d)) == [nn.BatchNorm2d, GhostBatchNorm1d]
    assert kinds(replace_norm(model, nn.SyncBatchNorm, of=(nn.BatchNorm1d, nn.BatchNorm2d))) == [nn.SyncBatchNorm] * 2
    own = nn.Sequential(Wrapped(nn.Linear(2, 2)))
    assert isinstance(replace_norm(own, lambda old: old.inside, of=Wrapped)[0], nn.Linear)


# what is carried over


def test_state_that_fits_is_carried_over() -> None:
    model = seeded(lambda: nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4)))
    model[1].num_batches_tracked.fill_(7)
    same = replace_norm(model, GhostBatchNorm2d)
    assert same.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(same.state_dict()[key], value) for key, value in model.state_dict().items())
    x = normal(3, 2, 2, 2)
    torch.testing.assert_close(same.eval()(x), model.eval()(x), rtol=1e-12, atol=1e-12)
    group = replace_norm(model, lambda channels: nn.GroupNorm(2, channels))
    assert torch.equal(group[1].weight, model[1].weight)
    assert torch.equal(group[1].bias, model[1].bias)
    other_shape = replace_norm(model, lambda _: nn.LayerNorm((4, 2, 2)))
    assert torch.equal(other_shape[1].weight, torch.ones(4, 2, 2).double())
    assert torch.equal(replace_norm(same, nn.BatchNorm2d)[1].running_var, model[1].running_var)


def test_dtype_mode_and_frozen_parameters_follow_the_old_module() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)).double()
    model[1].eval()
    model[1].bias.requires_grad_(False)
    model[2].half()
    new = replace_norm(model, lambda channels: nn.GroupNorm(2, channels))
    assert [module.training for module in new] == [True, False, True]
    assert (new[1].weight.requires_grad, new[1].bias.requires_grad) == (True, False)
    assert (new[1].weight.dtype, new[2].weight.dtype) == (torch.float64, torch.float16)
    bare = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False)).to("meta").half()
    created = replace_norm(bare, nn.LayerNorm)[1].weight
    assert (created.device.type, created.dtype) == ("meta", torch.float16)


def test_shared_modules_and_tied_parameters_stay_shared() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.Sequential(norm, nn.Linear(4, 4), norm, nn.BatchNorm1d(4))
    model[3].weight = norm.weight
    new = replace_norm(model, GhostBatchNorm1d)
    assert new[0] is new[2]
    assert new[3].weight is new[0].weight
    assert new[0].weight is not norm.weight


@pytest.mark.parametrize("build", [Transformer, encoder], ids=["layers", "encoder"])
def test_transformers_compute_with_their_new_norms(build: Callable[[], nn.Module]) -> None:
    """torch's fast path would compute layer norms from the weights of whatever stands in their place."""
    model = seeded(build)
    new = replace_norm(model, nn.RMSNorm, of=nn.LayerNorm).eval()
    x = torch.arange(6).reshape(2, 3) % 5 if build is Transformer else normal(2, 3, 4)
    with_graph = new(x)
    with torch.no_grad():
        torch.testing.assert_close(new(x), with_graph, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(model.eval()(x), with_graph)


def test_padded_sequences_go_through_an_encoder_with_new_norms() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)
    model = seeded(lambda: nn.TransformerEncoder(layer, 2))
    new = replace_norm(model, nn.RMSNorm).eval()
    x, padding = normal(2, 3, 4), torch.tensor([[False, False, False], [False, True, True]])
    with_graph = new(x, src_key_padding_mask=padding)
    with torch.no_grad():
        result = new(x, src_key_padding_mask=padding)
    torch.testing.assert_close(result[~padding], with_graph[~padding], rtol=1e-12, atol=1e-12)


# errors


@pytest.mark.parametrize(
    ("model", "factory", "message"),
    [
        (nn.Linear(2, 2), nn.BatchNorm1d, "Linear has no layer to replace .*GroupNorm, LayerNorm"),
        (mlp([2, 6, 2], norm="batch"), lambda c: nn.GroupNorm(4, c), r"'bn1' \(BatchNorm1d\).* 6 channels: .*divis"),
        (mlp([2, 6, 2], norm="batch"), lambda old: nn.GroupNorm(4, old.chanels), "with the old module: .*chanels"),
        (mlp([2, 6, 2], norm="batch"), lambda c: "GroupNorm", "it returned 'GroupNorm', not a module"),
        (nn.Sequential(nn.LazyBatchNorm1d()), nn.LayerNorm, "'0.weight' has no shape yet"),
        ("resnet", nn.LayerNorm, "the model is a str"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(model: Any, factory: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        replace_norm(model, factory)
