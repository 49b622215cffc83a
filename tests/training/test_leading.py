"""Several processes measure what one process with all their batches measures, and nothing of the user's changes."""

from __future__ import annotations

import copy
import functools
import os
import random
import signal
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from rank_cases import (
    CALLS,
    NETWORKS,
    Batches,
    Wrap,
    alone,
    in_both,
    in_ddp,
    in_fsdp,
    in_hybrid,
    in_mixed_fsdp,
    in_offloaded_fsdp,
    in_tensor_parallel,
    largest_difference,
    measured,
    numbers,
    part_of,
    perceptron,
    together,
)
from ranks import in_ranks
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW, Optimizer
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from unchanged import assert_unchanged, snapshot

import wellcond as wc
from wellcond.errors import InvalidProblem, UnknownLayer, Unsupported
from wellcond.training.copy_trainer import CopyTrainer
from wellcond.training.leading import led

DOUBLE, SINGLE = 1e-10, 1e-6
IN_SINGLE = ("max_lr", "conditioning", "neurons", "suggest_lr")


class Setup(NamedTuple):
    """How processes train, and what they measure, by network.

    Attributes:
        wrap: Called with the model in every process.
        size: The number of processes.
        calls: Names of calls by those of networks.
        readers: The number of processes that read different examples.
    """

    wrap: Wrap
    size: int
    calls: dict[str, Sequence[str]]
    readers: int


ALL = tuple(CALLS)
FEW = ("max_lr", "conditioning")
SETUPS = {
    "DDP 2": Setup(
        in_ddp,
        2,
        {
            "perceptron": ALL,
            "GroupNorm": FEW,
            "BatchNorm, running": FEW,
            "BatchNorm, batch": (*FEW, "neurons", "diagnose"),
            "tied transformer": (*FEW, "diagnose", "suggest_lr"),
        },
        2,
    ),
    "FSDP2 2": Setup(
        in_fsdp,
        2,
        {
            "perceptron": ALL,
            "BatchNorm, running": FEW,
            "BatchNorm, batch": FEW,
            "tied transformer": (*FEW, "suggest_lr"),
        },
        2,
    ),
    "FSDP2 2, offloaded": Setup(in_offloaded_fsdp, 2, {"perceptron": (*FEW, "suggest_lr")}, 2),
    "tensor parallel 2": Setup(in_tensor_parallel, 2, {"perceptron": ALL}, 1),
    # every call in four processes, but not in both wrappings: these have them all in two
    "DDP 4": Setup(in_ddp, 4, {"perceptron": (*FEW, "diagnose"), "BatchNorm, batch": FEW, "tied transformer": FEW}, 4),
    "FSDP2 4": Setup(
        in_fsdp,
        4,
        {"perceptron": (*FEW, "neurons", "suggest_lr", "treat"), "BatchNorm, batch": FEW, "tied transformer": FEW},
        4,
    ),
    "FSDP2 4 in two replicas": Setup(in_hybrid, 4, {"perceptron": ("max_lr",)}, 4),
    "FSDP2 2 of tensor parallel 2": Setup(in_both, 4, {"perceptron": ("max_lr", "suggest_lr")}, 2),
}


def of_ranks(rank: int, kinds: Sequence[str]) -> dict[str, Any]:
    """Numbers by set-up, network and call; and a check that nothing has changed."""
    results: dict[str, Any] = {}
    for kind in kinds:
        setup = SETUPS[kind]
        for name, calls in setup.calls.items():
            network = NETWORKS[name]()
            problem, optimizer = together(network, setup.wrap, rank * setup.readers // setup.size, setup.readers)
            state, handler = copy.deepcopy(optimizer.state_dict()), signal.getsignal(signal.SIGINT)
            before = snapshot(network.model)
            results[kind, name] = measured(problem, optimizer, calls)
            assert_unchanged(before, snapshot(network.model))
            assert_same_state(state, optimizer.state_dict())
            assert signal.getsignal(signal.SIGINT) is handler
    return results


def assert_same_state(first: Any, second: Any) -> None:
    assert tree_flatten(first)[1] == tree_flatten(second)[1]
    pairs = zip(tree_leaves(first), tree_leaves(second), strict=True)
    assert all(bool((a == b).all()) if isinstance(a, Tensor) else a == b for a, b in pairs)


@functools.cache
def of_one(name: str, call: str, apart: int) -> dict[str, Any]:
    return measured(*alone(NETWORKS[name](), apart), [call])[call]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_processes_measure_what_one_measures_with_all_batches(size: int) -> None:
    """BatchNorm sees the statistics of each process's batch, as DDP trains it: one process measures these apart."""
    kinds = [kind for kind, setup in SETUPS.items() if setup.size == size]
    ranks = in_ranks(of_ranks, size, kinds)
    for kind in kinds:
        setup = SETUPS[kind]
        for name, calls in setup.calls.items():
            for call in calls:
                expected = of_one(name, call, setup.readers if name == "BatchNorm, batch" else 1)
                for rank in ranks:
                    assert largest_difference(rank[kind, name][call], expected) < DOUBLE, (kind, name, call)


# single precision


def in_single(rank: int) -> list[dict[str, Any]]:
    """In DDP, and in FSDP2 with a mixed precision policy, whose weights are in single precision too."""
    results = []
    for wrap in (in_ddp, in_mixed_fsdp):
        network = perceptron().in_single()
        model = wrap(network.model)
        problem = wc.Problem(model, network.loss, part_of(network.batches, rank, 2))
        results.append(measured(problem, SGD(model.parameters(), lr=0.1, momentum=0.9), IN_SINGLE))
    return results


@pytest.mark.slow
def test_single_precision_to_its_rounding() -> None:
    """A rounding of a matrix by ε moves κ by ε κ of itself; everything else is the same to 1e-6."""
    network = perceptron().in_single()
    problem = wc.Problem(network.model, network.loss, network.batches)
    expected = measured(problem, SGD(network.model.parameters(), lr=0.1, momentum=0.9), IN_SINGLE)
    for result in (each for rank in in_ranks(in_single, 2) for each in rank):
        for call, numbers_alone in expected.items():
            kappas = {name for name in numbers_alone if "kappa" in name}
            for name in kappas:
                rel = max(SINGLE, torch.finfo(torch.float32).eps * numbers_alone[name])
                assert result[call][name] == pytest.approx(numbers_alone[name], rel=rel), name
            assert largest_difference(without(result[call], kappas), without(numbers_alone, kappas)) < SINGLE, call


def without(known: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in known.items() if name not in names}


# copies, loaders and what a call leaves


@led
def losses_of_a_copy(problem: wc.Problem, optimizer: Optimizer, steps: int) -> list[float]:
    """What the races of `suggest_lr` are made of."""
    return CopyTrainer(problem, optimizer).start().run(steps).losses


def copies_and_training(rank: int) -> None:
    """Steps of copies are those that DDP takes next, also with BatchNorm, which sees each process's examples."""
    network = NETWORKS["BatchNorm, batch"]()
    model = in_ddp(network.model)
    own = part_of(network.batches, rank, 2)
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    of_copy = losses_of_a_copy(wc.Problem(model, network.loss, own), optimizer, 5)
    losses = []
    for step in range(5):
        x, y = own[step % len(own)]
        optimizer.zero_grad()
        loss = network.loss(model(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        losses.append(float(mean) / 2)
    assert of_copy == pytest.approx(losses, rel=1e-12)


def loaders(rank: int) -> None:
    network = perceptron()
    model = in_ddp(network.model)
    data = TensorDataset(*(torch.cat(part) for part in zip(*network.batches, strict=True)))
    distributed_loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, shuffle=False))
    expected = numbers(wc.conditioning(wc.Problem(NETWORKS["perceptron"]().model, network.loss, network.batches)))
    assert (
        largest_difference(numbers(wc.conditioning(wc.Problem(model, network.loss, distributed_loader))), expected)
        < DOUBLE
    )

    own = TensorDataset(*(tensor[rank::2] for tensor in data.tensors))
    generator = torch.Generator().manual_seed(5 + rank)
    before = generator.get_state(), torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()
    for settings in ({"shuffle": True}, {"shuffle": False}):
        problem = wc.Problem(model, network.loss, DataLoader(own, batch_size=8, generator=generator, **settings))
        wc.suggest_lr(problem, AdamW(model.parameters(), lr=0.01), steps=5, max_steps=20)
        wc.conditioning(problem)
        after = generator.get_state(), torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()
        assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(before, after, strict=True))

    # the same data set in both processes, shuffled by each
    shuffled = wc.Problem(model, network.loss, DataLoader(data, batch_size=8, shuffle=True))
    inputs: list[Any] = [None, None]
    distributed.all_gather_object(inputs, shuffled.batches[0][0])
    assert not torch.equal(*inputs)


def uneven(rank: int) -> None:
    """Processes with other numbers of batches, and of examples in them: every example counts once."""
    network = perceptron()
    (x, y), (x2, y2) = network.batches[:2]
    own = [(x[:10], y[:10]), (x2, y2)] if rank == 0 else [(x[10:], y[10:])]
    problem = wc.Problem(in_ddp(network.model), network.loss, own)
    expected = wc.Problem(NETWORKS["perceptron"]().model, network.loss, network.batches[:2])
    for call in FEW:
        # before its first step, Adam divides by the present gradients
        of_both, of_all = (numbers(CALLS[call](each, AdamW(each.model.parameters()))) for each in (problem, expected))
        assert largest_difference(of_both, of_all) < DOUBLE, call
    wc.suggest_lr(problem, steps=5, max_steps=20)


def training_step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def steps_of_ones_own(rank: int) -> None:
    """Also, no group of processes is added to those that the training counts."""
    network = perceptron()
    model, world = in_ddp(network.model), distributed.distributed_c10d._world
    before = list(world.pg_names.values()), world.group_count
    problem = wc.Problem.from_step(model, training_step, part_of(network.batches, rank, 2))
    alone_ = wc.Problem.from_step(perceptron().model, training_step, network.batches)
    assert wc.max_lr(problem).value == pytest.approx(wc.max_lr(alone_).value, rel=DOUBLE)
    assert (list(world.pg_names.values()), world.group_count) == before


def synchronized(rank: int) -> None:
    """SyncBatchNorm is measured as BatchNorm is, without waiting for the others."""
    network = NETWORKS["BatchNorm, batch"]()
    apart = [part for batch in network.batches for part in zip(*(each.chunk(2) for each in batch), strict=True)]
    alone_ = wc.Problem(network.model, network.loss, apart)
    expected = {call: numbers(CALLS[call](alone_, SGD(network.model.parameters()))) for call in FEW}
    for wrap in (in_ddp, in_fsdp):
        wrapped = wrap(NETWORKS["BatchNorm, batch"]().model)
        if wrap is in_ddp:  # which refuses it on a CPU, but does not look again
            model = nn.SyncBatchNorm.convert_sync_batchnorm(wrapped, distributed.group.WORLD)
        else:
            model = in_fsdp(nn.SyncBatchNorm.convert_sync_batchnorm(NETWORKS["BatchNorm, batch"]().model))
        problem = wc.Problem(model, network.loss, part_of(network.batches, rank, 2))
        for call in FEW:
            assert largest_difference(numbers(CALLS[call](problem, SGD(model.parameters()))), expected[call]) < DOUBLE


def sharded_weights_move_on(rank: int) -> None:
    """A call of all measures the weights as they are now; what each process measures for itself refuses old ones."""
    network = perceptron()
    own = part_of(network.batches, rank, 2)
    model = fully_shard(network.model)
    optimizer = SGD(model.parameters(), lr=0.5)
    problem = wc.Problem(model, network.loss, own)
    first = wc.max_lr(problem).value
    network.loss(model(own[0][0]), own[0][1]).backward()
    hessian, vector = wc.Hessian(problem), torch.ones(problem.size, dtype=torch.float64)
    assert bool((hessian @ vector).isfinite().all())  # a pass alone changes nothing
    optimizer.step()
    with pytest.raises(InvalidProblem, match="weights have changed"):
        hessian @ vector
    plain = perceptron()
    plain_optimizer = SGD(plain.model.parameters(), lr=0.5)
    plain.loss(plain.model(plain.batches[0][0]), plain.batches[0][1]).backward()
    plain_optimizer.step()
    now = wc.max_lr(wc.Problem(plain.model, plain.loss, plain.batches)).value
    bytes_before = problem.team.wire["products"]
    assert wc.max_lr(problem).value == pytest.approx(now, rel=DOUBLE)
    assert abs(now / first - 1) > 1e-3
    assert (
        problem.team.wire["products"] > bytes_before
    )  # each process does its share, also after the weights have moved
    with torch.no_grad():
        model(own[0][0])  # after which FSDP2 holds the outermost parameters as a whole
    assert wc.max_lr(problem).value == pytest.approx(now, rel=DOUBLE)
    with torch.no_grad():
        model(own[0][0])
    assert wc.max_lr(wc.Problem(model, network.loss, own)).value == pytest.approx(now, rel=DOUBLE)


def calls_inside_of_calls(rank: int) -> None:
    """Callbacks run in rank 0 alone; what they raise is raised in all, and what they call is refused."""
    network = perceptron()
    model = in_ddp(network.model)
    problem = wc.Problem(model, network.loss, part_of(network.batches, rank, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    refusals = []

    def call_again(_: Any) -> None:
        for again in (lambda: wc.max_lr(problem), lambda: wc.Problem(model, network.loss, network.batches)):
            with pytest.raises(Unsupported, match="inside of a call that all of them make"):
                again()
            refusals.append(rank)

    diagnosis = wc.diagnose(problem, optimizer, on_part=call_again)
    assert set(refusals) == ({0} if rank == 0 else set())
    assert diagnosis.evidence.optimizer is optimizer
    assert rank == 0 or diagnosis.evidence.problem is problem

    with pytest.raises(UnknownLayer, match="there is no layer or parameter 'nine'"):
        wc.conditioning(problem, layers=["nine"])

    def give_up(_: Any) -> None:
        raise KeyError("my callback")

    with pytest.raises(KeyError, match="my callback"):
        wc.diagnose(problem, on_part=give_up)
    assert wc.neurons(problem) is not None


class Interrupting:
    """Batches, of which one interrupts the process that reads it."""

    def __init__(self, batches: Batches, at: int) -> None:
        self.batches, self.at = batches, at

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            self.at -= 1
            if not self.at:
                os.kill(os.getpid(), signal.SIGINT)
            yield batch


def interrupts(rank: int) -> None:
    """Ctrl-C reaches all processes: rank 0 ends the call, with what it has, for all of them."""
    network = perceptron()
    model = in_ddp(network.model)
    own = part_of(network.batches, rank, 2)
    with pytest.raises(wc.errors.Interrupted) as interrupt:
        wc.max_lr(wc.Problem(model, network.loss, Interrupting(own, 60)), tol=1e-12)
    assert interrupt.value.result.matvecs > 2
    diagnosis = wc.diagnose(wc.Problem(model, network.loss, Interrupting(own, 14 if rank == 0 else 10**6)))
    assert "interrupted" in diagnosis.failed.values()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert wc.neurons(wc.Problem(model, network.loss, own)) is not None


CHECKS = [
    copies_and_training,
    loaders,
    uneven,
    steps_of_ones_own,
    synchronized,
    sharded_weights_move_on,
    calls_inside_of_calls,
    interrupts,
]


def all_checks(rank: int) -> None:
    for check in CHECKS:
        check(rank)


@pytest.mark.slow
def test_copies_loaders_norms_moving_weights_calls_inside_of_calls_and_interrupts() -> None:
    in_ranks(all_checks, 2)


def on_a_part_of_the_processes(rank: int) -> float | None:
    """DDP over the first two of three processes, which have made different numbers of groups before."""
    distributed.new_group([0, 2])
    group = distributed.new_group([0, 1])
    if rank == 2:
        return None
    network = perceptron()
    model = nn.parallel.DistributedDataParallel(network.model, process_group=group)
    return wc.max_lr(wc.Problem(model, network.loss, part_of(network.batches, rank, 2))).value


@pytest.mark.slow
def test_a_group_of_some_processes_measures_by_itself() -> None:
    network = perceptron()
    value = wc.max_lr(wc.Problem(network.model, network.loss, network.batches)).value
    assert in_ranks(on_a_part_of_the_processes, 3)[:2] == [pytest.approx(value, rel=DOUBLE)] * 2
