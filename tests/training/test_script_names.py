"""Lines in the names of the script that they are printed for: pasted below it, they run and change what it uses."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import wellcond as wc
from wellcond.training.script_names import ScriptNames, made_loss

SCRIPT = """
import torch
import wellcond
torch.manual_seed(0)
x, y = wellcond.digits()
net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
{loss}
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 64)
opt = torch.optim.SGD(net.parameters(), lr={lr})
diagnosis = wellcond.diagnose(wellcond.Problem(net, {criterion}, data), opt)
"""


def finding(names: dict[str, Any], rule: str) -> Any:
    return next(each for each in names["diagnosis"].findings if each.rule == rule)


@pytest.mark.slow
def test_a_race_is_pasted_below_a_script_with_names_of_its_own() -> None:
    names: dict[str, Any] = {}
    exec(SCRIPT.format(loss="criterion = torch.nn.CrossEntropyLoss()", criterion="criterion", lr=1e-6), names)
    remedy = finding(names, "learning-rate-too-low").remedy
    assert "loss" not in remedy
    exec(remedy, names)
    assert names["opt"].param_groups[0]["lr"] > 1e-4


@pytest.mark.slow
def test_a_loss_is_wrapped_under_the_name_that_the_script_calls() -> None:
    names: dict[str, Any] = {}
    own = 'criterion = torch.nn.CrossEntropyLoss(reduction="sum")'
    exec(SCRIPT.format(loss=own, criterion="criterion", lr=1e-4), names)
    outputs, y = names["net"](names["x"][:64]), names["y"][:64]
    exec(finding(names, "summed-loss").remedy, names)
    mean = nn.functional.cross_entropy(outputs, y)
    assert float(names["criterion"](outputs, y).detach()) == pytest.approx(float(mean.detach()), rel=1e-6)


@pytest.mark.slow
def test_a_loss_without_a_name_is_made_again() -> None:
    names: dict[str, Any] = {}
    inline = 'torch.nn.CrossEntropyLoss(reduction="sum")'
    exec(SCRIPT.format(loss="", criterion=inline, lr=1e-4), names)
    outputs, y = names["net"](names["x"][:64]), names["y"][:64]
    exec(finding(names, "summed-loss").remedy, names)  # which imports nn, too
    mean = nn.functional.cross_entropy(outputs, y)
    assert float(names["loss"](outputs, y).detach()) == pytest.approx(float(mean.detach()), rel=1e-6)


class Own(nn.MSELoss):
    pass


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (nn.MSELoss(), "loss = nn.MSELoss()"),
        (nn.SmoothL1Loss(beta=0.5), "loss = nn.SmoothL1Loss(beta=0.5)"),
        (nn.CrossEntropyLoss(label_smoothing=0.1), "loss = nn.CrossEntropyLoss(label_smoothing=0.1)"),
        (nn.functional.mse_loss, "loss = nn.functional.mse_loss"),
        (nn.CrossEntropyLoss(torch.ones(3)), ""),  # the weights are not known by a name
        (Own(), ""),
        (lambda outputs, targets: outputs.mean(), ""),
        (functools.partial(nn.functional.mse_loss, reduction="sum"), ""),
        (None, ""),
    ],
)
def test_a_loss_of_torch_is_written_with_the_settings_that_it_has(loss: Any, line: str) -> None:
    assert made_loss(wc.Problem(nn.Linear(2, 1), loss, (torch.ones(4, 2), torch.ones(4, 1)))) == line


def test_only_variables_are_renamed() -> None:
    script = ScriptNames({"model": "net", "loss": "criterion", "loader": "loader"})
    code = 'problem = wc.Problem(model, loss=loss, batches=loader)  # model and loss\nproblem.model.loss["loss"] = loss'
    expected = (
        "problem = wc.Problem(net, loss=criterion, batches=loader)  # model and loss\n"
        'problem.model.loss["loss"] = criterion'
    )
    assert script.lines(code) == expected


def test_a_name_that_lines_use_for_something_else_is_assigned_first() -> None:
    code = "for p in model.parameters():\n    p.requires_grad_()"
    assert ScriptNames({"model": "p"}).lines(code) == f"model = p\n{code}"


def test_the_names_of_a_function_are_those_of_its_variables() -> None:
    def main() -> ScriptNames:
        network, square = nn.Linear(2, 1), nn.MSELoss()
        batches = [(torch.ones(4, 2), torch.ones(4, 1))]
        adam = torch.optim.Adam(network.parameters())
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 10)
        assert cosine.last_epoch == 0
        return ScriptNames.of_caller(wc.Problem(network, square, batches), adam)

    expected = {"model": "network", "loss": "square", "loader": "batches", "optimizer": "adam", "scheduler": "cosine"}
    assert main().names == expected


def test_lines_that_are_no_python_stay_as_they_are() -> None:
    for text in ("# look at the labels", "return (model", ""):
        assert ScriptNames({"model": "net"}, {"model": "model = 1"}).lines(text) == text


def test_the_name_of_a_training_step_is_that_of_its_function() -> None:
    def squares(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    model = nn.Linear(2, 1)
    script = ScriptNames.of_caller(wc.Problem.from_step(model, squares, torch.ones(4, 2)))
    assert script.lines("step_of_unscaled = training_step") == "step_of_unscaled = squares"


class Loop:
    """A class that trains, as in many scripts: everything is an attribute."""

    def __init__(self, lr: float = 0.1, reduction: str = "mean") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
        self.criterion = nn.CrossEntropyLoss(reduction=reduction)
        self.train_loader = [tuple(part[:64] for part in wc.digits())]
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 10)

    def names(self) -> ScriptNames:
        problem = wc.Problem(self.model, self.criterion, self.train_loader)  # problem.model is no name to train by
        return ScriptNames.of_caller(problem, self.optimizer)

    def loss(self) -> float:
        (batch,) = self.train_loader
        return float(self.criterion(self.model(batch[0]), batch[1]).detach())


OF_LOOP = {
    "model": "self.model",
    "loss": "self.criterion",
    "loader": "self.train_loader",
    "optimizer": "self.optimizer",
    "scheduler": "self.schedule",
}


def test_in_a_method_names_are_attributes_of_self() -> None:
    assert Loop().names().names == OF_LOOP


def test_outside_of_it_they_are_attributes_of_the_object() -> None:
    loop = Loop()
    script = ScriptNames.of_caller(wc.Problem(loop.model, loop.criterion, loop.train_loader), loop.optimizer)
    assert script.names["model"] == "loop.model"
    assert script.names["optimizer"] == "loop.optimizer"


def test_lines_with_attributes_can_be_pasted_into_the_method() -> None:
    """An attribute can be assigned, but it is neither the name of a function nor that of a parameter."""
    script = ScriptNames(OF_LOOP)
    new = "model = wc.nn.with_standardized_inputs(model, loader)\noptimizer = torch.optim.Adam(model.parameters())"
    of_a_function = "def loss(outputs, targets, summed=loss):\n    return summed(outputs, targets) / 64"
    of_a_parameter = "apply = lambda model: model.eval()\napply(model)"
    loop = Loop(reduction="sum")
    names = {"self": loop, "wc": wc, "torch": torch}
    before = loop.loss()
    exec(script.lines(of_a_function), names)
    assert loop.loss() == pytest.approx(before / 64)
    exec(script.lines(new), names)
    assert isinstance(loop.optimizer, torch.optim.Adam)
    assert loop.optimizer.param_groups[0]["params"][0] is next(loop.model.parameters())
    exec(script.lines(of_a_parameter), names)
    assert not loop.model.training
    exec(script.lines("apply = lambda model: nn.Sequential(model)\nmodel = apply(model)"), {**names, "nn": nn})
    assert len(loop.model) == 1
