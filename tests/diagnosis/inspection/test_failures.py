"""What fails inside an inspection is reported, and the rest of it is there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import integers, normal

import wellcond as wc
from wellcond.diagnosis.inspection import inspect as module
from wellcond.diagnosis.inspection.inspect import Inspection, inspect
from wellcond.diagnosis.inspection.signals import SeenAttention, Signals

PARTS = {
    "standardized": (module, "what standardized inputs would change", "standardized"),
    "loss_adds_up": (wc.Problem, "whether the loss is a sum over examples", "is_summed"),
    "_output_facts": (module, "the outputs and the loss", "output"),
    "turned_views": (module, "views that mix up dimensions", "turned"),
    "_weight_facts": (module, "the weights", "weights"),
}
"""By function: what owns it, what is reported when it raises, and the field that is missing then."""


def problem() -> wc.Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    return wc.Problem(model, nn.CrossEntropyLoss(), (100 * normal(16, 4), integers(3, 16)))


def burst(*_args: Any, **_options: Any) -> None:
    raise RuntimeError("no such kernel")


def test_nothing_fails_where_nothing_does() -> None:
    inspection = inspect(problem())
    assert inspection.failures == ()
    assert inspection.standardized is not None  # all parts were needed


@pytest.mark.parametrize("function", PARTS)
def test_a_part_that_raises_is_named_and_all_others_are_the_same(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, what, field = PARTS[function]
    whole = inspect(problem())
    monkeypatch.setattr(owner, function, burst)
    inspection = inspect(problem())
    assert [(each.what, each.error) for each in inspection.failures] == [(what, "RuntimeError: no such kernel")]
    assert getattr(inspection, field) == getattr(Inspection(), field)
    others = ("examples", "loss", "loss_depends", "standardized", "returned", "is_summed", "turned")
    assert all(getattr(inspection, each) == getattr(whole, each) for each in others if each != field)
    assert [signal.rms for signal in inspection.signals] == [signal.rms for signal in whole.signals]


@pytest.mark.slow
def test_a_diagnosis_says_what_could_not_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "standardized", burst)
    diagnosis = wc.diagnose(problem())
    _, what, _ = PARTS["standardized"]
    assert diagnosis.failed == {what: "RuntimeError: no such kernel"}
    assert f"{what}: RuntimeError: no such kernel" in " ".join(str(diagnosis).split())


def test_a_fault_of_the_recording_is_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Signals, "_see", burst)
    inspection = inspect(problem())
    assert inspection.forward_error == ""
    assert inspection.loss is not None
    assert [each.what for each in inspection.failures] == ["the signal of 0", "the signal of 1", "the signal of 2"]


def test_a_fault_in_reading_attention_is_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeenAttention, "_softmax", burst)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(self.fc(x), 1)

    inspection = inspect(wc.Problem(Gated().double(), nn.MSELoss(), (normal(8, 4), normal(8, 3))))
    assert inspection.forward_error == ""
    assert [each.what for each in inspection.failures] == ["the attention in fc"]


def test_a_fault_while_a_gradient_is_recorded_leaves_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = inspect(problem())
    monkeypatch.setattr("wellcond.diagnosis.inspection.seen.Seen.add_gradient", burst)
    inspection = inspect(problem())
    assert inspection.gradient_error == ""
    assert [weight.gradient for weight in inspection.weights] == [weight.gradient for weight in whole.weights]
    assert {each.what for each in inspection.failures} >= {"the gradient at 0", "the gradient at 2"}


def test_a_loader_that_raises_leaves_what_needs_no_data() -> None:
    class Loader:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            yield normal(8, 4), integers(3, 8)
            raise OSError("disk")

    model = nn.Linear(4, 3).double()
    inspection = inspect(wc.Problem(model, nn.CrossEntropyLoss(), Loader()))
    assert [(each.what, each.error) for each in inspection.failures] == [("all batches", "OSError: disk")]
    assert [weight.name for weight in inspection.weights] == ["weight", "bias"]
