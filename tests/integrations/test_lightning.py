"""Lightning: a plain loop sees what is recorded, the training is the one without us, and verdicts come before it."""

from __future__ import annotations

import contextlib
import copy
import doctest
import importlib
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain import Clock, assert_same
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc
from wellcond.integrations.lightning_plan import planned
from wellcond.problem.apart import taken_apart

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


@pytest.fixture(autouse=True)
def quiet(lightning: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def integration(lightning: Any) -> Any:
    return wc.integrations.lightning


@pytest.fixture
def kinds(lightning: Any) -> dict[str, Any]:
    """Modules that are trained in different ways, with the same layers and the same losses."""
    torchmetrics = importlib.import_module("torchmetrics")

    class Automatic(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, accumulate: int = 1, dropout: float = 0.0) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 10))
            self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)
            self.accumulate = accumulate

        def loss(self, batch: Any) -> Any:
            inputs, targets = batch
            outputs = self.net(inputs)
            self.accuracy(outputs, targets)
            return cross_entropy(outputs, targets)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert self.trainer.max_epochs == 2
            value = self.loss(batch)
            self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
            self.log_dict({"train_loss": value})
            return {"loss": value, "seen": 1}

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-2, momentum=0.9)

    class Manual(Automatic):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.automatic_optimization = False
            self.batches = 0

        def training_step(self, batch: Any) -> Any:
            optimizer = self.optimizers()
            value = self.loss(batch)
            self.manual_backward(value / self.accumulate)
            self.batches += 1
            if self.batches % self.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            return value

    return {"automatic": Automatic, "manual": Manual}


def digits(batches: int = 12) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*(tensor[: 16 * batches] for tensor in wc.digits())), batch_size=16)


def trained(lightning: Any, module: Any, callbacks: list[Any], **options: Any) -> dict[str, Any]:
    """All that a training has changed, with what it has logged."""
    clocks = [each._options["clock"] for each in callbacks]

    class Ticking(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, *_: Any) -> None:
            for clock in clocks:
                clock.now += 1.0

    if module.automatic_optimization:
        options["accumulate_grad_batches"] = module.accumulate
    trainer = lightning.Trainer(max_epochs=2, callbacks=[Ticking(), *callbacks], **QUIET, **options)
    trainer.fit(module, digits(), digits(2))
    return {
        "weights": module.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "random numbers": torch.get_rng_state(),
        "metrics": dict(trainer.callback_metrics),
        "attributes": sorted(vars(module)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["automatic", "manual"])
def test_the_training_is_bit_for_bit_the_one_without_us(
    lightning: Any, integration: Any, kinds: Any, kind: str
) -> None:
    callback = integration.RecorderCallback(budget=1.0, clock=Clock())
    without, with_it = (
        trained(lightning, kinds[kind](accumulate=2, dropout=0.3), callbacks, gradient_clip_val=None)
        for callbacks in ([], [callback])
    )
    assert_same(with_it, without)
    assert callback.recorder.problems == []
    assert len(callback.recorder.history.series("validation_loss")) == 2
    for quantity in ("hessian_lambda_max", "input_lambda_max", "beta"):  # there were probes, which run the step
        assert len(callback.recorder.history.series(quantity)) or callback.recorder.history.layers(quantity), quantity


@pytest.mark.slow
def test_clipped_gradients_are_recorded_before_and_after(lightning: Any, integration: Any, kinds: Any) -> None:
    callback = integration.RecorderCallback(budget=1.0, clock=Clock())
    trained(lightning, kinds["automatic"](), [callback], gradient_clip_val=0.1)
    history = callback.recorder.history
    assert history.series("gradient_norm").values == pytest.approx(0.1, rel=1e-4)
    assert (history.series("unclipped_gradient_norm").values > 0.2).all()


@pytest.mark.slow
def test_a_training_goes_on_from_a_checkpoint(lightning: Any, integration: Any, kinds: Any, tmp_path: Path) -> None:
    def fit(epochs: int, checkpoint: Path | None) -> Any:
        callback = integration.RecorderCallback(tmp_path / "run")
        trainer = lightning.Trainer(max_epochs=2, limit_val_batches=0, callbacks=[callback], **QUIET)
        trainer.fit_loop.max_epochs = epochs
        kind = type("Any", (kinds["automatic"],), {"training_step": lambda self, batch: self.loss(batch)})
        trainer.fit(kind(), digits(), ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "checkpoint")
        return callback.recorder

    fit(1, None)
    rec = fit(2, tmp_path / "checkpoint")
    assert rec.history.series("training_loss").steps.tolist() == [*range(1, 25)]
    assert wc.read_run(tmp_path / "run").history.series("training_loss").steps.tolist() == [*range(1, 25)]


def test_two_optimizers_are_recorded_together(lightning: Any, integration: Any) -> None:
    class Adversarial(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.automatic_optimization = False
            self.generator, self.critic = nn.Linear(2, 2), nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer, sign in zip(self.optimizers(), (1, -1), strict=True):
                self.toggle_optimizer(optimizer)
                value = sign * self.critic(self.generator(batch[0])).mean()
                self.manual_backward(value)
                optimizer.step()
                optimizer.zero_grad()
                self.untoggle_optimizer(optimizer)

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(each.parameters(), lr=0.1) for each in (self.generator, self.critic)]

    callback = integration.RecorderCallback(budget=1.0)
    trainer = lightning.Trainer(max_steps=12, callbacks=[callback], **QUIET)
    loader = DataLoader(TensorDataset(torch.randn(48, 2)), batch_size=8)
    trainer.fit(Adversarial(), loader)
    assert callback.recorder.problems == []
    assert {*callback.recorder.history.layers("gradient_norm")} >= {"generator", "critic"}
    assert len(callback.recorder.history.series("training_loss")) == 6
    with pytest.raises(wc.errors.InvalidProblem, match="2 optimizers hold parameters"):
        integration.diagnose(trainer, Adversarial(), loader)


def test_an_error_in_the_training_leaves_no_hooks(lightning: Any, integration: Any, kinds: Any) -> None:
    class Failing(kinds["automatic"]):  # type: ignore[misc, name-defined]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            assert batch_idx < 3
            return self.loss(batch)

    module, callback = Failing(), integration.RecorderCallback()
    with pytest.raises(AssertionError):
        lightning.Trainer(callbacks=[callback], **QUIET).fit(module, digits())
    assert len(callback.recorder.run.history.series("training_loss")) == 3
    assert not any(each._forward_hooks for each in module.modules())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["automatic", "manual"])
def test_a_verdict_before_training(lightning: Any, integration: Any, kinds: Any, kind: str) -> None:
    """From all that trainer, module and datamodule have; and none of them is changed."""

    class Data(lightning.LightningDataModule):  # type: ignore[misc]
        def setup(self, stage: str) -> None:
            assert stage == "fit"
            self.inputs, self.targets = wc.digits()

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(self.inputs, self.targets), batch_size=32, shuffle=True)

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            return 100 * batch[0], batch[1]

    class Scheduled(kinds[kind]):  # type: ignore[misc, name-defined]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            steps = int(self.trainer.estimated_stepping_batches)
            assert steps == 58
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 10.0, total_steps=steps)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module, data = Scheduled(), Data()
    accumulation = {"accumulate_grad_batches": 2} if kind == "automatic" else {"limit_train_batches": 29}
    trainer = lightning.Trainer(max_epochs=2, **accumulation, **QUIET)
    weights, state = copy.deepcopy(module.state_dict()), torch.get_rng_state()
    attributes = dict(vars(module))
    diagnosis = integration.diagnose(trainer, module, datamodule=data)
    assert "unscaled-input" in {
        finding.rule for finding in diagnosis.findings
    }  # by what the datamodule does to batches
    suggested = integration.suggest_lr(trainer, module, datamodule=data, max_steps=60)
    assert suggested.lr < 1.0
    treatment = integration.treat(trainer, module, datamodule=data, steps=4, seeds=[0], remedies=["adam"])
    assert treatment.arms
    assert_same(dict(module.state_dict()), dict(weights))
    assert torch.equal(torch.get_rng_state(), state)
    assert vars(module) == attributes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "is_apart"),
    [
        ("its own call", True),
        ("a part", True),
        ("parts in turn", True),
        ("a function between", False),
        ("a part twice", False),
        ("a penalty", False),
    ],
)
def test_a_step_that_calls_the_module_or_its_parts_in_turn_is_taken_apart(
    lightning: Any, integration: Any, form: str, is_apart: bool
) -> None:
    class Digits(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.act, self.head = nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)
            self.net = nn.Sequential(self.encoder, self.act, self.head)
            self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

        def forward(self, inputs: Any) -> Any:
            outputs = self.net(inputs)
            return outputs if form in ("its own call", "a penalty") else outputs.softmax(1)  # as for a prediction

        def outputs(self, inputs: Any) -> Any:
            if form == "a part":
                return self.net(inputs)
            if form == "parts in turn":
                return self.head(self.act(self.encoder(inputs)))
            if form == "a function between":
                return self.head(self.encoder(inputs).relu())
            if form == "a part twice":
                return self.net(inputs) - self.net(0 * inputs)
            return self(inputs)

        def shared_step(self, batch: Any) -> Any:
            inputs, targets = batch
            value = self.criterion(self.outputs(inputs), targets)
            self.log("loss", value)
            return value + 0.1 * self.head.weight.square().sum() if form == "a penalty" else value

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.shared_step(batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module, loader = Digits(), digits(3)
    attributes = dict(vars(module))
    trainer = lightning.Trainer(max_epochs=1, **QUIET)
    with planned(trainer, module, loader) as plan, plan.as_called():
        apart = taken_apart(plan.problem)
        assert (apart is not plan.problem) == is_apart
        if is_apart:
            with contextlib.closing(apart.data()) as data:
                inputs, targets = next(data)[1]
            assert inputs.shape == (len(targets), 64)
            assert targets.dtype == torch.int64
            own = cross_entropy(module.net(inputs), targets, label_smoothing=0.1)
            assert float(apart.loss(module(inputs), targets)) == pytest.approx(float(own))
            twin = copy.deepcopy(module)
            nn.init.zeros_(twin.head.weight)
            assert not torch.equal(twin(inputs), module(inputs))
    assert vars(module) == attributes
    says = str(integration.diagnose(trainer, module, loader))
    assert ("the outputs, the targets" not in says) == is_apart


@pytest.mark.slow
def test_several_loaders_and_schedules_by_epoch(lightning: Any, integration: Any, kinds: Any) -> None:
    class Two(kinds["automatic"]):  # type: ignore[misc, name-defined]
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return self.loss(batch["first"]) + self.loss(batch["second"])

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

        def train_dataloader(self) -> Any:
            return {"first": digits(3), "second": digits(5)}

    trainer = lightning.Trainer(max_epochs=2, accumulate_grad_batches=2, **QUIET)
    with planned(trainer, Two()) as plan:
        assert (plan.steps, plan.steps_between) == (6, 3)
        assert not plan.diagnose().failed.keys() & {"layers", "Hessian eigenvalues"}


@pytest.mark.slow
def test_the_older_package_takes_the_callback_too(integration: Any, kinds: Any) -> None:
    older = pytest.importorskip("pytorch_lightning")

    class Older(older.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return cross_entropy(self.layer(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback = integration.RecorderCallback()
    older.Trainer(max_epochs=1, callbacks=[callback], **QUIET).fit(Older(), digits())
    assert len(callback.recorder.history.series("training_loss")) == 12


def test_the_examples_in_docstrings(integration: Any) -> None:
    result = doctest.testmod(integration)
    assert result.attempted
    assert not result.failed


def test_all_processes_of_a_sharded_model_record_and_of_another_the_first(
    integration: Any, kinds: dict[str, Any], process_group: None
) -> None:
    def recorder_of_another_process(sharded: bool) -> Any:
        module = kinds["automatic"]()
        if sharded:
            fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        trainer = SimpleNamespace(
            is_global_zero=False,
            precision_plugin=None,
            lr_scheduler_configs=[],
            optimizers=[torch.optim.SGD(module.parameters(), lr=0.1)],
        )
        callback = integration.RecorderCallback()
        callback.on_train_start(trainer, module)
        return callback.recorder

    assert recorder_of_another_process(sharded=False) is None
    recorder = recorder_of_another_process(sharded=True)
    assert "norms are those of whole parameters" in recorder.notes[0]
    recorder.close()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["an optimizer", "a dict"])
def test_a_rate_is_set_where_the_module_makes_its_optimizer(
    lightning: Any, integration: Any, kinds: Any, form: str
) -> None:
    """Pasted before the training, the lines change what it is trained with."""

    class Slow(kinds["automatic"]):  # type: ignore[misc, name-defined]
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-8)
            return optimizer if form == "an optimizer" else {"optimizer": optimizer}

    own, fit, data = Slow(), lightning.Trainer(max_epochs=2, **QUIET), digits()
    finding = integration.diagnose(fit, own, data).findings[0]
    assert finding.rule == "learning-rate-too-low"
    assert "suggest_lr(fit, own, data)" in finding.remedy
    exec(finding.remedy, {"fit": fit, "own": own, "data": data, "wc": wc})
    fit.fit(own, data)
    assert fit.optimizers[0].param_groups[0]["lr"] > 1e-5
