"""The lines that a finding prints do to a user's script what the remedy does in `treat`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from script import Script, assert_same, described
from setups import CLASSES, RATE, SETUPS, network, setup, start_of_arm, table, treated
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import wellcond as wc
from wellcond.remedies import REMEDIES, Setup, lines_for
from wellcond.remedies.setup import AFTER_STEP, BEFORE_STEP

SCRIPT_RATE = {"adam": 1e-3, "sgd": 0.01, "scale-amended": 0.1}
"""The rate of a new optimizer as lines write it if no rate is given."""


def test_every_remedy_has_a_set_up_that_it_applies_to() -> None:
    assert SETUPS.keys() == REMEDIES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("is_rate_given", [True, False], ids=["with the rate of a race", "at the user's rate"])
@pytest.mark.parametrize("name", REMEDIES)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_the_lines_do_what_treat_tries(name: str, is_rate_given: bool) -> None:
    if name == "rate" and not is_rate_given:
        assert lines_for(name, SETUPS[name]()) == ""  # nothing to write without a rate
        return
    own = SETUPS[name]()
    script, untreated = Script(own), Script(own)
    lr = 0.02 if is_rate_given else SCRIPT_RATE.get(name, RATE)
    script.paste(lines_for(name, own, lr if is_rate_given else None))

    model, optimizer = start_of_arm(treated(name, own), lr)
    arm = Script(own)
    arm.names |= {"model": model, "optimizer": optimizer, "loss": treated(name, own).problem.loss}

    x = script.names["loader"][0][0]
    assert_same(script.names["model"].state_dict(), model.state_dict())
    torch.testing.assert_close(copy.deepcopy(script.names["model"]).eval()(x), copy.deepcopy(model).eval()(x))
    assert type(script.names["optimizer"]) is type(optimizer)
    script.train()
    arm.train()
    assert_same(script.names["model"].state_dict(), model.state_dict())
    # after the steps: some settings are read off the first forward pass, and a warm-up is over
    assert described(script.names["model"], script.names["optimizer"]) == described(model, optimizer)

    untreated.train()
    before, after = (list(each.names["model"].parameters()) for each in (untreated, script))
    assert len(before) != len(after) or any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", REMEDIES)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_lines_run_where_a_script_has_these_names_alone(name: str) -> None:
    own = SETUPS[name]()
    script = Script(own)
    assert set(script.names) == {"model", "loss", "loader", "optimizer", "torch", "nn", "wc"}
    script.paste(lines_for(name, own, 0.01))
    script.train()


@pytest.mark.parametrize("name", ["match-shapes", "scale-targets"])
def test_a_loss_may_be_wrapped_again(name: str) -> None:
    own = SETUPS[name]()
    script = Script(own)
    for _ in range(2):  # somebody runs the cell of a notebook twice
        script.paste(lines_for(name, own))
    script.train()


def test_predictions_are_in_the_units_of_the_targets() -> None:
    own = SETUPS["scale-targets"]()
    script = Script(own)
    script.paste(lines_for("scale-targets", own))
    x, y = script.names["loader"][0]
    outputs = script.names["model"](x)
    scaled = script.names["loss"](outputs, y)
    std = torch.cat([y for _, y in own.problem.batches]).std(correction=0)
    torch.testing.assert_close(scaled * std**2, F.mse_loss(script.names["predict"](x), y))


@pytest.mark.parametrize("name", REMEDIES)
@pytest.mark.filterwarnings("ignore:no normalization follows")
def test_lines_change_nothing_of_the_users(name: str) -> None:
    own = SETUPS[name]()
    model, optimizer = own.problem.model, own.optimizer
    assert optimizer is not None
    state, settings = copy.deepcopy(model.state_dict()), described(model, optimizer)
    trainable, modes = [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]
    text, random = str(model), torch.get_rng_state()
    lines_for(name, own, 0.01)
    assert_same(model.state_dict(), state)
    assert described(model, optimizer) == settings
    assert trainable == [p.requires_grad for p in model.parameters()]
    assert modes == [m.training for m in model.modules()]
    assert str(model) == text
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in model.parameters())
    assert len(optimizer._optimizer_step_pre_hooks) == 0


def test_what_does_not_apply_has_no_lines() -> None:
    own = setup(network())
    assert lines_for("less-dropout", own) == ""
    assert lines_for("last-bn", setup(nn.Sequential(nn.Conv1d(4, CLASSES, 1, dtype=torch.float64)))) == ""  # refused


def test_without_an_optimizer_lines_are_of_the_model_alone() -> None:
    own = Setup.of(wc.Problem(network(), F.cross_entropy, table()))
    assert lines_for("batchnorm", own).splitlines() == [
        "inputs = next(iter(loader))[0]",
        'model = wc.nn.with_norms(model, inputs, "batch")',
    ]
    assert lines_for("adam", own) == "optimizer = torch.optim.Adam(model.parameters(), lr=0.001)"
    assert lines_for("batchnorm", own, 0.1).endswith(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
    )


# batches of any form


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, features: Tensor) -> Tensor:
        outputs: Tensor = self.net(features)
        return outputs


@pytest.mark.parametrize("name", ["scale-inputs", "batchnorm"])
def test_lines_read_batches_with_names(name: str) -> None:
    batches = [{"features": x, "labels": y} for x, y in table(50.0, 7.0)]
    own = setup(Named(), batches)
    script = Script(own)
    script.paste(lines_for(name, own))
    assert_same(script.names["model"].state_dict(), treated(name, own).problem.model.state_dict())


def test_lines_read_a_loader_without_length() -> None:
    class Endless:
        def __iter__(self) -> Any:
            while True:
                yield from table(50.0, 7.0)

    own = setup(network(), Endless())
    script = Script(own)
    script.names["loader"] = Endless()
    script.paste(lines_for("scale-inputs", own))
    assert_same(script.names["model"].state_dict(), treated("scale-inputs", own).problem.model.state_dict())


def test_several_targets_are_scaled_each_by_its_own() -> None:
    batches = [(x, torch.cat([y, 7 - y], 1)) for x, y in table(targets="numbers")]
    own = setup(network(nn.Linear(4, 2)), batches, F.mse_loss)
    script, arm = Script(own), Script(own)
    script.paste(lines_for("scale-targets", own))
    arm.names["loss"] = treated("scale-targets", own).problem.loss
    script.train()
    arm.train()
    assert_same(script.names["model"].state_dict(), arm.names["model"].state_dict())


# optimizers


def decay_for_matrices(model: nn.Module) -> list[dict[str, Any]]:
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is is_matrix] for is_matrix in (True, False))
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


def a_slower_body(model: Any) -> list[dict[str, Any]]:
    return [{"params": model[0].parameters(), "lr": RATE / 10}, {"params": model[2].parameters()}]


def interleaved(model: Any) -> list[dict[str, Any]]:
    return [
        {"params": [model[0].weight, model[2].bias], "lr": RATE / 4},
        {"params": [model[0].bias, model[2].weight]},
    ]


@pytest.mark.parametrize("groups", [decay_for_matrices, a_slower_body, interleaved])
@pytest.mark.parametrize(
    ("make", "settings"),
    [(SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 1e-3}), (AdamW, {"betas": (0.8, 0.9)})],
    ids=["SGD", "AdamW"],
)
def test_an_optimizer_with_groups_is_made_again(groups: Any, make: Any, settings: dict[str, Any]) -> None:
    model = network()
    own = Setup.of(wc.Problem(model, F.cross_entropy, table()), make(groups(model), lr=RATE, **settings))
    script = Script(own)
    script.paste(lines_for("batchnorm", own, 0.02))
    assert described(script.names["model"], script.names["optimizer"]) == described(
        *start_of_arm(treated("batchnorm", own), 0.02)
    )


def test_rates_of_groups_stay_in_proportion() -> None:
    model = network()
    own = Setup.of(wc.Problem(model, F.cross_entropy, table()), SGD(a_slower_body(model), lr=RATE))
    script = Script(own)
    script.paste(lines_for("rate", own, 0.01))
    assert [group["lr"] for group in script.names["optimizer"].param_groups] == pytest.approx([0.001, 0.01])


class Halved(Adam):
    """An optimizer of the user's own."""


def test_an_optimizer_from_elsewhere_is_imported() -> None:
    own = setup(network(), make=Halved)
    script = Script(own)
    lines = lines_for("batchnorm", own)
    assert f"from {__name__} import Halved\n" in lines
    script.paste(lines)
    assert type(script.names["optimizer"]) is Halved


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4)),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * RATE, total_steps=10),
    "two, one after the other": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
         torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)],
        [3],
    ),
}  # fmt: skip


def rates(optimizer: Any, scheduler: Any) -> list[float]:
    """The rates of the next six steps."""
    taken = []
    for _ in range(6):
        taken.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return taken


@pytest.mark.filterwarnings("ignore:Seems like")  # torch notices the new optimizer
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_new_optimizer_follows_the_schedule_of_the_old_one(kind: str) -> None:
    own, untreated = setup(network()), setup(network())
    script = Script(own)
    SCHEDULES[kind](own.optimizer)
    script.names["scheduler"] = SCHEDULES[kind](script.names["optimizer"])
    old = script.names["optimizer"]
    script.paste(lines_for("batchnorm", own))
    assert script.names["optimizer"] is not old
    expected = rates(untreated.optimizer, SCHEDULES[kind](untreated.optimizer))
    assert rates(script.names["optimizer"], script.names["scheduler"]) == pytest.approx(expected)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_rate_under_a_schedule_is_its_peak(kind: str) -> None:
    own, untreated = setup(network()), setup(network())
    script = Script(own)
    SCHEDULES[kind](own.optimizer)
    script.names["scheduler"] = SCHEDULES[kind](script.names["optimizer"])
    peak = (2 if kind == "one cycle" else 1) * RATE
    script.paste(lines_for("rate", own, lr=peak / 10))
    expected = [lr / 10 for lr in rates(untreated.optimizer, SCHEDULES[kind](untreated.optimizer))]
    assert rates(script.names["optimizer"], script.names["scheduler"]) == pytest.approx(expected)


def test_an_optimizer_under_bnp_is_put_under_it_again() -> None:
    own = setup(network())
    assert own.optimizer is not None
    wc.BNP(own.problem.model, own.optimizer, rho=0.9)
    lines = lines_for("last-bn", own)
    assert lines.endswith("\nwc.BNP(model, optimizer, rho=0.9)")


# several remedies, and code of the user's


def squeezed() -> Setup:
    batches = [(x, y.squeeze(1)) for x, y in table(targets="numbers")]
    return setup(network(nn.Linear(4, 1)), batches, lambda h, y: (h - y).square().mean())


def ending_in_softmax() -> Setup:
    layers = (nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, CLASSES), nn.Softmax(-1))
    return setup(network(*layers), table(50.0, 7.0), weight_decay=0.1)


TOGETHER = {
    "scale-inputs + logits + adam": ending_in_softmax,
    "batchnorm + less-weight-decay": ending_in_softmax,
    "no-decay-of-norms + batchnorm": lambda: setup(network(nn.LayerNorm(4), nn.Linear(4, 3)), weight_decay=0.1),
    "match-shapes + scale-targets": squeezed,
    "warm-up + clip": ending_in_softmax,
    "he-init + zero-last + bnp": ending_in_softmax,
}


@pytest.mark.parametrize("names", TOGETHER)
def test_remedies_together_are_one_after_the_other(names: str) -> None:
    own = both = TOGETHER[names]()
    for name in names.split(" + "):
        both = REMEDIES[name].apply(both) or both
    script, arm = Script(own), Script(own)
    script.paste(both.code.replace("{lr}", "0.02"))
    arm.names["model"], arm.names["optimizer"] = start_of_arm(both, 0.02)
    arm.names["loss"] = both.problem.loss
    script.train()
    arm.train()
    assert_same(script.names["model"].state_dict(), arm.names["model"].state_dict())


def test_lines_are_in_the_order_in_which_they_work() -> None:
    both = treated("adam", treated("logits", treated("scale-inputs", ending_in_softmax())))
    assert both.code.splitlines() == [
        "model = wc.nn.with_standardized_inputs(model, loader)",
        'model.set_submodule("model.3", nn.Identity())',
        "optimizer = torch.optim.AdamW(model.parameters(), lr={lr}, weight_decay=0.1)",
    ]
    both = treated("clip", treated("warm-up", setup(network())))
    assert both.code_at_own_rate.splitlines()[:2] == [
        "schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / 4, total_iters=3)",
        BEFORE_STEP,
    ]
    assert both.code_at_own_rate.endswith(f"{AFTER_STEP}\nschedule.step()")


def test_what_the_models_code_calls_is_named_in_a_comment() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6).double(), nn.Linear(6, CLASSES).double()

        def forward(self, x: Tensor) -> Tensor:
            h = F.dropout(torch.sigmoid(self.first(x)), 0.8, self.training)
            return self.last(h).softmax(-1)

    own = setup(Functional())
    assert lines_for("logits", own) == "# in Functional.forward: leave out the softmax, and use its argument"
    assert lines_for("relu", own) == "# in Functional.forward: nn.ReLU() in place of sigmoid"
    assert lines_for("less-dropout", own) == "# in the model's forward: F.dropout(…, p=0.1)"
