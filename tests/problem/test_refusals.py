"""What cannot be measured is answered by its cause and place, and by what to write instead."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loss_zoo import LOSSES
from measuring import BATCH, loader, measure
from references import assert_same, dense_hessian
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from zoo import ARCHITECTURES, Transformer, Written, flattened_cross_entropy, integers, mlp, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, UnknownLayer

X, Y = BATCH


class Stream(IterableDataset[Any]):
    """Examples without a known number of them."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __iter__(self) -> Any:
        return iter(list(zip(*BATCH, strict=True))[: self.examples])


class Adds(nn.Linear):
    """Fails in its own forward, not in a layer."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.ones(7))


def changed(change: Callable[[Any], Any]) -> nn.Module:
    model = mlp()
    change(model)
    return model


NO_BATCHES, ONE_PASS = "the loader is empty", r"ends after one pass; write list\(batches\)"
NO_COLLECTION = r"write batches=\[\(inputs, targets\), …\]"
NOT_ONE_NUMBER = r'must be one number.*shape \(6.*reduction="mean"'
NOT_A_MEAN = r'reduction="sum".*Write reduction="mean"'
NO_PARAMETERS = r"does not depend on.*detach"
ABOVE = torch.tensor([1, 2, 3, 1, 2, 3])
NO_SUCH_CLASS = r"run from 1 to 3, but the model has 3 outputs \(classes 0 to 2\)"
UNFIT = "the loss fails on batch 0.*"
COMPLEX = nn.Parameter(torch.ones(3, 4, dtype=torch.complex64))
HALF = r"'0\.weight' is b?float16.*copy\.deepcopy\(model\)\.float\(\)"

INVALID: dict[str, tuple[dict[str, Any], str]] = {
    # batches
    "empty_list": ({"batches": []}, NO_BATCHES),
    "empty_tuple": ({"batches": ()}, NO_BATCHES),
    "empty_loader": ({"batches": loader(batch_size=8, drop_last=True)}, NO_BATCHES),
    "empty_stream": ({"batches": DataLoader(Stream(0))}, NO_BATCHES),
    "iterator": ({"batches": iter([BATCH])}, ONE_PASS),
    "generator": ({"batches": (b for b in [BATCH])}, ONE_PASS),
    "zip": ({"batches": zip([X], [Y], strict=True)}, ONE_PASS),
    "none": ({"batches": None}, NO_COLLECTION),
    "number": ({"batches": 3}, NO_COLLECTION),
    "dataset": ({"batches": TensorDataset(X, Y)}, r"holds examples; write DataLoader"),
    "inputs_too_many": ({"batches": [((X, X), Y)]}, "batch 0 would be passed to Sequential with 2 inputs.*takes input"),
    "inputs_unknown": ({"batches": [({"images": X}, Y)]}, r"Sequential\(images\), but its forward takes input"),
    "batch_of_three": ({"batches": [BATCH, (X, Y, Y)]}, "fails on batch 1: .*The targets are a tuple; let the loss"),
    "batch_of_names": ({"batches": [{"x": X, "z": Y}]}, "batch 0 is a dict of x, z without targets"),
    "inputs_of_other_names": (
        {"batches": [{"a": X, "b": X, "labels": Y}]}, "batch 0 holds a, b, and Sequential.forward takes none of them"
    ),
    "batch_of_nothing": ({"batches": [BATCH, None]}, "batch 1 is a NoneType without targets"),
    "no_loss_inside": ({"loss": None}, r"has to return it, but it returns a Tensor of shape \(6, 3\)"),
    "batchnorm": ({"batchnorm": "train"}, '"batch" or "running"'),
    "inputs_and_targets_apart": ({"batches": X, "batchnorm": Y}, r"^batchnorm is a Tensor;.*loss, \(inputs, targets"),
    # losses
    "class": ({"loss": nn.CrossEntropyLoss}, r"class CrossEntropyLoss; write CrossEntropyLoss\(\), with brackets"),
    "name": ({"loss": "cross_entropy"}, r"loss is a str; write nn\.CrossEntropyLoss\(\), or a function"),
    "not_reduced": ({"loss": nn.CrossEntropyLoss(reduction="none")}, NOT_ONE_NUMBER),
    "not_reduced_partial": ({"loss": functools.partial(F.cross_entropy, reduction="none")}, NOT_ONE_NUMBER),
    "outputs": ({"loss": lambda f, y: f}, NOT_ONE_NUMBER),
    "float": ({"loss": lambda f, y: F.cross_entropy(f, y).item()}, r"type float.*without \.item\(\)"),
    "summed": ({"loss": nn.CrossEntropyLoss(reduction="sum")}, NOT_A_MEAN),
    "summed_partial": ({"loss": functools.partial(F.cross_entropy, reduction="sum")}, NOT_A_MEAN),
    **{
        f"summed_over_{n}": (
            {"loss": lambda f, y: F.cross_entropy(f, y, reduction="sum"), "batches": (X[:n], Y[:n])},
            "adds up over the batch",
        )
        for n in (2, 5, 6)
    },
    "detached": ({"loss": lambda f, y: f.detach().mean()}, NO_PARAMETERS),
    "accuracy": ({"loss": lambda f, y: (f.argmax(1) == y).double().mean()}, NO_PARAMETERS),
    # targets
    "classes_of_a_module": ({"batches": (X, ABOVE)}, NO_SUCH_CLASS),
    "classes_of_a_function": ({"loss": F.cross_entropy, "batches": (X, ABOVE)}, NO_SUCH_CLASS),
    "classes_of_a_lambda": (
        {"loss": lambda f, y: F.cross_entropy(f, y), "batches": (X, ABOVE)},
        "fails on batch 0: Target 3 is out of bounds.*from 1 to 3",
    ),
    "targets_dtype": ({"batches": (X, Y.int())}, UNFIT + "int32 of shape"),
    "fewer_targets": ({"batches": (X, Y[:4])}, UNFIT + r"shape \(4,\)"),
    "targets_shape": ({"loss": nn.MSELoss(), "batches": (X, normal(6, 2))}, UNFIT + r"shape \(6, 2\)"),
    # models
    "frozen": ({"model": mlp().requires_grad_(False)}, r"no trainable parameters; call model\.requires_grad_\(\)"),
    "meta": ({"model": mlp().to("meta")}, r"'0\.weight' is on the meta device.*load_state_dict"),
    "complex": (
        {"model": changed(lambda m: setattr(m[0], "weight", COMPLEX))},
        r"'0\.weight' is complex.*view_as_real",
    ),
    "float16": ({"model": mlp().to(torch.float16)}, HALF),
    "bfloat16": ({"model": mlp().to(torch.bfloat16)}, HALF),
    "two_dtypes": ({"model": changed(lambda m: m[2].float())}, "parameters are float32 and float64; use one dtype"),
    "lazy": ({"model": nn.Sequential(nn.LazyLinear(3))}, r"'0.weight' has no shape yet.*one forward pass"),
    "max_norm": (
        {"model": nn.Sequential(nn.Embedding(3, 2, max_norm=1.0))}, r"'0' has max_norm.*max_norm = None"
    ),
    # calls
    "input_shape": (
        {"batches": [BATCH, (normal(6, 5), Y)]}, r"batch 1 does not go through layer '0' \(Linear\): mat1 and mat2"
    ),
    "input_dtype": ({"model": mlp().float()}, "The inputs are float64 and the model is float32: convert"),
    "image_shape": (
        {"model": ARCHITECTURES["cnn_batch"]().model, "batches": (normal(2, 5, 4, 4), integers(3, 2))},
        r"batch 0 does not go through layer '0' \(Conv2d\)",
    ),
    "vocabulary": (
        {"model": seeded(Transformer), "loss": flattened_cross_entropy, "batches": (torch.full((2, 3), 7), Y)},
        r"layer 'embed' \(Embedding\): index out of range",
    ),
    "own_forward": (
        {"model": Adds(4, 3).double()}, r"batch 0 does not go through Adds\.forward: The size of tensor"
    ),
    "batchnorm_of_one": (
        {"model": seeded(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))), "batches": (X[:1], Y[:1])},
        r"layer '1' \(BatchNorm1d\): Expected more than 1 value per channel",
    ),
}  # fmt: skip


def measured(changes: dict[str, Any]) -> Tensor:
    return measure(**({"model": mlp(), "loss": nn.CrossEntropyLoss(), "batches": BATCH} | changes))


@pytest.mark.parametrize(("changes", "message"), INVALID.values(), ids=INVALID)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_what_is_wrong_is_named_with_the_cure(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        measured(changes)


def test_what_looks_wrong_and_is_not_is_measured() -> None:
    stream = measured({"batches": DataLoader(Stream(6), batch_size=4)})
    assert_same(stream, measured({}), 1e-12)
    weights = normal(6).exp()  # for one size of batch: halves of it cannot be evaluated
    loss = lambda f, y: (weights * F.cross_entropy(f, y, reduction="none")).mean()  # noqa: E731
    assert_same(measured({"loss": loss}), dense_hessian(mlp(), loss, BATCH) @ torch.ones(43, dtype=torch.float64))
    measured(INVALID["batchnorm_of_one"][0] | {"batchnorm": "running"})


def test_the_models_own_exceptions_are_passed_on() -> None:
    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("not yet")

    with pytest.raises(NotImplementedError, match="not yet"):
        measured({"model": nn.Sequential(Own(4, 3).double())})


@pytest.mark.parametrize("name", ["0.wieght", "1", "fc"])
def test_an_unknown_layer_is_answered_by_the_closest(name: str) -> None:
    problem = wc.Problem(mlp(), nn.CrossEntropyLoss(), BATCH)
    with pytest.raises(UnknownLayer, match=f"no layer or parameter '{name}' here. Closest: '0"):
        wc.Hessian(problem, layers=[name])
    with pytest.raises(KeyError):
        wc.Hessian(problem).layer(name)


def test_a_frozen_layer_is_named_as_frozen() -> None:
    model = changed(lambda m: m[0].requires_grad_(False))
    with pytest.raises(InvalidProblem, match="'0' is frozen"):
        wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), BATCH), layers=["0"])


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss, "cross_entropy", lambda f, y: F.cross_entropy(f, y).item()])
def test_what_is_no_loss_is_no_illness_of_the_network(loss: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"with brackets|loss is a str|type float.*without \.item\(\)"):
        wc.diagnose(wc.Problem(mlp(), loss, BATCH))


# numbers that are not


def logarithm(at_the_end: bool) -> nn.Module:
    forward = (lambda m, x: m.fc2(m.fc1(x)).log()) if at_the_end else (lambda m, x: m.fc2(m.fc1(x).log()))
    return seeded(lambda: Written(forward, fc1=nn.Linear(4, 3), fc2=nn.Linear(3, 3)))


def spoiled(tensor: Tensor, place: tuple[int, ...], value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[place] = value
    return tensor


FIRST = r" is the first to return NaN or infinity.* \(on batch 0\)"
NAN_INPUTS = loader(spoiled(X, (3, 1), math.nan))
IGNORED = torch.tensor([0, 1, 2, 1, -100, -100])
NOT_FINITE: dict[str, tuple[dict[str, Any], str]] = {
    "inputs_of_a_loader": ({"batches": NAN_INPUTS}, "the inputs of batch 1 hold 1 values"),
    "inputs_of_a_list": ({"batches": list(NAN_INPUTS)}, "the inputs of batch 1 hold 1 values"),
    "targets": (
        {"loss": nn.MSELoss(), "batches": loader(targets=spoiled(normal(6, 3), (5, 0), math.inf))},
        "the targets of batch 2 hold 1 values",
    ),
    "weights": (
        {"model": changed(lambda m: m[2].bias.data.index_fill_(0, torch.tensor(1), math.nan))},
        "parameter '2.bias' holds 1 values.*checkpoint",
    ),
    "layer": (
        {"model": seeded(lambda: nn.Sequential(nn.Linear(4, 3), Written(lambda _m, x: x.log()), nn.Linear(3, 3)))},
        rf"layer '1' \(Written\){FIRST}",
    ),
    "before_a_layer": ({"model": logarithm(at_the_end=False)}, f"the code just before layer 'fc2'{FIRST}"),
    "after_all": (
        {"model": logarithm(at_the_end=True)}, f"the code after the last layer of Written{FIRST}"
    ),
    "all_ignored": (
        {"loss": LOSSES["ignore_index"]().loss, "batches": loader(targets=IGNORED)}, r"loss of batch 2 .*all ignored\?"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_nan_is_said_with_the_place_it_comes_from(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NonFinite, match=message):
        measured(changes)
