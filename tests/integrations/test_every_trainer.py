"""Every trainer in every precision, with and without accumulation: a plain loop sees what is recorded, and the training
is bit for bit the one without us."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from plain import Clock, assert_recorded, assert_same, grad_scaler, plain_loop
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import wellcond as wc

EPOCHS, RATE, MOMENTUM = 2, 0.05, 0.9
DTYPES = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Net(nn.Module):
    """A network that returns its loss if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.net(inputs)
        return logits if labels is None else {"loss": cross_entropy(logits.float(), labels), "logits": logits}


def adapted() -> nn.Module:
    """The network with adapters of PEFT, which alone are trained."""
    import peft

    net = Net()
    config = peft.LoraConfig(r=4, target_modules=["net.0", "net.3"], init_lora_weights="gaussian")
    model: nn.Module = peft.get_peft_model(net, config)
    return model


@dataclass
class Way:
    """How a training is done.

    Attributes:
        model: What is trained.
        dtype: That of autocast; None for none.
        accumulate: Batches of a step.
        folder: Where a trainer may write.
        clock: Goes on with every batch; on it recording takes no time. None if nothing is recorded.
    """

    model: nn.Module
    dtype: torch.dtype | None
    accumulate: int
    folder: Path
    clock: Clock | None

    @property
    def loader(self) -> DataLoader[Any]:
        return DataLoader(TensorDataset(*(tensor[:192] for tensor in wc.digits())), batch_size=16)

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=MOMENTUM)

    def recorder(self, *args: Any, **options: Any) -> wc.Recorder | None:
        return None if self.clock is None else wc.Recorder(*args, budget=1.0, clock=self.clock, **options)

    def tick(self) -> None:
        if self.clock is not None:
            self.clock.now += 1.0


Trained = tuple[torch.optim.Optimizer, list[float], wc.Recorder | None]
"""The optimizer after a training, its losses as the trainer tells them, and the recorder."""


def by_hand(way: Way, model: nn.Module | None = None, optimizer: Any = None, batches: Any = None) -> Trained:
    model, optimizer = model or way.model, optimizer or way.optimizer()
    scaler, losses = grad_scaler(way.dtype), []
    rec = way.recorder(model, optimizer, nn.CrossEntropyLoss(), scaler=scaler)
    for _ in range(EPOCHS):
        for i, (inputs, targets) in enumerate(batches or way.loader, start=1):
            way.tick()
            with torch.autocast("cpu", way.dtype, enabled=way.dtype is not None):
                value = cross_entropy(model(inputs).float(), targets)
            scaler.scale(value / way.accumulate).backward()
            losses.append(value.item())
            if i % way.accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            if rec is not None:
                rec.step(value, (inputs, targets))
    if rec is not None:
        rec.close()
    return optimizer, losses, rec


def by_lightning(way: Way, is_automatic: bool = True) -> Trained:
    import lightning.pytorch as lightning
    from lightning.pytorch.plugins import MixedPrecision

    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization, self.batches = way.model.net, is_automatic, 0

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            value = cross_entropy(self.net(batch[0]).float(), batch[1])
            if is_automatic:
                return value
            self.manual_backward(value / way.accumulate)
            self.batches += 1
            if self.batches % way.accumulate == 0:
                self.optimizers().step()
                self.optimizers().zero_grad()
            return value

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=RATE, momentum=MOMENTUM)

    class Watching(lightning.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            way.tick()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
            losses.append((outputs["loss"] if isinstance(outputs, dict) else outputs).item())

    options: dict[str, Any] = {"precision": "bf16-mixed"} if way.dtype == torch.bfloat16 else {}
    if way.dtype == torch.float16:
        options = {"plugins": [MixedPrecision("16-mixed", device="cpu", scaler=grad_scaler(way.dtype))]}
    if is_automatic:
        options["accumulate_grad_batches"] = way.accumulate
    callback = None
    if way.clock is not None:
        callback = wc.integrations.lightning.RecorderCallback(budget=1.0, clock=way.clock)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    callbacks = [Watching(), *([callback] if callback else [])]
    trainer = lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=callbacks, **options, **quiet)
    trainer.fit(Module(), way.loader)
    return trainer.optimizers[0], losses, callback and callback.recorder


def by_transformers(way: Way) -> Trained:
    import transformers

    inputs, labels = (tensor[:192] for tensor in wc.digits())
    data = [{"inputs": x, "labels": y} for x, y in zip(inputs, labels, strict=True)]
    quiet = {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    args = transformers.TrainingArguments(
        str(way.folder),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=way.accumulate,
        num_train_epochs=EPOCHS,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_strategy="no",
        bf16=way.dtype == torch.bfloat16,
        fp16=way.dtype == torch.float16,
        **quiet,
    )
    losses: list[float] = []

    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(data)

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            way.tick()
            value: Tensor = super().training_step(*args, **kwargs)
            losses.append(value.item())
            return value

    trainer = Trainer(way.model, args, train_dataset=data, optimizers=(way.optimizer(), None))
    if way.dtype is not None and not trainer.accelerator.native_amp:
        pytest.skip("Accelerate has no float16 on a CPU")
    callback = None
    if way.clock is not None:
        callback = wc.integrations.transformers.RecorderCallback(trainer, budget=1.0, clock=way.clock)
        trainer.add_callback(callback)
    trainer.train()
    return trainer.optimizer, losses, callback and callback.recorder


def by_accelerate(way: Way) -> Trained:
    import accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    precision = {None: "no", torch.bfloat16: "bf16", torch.float16: "fp16"}[way.dtype]
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=way.accumulate, mixed_precision=precision
    )
    if way.dtype is not None and not accelerator.native_amp:
        pytest.skip("Accelerate has no float16 on a CPU")
    model, optimizer, loader = accelerator.prepare(way.model, way.optimizer(), way.loader)
    rec, losses = way.recorder(model, optimizer, nn.CrossEntropyLoss(), scaler=accelerator.scaler), []
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            way.tick()
            with accelerator.accumulate(model):
                value = cross_entropy(model(inputs), targets)
                accelerator.backward(value)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(value.item())
            if rec is not None:
                rec.step(value, (inputs, targets))
    if rec is not None:
        rec.close()
    return optimizer.optimizer, losses, rec


def by_ray(way: Way) -> Trained:
    """In a worker that is this process."""
    import ray.train
    from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

    results: list[Trained] = []

    def worker(config: dict[str, Any]) -> None:
        model = prepare_model(way.model)
        results.append(by_hand(way, model, way.optimizer(), prepare_data_loader(way.loader)))
        rec = results[0][2]
        if rec is not None:
            metrics = wc.integrations.latest(rec)
            assert metrics["wellcond/training_loss"] == rec.history.series("training_loss").values[-1]
            ray.train.report(metrics)

    TorchTrainer(worker, train_loop_config={}, scaling_config=ray.train.ScalingConfig(num_workers=0)).fit()
    return results[0]


TRAINERS: dict[str, tuple[str, Callable[[Way], Trained]]] = {
    "plain": ("torch", by_hand),
    "lightning": ("lightning", by_lightning),
    "lightning, manual": ("lightning", lambda way: by_lightning(way, is_automatic=False)),
    "transformers": ("transformers", by_transformers),
    "accelerate": ("accelerate", by_accelerate),
    "ray": ("ray.train", by_ray),
    "peft": ("peft", by_hand),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_gradients_are_those_of_a_plain_loop_and_the_training_is_the_one_without_us(
    trainer: str, precision: str, accumulate: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    library, train = TRAINERS[trainer]
    if library in ("lightning", "transformers"):
        request.getfixturevalue(library)
    pytest.importorskip(library)
    dtype, make = DTYPES[precision], adapted if trainer == "peft" else Net
    states, recorder = [], None
    for clock in (None, Clock()):
        model = make()
        optimizer, losses, rec = train(Way(model, dtype, accumulate, tmp_path, clock))
        states.append([model.state_dict(), optimizer.state_dict()["state"], torch.get_rng_state(), losses])
        recorder = rec or recorder
    for with_us, without in zip(*states, strict=True):
        assert_same(with_us, without)
    assert len(losses) == EPOCHS * 12

    plain = make()
    way = Way(plain, dtype, accumulate, tmp_path, None)

    def loss_of(batch: Any) -> Tensor:
        return cross_entropy(plain(batch[0]).float(), batch[1])

    expected = plain_loop(plain, way.optimizer(), loss_of, [*way.loader] * EPOCHS, accumulate, dtype)
    assert recorder is not None
    assert_recorded(recorder, *expected)
    assert set(recorder.history.series("accumulated").values) == {accumulate}
    assert len(recorder.history.series("max_lr"))  # there were probes, which run the model
    assert_same(dict(copy.deepcopy(plain).named_parameters()), dict(model.named_parameters()))
