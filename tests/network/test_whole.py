"""A plain copy of a sharded model, in one process; `tests/training/test_leading.py` has several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rank_cases import Tied
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from zoo import cnn, integers, normal, seeded

import wellcond as wc
from wellcond.errors import Unsupported
from wellcond.network.calling import group_of
from wellcond.network.whole import (
    LocalBatchNorm,
    data_share,
    holds_shards,
    in_shards,
    memo_of,
    refresh,
    state_of_shards,
    syncs_norms,
    whole_model,
)

pytestmark = pytest.mark.usefixtures("process_group")


def sharded(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for layer in [] if isinstance(model, Tied) else model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def in_tensor_parallel(model: nn.Module) -> nn.Module:
    return parallelize_module(model, init_device_mesh("cpu", (1,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})


def layers() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


@pytest.mark.parametrize(
    ("build", "wrap", "inputs"),
    [
        (layers, sharded, normal(5, 4)),
        (layers, in_tensor_parallel, normal(5, 4)),
        (lambda: seeded(Tied), sharded, integers(5, 3, 4)),
        (lambda: seeded(cnn), sharded, normal(5, 2, 4, 4)),
    ],
)
def test_a_copy_is_plain_and_computes_the_same(
    build: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module], inputs: Tensor
) -> None:
    original = build()
    model = wrap(build())
    hooked: list[str] = []
    model.register_forward_hook(lambda *_: hooked.append("the user's own hook"))
    model.eval()
    plain = whole_model(model)
    assert holds_shards(model)
    assert not holds_shards(plain)
    assert [type(module) for module in plain.modules()] == [type(module) for module in original.modules()]
    assert not any(isinstance(module, FSDPModule) for module in plain.modules())
    assert [name for name, _ in plain.named_parameters()] == [name for name, _ in original.named_parameters()]
    assert torch.equal(plain(inputs), original.eval()(inputs))
    assert hooked == ["the user's own hook"]
    with torch.no_grad():
        next(plain.parameters()).zero_()
    assert float(next(in_shards(model).parameters()).full_tensor().abs().sum()) > 0  # the copy has memory of its own


def test_a_copy_follows_the_weights_and_tells_when_they_have_moved() -> None:
    model = sharded(layers())
    plain, before = whole_model(model), state_of_shards(model)
    model(normal(5, 4)).sum().backward()
    assert state_of_shards(model) == before
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert state_of_shards(model) != before
    expected = layers()
    expected(normal(5, 4)).sum().backward()
    torch.optim.SGD(expected.parameters(), lr=0.1).step()
    refresh(plain, model)
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), expected.parameters(), strict=True))


def test_parameters_that_a_forward_pass_has_left_whole_are_in_shards_again() -> None:
    model = sharded(layers())
    fully_shard(outer := nn.Sequential(nn.Linear(4, 4).double(), model), mesh=init_device_mesh("cpu", (1,)))
    with torch.no_grad():
        outer(normal(5, 4))
    assert not isinstance(outer[0].weight, DTensor)
    assert all(isinstance(p, DTensor) for p in in_shards(outer).parameters())


def test_a_copy_of_an_optimizer_holds_the_copy_of_the_model() -> None:
    model = sharded(layers())
    optimizer = torch.optim.Adam(model.parameters())
    model(normal(5, 4)).sum().backward()
    optimizer.step()
    plain = whole_model(model)
    states: list[Any] = [state["exp_avg"] for state in optimizer.state.values()]
    memo = memo_of(model, plain, [*states, torch.ones(1)])
    assert [memo[id(p)] for p in model.parameters()] == list(plain.parameters())
    assert all(torch.equal(memo[id(state)], state.full_tensor()) for state in states)
    assert len(memo) == 4 + 4


def test_synchronized_norms_become_those_of_one_process() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(seeded(cnn), torch.distributed.group.WORLD)
    assert syncs_norms(model)
    plain = whole_model(model)
    assert not syncs_norms(plain)
    assert isinstance(plain[1], LocalBatchNorm)
    assert torch.equal(plain(normal(5, 2, 4, 4)), seeded(cnn)(normal(5, 2, 4, 4)))


def test_who_trains_a_model_and_which_data_it_reads() -> None:
    assert group_of(layers()) is None
    assert group_of(nn.parallel.DistributedDataParallel(layers())) is None  # one process has all of it
    assert group_of(sharded(layers())) is torch.distributed.group.WORLD
    assert data_share(sharded(layers())) == (0,)
    assert data_share(in_tensor_parallel(layers())) == ()
    buffered = layers()
    buffered.register_buffer("table", distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,))))
    assert group_of(buffered) is torch.distributed.group.WORLD


def test_flat_parameters_are_refused() -> None:
    model = FullyShardedDataParallel(layers(), device_id=torch.device("cpu"))
    with pytest.raises(Unsupported, match="fully_shard"):
        wc.Problem(model, nn.CrossEntropyLoss(), [(normal(4, 4), integers(3, 4))])


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = sharded(layers())
    model.numbers = (number for number in range(3))
    with pytest.raises(Unsupported, match="cannot be copied"):
        whole_model(model)
