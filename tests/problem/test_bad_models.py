"""Models that cannot be measured, and NaN wherever it comes from, are answered by its name and place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loss_zoo import LOSSES
from measuring import BATCH, loader, measure
from torch import Tensor, nn
from zoo import ARCHITECTURES, Transformer, integers, mlp, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem, NonFinite, UnknownLayer

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
    with pytest.raises(NonFinite, match=r"parameter '2.bias' holds NaN or inf"):
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
    with pytest.raises(InvalidProblem, match=r"'0.weight' has no shape yet.*one forward pass"):
        wc.Problem(nn.Sequential(nn.LazyLinear(3)), nn.CrossEntropyLoss(), BATCH)


def test_an_embedding_that_writes_to_its_own_weight() -> None:
    with pytest.raises(InvalidProblem, match=r"'0' has max_norm.*max_norm = None"):
        wc.Problem(nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)), nn.CrossEntropyLoss(), BATCH)


@pytest.mark.parametrize("name", ["0.wieght", "1", "fc"])
def test_an_unknown_layer_is_answered_by_the_closest(name: str) -> None:
    problem = wc.Problem(mlp(), nn.CrossEntropyLoss(), BATCH)
    with pytest.raises(UnknownLayer, match=f"no layer or parameter '{name}' here. Closest: '0"):
        wc.Hessian(problem, layers=[name])
    with pytest.raises(KeyError):
        wc.Hessian(problem).layer(name)


def test_a_frozen_layer_is_named_as_frozen() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    with pytest.raises(InvalidProblem, match="'0' is frozen"):
        wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), BATCH), layers=["0"])


def test_inputs_of_the_wrong_shape_name_the_batch_and_the_layer() -> None:
    batches = [BATCH, (normal(6, 5), BATCH[1])]
    with pytest.raises(InvalidProblem, match=r"batch 1 does not go through layer '0' \(Linear\): mat1 and mat2"):
        measure(mlp(), nn.CrossEntropyLoss(), batches)
    with pytest.raises(InvalidProblem, match=r"batch 0 does not go through layer '0' \(Conv2d\)"):
        wc.conditioning(ARCHITECTURES["cnn_batch"]().problem(batches=[(normal(2, 5, 4, 4), integers(3, 2))]))


def test_code_outside_of_layers_is_named_by_its_class() -> None:
    class Adds(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.ones(7))

    with pytest.raises(InvalidProblem, match=r"batch 0 does not go through Adds\.forward: The size of tensor"):
        measure(Adds(4, 3).double(), nn.CrossEntropyLoss(), BATCH)


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
