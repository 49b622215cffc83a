"""Batches and losses that cannot be measured are answered by what to write instead."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measuring import BATCH, loader, measure
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from zoo import mlp, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem

# batches


@pytest.mark.parametrize("batches", [[], (), loader(batch_size=8, drop_last=True)], ids=["list", "tuple", "loader"])
def test_no_batches(batches: Any) -> None:
    with pytest.raises(InvalidProblem, match="the loader is empty"):
        measure(mlp(), nn.CrossEntropyLoss(), batches)


def test_an_iterable_data_set_without_examples() -> None:
    class Nothing(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(())

    with pytest.raises(InvalidProblem, match="the loader is empty"):
        measure(mlp(), nn.CrossEntropyLoss(), DataLoader(Nothing()))


def test_an_iterable_data_set_needs_no_length() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(list(zip(*BATCH, strict=True)))

    expected = measure(mlp(), nn.CrossEntropyLoss(), BATCH)
    assert_same(measure(mlp(), nn.CrossEntropyLoss(), DataLoader(Stream(), batch_size=4)), expected, 1e-12)


@pytest.mark.parametrize("batches", [iter([BATCH]), (b for b in [BATCH]), zip([BATCH[0]], [BATCH[1]], strict=True)])
def test_an_iterator_that_ends_after_one_pass(batches: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"ends after one pass; write list\(batches\)"):
        wc.Problem(mlp(), nn.CrossEntropyLoss(), batches)


@pytest.mark.parametrize("batches", [BATCH[0], None, 3])
def test_something_that_is_no_collection_of_batches(batches: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"write batches=\[\(inputs, targets\), …\]"):
        wc.Problem(mlp(), nn.CrossEntropyLoss(), batches)


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        (BATCH[0], "a Tensor of 6"),
        ((BATCH[0], BATCH[1], BATCH[1]), "a tuple of 3"),
        ({"x": BATCH[0], "y": BATCH[1]}, "a dict of 2"),
        (None, "a NoneType"),
    ],
    ids=["tensor", "triple", "dict", "none"],
)
def test_a_batch_that_is_not_a_pair(batch: Any, found: str) -> None:
    with pytest.raises(InvalidProblem, match=f"batch 1 is {found}, not a pair"):
        measure(mlp(), nn.CrossEntropyLoss(), [BATCH, batch])


def test_a_meaning_of_batchnorm_that_does_not_exist() -> None:
    with pytest.raises(InvalidProblem, match='"batch" or "running"'):
        wc.Problem(mlp(), nn.CrossEntropyLoss(), BATCH, "train")


# the loss


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(reduction="none"), lambda f, y: f, functools.partial(F.cross_entropy, reduction="none")],
)
def test_a_loss_that_is_not_one_number(loss: Any) -> None:
    with pytest.raises(InvalidProblem, match=r'must be one number.*shape \(6.*reduction="mean"'):
        measure(mlp(), loss, BATCH)


def test_a_loss_that_is_no_tensor() -> None:
    with pytest.raises(InvalidProblem, match=r"type float.*without \.item\(\)"):
        measure(mlp(), lambda f, y: F.cross_entropy(f, y).item(), BATCH)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(reduction="sum"), functools.partial(F.cross_entropy, reduction="sum")]
)
def test_a_loss_with_reduction_sum(loss: Any) -> None:
    with pytest.raises(InvalidProblem, match=r'reduction="sum".*Write reduction="mean"'):
        measure(mlp(), loss, BATCH)


@pytest.mark.parametrize("examples", [2, 5, 6])
def test_a_loss_that_sums_inside_a_lambda(examples: int) -> None:
    batch = (BATCH[0][:examples], BATCH[1][:examples])
    with pytest.raises(InvalidProblem, match="adds up over the batch"):
        measure(mlp(), lambda f, y: F.cross_entropy(f, y, reduction="sum"), batch)


def test_a_loss_with_weights_for_one_size_of_batch_works() -> None:
    weights = normal(6).exp()
    loss = lambda f, y: (weights * F.cross_entropy(f, y, reduction="none")).mean()  # noqa: E731
    expected = dense_hessian(mlp(), loss, BATCH) @ torch.ones(43, dtype=torch.float64)
    assert_same(measure(mlp(), loss, BATCH), expected)


def test_a_loss_that_does_not_depend_on_the_parameters() -> None:
    for loss in (lambda f, y: f.detach().mean(), lambda f, y: (f.argmax(1) == y).double().mean()):
        with pytest.raises(InvalidProblem, match=r"does not depend on.*detach"):
            measure(mlp(), loss, BATCH)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy])
def test_targets_out_of_range(loss: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"run from 1 to 3, but the model has 3 outputs \(classes 0 to 2\)"):
        measure(mlp(), loss, (BATCH[0], torch.tensor([1, 2, 3, 1, 2, 3])))


def test_targets_out_of_range_inside_a_lambda() -> None:
    with pytest.raises(InvalidProblem, match=r"fails on batch 0: Target 3 is out of bounds.*from 1 to 3"):
        measure(mlp(), lambda f, y: F.cross_entropy(f, y), (BATCH[0], torch.tensor([1, 2, 3, 1, 2, 3])))


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (nn.CrossEntropyLoss(), BATCH[1].int(), "int32 of shape"),
        (nn.CrossEntropyLoss(), BATCH[1][:4], r"shape \(4,\)"),
        (nn.MSELoss(), normal(6, 2), r"shape \(6, 2\)"),
    ],
    ids=["dtype", "fewer", "shape"],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_targets_that_do_not_fit_the_outputs(loss: Any, targets: Tensor, message: str) -> None:
    with pytest.raises(InvalidProblem, match=f"the loss fails on batch 0.*{message}"):
        measure(mlp(), loss, (BATCH[0], targets))


def test_a_batch_of_one_through_batchnorm_names_the_layer() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    with pytest.raises(InvalidProblem, match=r"layer '1' \(BatchNorm1d\): Expected more than 1 value per channel"):
        measure(model, nn.CrossEntropyLoss(), (BATCH[0][:1], BATCH[1][:1]))
    measure(model, nn.CrossEntropyLoss(), (BATCH[0][:1], BATCH[1][:1]), batchnorm="running")
