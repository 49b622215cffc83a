"""Whatever a model is wrapped in, made of or given, its curvature is the same."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from layer_zoo import LAYERS
from references import assert_same, categorical, dense_ggn, dense_hessian
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo import ARCHITECTURES, CLASSES, Case, Written, integers, normal, seeded

import wellcond as wc
from wellcond.errors import InvalidProblem


@pytest.fixture
def case() -> Case:
    return ARCHITECTURES["cnn_batch"]()


# wrapped


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: model, compiled, compiled_in_place, nn.parallel.DistributedDataParallel, nn.DataParallel,
        lambda model: compiled(nn.DataParallel(model)),
    ],
    ids=["bare", "compiled", "compiled_in_place", "distributed", "data_parallel", "compiled_data_parallel"],
)  # fmt: skip
def test_a_wrapped_model_is_measured_as_the_module_inside(case: Case, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """With the Hessian, the GGN and the layer names of the bare one."""
    model = wrap(case.model)
    model(case.batch[0])  # compiled models have been compiled
    problem = wc.Problem(model, case.loss, [case.batch], case.batchnorm)
    assert list(problem.params) == [name for name, _ in case.model.named_parameters()]
    v = normal(problem.size)
    assert_same(wc.Hessian(problem) @ v, dense_hessian(case.model, case.loss, case.batch, case.batchnorm) @ v)
    assert_same(wc.GGN(problem) @ v, dense_ggn(case.model, case.loss, case.batch, case.batchnorm) @ v)
    assert list(wc.conditioning(problem)) == ["0", "4", "7"]
    assert list(wc.neurons(problem)) == ["0", "4"]


@pytest.mark.slow
def test_compiled_parts_are_measured_eagerly(case: Case) -> None:
    """The names keep torch's own prefix; the numbers are those of the bare model."""
    expected = dense_hessian(case.model, case.loss, case.batch)
    backend_calls = []

    def backend(graph: Any, _inputs: Any) -> Any:
        backend_calls.append(graph)
        return graph.forward

    case.model[0] = torch.compile(case.model[0], backend=backend)
    assert_same(wc.Hessian(case.problem()).dense(), expected)
    assert backend_calls == []
    case.model(case.batch[0])
    assert len(backend_calls) == 1  # and afterwards it is compiled again


# in the surroundings of a training script


def test_ambient_modes_do_not_reach_the_measurement(case: Case) -> None:
    v = normal(case.problem().size)
    expected = dense_hessian(case.model, case.loss, case.batch) @ v
    with torch.no_grad():
        assert_same(wc.Hessian(case.problem()) @ v, expected)
    with torch.inference_mode():
        assert_same(wc.Hessian(case.problem()) @ v, expected)


def test_mixed_precision_around_the_call_is_off_inside() -> None:
    case = ARCHITECTURES["mlp_tanh"]()
    model, batch = case.model.float(), (case.batch[0].float(), case.batch[1])
    v = normal(43).float()
    expected = wc.Hessian(wc.Problem(model, case.loss, batch)) @ v
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(wc.Hessian(wc.Problem(model, case.loss, batch)) @ v, expected)
        operator = wc.Hessian(wc.Problem(model, case.loss, batch))
    assert torch.equal(operator @ v, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer", "encoder_layer", "multihead_attention"])
@pytest.mark.parametrize("training", [True, False])
def test_attention_has_its_second_derivatives_in_either_mode(name: str, training: bool) -> None:
    """Fused kernels and the fast path of evaluation have none."""
    case = ARCHITECTURES[name]()
    case.model.train(training)
    v = normal(case.problem().size)
    assert_same(wc.Hessian(case.problem()) @ v, dense_hessian(case.model, case.loss, case.batch) @ v)


# made of


class CheckpointedBlock(nn.Module):
    """BatchNorm, dropout and attention, run once more in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn, self.dropout = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.head = nn.Linear(4, CLASSES)

    def block(self, x: Tensor) -> Tensor:
        h = self.dropout(self.bn(self.fc(x))).unsqueeze(1)
        return F.scaled_dot_product_attention(h, h, h).squeeze(1).tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.block, x, use_reentrant=False))


@pytest.mark.parametrize("training", [True, False])
def test_gradient_checkpointing_recomputes_in_the_measured_state(training: bool) -> None:
    """The graph of one batch is kept; its products run the block again, long after the forward pass."""
    model = seeded(CheckpointedBlock).train(training)
    case = Case(model, nn.CrossEntropyLoss(), (normal(6, 4), integers(CLASSES, 6)), categorical())
    before = model.bn.running_mean.clone()
    v = normal(case.problem().size)
    expected = dense_hessian(model, case.loss, case.batch) @ v
    operator = wc.Hessian(case.problem())
    assert_same(operator @ v, expected)
    assert_same(operator @ v, expected)
    assert torch.equal(model.bn.running_mean, before)


def test_tied_weights_are_one_set_of_parameters() -> None:
    case = LAYERS["tied_modules"]()
    assert list(case.problem().params) == ["embed.weight", "fc.weight", "fc.bias"]
    assert_same(wc.Hessian(case.problem()).dense(), dense_hessian(case.model, case.loss, case.batch))


# given


@pytest.mark.parametrize("kind", ["tuple", "list", "dict", "mapping"])
def test_several_inputs_go_into_a_tuple_or_a_dict(kind: str) -> None:
    image, extra, targets = normal(5, 4), normal(5, 2), integers(CLASSES, 5)
    named = {"image": image, "extra": extra}
    inputs = {"tuple": (image, extra), "list": [image, extra], "dict": named, "mapping": UserDict(named)}[kind]
    model = seeded(
        lambda: Written(
            lambda m, image, extra: m.fc1(image).tanh() * m.fc2(extra).tanh(),
            fc1=nn.Linear(4, CLASSES),
            fc2=nn.Linear(2, CLASSES),
        )
    )
    result = wc.Hessian(wc.Problem(model, nn.CrossEntropyLoss(), [(inputs, targets)])).dense()
    assert_same(result, dense_hessian(model, nn.CrossEntropyLoss(), (named, targets)))


def test_a_model_with_several_outputs_has_a_hessian_but_no_ggn() -> None:
    heads = lambda m, x: (m.fc1(x).tanh(), m.fc2(x).tanh())  # noqa: E731
    model = seeded(lambda: Written(heads, fc1=nn.Linear(4, 2), fc2=nn.Linear(4, 3)))
    batch = (normal(5, 4), (normal(5, 2), integers(3, 5)))
    loss = lambda f, y: F.mse_loss(f[0], y[0]) + F.cross_entropy(f[1], y[1])  # noqa: E731
    problem = wc.Problem(model, loss, [batch])
    assert_same(wc.Hessian(problem).dense(), dense_hessian(model, loss, batch))
    assert list(wc.conditioning(problem)) == ["fc1", "fc2"]
    with pytest.raises(InvalidProblem, match=r"no Jacobian of its outputs.*the Hessian works"):
        wc.GGN(problem).dense()
