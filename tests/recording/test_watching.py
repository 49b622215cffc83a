"""What is read of a step while it runs: layers, norms, losses, batches, replays of a CUDA graph."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from loops import Clock
from torch import Tensor, nn

import wellcond as wc
from wellcond.recording.watching import steps as step_hooks
from wellcond.recording.watching.activations import Outputs
from wellcond.recording.watching.counting import MORE, StepCount
from wellcond.recording.watching.labels import BatchLabels, labels_of
from wellcond.recording.watching.layout import Layout, norms_of, stacked
from wellcond.recording.watching.loss_watch import LossWatch
from wellcond.recording.watching.repeats import EVERY, Repeats, sample_of

# layers and norms


def test_a_parameter_that_is_exchanged_belongs_to_its_layer_and_the_old_one_to_none() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    layout, old = Layout(model), model[1].weight
    assert layout.layer_of(old) == "1"
    model[1].weight = nn.Parameter(torch.zeros(1, 3))
    assert layout.layer_of(model[1].weight) == "1"
    assert layout.layer_of(old) is None


@pytest.mark.parametrize("dtypes", [(torch.float32,) * 3, (torch.float32, torch.float64, torch.bfloat16)])
def test_norms_of_any_tensors_are_those_of_each(dtypes: tuple[torch.dtype, ...]) -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(n, 3, dtype=dtype) for n, dtype in zip((1, 4, 9), dtypes, strict=True)]
    sparse = torch.sparse_coo_tensor([[0, 0, 2]], torch.tensor([1.0, 2.0, 4.0]), (3,), check_invariants=True)  # 3, 0, 4
    expected = [float(t.double().square().sum().sqrt()) for t in tensors]
    assert norms_of([*tensors, sparse]).tolist() == pytest.approx([*expected, 5.0], rel=1e-6)


def test_norms_of_half_precision_do_not_overflow() -> None:
    assert norms_of([torch.full((4,), 6e4, dtype=torch.float16)]).tolist() == pytest.approx([12e4], rel=1e-3)


def test_numbers_of_several_types_are_stacked() -> None:
    assert stacked([torch.tensor(1.0), torch.tensor(2.0, dtype=torch.float64)]).tolist() == [1.0, 2.0]


# losses that stand out


def test_losses_that_differ_by_rounding_raise_no_alarm() -> None:
    watch, generator = LossWatch(), np.random.default_rng(0)
    same = [3.0] * 100 + [3.0 * (1 + 1e-7)] + [3.0] * 50 + (3.0 * (1 + 1e-7 * generator.random(100))).tolist()
    assert not any(watch.is_alarming(step, loss) for step, loss in enumerate(same, start=1))
    assert watch.is_alarming(300, 3.0 * (1 + 1e-4))


def test_an_alarm_is_eight_mean_deviations_above_the_mean() -> None:
    """Against the same averages in a plain loop."""
    losses = (2 + 0.3 * np.random.default_rng(1).standard_normal(300)).tolist()
    watch = LossWatch()
    mean = deviation = 0.0
    for seen, loss in enumerate(losses):
        weight = max(0.05, 1 / (seen + 1))
        distance = loss - mean
        if seen:
            deviation += weight * (abs(distance) - deviation)
        mean += weight * distance
        assert not watch.is_alarming(seen + 1, loss)
    limit = 8 * deviation
    for factor, is_alarming in ((0.99, False), (1.01, True)):
        again = LossWatch()
        again.load_state_dict(watch.state_dict())
        assert again.is_alarming(301, mean + factor * limit) == is_alarming


def test_a_loss_that_climbs_little_by_little_raises_one_alarm() -> None:
    noise = 0.02 * np.random.default_rng(2).standard_normal(1000)
    steps = np.arange(1000)
    falling = 0.2 + 2 * np.exp(-steps / 60) + noise
    climbing = np.where(steps < 500, falling, falling + (steps - 500) * 2e-3)
    for losses, count in ((falling, 0), (climbing, 1)):
        watch = LossWatch()
        alarms = [step for step, loss in enumerate(losses.tolist(), start=1) if watch.is_alarming(step, loss)]
        assert len(alarms) == count
        assert all(800 < step < 900 for step in alarms)  # where three tenths of the fall of 2 are lost


def test_losses_that_are_not_finite_raise_an_alarm_and_change_no_average() -> None:
    watch = LossWatch()
    for step in range(1, 100):
        watch.is_alarming(step, 1.0 + 0.1 * (step % 3))
    before = watch.state_dict()
    assert watch.is_alarming(100, math.nan)
    assert not watch.is_alarming(101, math.inf)  # an alarm has just been raised
    changed = {name: value for name, value in watch.state_dict().items() if value != before[name]}
    assert changed.keys() == {"_quiet_until"}


# batches that were just seen


@pytest.mark.parametrize("shape", [(64, 3, 8, 8), (7, 5), (1,)])
def test_the_sample_of_a_batch_does_not_depend_on_its_layout(shape: tuple[int, ...]) -> None:
    batch = torch.arange(math.prod(shape)).reshape(shape)
    sample = sample_of((batch, None))
    assert sample is not None
    assert set(sample.tolist()) <= set(range(batch.numel()))
    turned = batch.transpose(0, -1).contiguous().transpose(0, -1)  # the same numbers in another order of memory
    assert torch.equal(sample_of((turned, None)), sample)  # type: ignore[arg-type]
    assert len(set(sample.tolist())) == min(32, batch.numel()) or batch.numel() < 64


def test_batches_are_known_by_their_sample_and_counted_in_a_row() -> None:
    torch.manual_seed(0)
    new, old = torch.randn(20, 8, 4), torch.randn(3, 8, 4)
    repeats, counts = Repeats(), []
    for batch in [*new, *old, *old, *old[:1], new[0]]:
        sample = sample_of(batch)
        assert sample is not None
        repeats.count(sample.tolist())
        counts.append(repeats.in_a_row // EVERY)
    assert counts == [0] * 23 + [1, 2, 3, 4, 0]  # the first of all is too long ago


def test_batches_without_numbers_have_no_sample() -> None:
    assert sample_of((torch.empty(0, 3), None)) is None
    assert sample_of(["text"]) is None
    assert sample_of(torch.eye(3).to_sparse()) is None


# steps, micro-batches and replays


def test_losses_of_micro_batches_are_averaged_although_they_are_written_to_one_place() -> None:
    count, loss = StepCount(), torch.zeros(())
    values: list[object] = []
    for call in range(8):
        loss.fill_(float(call))
        values.append(count.loss_of_step((call + 1) // 4, loss))
    assert [value is MORE for value in values] == [True, True, True, False] * 2
    assert [float(value) for value in values if value is not MORE] == [1.5, 5.5]  # type: ignore[arg-type]


def test_of_a_captured_step_every_call_is_one_and_none_is_skipped() -> None:
    count = StepCount()
    assert count.loss_of_step(1, 3.0) == 3.0
    for call in range(100):
        assert count.loss_of_step(1, float(call), is_captured=True) == float(call)
    assert (count.skipped, count.sees_steps) == (0, False)


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list whose last entry says whether a CUDA graph is being captured."""
    states = [False]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: states[-1])
    return states


@pytest.mark.slow
def test_replays_of_a_graph_are_steps_whose_losses_are_written_to_one_place(capture: list[bool]) -> None:
    """As on a GPU: hooks run while the graph is captured and in no replay, and nothing of theirs is part of it."""
    torch.manual_seed(0)
    model, clock = nn.Linear(3, 1), Clock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, loss = torch.randn(16, 3), torch.zeros(())

    def training_step() -> None:
        optimizer.zero_grad()
        value = model(x).square().mean()
        value.backward()
        optimizer.step()
        loss.copy_(value.detach())

    with wc.Recorder(model, optimizer, nn.MSELoss(), budget=1.0, clock=clock) as rec:
        capture.append(True)
        training_step()
        capture.append(False)
        for step in range(1, 201):  # replays: the weights change, and no hook is called
            with torch.no_grad():
                loss.fill_(1 / step)
                model.weight.mul_(0.99)
            clock.now += 1.0
            rec.step(loss)
    history = rec.history
    assert history.series("training_loss").values.tolist() == pytest.approx([1 / step for step in range(1, 201)])
    assert not len(history.series("gradient_norm"))
    assert not len(history.series("skipped_steps"))
    assert any("CUDA graph" in note for note in rec.notes)
    assert (rec.findings, rec.problems) == ((), [])


WITHOUT_GPU = """
import torch

def refuse(*_):
    raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

torch.version.cuda = "13.0"
torch.cuda.is_current_stream_capturing = torch.cuda.current_stream = torch.cuda.synchronize = refuse
torch._C._cuda_isCurrentStreamCapturing = refuse
import wellcond as wc

model = torch.nn.Linear(3, 1)
optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.ones(8, 3)
with wc.Recorder(model, optimizer, torch.nn.MSELoss()) as rec:
    for _ in range(5):
        value = torch.nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        rec.step(value, (x, x[:, :1]))
assert rec.problems == [], rec.problems
assert len(rec.history.series("gradient_norm")), "gradients are not read"
"""


@pytest.mark.slow
def test_a_build_of_torch_for_cuda_records_on_a_machine_without_a_gpu() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_GPU], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# outputs


def test_the_spread_of_outputs_over_examples_is_that_of_the_last_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    outputs = Outputs(model)
    for examples in (16, 4):  # four are too few
        outputs.clear()
        h = torch.randn(examples, 3)
        for name, module in model.named_children():
            before, h = h, module(h)
            outputs.see(name, module, before, h)
        reading = outputs.reading(1)
        assert reading is not None
        rows = {(row.layer, row.quantity): row.value for row in reading[1](reading[0].tolist())}
        expected = {("2", "output_spread"): h.var(0, correction=0).mean().sqrt().item()} if examples == 16 else {}
        assert {key: value for key, value in rows.items() if key[1] == "output_spread"} == pytest.approx(expected)


def test_the_spread_of_large_outputs_is_that_of_a_part() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 1))
    outputs, x = Outputs(model), torch.randn(100, 1, 40, 40)
    outputs.see("0", model[0], x, 5 * x.expand(-1, 3, -1, -1))
    reading = outputs.reading(1)
    assert reading is not None
    assert reading[0].tolist()[-1] == pytest.approx(5, rel=0.1)


# layers that are frozen


def test_layers_that_ask_for_no_gradient_are_recorded_and_when_they_do() -> None:
    model, clock = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), Clock()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss(), budget=1e-6, clock=clock) as rec:
        for step in range(1, 301):
            clock.now += 1.0
            model[0].requires_grad_(step >= 200)
            optimizer.zero_grad()
            value = model(torch.ones(4, 2)).square().mean()
            value.backward()
            optimizer.step()
            rec.step(value.item())
    assert rec.history.layers("trained_share") == ["0"]
    shares = rec.history.series("trained_share", "0")
    assert shares.values.tolist() == [0.0, 1.0]
    assert shares.steps[0] == 1
    assert 200 <= shares.steps[1] <= 225


# statistics of layers


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_batchnorm_that_trains_with_its_running_statistics_has_no_gap(is_frozen: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    model[1].train(not is_frozen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        value = model(torch.randn(8, 2)).square().mean()
        value.backward()
        optimizer.step()
        rec.step(value)
    assert len(rec.history.series("statistics_gap", "1")) == (not is_frozen)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(2, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(nn.functional.relu(self.hidden(x)))


def test_functions_are_looked_at_after_a_jump_whatever_that_costs() -> None:
    model, clock = Functional(), Clock()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with wc.Recorder(model, optimizer, nn.MSELoss(), budget=1e-6, clock=clock) as rec:
        for step in range(1, 301):
            clock.now += 1.0
            optimizer.zero_grad()
            batch = torch.randn(16, 2), torch.randn(16, 1)
            value = nn.functional.mse_loss(model(batch[0]), batch[1])
            value.backward()
            optimizer.step()
            rec.step(value.item() + (1e3 if step == 200 else 0.0), batch)
    shares = rec.history.series("dead_share", "hidden").since(100)
    assert [step for step in (220, 260) if not any(step <= seen <= step + 25 for seen in shares.steps)] == []


# settings that change


def test_decay_and_momentum_of_statistics_are_recorded_when_they_change() -> None:
    model, clock = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), Clock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    with wc.Recorder(model, optimizer, nn.MSELoss(), budget=1e-6, clock=clock) as rec:
        for step in range(1, 301):
            clock.now += 1.0
            if step == 200:
                model[1].momentum, optimizer.param_groups[0]["weight_decay"] = 0.0, 0.5
            optimizer.zero_grad()
            value = model(torch.randn(4, 2)).square().mean()
            value.backward()
            optimizer.step()
            rec.step(value.item())
    for quantity, layer, values in (("weight_decay", "", [0.01, 0.5]), ("statistics_momentum", "1", [0.1, 0.0])):
        series = rec.history.series(quantity, layer)
        assert series.values.tolist() == values
        assert series.steps[0] == 1
        assert 200 <= series.steps[1] <= 225


@pytest.mark.parametrize(("lr", "is_found"), [(1e-5, True), (0.1, False)])
def test_weights_that_are_rounded_after_every_step(lr: float, is_found: bool) -> None:
    torch.manual_seed(0)
    model, clock = nn.Sequential(nn.Linear(20, 30)), Clock()
    model.load_state_dict({name: p.bfloat16().float() for name, p in model.state_dict().items()})  # so far no fault
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    with wc.Recorder(model, optimizer, nn.MSELoss(), clock=clock) as rec:
        for step in range(1, 301):
            clock.now += 1.0
            optimizer.zero_grad()
            value = (model(torch.randn(16, 20)) - 1).square().mean()
            value.backward()
            optimizer.step()
            if step >= 200:
                model[0].weight.data.copy_(model[0].weight.data.bfloat16())
            rec.step(value.item())
    shares = rec.history.series("rounded_weights", "0")
    assert shares.values[-1] == 1.0
    steps = [each.step for each in rec.findings if each.rule == "lost-updates" and "float32" in each.summary]
    assert len(steps) == is_found
    assert all(200 <= (step or 0) <= 225 for step in steps)


def test_weights_that_become_bfloat16_are_recorded_on() -> None:
    model, clock = nn.Sequential(nn.Linear(20, 30)), Clock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wc.Recorder(model, optimizer, nn.MSELoss(), clock=clock) as rec:
        for step in range(200):
            clock.now += 1.0
            if step == 100:
                model.to(torch.bfloat16)
            optimizer.zero_grad()
            value = model(torch.randn(16, 20).to(model[0].weight)).float().square().mean()
            value.backward()
            optimizer.step()
            rec.step(value.item())
    assert not rec.problems
    assert len(rec.history.series("training_loss")) == 200
    rounded = rec.history.series("rounded_weights", "0")
    assert rounded.values[-1] == 1.0
    assert rounded.steps[-1] == pytest.approx(100, abs=25)


def test_weights_that_are_rounded_in_a_part_of_the_network() -> None:
    torch.manual_seed(0)
    model, clock = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 8), nn.Linear(8, 2)), Clock()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    with wc.Recorder(model, optimizer, nn.MSELoss(), clock=clock) as rec:
        for step in range(1, 301):
            clock.now += 1.0
            optimizer.zero_grad()
            value = (model(torch.randn(16, 4)) - 1).square().mean()
            value.backward()
            optimizer.step()
            if step >= 150:
                model[3].weight.data.copy_(model[3].weight.data.bfloat16())
            rec.step(value.item())
    (finding,) = [each for each in rec.findings if each.rule == "lost-updates"]
    assert finding.layer == "3"
    assert 150 <= (finding.step or 0) <= 175


def test_gradients_that_only_some_layers_do_not_clear() -> None:
    torch.manual_seed(0)
    body, head = nn.Linear(4, 8), nn.Linear(8, 1)
    model, clock = nn.Sequential(body, nn.Tanh(), head), Clock()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with wc.Recorder(model, optimizer, nn.MSELoss(), clock=clock) as rec:
        for step in range(1, 201):
            clock.now += 1.0
            head.zero_grad()
            if step < 120:
                body.zero_grad()
            value = (model(torch.randn(16, 4)) - 1).square().mean()
            value.backward()
            optimizer.step()
            rec.step(value.item())
    (finding,) = [each for each in rec.findings if each.rule == "gradients-not-cleared"]
    assert finding.layer == "0"
    assert finding.step == pytest.approx(120, abs=2)
    assert rec.history.series("uncleared_gradient", "0").steps[0] >= 120  # no more rows where all are cleared


def test_rows_of_zeros_are_not_rounded() -> None:
    torch.manual_seed(0)
    model, clock = nn.Sequential(nn.Embedding(8, 50, padding_idx=0), nn.Flatten(), nn.Linear(150, 1)), Clock()
    with torch.no_grad():
        model[0].weight[1:4] = 0.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    with wc.Recorder(model, optimizer, nn.MSELoss(), clock=clock) as rec:
        for _ in range(200):
            clock.now += 1.0
            optimizer.zero_grad()
            value = (model(torch.randint(4, 8, (16, 3))) - 1).square().mean()
            value.backward()
            optimizer.step()
            rec.step(value.item())
    assert rec.history.series("rounded_weights", "0").values.tolist() == [0.0]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("clips", [True, False])
def test_gradients_that_are_not_cleared_any_more_are_seen_at_once(set_to_none: bool, clips: bool) -> None:
    model, clock = nn.Linear(2, 3), Clock()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    with wc.Recorder(model, optimizer, nn.MSELoss(), budget=1e-6, clock=clock) as rec:
        for step in range(1, 301):
            clock.now += 1.0
            if step < 200:
                optimizer.zero_grad(set_to_none=set_to_none)
            value = model(torch.randn(4, 2, generator=generator)).square().mean()
            value.backward()
            if clips:
                nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            rec.step(value.item())
    old = rec.history.series("uncleared_gradient")
    assert old.steps[old.values > 0].tolist()[:1] == [201]
    (finding,) = [each for each in rec.findings if each.rule == "gradients-not-cleared"]
    assert 195 <= (finding.step or 0) <= 201


# labels of batches

INPUTS = torch.zeros(8, 2)
CLASSES = torch.tensor([3, 1, 3, 3, 3, 3, 3, 3])


@pytest.mark.parametrize(
    "batch",
    [(INPUTS, CLASSES), [INPUTS, INPUTS, CLASSES[:, None]], {"x": INPUTS, "labels": CLASSES}, (INPUTS, CLASSES == 3)],
)
def test_labels_of_a_batch(batch: Any) -> None:
    labels = labels_of(batch)
    assert labels is not None
    first, _ = BatchLabels().rows(16, labels.tolist())
    assert first.value == pytest.approx(7 / 8, abs=0.05)


@pytest.mark.parametrize(
    "batch",
    [
        INPUTS,
        CLASSES,  # inputs alone
        (INPUTS, INPUTS[:, 0]),  # numbers
        (INPUTS, CLASSES.expand(8, 8)),  # tokens
        (INPUTS, CLASSES[:4]),  # four may all be alike
        (INPUTS, torch.tensor(3)),
        (INPUTS, [3, 1, 3]),
        (INPUTS, None),
        {"x": INPUTS},
        None,
    ],
)
def test_batches_without_class_labels(batch: Any) -> None:
    assert labels_of(batch) is None


def test_labels_of_every_32nd_batch_are_recorded() -> None:
    model, clock = nn.Linear(2, 2), Clock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with wc.Recorder(model, optimizer, nn.CrossEntropyLoss(), budget=0.01, clock=clock) as rec:
        for step in range(1, 129):
            clock.now += 1.0
            optimizer.step()
            rec.step(0.5, (INPUTS, torch.full((8,), step // 96)))
    purity, commonest = (rec.history.series(name) for name in ("batch_purity", "commonest_label"))
    assert (purity.steps.tolist(), purity.values.tolist()) == ([32, 64, 96, 128], [1.0] * 4)
    assert (commonest.steps.tolist(), commonest.values.tolist()) == ([32, 96], [0.0, 1.0])  # where it changes


# weights


def test_weights_of_a_network_too_large_to_copy_are_read_some_layers_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_hooks, "MOST_COPIED", 20)
    torch.manual_seed(0)
    model, clock = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4))), Clock()  # of twelve numbers each
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ratios: dict[tuple[str, int], float] = {}
    with wc.Recorder(model, optimizer, nn.MSELoss(), budget=1.0, clock=clock) as rec:
        for step in range(1, 13):
            optimizer.zero_grad()
            value = model(torch.randn(8, 3)).square().mean()
            value.backward()
            before = {str(i): _flat(layer) for i, layer in enumerate(model)}
            optimizer.step()
            for name, old in before.items():
                ratios[name, step] = float((_flat(model[int(name)]) - old).norm() / old.norm())
            clock.now += 1.0
            rec.step(value)
    assert not len(rec.history.series("weight_norm"))  # of the whole network it is not known
    for layer in "0123":
        series = rec.history.series("update_ratio", layer)
        assert 2 <= len(series) <= 4
        expected = [ratios[layer, step] for step in series.steps.tolist()]
        assert series.values.tolist() == pytest.approx(expected, rel=1e-4)


def _flat(layer: nn.Module) -> Tensor:
    return torch.cat([p.detach().double().flatten() for p in layer.parameters()])


def test_updates_that_half_precision_rounds_away_are_counted() -> None:
    """Of four weights with a gradient two are so large that a step of a hundredth is nothing to them."""
    model = nn.Linear(5, 1, bias=False).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[100.0, 200.0, 0.5, 0.25, 1.0]]))
    x = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]], dtype=torch.bfloat16)
    with wc.Recorder(model, optimizer, nn.MSELoss()) as rec:
        value = model(x).sum()
        value.backward()
        optimizer.step()
        rec.step(value.item())
    assert rec.history.series("lost_updates").values.tolist() == [0.5]
