"""A loader is taken as it is: what cannot be read twice alike is held, said, and left as it was."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from measuring import BATCH, loader
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler
from zoo import integers, mlp, normal

import wellcond as wc

MANY = TensorDataset(normal(1000, 4), integers(3, 1000))


class Augmented(Dataset[Any]):
    """Examples that differ from pass to pass, by one of several sources of chance."""

    def __init__(self, source: str, own: Any = None) -> None:
        self.source, self.own = source, own

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = BATCH[0][index]
        if self.source == "flip":
            return (x.flip(0) if torch.rand(()) < 0.5 else x), BATCH[1][index]
        noise = {
            "torch": lambda: torch.rand(()).item(), "numpy": np.random.rand, "python": random.random,
            "own": lambda: self.own.random(),
        }  # fmt: skip
        return x + noise[self.source](), BATCH[1][index]


class Stream(IterableDataset[Any]):
    def __init__(self, examples: int | None) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(zip(*BATCH, strict=True)), self.examples)


class Buffered:
    """Batches without end, all in the same memory."""

    def __iter__(self) -> Iterator[Any]:
        x = torch.empty_like(BATCH[0])
        for i in itertools.count():
            yield x.copy_(BATCH[0] + i), BATCH[1]


def problem(batches: Any) -> wc.Problem:
    return wc.Problem(mlp(), nn.CrossEntropyLoss(), batches)


EVERY = "; every number is of these"
OTHER = "the loader gives other data on every pass (a random augmentation, or a sampler that shuffles), so "
HELD: dict[str, tuple[Any, int, str]] = {
    "shuffles": (
        DataLoader(MANY, batch_size=128, shuffle=True), 4,
        "the loader shuffles, so the first 4 of its 8 batches (512 examples) are held" + EVERY,
    ),
    "small_batches": (
        DataLoader(MANY, batch_size=5, sampler=WeightedRandomSampler([1.0] * 1000, 1000)), 16,
        "the loader shuffles, so the first 16 of its 200 batches (80 examples) are held" + EVERY,
    ),
    "large_batches": (
        DataLoader(MANY, batch_size=600, shuffle=True, drop_last=True), 1,
        "the loader shuffles, so one draw of its only batch (600 examples) is held" + EVERY,
    ),
    "few": (
        loader(shuffle=True), 3, "the loader shuffles, so one draw of its 3 batches (6 examples) is held" + EVERY
    ),
    **{
        source: (
            DataLoader(Augmented(source), batch_size=3), 2,
            OTHER + "one draw of its 2 batches (6 examples) is held" + EVERY,
        )
        for source in ("torch", "numpy", "python", "flip")
    },
    "own_sampler": (
        DataLoader(MANY, batch_sampler=[random.sample(range(1000), 8) for _ in range(3)]), 3, ""
    ),
    "endless": (
        DataLoader(Stream(None), batch_size=64), 8,
        "the loader has no length, so the first 8 batches (512 examples) are held" + EVERY,
    ),
    "stream_that_ends": (DataLoader(Stream(6), batch_size=4), 2, ""),
    "in_the_same_memory": (
        Buffered(), 16, "the loader has no length, so the first 16 batches (96 examples) are held" + EVERY
    ),
}  # fmt: skip


@pytest.mark.parametrize(("batches", "count", "held"), HELD.values(), ids=HELD)
def test_what_is_held_is_said_and_measured(batches: Any, count: int, held: str) -> None:
    p = problem(batches)
    assert p.held == held
    assert p.notes == ([held] if held else [])
    assert p.loader is batches
    assert len(p.batches) == count
    assert p.is_one_batch == (count == 1)
    first, second = ([x for _, (x, _) in p.data()] for _ in range(2))
    assert all(map(torch.equal, first, second))
    assert len({float(x.sum()) for x in first}) == count or "Stream" in str(type(batches.dataset))
    assert wc.max_lr(p, max_matvecs=3, confidence=None).matvecs > 0


def test_the_measured_batches_are_those_that_are_held() -> None:
    p = problem(DataLoader(MANY, batch_size=100, shuffle=True, drop_last=True))
    x, y = (torch.cat(part) for part in zip(*p.batches, strict=True))
    assert len(x) == 600  # six of the ten: five are too few
    rows = {tuple(row) for row in MANY.tensors[0].tolist()}
    assert len({tuple(row) for row in x.tolist()} & rows) == 600
    assert not torch.equal(x[:100], MANY.tensors[0][:100])
    v = normal(p.size)
    assert_same(wc.Hessian(p) @ v, dense_hessian(mlp(), nn.CrossEntropyLoss(), (x, y)) @ v)


def test_a_loader_that_is_the_same_every_time_is_measured_whole() -> None:
    whole = DataLoader(MANY, batch_size=100)
    p = problem(whole)
    assert (p.batches, p.held, p.notes) == (whole, "", [])
    v = normal(p.size)
    assert_same(wc.Hessian(p) @ v, dense_hessian(mlp(), nn.CrossEntropyLoss(), MANY.tensors) @ v)


def test_nothing_is_read_before_it_is_needed_and_then_few_examples() -> None:
    class Counted(TensorDataset):
        read = 0

        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            Counted.read += 1
            return super().__getitem__(index)

    data = Counted(*MANY.tensors)
    p = problem(DataLoader(data, batch_size=50, shuffle=True))
    assert (Counted.read, p.cost.u) == (0, 0)
    assert len(p.batches) == 11
    assert Counted.read <= 600  # a batch is read to see whether there are more
    Counted.read = 0
    p = problem(DataLoader(data, batch_size=50))
    assert p.held == ""
    assert Counted.read <= 300
    Counted.read = 0
    other = wc.Problem(mlp(), nn.CrossEntropyLoss(), p.source)
    assert other.batches is p.batches
    assert Counted.read == 0


OWN: list[tuple[Any, Any]] = [
    ((own := random.Random(3)), own.getstate),
    ((own := np.random.RandomState(3)), lambda own=own: str(own.get_state())),
    ((own := np.random.default_rng(3)), lambda own=own: own.bit_generator.state),
]


@pytest.mark.parametrize(("own", "state"), OWN, ids=["python", "numpy", "generator"])
def test_generators_of_the_user_do_not_advance(own: Any, state: Any) -> None:
    generator = torch.Generator().manual_seed(5)

    def states() -> list[Any]:
        of_torch = [torch.get_rng_state().tolist(), generator.get_state().tolist()]
        return [*of_torch, random.getstate(), str(np.random.get_state()), state()]

    before = states()
    p = problem(DataLoader(Augmented("own", own), batch_size=3, shuffle=True, generator=generator))
    assert len(p.batches) == 2
    assert states() == before
    with p.measuring(), contextlib.closing(p.draws(1)) as drawn:
        for _ in range(5):
            next(drawn)
    assert states() == before


def test_the_same_is_held_wherever_the_user_is_in_training() -> None:
    generator = torch.Generator()
    held = []
    for seed in (1, 2):
        generator.manual_seed(seed)
        held.append(problem(DataLoader(MANY, 8, shuffle=True, generator=generator)).batches[0][0])
    assert torch.equal(*held)


def test_draws_are_fresh_over_all_data_and_fixed_by_a_seed() -> None:
    p = problem(DataLoader(MANY, batch_size=100, sampler=RandomSampler(MANY)))

    def epochs(seed: int) -> list[Tensor]:
        with p.measuring(), contextlib.closing(p.draws(seed)) as drawn:
            return [torch.cat([next(drawn)[0] for _ in range(10)]) for _ in range(2)]

    (first, second), again, other = epochs(0), epochs(0), epochs(7)
    assert torch.equal(first, again[0])
    assert not torch.equal(first, second)
    assert not torch.equal(first, other[0])
    for epoch in (first, second):
        assert torch.equal(epoch.sort(0).values, MANY.tensors[0].sort(0).values)


def test_persistent_workers_that_the_user_reads_are_not_disturbed() -> None:
    data = DataLoader(MANY, batch_size=250, num_workers=1, persistent_workers=True, shuffle=True)
    reading = iter(data)
    next(reading)
    assert len(problem(data).batches) == 3
    assert len(list(reading)) == 3
    assert data._iterator is reading


class Side:
    """Inputs and targets from two loaders, each with a generator of its own."""

    def __init__(self, *seeds: int) -> None:
        numbers = torch.arange(64.0)[:, None]
        self.loaders = [
            DataLoader(TensorDataset(numbers), 8, shuffle=True, generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        ]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for (x,), (y,) in zip(*self.loaders, strict=True):
            yield x, y


@pytest.mark.parametrize(("seeds", "are_pairs"), [((3, 3), True), ((3, 4), False)])
def test_two_loaders_shuffle_apart_or_alike_as_they_do_in_training(seeds: tuple[int, int], are_pairs: bool) -> None:
    problem = wc.Problem(nn.Linear(1, 1), nn.MSELoss(), Side(*seeds))
    with problem.measuring(), contextlib.closing(problem.data()) as data:
        assert all(torch.equal(x, y) for _, (x, y) in data) is are_pairs


@pytest.mark.slow
def test_the_loader_of_ray_train_is_read_as_often_as_the_one_inside() -> None:
    """It is an iterator itself, that begins anew whenever somebody reads it."""
    ray_torch = pytest.importorskip("ray.train.torch.train_loop_utils")
    plain = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=16, shuffle=True)
    wrapped = ray_torch._WrappedDataLoader(plain, torch.device("cpu"), auto_transfer=False)
    problem = wc.Problem(nn.Linear(4, 1), nn.MSELoss(), wrapped)
    place = iter(wrapped)
    next(place)
    assert wc.diagnose(problem).parameters == 5
    assert [len(next(place)[0]) for _ in range(3)] == [16, 16, 16]  # the loop that reads it is where it was
    with pytest.raises(StopIteration):
        next(place)
