"""What is held out is never trained on, whatever the loader; and the user's loader stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from wellcond.network.calling import tensors_in
from wellcond.problem.batches import Source
from wellcond.problem.held_out import HeldOut, held_out

CPU = torch.device("cpu")
X = torch.arange(100.0)[:, None]
DATA = TensorDataset(X, X)


def split(batches: Any, **options: Any) -> HeldOut:
    return held_out(Source(batches, CPU), CPU, **options)


def examples(batches: Any) -> list[float]:
    """The first tensor of every batch names the examples."""
    return [float(value) for batch in batches for value in tensors_in(batch)[0].reshape(-1)]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(X)


class Sixes:
    """A user's own sampler of batches, which makes its own order."""

    def __iter__(self) -> Iterator[list[int]]:
        return (part.tolist() for part in torch.randperm(100).split(6))

    def __len__(self) -> int:
        return 17


class Passes:
    """An iterable of batches that are the same on every pass."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x, x) for x in X.repeat(self.count, 1).split(5)[: self.count])


def firsts(pairs: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {"x": torch.stack([x for x, _ in pairs])}


CASES: dict[str, tuple[Any, int]] = {
    "shuffled": (DataLoader(DATA, batch_size=8, shuffle=True), 20),
    "in order": (DataLoader(DATA, batch_size=8), 20),
    "drop_last": (DataLoader(DATA, batch_size=8, shuffle=True, drop_last=True), 19),
    "own collate_fn": (DataLoader(DATA, batch_size=8, collate_fn=firsts), 20),
    "weighted": (DataLoader(DATA, batch_size=8, sampler=WeightedRandomSampler([1.0] * 100, 300)), 18),
    "a subset": (DataLoader(DATA, batch_size=8, sampler=SubsetRandomSampler(range(0, 100, 2))), 10),
    "batches of a sampler": (DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 8, False)), 20),
    "own sampler of batches": (DataLoader(DATA, batch_sampler=Sixes()), 20),
    "without batches": (DataLoader(DATA, batch_size=None), 16),
    "a stream": (DataLoader(Stream(), batch_size=4), 20),
    "one batch": ((X, X), 20),
    "few batches": ([(x, x) for x in X.split(20)], 20),
    "many batches": ([(x, x) for x in X.split(4)], 20),
    "dicts": ([{"x": x, "labels": x} for x in X.split(20)], 20),
    "an iterable": (Passes(30), 30),
    "batches that cannot be cut": ([(x, x[:1]) for x in X.split(10)], 50),
}  # fmt: skip


@pytest.mark.parametrize(("batches", "count"), CASES.values(), ids=CASES)
def test_what_is_held_out_is_not_trained_on(batches: Any, count: int) -> None:
    parts = split(batches)
    held = examples(parts.batches)
    assert len(held) == count
    if not isinstance(batches, Passes):  # whose examples come several times
        assert len(set(held)) == count
        for _ in range(3):
            assert not set(held) & set(examples(parts.training))
    assert examples(split(batches).batches) == held  # always the same
    assert set(examples(parts.choosing)) | set(examples(parts.judging)) == set(held)
    assert len(parts.judging) >= 2


def test_the_sampler_the_batch_size_and_the_length_stay() -> None:
    loader = DataLoader(DATA, batch_size=8, shuffle=True)
    training: Any = split(loader).training
    assert len(training) == 10
    assert [len(x) for x, _ in training] == [8] * 10
    assert examples(training) != examples(training)  # it still shuffles
    assert len(loader) == 13


def test_neither_the_loader_nor_random_numbers_advance() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(DATA, batch_size=8, shuffle=True, generator=generator)
    states = [generator.get_state(), torch.get_rng_state()]
    split(loader)
    assert all(torch.equal(a, b) for a, b in zip(states, [generator.get_state(), torch.get_rng_state()], strict=True))


def test_a_class_that_comes_every_fifth_time_is_not_all_that_is_held_out() -> None:
    labels = torch.arange(100) % 5
    held = split(DataLoader(TensorDataset(labels, labels), batch_size=10)).batches
    assert set(examples(held)) == {0.0, 1.0, 2.0, 3.0, 4.0}


class Windows(torch.utils.data.Dataset[Any]):
    """Pieces of one sequence, and the same one further on."""

    sequence = torch.arange(300.0)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.sequence[i : i + 16], self.sequence[i + 1 : i + 17]

    def __len__(self) -> int:
        return len(self.sequence) - 16


def test_of_windows_that_overlap_the_last_are_held_out_with_a_gap() -> None:
    parts = split(DataLoader(Windows(), batch_size=8, shuffle=True))
    held = set(examples(parts.batches))
    assert min(held) > max(examples(parts.training))
    assert len(held) > 56
    assert "the last fifth, windows that overlap" in parts.about


def test_blank_margins_do_not_overlap() -> None:
    images = torch.zeros(100, 8, 8)
    images[:, 3:5] = torch.arange(100.0)[:, None, None] + torch.arange(8.0)
    assert "one in 5" in split(DataLoader(TensorDataset(images), batch_size=8)).about


def test_large_data_lose_no_more_than_is_enough() -> None:
    x = torch.arange(20_000.0)[:, None]
    assert len(examples(split(DataLoader(TensorDataset(x), batch_size=100)).batches)) == 512


def test_validation_is_taken_instead() -> None:
    parts = split((X, X), validation=DataLoader(TensorDataset(-X[:30], X[:30]), batch_size=10))
    assert sorted(examples(parts.batches)) == sorted((-X[:30]).reshape(-1).tolist())
    assert len(examples(parts.training)) == 100


@pytest.mark.parametrize("batches", [(X[:10], X[:10]), DataLoader(TensorDataset(X[:10]), batch_size=5), [(X, X[:1])]])
def test_of_too_few_nothing_is_held_out_and_it_says_so(batches: Any) -> None:
    parts = split(batches)
    assert parts.batches == ()
    assert parts.about.startswith("training: ")
    assert "pass validation=" in parts.about


class Reshuffled(Passes):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x, x) for x in X[torch.randperm(100)].split(4)[: self.count])


def test_a_loader_with_an_order_of_its_own_is_said_to_leak() -> None:
    assert "some of them may be trained on too" in split(Reshuffled(25)).about
    assert "some of them may be trained on too" not in split(Passes(25)).about
