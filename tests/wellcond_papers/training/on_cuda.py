"""What must hold on a GPU, as plain functions.

`PYTHONPATH=src python tests/wellcond_papers/training/on_cuda.py` needs no pytest.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import wellcond as wc
from wellcond.optim.bnp import BNP
from wellcond.results import Row
from wellcond.results.run import Run
from wellcond_papers.data.batches import Batches
from wellcond_papers.data.dataset import Dataset
from wellcond_papers.models import resnet
from wellcond_papers.training import schedules
from wellcond_papers.training.checkpoint import Checkpoint
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.loop import READ_EVERY, Loop
from wellcond_papers.training.step import CapturedStep, EagerStep

STEPS = 24
GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randint(0, 256, (640, 3, 32, 32), dtype=torch.uint8, generator=GENERATOR)
DATA = Dataset(IMAGES, torch.arange(640) % 10, classes=tuple("0123456789"), name="noise")
SGD: Callable[[Any], Any] = lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, nesterov=True)  # noqa: E731


def network(norm: Any = True, dropout: float = 0.0, layout: Any = torch.contiguous_format) -> nn.Module:
    torch.manual_seed(0)
    model = resnet(8, norm=norm, seed=0)
    return nn.Sequential(model, nn.Dropout(dropout)).to("cuda", memory_format=layout)


def batches(**options: Any) -> Batches:
    return Batches(DATA, 64, device="cuda", augment=("crop", "flip"), **options)


def captured(model: nn.Module, optimizer: Any, steps: int = STEPS, **options: Any) -> Run:
    """Through `train_classifier`; that no graph could be captured is an error."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "a training step could not be captured")
        return train_classifier(model, optimizer, batches(), steps, **{"at": [], **options})


def eager(model: nn.Module, optimizer: Any, steps: int = STEPS, half: bool = False, **options: Any) -> Run:
    def loss_at(step: int, batch: Any) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return functional.cross_entropy(model(batch[0]), batch[1])

    return Loop(optimizer, EagerStep(optimizer, loss_at), steps, **options).run(batches())


def assert_alike(one: Run, other: Run, tolerance: float = 2e-2) -> None:
    """Kernels differ in their rounding, which training makes larger; one wrong step would change the loss by more."""
    a, b = torch.tensor(one.losses), torch.tensor(other.losses)
    assert a.shape == b.shape, (a.shape, b.shape)
    worst = float(((a - b).abs() / b).max())
    print(f"    largest difference of a loss: {worst:.1e}; losses {b[0]:.3f} to {b[-1]:.3f}")
    assert worst < tolerance, (one.losses, other.losses)
    assert float((b[1:] - b[:-1]).abs().max()) > 5 * worst * float(b.max()), "the losses say nothing"


def test_a_captured_step_is_the_eager_one() -> None:
    one, other = network(), network()
    assert_alike(captured(one, SGD(one.parameters())), eager(other, SGD(other.parameters())))


def test_with_adam() -> None:
    one, other = network(), network()
    optimizers = [torch.optim.Adam(model.parameters(), 1e-3) for model in (one, other)]
    assert_alike(captured(one, optimizers[0]), eager(other, optimizers[1]))


def test_a_schedule_changes_the_rate_of_a_captured_step() -> None:
    one, other = network(), network()
    schedule = schedules.warm_up(10, schedules.steps([15], 0.0))
    whole = captured(one, SGD(one.parameters()), schedule=schedule)
    assert_alike(whole, eager(other, SGD(other.parameters()), schedule=schedule))


def test_with_bnp_inside_the_graph() -> None:
    runs, statistics = [], []
    for train in (captured, eager):
        model = network(norm=False)
        optimizer = SGD(model.parameters())
        bnp = BNP(model, optimizer)
        runs.append(train(model, optimizer, **({"bnp": bnp} if train is captured else {})))
        statistics.append(torch.cat([layer.mean for layer in bnp.layers.values()]))
    assert_alike(*runs)
    assert torch.allclose(statistics[0], statistics[1], rtol=0.05, atol=0.02)


def test_in_bfloat16_and_channels_last() -> None:
    models = [network(layout=torch.channels_last) for _ in range(2)]
    one, other = models
    runs = captured(one, SGD(one.parameters()), half=True), eager(other, SGD(other.parameters()), half=True)
    assert_alike(*runs, tolerance=0.1)


def test_compiled() -> None:
    one, other = network(), network()
    assert_alike(captured(one, SGD(one.parameters()), compiled=True), eager(other, SGD(other.parameters())))


def test_dropout_draws_anew_in_every_replay() -> None:
    batch, losses = batches()(0), {}
    for dropout in (0.0, 0.5):
        model = network(dropout=dropout)
        still = torch.optim.SGD(model.parameters(), 0.0)
        losses[dropout] = train_classifier(model, still, lambda step: batch, STEPS, at=[]).losses
    assert max(losses[0.0]) - min(losses[0.0]) < 1e-4
    assert min(abs(a - b) for a, b in combinations(losses[0.5], 2)) > 0
    assert max(losses[0.5]) - min(losses[0.5]) > 0.01


def test_probes_do_not_disturb() -> None:
    x, y = batches()(0)

    def probe(step: int) -> list[Row]:
        model.train()
        model(x)
        torch.rand(3, device="cuda")
        functional.cross_entropy(model(x), y).backward()
        model.zero_grad()
        model.eval()
        return wc.conditioning(wc.Problem(model, functional.cross_entropy, [(x, y)])).rows(step)[:3]

    model = network(dropout=0.2)
    looked = captured(model, SGD(model.parameters()), at=range(0, STEPS, 5), probes=[probe], test=(x, y))
    other = network(dropout=0.2)
    assert_alike(looked, captured(other, SGD(other.parameters())))
    assert len(looked.evaluations) == 5 * (3 + 3) - 1


def test_divergence_is_found_late_and_at_the_right_step() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(8, 4), torch.zeros((), device="cuda")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            out: torch.Tensor = self.layer(x) * torch.where(self.calls == 20, torch.nan, 1.0)
            return out

    model = Broken().cuda()
    batch = torch.randn(16, 8, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda")
    heard: list[float] = []
    run = train_classifier(
        model, SGD(model.parameters()), lambda step: batch, 4 * READ_EVERY, at=[],
        progress=lambda what, share: heard.append(share),
    )  # fmt: skip
    assert (run.diverged_at, len(run.losses), heard) == (20, 19, [])


def test_a_resumed_run_is_like_the_whole_one() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def train(steps: int, keep: bool) -> Run:
            model = network(dropout=0.2)
            optimizer = SGD(model.parameters())
            parts = {"model": model, "optimizer": optimizer}
            checkpoint = Checkpoint(Path(folder) / "a.pt", parts, every=10) if keep else None
            return captured(model, optimizer, steps, checkpoint=checkpoint)

        train(10, True)
        assert_alike(train(STEPS, True), train(STEPS, False))


def test_a_network_that_synchronizes_is_trained_eagerly() -> None:
    class Synchronizing(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.dropout(super().forward(x), 0.1) * (1.0 if float(x.sum()) > -1e9 else 0.0)

    model = Synchronizing(8, 4).cuda()
    batch = torch.randn(16, 8, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = train_classifier(model, SGD(model.parameters()), lambda step: batch, 12, at=[])
    assert any("could not be captured" in str(w.message) for w in caught)
    assert run.losses[-1] < run.losses[0]


def test_a_hook_is_called_in_every_step() -> None:
    model, calls = network(), []
    model[0].register_forward_hook(lambda *arguments: calls.append(1))
    captured(model, SGD(model.parameters()))
    assert len(calls) == STEPS


def test_lbfgs_runs_eagerly() -> None:
    model = nn.Linear(8, 4).cuda()
    batch = torch.randn(16, 8, device="cuda"), torch.zeros(16, dtype=torch.int64, device="cuda")
    run = train_classifier(model, torch.optim.LBFGS(model.parameters()), lambda step: batch, 3, at=[])
    assert run.losses[-1] < 0.1 * run.losses[0]


def test_a_batch_of_another_size_is_taken_eagerly() -> None:
    model, sizes = network(), [64] * 8 + [32] + [64] * 8
    x, y = batches()(0)
    optimizer = SGD(model.parameters())
    step = CapturedStep(model, optimizer, lambda batch: functional.cross_entropy(model(batch[0]), batch[1]))
    run: Run = Loop(optimizer, step, len(sizes)).run(lambda k: (x[: sizes[k]], y[: sizes[k]]))
    twin = network()
    optimizer = SGD(twin.parameters())
    eager_step = EagerStep[Any](optimizer, lambda k, b: functional.cross_entropy(twin(b[0]), b[1]))
    other: Run = Loop(optimizer, eager_step, len(sizes)).run(lambda k: (x[: sizes[k]], y[: sizes[k]]))
    assert_alike(run, other)


TESTS = [function for name, function in list(globals().items()) if name.startswith("test_")]

if __name__ == "__main__":
    import sys
    import traceback

    torch.backends.cudnn.allow_tf32 = False
    failed = 0
    for function in TESTS:
        print(function.__name__, flush=True)
        try:
            function()
        except Exception:
            failed += 1
            traceback.print_exc(file=sys.stdout)
    print(f"{len(TESTS) - failed} of {len(TESTS)} hold")
    raise SystemExit(failed)
