"""The recorder in a loop: what it records is right, the budget holds, and no failure reaches the loop."""

from __future__ import annotations

import copy
import errno
import gc
import itertools
import math
import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import Clock, Small, batches
from torch import Tensor, nn

import wellcond as wc
from wellcond.errors import InvalidProblem, OutputError, RunInUse
from wellcond.recording.entries import entries_of
from wellcond.recording.logbook import FindingWarning
from wellcond.recording.mishaps import RecordingWarning
from wellcond.recording.settings import changes

loss_function = nn.CrossEntropyLoss()


class Training:
    """A small training on a clock of its own: a step takes a second, and recording what `costs` says."""

    def __init__(self, steps: int, lr: float = 0.05, **options: Any) -> None:
        torch.manual_seed(0)
        self.clock = Clock()
        self.model = Small()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.data = batches(steps)
        self.rec = wc.Recorder(self.model, self.optimizer, loss_function, clock=self.clock, **{"budget": 1.0} | options)

    def run(self, steps: slice = slice(None), each: Callable[[int], None] | None = None) -> wc.Recorder:
        for step, (x, y) in list(enumerate(self.data, start=1))[steps]:
            self.step(x, y, step, each)
        return self.rec

    def step(
        self, x: Tensor, y: Tensor, step: int, each: Callable[[int], None] | None = None, number: int | None = None
    ) -> None:
        self.optimizer.zero_grad()
        value = loss_function(self.model(x), y)
        value.backward()
        if each is not None:
            each(step)
        self.optimizer.step()
        self.clock.now += 1.0
        self.rec.step(value, (x, y), step=number)


# what it records


@pytest.mark.slow
def test_gradient_norms_and_updates_are_those_of_a_plain_loop() -> None:
    training = Training(15)
    named = dict(training.model.named_parameters())
    norms: dict[int, dict[str, float]] = {}
    weights: dict[int, dict[str, Tensor]] = {}

    def note(step: int) -> None:
        norms[step] = {name: float(p.grad.double().norm()) for name, p in named.items()}
        weights[step] = {name: p.detach().clone() for name, p in named.items()}

    history = training.run(each=note).history
    layer = history.series("gradient_norm", "conv")
    assert len(layer) > 8
    for step, value in zip(layer.steps, layer.values, strict=True):
        both = norms[int(step)]
        assert value == pytest.approx(math.hypot(both["conv.weight"], both["conv.bias"]), rel=1e-6)
    whole = history.series("gradient_norm")
    for step, value in zip(whole.steps, whole.values, strict=True):
        assert value == pytest.approx(math.hypot(*norms[int(step)].values()), rel=1e-6)
    ratios = history.series("update_ratio", "head")
    for step, value in zip(ratios.steps, ratios.values, strict=True):
        if step < 15:
            before, after = weights[int(step)], weights[int(step) + 1]
            change = math.hypot(*(float((after[n] - before[n]).norm()) for n in ("head.weight", "head.bias")))
            size = math.hypot(*(float(before[n].norm()) for n in ("head.weight", "head.bias")))
            assert value == pytest.approx(change / size, rel=1e-4)


@pytest.mark.slow
def test_layers_are_named_as_modules_and_a_tied_weight_counts_once() -> None:
    history = Training(12).run().history
    assert history.layers("gradient_norm") == ["conv", "bn", "hidden", "norm", "head"]
    assert {"conv", "bn", "hidden", "norm", "tied", "head"} == set(history.layers("signal_rms"))
    assert history.layers("statistics_gap") == ["bn"]
    assert history.layers("saturated_share") == ["hidden"]
    assert set(history.layers("dead_share")) == {"bn", "tied"}  # a function after bn, and a module after tied
    assert history.series("lr").values.tolist() == [0.05]


def test_dead_and_saturated_units_by_a_closed_form() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2), nn.Tanh())
    with torch.no_grad():
        model[0].bias.copy_(torch.tensor([-99.0, 1.0, -99.0, -99.0]))
        model[2].bias.copy_(torch.tensor([9.0, 0.0]))
        model[2].weight.mul_(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(8, 2)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        value = model(x).mean()
        value.backward()
        optimizer.step()
        rec.step(value)
    assert rec.history.series("dead_share", "0").values.tolist() == [0.75]
    assert rec.history.series("saturated_share", "2").values.tolist() == [0.5]
    size = float(model[0](x).square().mean().sqrt())
    assert rec.history.series("signal_rms", "0").values.tolist() == pytest.approx([size])


@pytest.mark.slow
def test_gradients_that_are_not_cleared() -> None:
    training = Training(12)
    training.optimizer.zero_grad = lambda: None  # type: ignore[method-assign]
    history = training.run().history
    ratios = history.series("uncleared_gradient")
    assert ratios.values[0] == 0  # there is nothing before the first step
    assert ratios.values[1:].min() > 0.3


def test_steps_that_are_not_seen_count_after_a_while() -> None:
    """As in the replay of a CUDA graph."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        for step in range(80):
            rec.step(float(step))
    losses = rec.history.series("training_loss")
    assert losses.values.tolist() == [
        32.0,
        *range(65, 80),
    ]  # the first is the mean of all that might have been one step
    assert any("CUDA graph" in note for note in rec.notes)


def test_validation_own_steps_and_going_back() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        for step in (10, 20, 30, 20, 25):
            optimizer.step()
            rec.step(float(step), step=step)
        rec.validation(torch.tensor(0.5))
    assert rec.history.series("training_loss").steps.tolist() == [10, 20, 25]
    assert rec.history.series("validation_loss").steps.tolist() == [25]
    assert rec.history.series("validation_loss").values.tolist() == [0.5]


def test_a_training_step_of_ones_own() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def training_step(model: nn.Module, batch: Tensor) -> Tensor:
        return (model(batch) - model(batch + 0.1 * torch.randn_like(batch))).square().mean()

    clock = Clock()
    with wc.Recorder.from_step(model, optimizer, training_step, budget=1.0, clock=clock) as rec:
        for _ in range(12):
            batch = torch.randn(16, 3)
            optimizer.zero_grad()
            value = training_step(model, batch)
            value.backward()
            optimizer.step()
            clock.now += 1.0
            rec.step(value, batch)
    assert rec.problems == []
    assert len(rec.history.series("hessian_lambda_max")) > 1


# parameters that the optimizer does not hold


def classification(
    change: Callable[[nn.Sequential], Any] | None = None, *, at: int = 60, held: str = "", norm: bool = False
) -> wc.Recorder:
    """A network that learns, in 160 steps; before one of them it is changed, and the optimizer is not."""
    torch.manual_seed(0)
    clock, task = Clock(), torch.randn(4, 3)
    between = nn.Sequential(nn.BatchNorm1d(16), nn.Tanh()) if norm else nn.Tanh()
    model = nn.Sequential(nn.Linear(4, 16), between, nn.Linear(16, 3))
    optimizer = torch.optim.SGD([p for name, p in model.named_parameters() if name.startswith(held)], lr=0.1)
    with (
        warnings.catch_warnings(action="ignore", category=FindingWarning),
        wc.Recorder(model, optimizer, loss_function, budget=1.0, clock=clock) as rec,
    ):
        for step in range(1, 161):
            if step == at and change is not None:
                change(model)
            x = torch.randn(32, 4)
            y = (x @ task).argmax(1)
            optimizer.zero_grad()
            value = loss_function(model(x), y)
            value.backward()
            optimizer.step()
            clock.now += 1.0
            rec.step(value, (x, y))
    assert rec.problems == []
    return rec


def new_weight(model: nn.Sequential) -> None:
    model[2].weight = nn.Parameter(model[2].weight.detach().clone())


def new_layer(model: nn.Sequential) -> None:
    model[2] = nn.Linear(16, 3)


def new_everything(model: nn.Sequential) -> None:
    model.load_state_dict({name: t.clone() for name, t in model.state_dict().items()}, assign=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "layers", "share"), [(new_weight, 1, 48 / 51), (new_layer, 1, 1.0), (new_everything, 2, 1.0)]
)
def test_parameters_that_are_exchanged_in_the_middle_of_a_run(change: Any, layers: int, share: float) -> None:
    rec = classification(change)
    finding = rec.findings[0]
    assert (finding.rule, finding.severity) == ("no-gradient", "severe")
    assert finding.step == pytest.approx(60, abs=2)
    assert finding.layer == ("2" if layers == 1 else "0")
    assert finding.evidence.get("layers", 1.0) == layers
    of_layer = finding.evidence.get("share of the layer's weights")  # or the words of the inspection, of all layers
    assert (finding.evidence["share of parameters"] if of_layer is None else of_layer) == pytest.approx(share)


@pytest.mark.slow
def test_a_layer_that_the_optimizer_never_held_and_weights_that_are_changed_in_place() -> None:
    finding = classification(held="0").findings[0]
    assert (finding.rule, finding.layer, finding.step) == ("no-gradient", "2", 1)
    assert classification(lambda model: model[2].weight.data.mul_(0.5)).findings == ()


# running statistics


def see_nan(model: nn.Sequential) -> None:
    """A batch whose loss is NaN, and whose step is skipped."""
    assert not torch.isfinite(model(torch.full((32, 4), torch.nan))).all()


@pytest.mark.slow
def test_a_batch_of_nan_whose_step_is_skipped_stays_in_the_running_statistics() -> None:
    finding = classification(see_nan, norm=True).findings[0]
    assert (finding.rule, finding.layer, finding.severity) == ("non-finite", "1.0", "severe")
    assert finding.step == pytest.approx(60, abs=2)
    assert "running statistics" in finding.summary
    assert classification(norm=True).findings == ()


def test_statistics_of_single_examples_are_not_compared() -> None:
    """One number has no variance; a BatchNorm that is fixed normalizes it all the same."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    optimizer, clock = torch.optim.SGD(model.parameters(), lr=0.01), Clock()
    with wc.Recorder(model, optimizer, nn.MSELoss(), clock=clock) as rec:
        for _ in range(30):
            value = model(torch.randn(1, 4)).square().mean()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            clock.now += 1.0
            rec.step(value)
    assert len(rec.history.series("signal_rms", "1")) > 1
    assert rec.history.layers("statistics_gap") == []
    assert rec.findings == ()


# turns


@pytest.mark.slow
def test_the_noise_of_gradients_is_known_of_a_network_with_batchnorm_too() -> None:
    rec = Training(30).run()
    rec.close()
    assert len(rec.history.series("gradient_noise_scale")) >= 2


def test_a_rehearsal_runs_every_probe_twice_at_the_first_step_and_pays_for_none() -> None:
    """As on a GPU, where the first run of a probe loads kernels."""
    training = Training(4)
    runs: list[tuple[str, int]] = []
    real = training.rec._probing.run

    def counted(part: str, step: int, *arguments: Any) -> Any:
        runs.append((part, step))
        training.clock.now += 5.0
        return real(part, step, *arguments)

    training.rec._probing.run = counted  # type: ignore[method-assign]
    training.rec._turns._is_to_rehearse = True
    training.run(slice(0, 1))
    parts = ["curvature", "conditioning", "shift", "activations", "noise"]
    assert runs == [(part, 1) for part in parts for _ in range(2)]
    allowance = training.rec._allowance
    assert allowance.spent == pytest.approx(50.0)
    assert [allowance.parts[part].price for part in parts] == [5.0] * 5
    assert allowance.parts["inspection"].price == 12 * 5.0  # by the conditioning, which launches as few kernels
    assert all(part.purse.balance == 0 for part in allowance.parts.values())
    assert training.rec.history.series("hessian_lambda_max").steps.tolist() == [1]
    assert training.rec.history.layers("shift_cosine")
    training.run(slice(1, 4)).close()
    assert not [part for part, step in runs if step > 1]  # what is known to take five steps waits


# the budget


class Costly(Clock):
    """A clock on which every reading of it takes a while, as work would that lies between two readings."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1e-4, 1e-2])
def test_recording_takes_its_share_of_the_time_and_no_more(seconds: float) -> None:
    training = Training(300, budget=0.05)
    clock = Costly(seconds)
    training.clock = clock
    rec = training.rec = wc.Recorder(training.model, training.optimizer, loss_function, clock=clock)
    training.run()
    taken = clock.now - 300.0
    assert taken <= 0.05 * clock.now * 1.1 + 3.0
    assert rec.history.series("recording_share").values[-1] <= 0.06


# no failure reaches the loop


@pytest.mark.slow
def test_what_breaks_is_said_once_and_training_goes_on() -> None:
    training = Training(20)
    calls = itertools.count()

    def broken(*_: Any) -> None:
        next(calls)
        raise ZeroDivisionError("broken")

    training.rec._sampling.activations.outputs.see = broken  # type: ignore[union-attr, method-assign]
    with pytest.warns(RecordingWarning, match="broken") as warned:
        training.run()
    assert next(calls) == 1  # it is switched off
    assert len([w for w in warned if "broken" in str(w.message)]) == 1
    assert len(training.rec.problems) == 1
    assert len(training.rec.history.series("training_loss")) == 20
    assert len(training.rec.history.series("gradient_norm")) > 5


def test_warnings_as_errors_and_a_broken_callback() -> None:
    def broken(_: wc.Finding) -> None:
        raise ZeroDivisionError("callback")

    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with wc.Recorder(model, optimizer, nn.MSELoss(), on_finding=broken) as rec:
            for step in range(60):
                optimizer.step()
                rec.step(1.0 if step < 40 else math.nan)
    assert [finding.rule for finding in rec.findings] == ["non-finite"]
    assert "callback" in rec.problems[0]


def test_a_finding_is_reported_as_it_begins() -> None:
    seen: list[wc.Finding] = []
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss(), on_finding=seen.append) as rec:
        for step in range(1, 41):
            optimizer.step()
            if step < 40:
                rec.step(torch.tensor(1.0))
        with pytest.warns(FindingWarning, match="non-finite") as warned:
            rec.step(torch.tensor(math.nan))
        assert warned[0].filename == __file__  # at the line of the loop
        assert [finding.rule for finding in seen] == ["non-finite"]  # at its step, not at the end
        assert seen[0].step == 40


def test_a_spike_names_its_examples() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(0)
    losses = (1 + 0.02 * torch.randn(200)).tolist()
    losses[149] = 30.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FindingWarning)
        with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
            for step, loss in enumerate(losses, start=1):
                optimizer.step()
                rec.step(loss, indices=torch.arange(20) + step)
    (spike,) = [finding for finding in rec.findings if finding.rule == "loss-spike"]
    assert spike.step == 150
    assert str(spike.evidence["examples"]).startswith("150, 151, 152")
    assert str(spike.evidence["examples"]).endswith("… (20)")


def test_a_loss_that_is_none() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        optimizer.step()
        with pytest.warns(RecordingWarning, match="not called with a number"):
            rec.step(None)
        optimizer.step()
        rec.step(2.0)
    assert rec.history.series("training_loss").steps.tolist() == [2]


def test_a_loss_of_several_numbers_is_none() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        for device in ("cpu", "meta"):
            optimizer.step()
            with warnings.catch_warnings(action="ignore", category=RecordingWarning):
                rec.step(torch.zeros(3, device=device))
    assert not len(rec.history.series("training_loss"))
    assert len(rec.problems) == 1
    assert "not called with a number" in rec.problems[0]


def test_an_optimizer_that_holds_another_network_too() -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.SGD([*other.parameters(), *model.parameters()], lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        x = torch.ones(4, 2)
        value = (model(x) + 100 * other(x)).mean()
        value.backward()
        optimizer.step()
        rec.step(value)
    norm = math.hypot(*(float(p.grad.norm()) for p in model.parameters()))
    assert rec.history.series("gradient_norm").values.tolist() == pytest.approx([norm])


def test_an_interrupt_passes() -> None:
    training = Training(3)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    training.rec._turns.look = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        training.run()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (lambda m, o: ("model", o), TypeError, "not a torch.nn.Module"),
        (lambda m, o: (m, 0.1), TypeError, "number"),
        (lambda m, o: (m, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)), InvalidProblem, "holds none"),
        (lambda m, o: (m.requires_grad_(False), o), InvalidProblem, "requires_grad_"),
    ],
)
def test_wrong_arguments_are_refused_before_training(arguments: Any, error: type[Exception], words: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(error, match=words):
        wc.Recorder(*arguments(model, optimizer), nn.MSELoss())


@pytest.mark.parametrize("budget", [0, -0.1, 1.5, "5%", True, math.nan])
def test_a_budget_is_a_share(budget: Any) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="share of time"):
        wc.Recorder(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss(), budget=budget)


@pytest.mark.slow
def test_nothing_is_left_behind() -> None:
    training = Training(6)
    rec = training.run()
    rec.close()
    rec.close()
    rec.step(1.0)
    assert not training.optimizer._optimizer_step_pre_hooks
    assert not training.optimizer._optimizer_step_post_hooks
    assert all(not p._backward_hooks for p in training.model.parameters())
    assert not torch.nn.modules.module._has_any_global_hook()


def test_other_measurements_accept_an_optimizer_that_is_recorded() -> None:
    training = Training(3)
    training.run()
    problem = wc.Problem(training.model, loss_function, [training.data[0]])
    assert wc.max_lr(problem, training.optimizer, max_matvecs=2).value > 0
    assert wc.covariate_shift(problem, training.optimizer).layers


@pytest.mark.slow
@pytest.mark.parametrize("forward", ["of two inputs", "of one"])
def test_a_training_step_in_the_place_of_the_loss_is_told_how_to_write_it(forward: str) -> None:
    class Pairs(nn.Linear):
        def forward(self, one: Tensor, *other: Tensor) -> Tensor:
            if forward == "of two inputs" and not other:
                raise TypeError("forward() missing 1 required positional argument: 'other'")
            return super().forward(one)

    model = Pairs(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(*batch).square().mean()

    def train(rec: wc.Recorder) -> None:
        for _ in range(10):
            batch = torch.randn(8, 3), torch.randn(8, 3)
            value = step(model, batch)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            rec.step(value, batch)

    with pytest.warns(RecordingWarning, match=r"wc\.Recorder\.from_step\(model, optimizer, training_step\)"):
        train(wc.Recorder(model, optimizer, step, budget=1.0))  # type: ignore[arg-type]
    with wc.Recorder.from_step(model, optimizer, step, budget=1.0) as rec:
        train(rec)
    assert rec.problems == []


# directories and resuming


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [True, False])
def test_a_resumed_run_has_the_rows_of_one_that_was_not_interrupted(on_disk: bool, tmp_path: Path) -> None:
    def folder(name: str) -> dict[str, Any]:
        return {"run_dir": tmp_path / name} if on_disk else {}

    whole = Training(40, **folder("whole"))
    whole.run().close()
    first = Training(40, **folder("parts"))
    first.run(slice(0, 25))
    saved = {
        "model": first.model.state_dict(),
        "optimizer": first.optimizer.state_dict(),
        "recorder": first.rec.state_dict(),
        "random": torch.get_rng_state(),
    }
    torch.save(saved, tmp_path / "checkpoint")
    first.run(slice(25, 33))  # lost with the process
    first.rec.close()

    second = Training(40, **folder("parts"))
    loaded = torch.load(tmp_path / "checkpoint", weights_only=True)
    second.model.load_state_dict(loaded["model"])
    second.optimizer.load_state_dict(loaded["optimizer"])
    second.rec.load_state_dict(loaded["recorder"])
    torch.set_rng_state(loaded["random"])
    second.run(slice(25, 40)).close()

    one, other = (
        (wc.read_run(tmp_path / name).rows() if on_disk else training.rec.run.rows())
        for name, training in (("whole", whole), ("parts", second))
    )
    assert sorted(one) == sorted(other)


@pytest.mark.slow
def test_a_run_directory_holds_what_is_in_memory(tmp_path: Path) -> None:
    training = Training(20, run_dir=tmp_path / "a")
    rec = training.run()
    rec.close()
    run = wc.read_run(tmp_path / "a")
    assert run.status == "ended"
    assert sorted(run.rows()) == sorted(rec.run.rows())
    assert run.layers[:2] == ("conv", "bn")
    rec.save(tmp_path / "run.html")
    assert "training" in (tmp_path / "run.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_second_training_goes_on_after_the_first(tmp_path: Path) -> None:
    Training(5, run_dir=tmp_path / "a").run().close()
    training = Training(5, run_dir=tmp_path / "a")
    with pytest.warns(RecordingWarning, match="a run of 5 steps, and this one goes on after it"):
        training.run()
    training.rec.close()
    assert wc.read_run(tmp_path / "a").last_step == 10


@pytest.mark.slow
def test_a_training_with_another_set_up_leaves_the_earlier_run_next_to_its_own(tmp_path: Path) -> None:
    Training(5, run_dir=tmp_path / "a").run().close()
    earlier = wc.read_run(tmp_path / "a")
    for place, lr in enumerate((0.5, 0.25), start=1):
        training = Training(3, lr=lr, run_dir=tmp_path / "a")
        with pytest.warns(RecordingWarning, match=r"optimizer lr 0\.\d+ → 0\.\d+\), and is in .*a-\d now"):
            training.run()
        training.rec.close()
        assert training.rec.problems == []
        run = wc.read_run(tmp_path / "a")
        assert (run.status, run.last_step, len(run.manifest["lives"])) == ("ended", 3, 1)
        assert run.history.series("lr").values.tolist() == [lr]
        assert sorted(run.rows()) == sorted(training.rec.run.rows())
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", *(f"a-{n}" for n in range(1, place + 1))]
    moved = wc.read_run(tmp_path / "a-1")
    assert (moved.rows(), moved.manifest, moved.findings) == (earlier.rows(), earlier.manifest, earlier.findings)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["state", "number"])
def test_a_run_that_goes_on_may_have_another_rate(form: str, tmp_path: Path) -> None:
    first = Training(8, run_dir=tmp_path / "a")
    first.run(slice(0, 5))
    state = first.rec.state_dict()
    first.rec.close()
    second = Training(8, lr=0.01, run_dir=tmp_path / "a")
    if form == "state":
        second.rec.load_state_dict(state)
    for step, (x, y) in enumerate(second.data[5:], start=6):
        second.step(x, y, step, number=step if form == "number" else None)
    second.rec.close()
    run = wc.read_run(tmp_path / "a")
    assert run.history.series("training_loss").steps.tolist() == list(range(1, 9))
    assert run.history.series("lr").values.tolist() == [0.05, 0.01]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.slow
def test_a_fresh_training_that_counts_its_own_steps_is_not_written_over_another(tmp_path: Path) -> None:
    Training(5, run_dir=tmp_path / "a").run().close()
    second = Training(3, lr=0.5, run_dir=tmp_path / "a")
    with pytest.warns(RecordingWarning, match="another set-up"):
        second.step(*second.data[0], 1, number=1)
    second.rec.close()
    assert [wc.read_run(tmp_path / name).last_step for name in ("a", "a-1")] == [1, 5]


@pytest.mark.slow
def test_a_training_that_fails_before_its_first_step_leaves_the_earlier_run_as_it_was(tmp_path: Path) -> None:
    Training(5, run_dir=tmp_path / "a").run().close()
    before = wc.read_run(tmp_path / "a")
    Training(3, lr=0.5, run_dir=tmp_path / "a").rec.close()
    after = wc.read_run(tmp_path / "a")
    assert (after.rows(), after.manifest, after.status) == (before.rows(), before.manifest, "ended")


def test_rates_of_a_schedule_are_no_other_set_up() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    first = entries_of(model, [optimizer], 0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20, div_factor=1.0)
    for _ in range(15):
        optimizer.step()
        schedule.step()
    later = entries_of(model, [optimizer], 0.1)
    assert first["optimizer"]["groups"][0]["lr"] != later["optimizer"]["groups"][0]["lr"]
    assert changes(first, later) == []
    other = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.01)
    assert changes(later, entries_of(model, [other], 0.05)) == ["optimizer weight decay 0 → 0.01"]
    larger = nn.Linear(3, 1)
    assert changes(later, entries_of(larger, [torch.optim.SGD(larger.parameters(), lr=0.1)], 0.05)) == [
        "optimizer Adam → SGD",
        "model of 1 modules, 3 parameters → 1 modules, 4 parameters",
    ]


# recorders that nobody closes


def parts_of(training: Training) -> dict[str, Any]:
    """What a run that has ended says of itself."""
    run = wc.read_run(training.rec._logbook._directory.path)  # type: ignore[union-attr]
    return {"status": run.status, "steps": run.last_step}


AS_IN_THE_README = """
import importlib
import os
import sys
import torch
import wellcond as wc
from torch import nn

importlib.import_module("torch._dynamo")  # which every optimizer needs, once for all processes
for folder, last in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if child == 0:  # what follows is the script, and ends as a script does
        os.chdir(folder)
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT), 2)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)

model, x = nn.Linear(3, 1), torch.ones(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rec = wc.Recorder(model, optimizer, nn.MSELoss(), run_dir="runs/a", log=wc.integrations.log_to("log.jsonl"))
for _ in range(7):
    value = nn.functional.mse_loss(model(x), x[:, :1])
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    rec.step(value, (x, x[:, :1]))
exec(last)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_script_that_ends_without_closing_its_recorder_has_recorded_all_steps(tmp_path: Path) -> None:
    """By itself, by a call, and by an exception."""
    ends = {"": 0, "raise SystemExit(3)": 3, "1 / 0": 1}
    folders = [tmp_path / str(code) for code in ends.values()]
    arguments: list[str] = []
    for folder, last in zip(folders, ends, strict=True):
        folder.mkdir()
        arguments += [str(folder), last]
    command = [sys.executable, "-c", AS_IN_THE_README, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [int(code) for code in done.stdout.split()] == list(ends.values())
    for folder, last in zip(folders, ends, strict=True):
        errors = (folder / "stderr").read_text(encoding="utf-8")
        assert "Exception ignored" not in errors
        assert ("ZeroDivisionError" in errors) == (last == "1 / 0")
        run = wc.read_run(folder / "runs" / "a")
        assert (run.status, run.last_step) == ("ended", 7)
        assert len(run.history.series("gradient_norm")) > 0
        assert '"wellcond/training_loss"' in (folder / "log.jsonl").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_recorder_that_is_dropped_is_closed_and_its_model_goes_with_it(tmp_path: Path) -> None:
    """Also where a callback knows the recorder, which is then part of a cycle."""
    known: dict[str, Any] = {}
    training = Training(4, run_dir=tmp_path / "a", on_finding=known.get)
    known["recorder"] = training.run()
    model = weakref.ref(training.model)
    del training, known
    for _ in range(2):  # the recorder, and then what its hooks were on
        gc.collect()
    assert model() is None
    run = wc.read_run(tmp_path / "a")
    assert (run.status, run.last_step) == ("ended", 4)


@pytest.mark.slow
def test_a_copy_of_a_recorder_leaves_the_run_to_the_recorder(tmp_path: Path) -> None:
    training = Training(6, run_dir=tmp_path / "a")
    training.run(slice(0, 3))
    copied = copy.deepcopy(training.rec)
    del copied
    gc.collect()
    assert wc.read_run(tmp_path / "a").status == "running"
    training.run(slice(3, 6)).close()
    assert parts_of(training) == {"status": "ended", "steps": 6}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_end_of_a_forked_process_does_not_end_the_run(tmp_path: Path) -> None:
    training = Training(6, run_dir=tmp_path / "a")
    training.run(slice(0, 3))
    child = os.fork()
    if child == 0:
        training.rec.__del__()
        os._exit(0 if training.rec._is_open else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert wc.read_run(tmp_path / "a").status == "running"
    training.run(slice(3, 6)).close()
    assert parts_of(training) == {"status": "ended", "steps": 6}


@pytest.mark.slow
def test_rows_are_written_where_no_thread_can_be_started_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the interpreter ends, from Python 3.12 on."""

    def refuse(_thread: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    training = Training(6, run_dir=tmp_path / "a")
    training.run()
    monkeypatch.setattr("threading.Thread.start", refuse)
    training.rec.close()
    assert training.rec.problems == []
    assert parts_of(training) == {"status": "ended", "steps": 6}


@pytest.mark.slow
def test_a_recorder_in_print_says_what_was_found_and_where_it_is(tmp_path: Path) -> None:
    training = Training(4, run_dir=tmp_path / "a")
    training.run()
    assert repr(training.rec) == f"<Recorder of Small: 4 steps, nothing was found, in {tmp_path / 'a'}, recording>"
    assert str(training.rec).startswith("Nothing was found in 4 steps.\n")
    assert str(training.rec).endswith(f"running, 4 steps\nin {tmp_path / 'a'}")
    training.rec.close()
    assert repr(training.rec).endswith("ended>")
    without_a_number = Training(2)
    torch.nn.init.constant_(without_a_number.model.head.weight, math.nan)
    with pytest.warns(FindingWarning, match="non-finite"):
        without_a_number.run()
    assert "severe: non-finite" in repr(without_a_number.rec)
    assert "in memory" in repr(without_a_number.rec)


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_costs_no_rows_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are written every second; from step 10 to 25 there is no room."""
    monkeypatch.setattr("wellcond.recording.turns.SECONDS_BETWEEN_FILES", 0.5)
    training, replace = Training(40, run_dir=tmp_path / "a"), os.replace

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fill(step: int) -> None:
        if step in (10, 25):
            monkeypatch.setattr(os, "replace", full if step == 10 else replace)

    with pytest.warns(RecordingWarning, match="No space left on device") as warned:
        rec = training.run(each=fill)
    rec.close()
    assert len([each for each in warned if "No space" in str(each.message)]) == 1
    assert len(rec.problems) == 1
    assert "\n" not in rec.problems[0]
    run = wc.read_run(tmp_path / "a")
    assert (run.status, run.notes) == ("ended", ())
    assert sorted(run.rows()) == sorted(rec.run.rows())
    assert run.history.series("training_loss").steps.tolist() == list(range(1, 41))


@pytest.mark.slow
def test_a_folder_that_is_in_use_or_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    training = Training(3, run_dir=tmp_path / "a")
    with pytest.raises(RunInUse, match="one writer at a time"):
        Training(3, run_dir=tmp_path / "a")
    training.run().close()
    assert wc.read_run(tmp_path / "a").last_step == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="could not be written"):
        Training(3, run_dir=tmp_path / "file")
    assert not torch.nn.modules.module._has_any_global_hook()
