"""Every mistake a user can make with a problem is answered by a sentence that says what to write instead."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from zoo import ARCHITECTURES, LOSSES, Case, Transformer, integers, mlp, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, NotDeterministic, UnknownLayer

BATCH = (normal(6, 4), integers(3, 6))


def measure(model: nn.Module, loss: Any, batches: Any, **options: Any) -> Tensor:
    problem = wc.Problem(model, loss, batches, **options)
    return wc.Hessian(problem) @ torch.ones(problem.size)


def loader(inputs: Tensor = BATCH[0], targets: Tensor = BATCH[1], **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(inputs, targets), **({"batch_size": 2} | options))


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
    with pytest.raises(InvalidProblem, match='reduction="sum".*Write reduction="mean"'):
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
def test_targets_that_do_not_fit_the_outputs(loss: Any, targets: Tensor, message: str) -> None:
    with pytest.raises(InvalidProblem, match=f"the loss fails on batch 0.*{message}"):
        measure(mlp(), loss, (BATCH[0], targets))


def test_a_batch_of_one_through_batchnorm_names_the_layer() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    with pytest.raises(InvalidProblem, match=r"layer '1' \(BatchNorm1d\): Expected more than 1 value per channel"):
        measure(model, nn.CrossEntropyLoss(), (BATCH[0][:1], BATCH[1][:1]))
    measure(model, nn.CrossEntropyLoss(), (BATCH[0][:1], BATCH[1][:1]), batchnorm="running")


# numbers that are not


def test_nan_in_the_inputs_names_the_batch() -> None:
    inputs = BATCH[0].clone()
    inputs[3, 1] = float("nan")
    for batches in (loader(inputs), list(loader(inputs))):
        with pytest.raises(NonFinite, match="the inputs of batch 1 hold NaN or inf"):
            measure(mlp(), nn.CrossEntropyLoss(), batches)


def test_nan_in_the_targets_names_the_batch() -> None:
    targets = normal(6, 3)
    targets[5, 0] = float("inf")
    with pytest.raises(NonFinite, match="the targets of batch 2 hold NaN or inf"):
        measure(mlp(), nn.MSELoss(), loader(targets=targets))


def test_nan_in_the_weights_names_the_parameter() -> None:
    model = mlp()
    model[2].bias.data[1] = float("nan")
    with pytest.raises(NonFinite, match="parameter '2.bias' holds NaN or inf"):
        measure(model, nn.CrossEntropyLoss(), BATCH)


class Logarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.log()


class Functional(nn.Module):
    def __init__(self, at_the_end: bool) -> None:
        super().__init__()
        self.fc1, self.fc2, self.at_the_end = nn.Linear(4, 3), nn.Linear(3, 3), at_the_end

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x)).log() if self.at_the_end else self.fc2(self.fc1(x).log())


@pytest.mark.parametrize(
    ("model", "culprit"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), Logarithm(), nn.Linear(3, 3)), "layer '1'"),
        (lambda: Functional(False), "the code just before layer 'fc2'"),
        (lambda: Functional(True), "the code after the last layer of Functional"),
    ],
)
def test_nan_made_inside_the_model_names_the_place(model: Any, culprit: str) -> None:
    with pytest.raises(NonFinite, match=f"{culprit} is the first to give NaN or inf, on batch 0"):
        measure(seeded(model), nn.CrossEntropyLoss(), BATCH)


def test_a_batch_of_ignored_targets_has_no_mean() -> None:
    case = LOSSES["ignore_index"]()
    targets = torch.tensor([0, 1, 2, 1, -100, -100])
    with pytest.raises(NonFinite, match=r"loss of batch 2 .*all ignored\?"):
        measure(case.model, case.loss, loader(targets=targets))


# the model


def test_a_frozen_model() -> None:
    with pytest.raises(InvalidProblem, match=r"no trainable parameters; call model\.requires_grad_\(\)"):
        wc.Problem(mlp().requires_grad_(False), nn.CrossEntropyLoss(), BATCH)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights(dtype: torch.dtype) -> None:
    with pytest.raises(InvalidProblem, match=r"'0\.weight' is b?float16.*copy\.deepcopy\(model\)\.float\(\)"):
        wc.Problem(mlp().to(dtype), nn.CrossEntropyLoss(), BATCH)


def test_weights_of_several_dtypes() -> None:
    model = mlp()
    model[2].float()
    with pytest.raises(InvalidProblem, match="float32 on cpu and float64 on cpu; use one"):
        wc.Problem(model, nn.CrossEntropyLoss(), BATCH)


def test_a_lazy_layer() -> None:
    with pytest.raises(InvalidProblem, match="'0.weight' has no shape yet.*one forward pass"):
        wc.Problem(nn.Sequential(nn.LazyLinear(3)), nn.CrossEntropyLoss(), BATCH)


def test_an_embedding_that_writes_to_its_own_weight() -> None:
    with pytest.raises(InvalidProblem, match="'0' has max_norm.*max_norm = None"):
        wc.Problem(nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)), nn.CrossEntropyLoss(), BATCH)


@pytest.mark.parametrize("name", ["0.wieght", "1", "fc"])
def test_an_unknown_layer_is_answered_by_the_closest(name: str) -> None:
    problem = wc.Problem(mlp(), nn.CrossEntropyLoss(), BATCH)
    with pytest.raises(UnknownLayer, match=f"no layer or parameter '{name}' here. Closest: '0"):
        wc.Hessian(problem, [name])
    with pytest.raises(KeyError):
        wc.Hessian(problem).layer(name)


def test_a_frozen_layer_is_named_as_frozen() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    with pytest.raises(InvalidProblem, match="'0' is frozen"):
        wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), BATCH), ["0"])


def test_inputs_of_the_wrong_shape_name_the_batch_and_the_layer() -> None:
    batches = [BATCH, (normal(6, 5), BATCH[1])]
    with pytest.raises(InvalidProblem, match=r"batch 1 does not go through layer '0' \(Linear\): mat1 and mat2"):
        measure(mlp(), nn.CrossEntropyLoss(), batches)
    with pytest.raises(InvalidProblem, match=r"batch 0 does not go through layer '0' \(Conv2d\)"):
        wc.conditioning(ARCHITECTURES["cnn_batch"]().problem(batches=[(normal(2, 5, 4, 4), integers(3, 2))]))


def test_inputs_of_the_wrong_dtype_say_so() -> None:
    with pytest.raises(InvalidProblem, match="The inputs are float64 and the model is float32: convert"):
        measure(mlp().float(), nn.CrossEntropyLoss(), BATCH)


def test_tokens_outside_the_vocabulary_name_the_embedding() -> None:
    batch = (torch.full((2, 3), 7), integers(3, 2, 3))
    with pytest.raises(InvalidProblem, match=r"layer 'embed' \(Embedding\): index out of range"):
        measure(seeded(Transformer), lambda f, y: F.cross_entropy(f.flatten(0, 1), y.flatten()), batch)


def test_the_models_own_exceptions_are_passed_on() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("not yet")

    with pytest.raises(NotImplementedError, match="not yet"):
        measure(nn.Sequential(Own(4, 3).double()), nn.CrossEntropyLoss(), BATCH)


# what changes from pass to pass


def test_a_shuffling_loader() -> None:
    with pytest.raises(NotDeterministic, match=r"shuffle=True.*list\(loader\)"):
        measure(mlp(), nn.CrossEntropyLoss(), loader(shuffle=True))


class Augmented(Dataset[Any]):
    """Examples that differ from pass to pass, by one of three sources of chance."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = BATCH[0][index]
        if self.source == "flip":
            return (x.flip(0) if torch.rand(()) < 0.5 else x), BATCH[1][index]
        noise = {"torch": lambda: torch.rand(()).item(), "numpy": np.random.rand, "python": random.random}
        return x + noise[self.source](), BATCH[1][index]


@pytest.mark.parametrize("source", ["torch", "numpy", "python", "flip"])
def test_a_random_augmentation(source: str) -> None:
    with pytest.raises(NotDeterministic, match="other data on its second pass, first in batch 0: a random aug"):
        measure(mlp(), nn.CrossEntropyLoss(), DataLoader(Augmented(source), batch_size=3))


def test_a_fixed_draw_of_an_augmented_loader_is_measured() -> None:
    assert torch.isfinite(
        measure(mlp(), nn.CrossEntropyLoss(), list(DataLoader(Augmented("torch"), batch_size=3)))
    ).all()


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.dropout(self.fc1(x), 0.5))  # training=True is the default


def test_functional_dropout_that_never_stops() -> None:
    with pytest.raises(
        NotDeterministic, match="layer 'fc2', or the code just before it, draws random numbers.*training=True"
    ):
        measure(seeded(FunctionalDropout), nn.CrossEntropyLoss(), BATCH)


# what looks odd and is right


def test_integer_inputs_work() -> None:
    case = ARCHITECTURES["transformer"]()
    assert case.batch[0].dtype == torch.int64
    assert torch.isfinite(wc.GGN(case.problem()) @ torch.ones(case.problem().size)).all()


def dropout_case() -> Case:
    case = ARCHITECTURES["mlp_tanh"]()
    model = nn.Sequential(case.model[0], nn.Dropout(0.5), case.model[1], case.model[2])
    return Case(model, case.loss, case.batch, case.terms)


def test_float64_targets_of_a_float32_model_work() -> None:
    expected = dense_hessian(mlp(), nn.MSELoss(), (BATCH[0], normal(6, 3))) @ torch.ones(43, dtype=torch.float64)
    found = measure(mlp().float(), nn.MSELoss(), (BATCH[0].float(), normal(6, 3)))
    assert found.dtype == torch.float32
    assert_same(found, expected, 1e-5)


def test_dropout_with_a_seed_keeps_its_masks() -> None:
    case = dropout_case()
    first, again, other, off = (wc.Hessian(case.problem(dropout=seed)).dense() for seed in (3, 3, 4, None))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert_same(off, dense_hessian(case.model, case.loss, case.batch))
    # the masks are those of the seed
    with torch.random.fork_rng():
        torch.manual_seed(3)
        mask = F.dropout(torch.ones(6, 5, dtype=torch.float64), 0.5)

    class Masked(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * mask

    masked = nn.Sequential(case.model[0], Masked(), case.model[2], case.model[3])
    assert_same(first, dense_hessian(masked, case.loss, case.batch))


def test_dropout_is_on_in_the_same_way_in_every_product_over_batches() -> None:
    case = dropout_case()
    operator = wc.Hessian(case.problem(batches=loader(), dropout=3))
    assert_same(operator.dense(), operator.dense(), 1e-15)
